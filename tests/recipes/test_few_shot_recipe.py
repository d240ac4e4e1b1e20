"""recipes/few_shot.py as a user starts it, on two processes; its configs against the papers."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, set_seed

from hf_tlm.config import parse
from hf_tlm.data import train_wordpiece
from hf_tlm.runs import CheckpointArguments, FewShotArguments, run_few_shot
from hf_tlm.tasks import TaskArguments, load_task
from support.launching import fails, run_recipe
from support.toys import TINY_CONFIGS, sentences

CONFIGS = Path(__file__).resolve().parent.parent.parent / "recipes/configs/few_shot"
PROMPT = ["--template", "{text} It was {mask}.", "--label_words", "down=bad", "none=fine", "up=good"]


@pytest.fixture(scope="module")
def checkpoint(work):
    texts = [row["text"] for row in sentences(40)] + ["It was good. It was bad. It was fine."] * 40
    tokenizer = train_wordpiece(texts, 200, max_length=32)
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    set_seed(5)
    config = AutoConfig.for_model("bert", **{**TINY_CONFIGS["bert"], **off, "vocab_size": len(tokenizer)})
    AutoModelForMaskedLM.from_config(config).save_pretrained(work / "masked-lm")
    tokenizer.save_pretrained(work / "masked-lm")
    return work / "masked-lm"


def predictions(folder):
    lines = (folder / "split-13/predictions/test.jsonl").read_text(encoding="utf-8").splitlines()
    return {line["id"]: line["probabilities"] for line in map(json.loads, lines)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_compute_the_results_of_one(work, checkpoint):
    config = work / "few_shot.yaml"
    config.write_text("few_shot:\n  k: 4\n  splits: 1\n  learning_rates: [1e-2]\n  batch_sizes: [4]\n  max_steps: 2\n")
    text = run_recipe(
        "recipes/few_shot.py", "--config", config, "--task", work / "task", "--model_name_or_path", checkpoint, *PROMPT,
        "--eval_steps", "1", "--max_length", "32", "--use_cpu", "true", "--report_to", "none", "--output_dir", work / "two",
        "--report", processes=2,
    )  # fmt: skip
    assert text.count("test macro_f1") == 1 and str(work / "two") in text
    assert text.count("task         ") == 1 and "(train 48, validation 24, test 24, 3 classes)" in text
    assert text.count("report       ") == 1 and (work / "two/analysis/report.html").is_file()
    args = FewShotArguments(
        output_dir=str(work / "one"), k=4, splits=1, learning_rates=[1e-2], batch_sizes=[4], max_steps=2, eval_steps=1,
        template=PROMPT[1], label_words=PROMPT[3:], max_length=32, use_cpu=True, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    run_few_shot(load_task(str(work / "task")), CheckpointArguments(model_name_or_path=str(checkpoint)), args)
    one, two = predictions(work / "one"), predictions(work / "two")
    assert one.keys() == two.keys() and len(one) == 24
    for name, expected in one.items():
        assert two[name] == pytest.approx(expected, abs=1e-5)
    assert json.loads((work / "two/results.json").read_text())["environment"]["processes"] == 2


def few_shot_arguments(tmp_path, *files):
    config = ["--config", *(str(CONFIGS / f"{name}.yaml") for name in files)]
    needed = ["--task", "x", "--model_name_or_path", "x", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    classes = (TaskArguments, CheckpointArguments, FewShotArguments)
    return parse(*classes, recipe="few_shot", description="", args=[*config, *needed])[-1]


def test_configs_have_the_settings_of_the_papers(tmp_path):
    """LM-BFF, and COCO-LM, section 5.3: 'everything else kept same'."""
    args = few_shot_arguments(tmp_path, "lm_bff")
    assert (args.k, args.run_split_seeds) == (16, [13, 21, 42, 87, 100])
    assert (args.learning_rates, args.batch_sizes) == ([1e-5, 2e-5, 5e-5], [2, 4, 8])
    assert (args.max_steps, args.eval_steps, args.warmup_steps, args.weight_decay) == (1000, 100, 0, 0.0)
    assert args.demonstrations and args.demonstration_sets == 16 and args.method == "prompt"
    coco_lm = few_shot_arguments(tmp_path, "lm_bff", "coco_lm")
    assert coco_lm.learning_rates == [3e-6, 4e-6, 5e-6]
    changed = {name for name, value in coco_lm.to_dict().items() if value != args.to_dict()[name]}
    assert changed == {"learning_rates"}
    assert few_shot_arguments(tmp_path, "tiny").splits == 2
    # The defaults have the same grid.
    plain = FewShotArguments(use_cpu=True)
    assert (plain.learning_rates, plain.batch_sizes, plain.split_seeds) == (
        args.learning_rates,
        args.batch_sizes,
        args.split_seeds,
    )
    assert (plain.k, plain.splits, plain.max_steps, plain.eval_steps) == (16, 5, 1000, 100)


@pytest.mark.parametrize("optim", ["lamb", "muon"])
def test_optimizers_for_training_from_scratch_are_refused(tmp_path, optim):
    fails(
        "recipes/few_shot.py", "--task", tmp_path / "nowhere", "--model_name_or_path", "x", "--optim", optim,
        "--output_dir", tmp_path / "out", message=f"optim {optim} is for large batches and training from scratch",
    )  # fmt: skip
