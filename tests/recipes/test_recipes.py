"""Every recipe as a user starts it: `accelerate launch`, two steps, toy files; one of them on two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from toys import TINY_CONFIGS, sentences

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = ["--max_length", "32", "--vocab_size", "120", "--max_steps", "2", "--stage2_max_steps", "2", "--report_to", "none"]
TINY += ["--stage2_eval_steps", "1", "--use_cpu", "true", "--save_strategy", "no", "--rho1", "1"]


def launch(*arguments, config=None, processes=1, status=0):
    """Run a recipe from the repository root; its standard output, or its standard error where it has to fail.

    config: of `recipes/configs/accelerate`; on CPUs whatever it is for.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command += ["--num_machines", "1", "--num_processes", str(processes)]
    if config is None:
        command += ["--cpu"]
    else:
        command += ["--config_file", f"recipes/configs/accelerate/{config}.yaml"]
        command += ["--main_process_port", str(20000 + os.getpid() % 20000)]
        command += ["tests/recipes/fsdp_on_cpus.py"] if config == "fsdp" else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode != 0) == (status != 0), done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    (folder / "task").mkdir()
    for split, count in (("train", 48), ("validation", 24), ("test", 24)):
        Dataset.from_list(sentences(count, len(split))).to_json(folder / "task" / f"{split}.jsonl")
    Dataset.from_list([{"text": row["text"]} for row in sentences(60, 9)]).to_parquet(folder / "corpus.parquet")
    values = {k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}
    # Without dropout, whose draws differ between processes, one and two processes compute the same.
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "model.json").write_text(json.dumps({"model_type": "bert", **values, **off}))
    return folder


@pytest.fixture(scope="module")
def subset(work):
    out = launch(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--top_k", "4",
        "--output_dir", work / "subset",
    )  # fmt: skip
    assert "of 60 passages" in out and "retrieved:" in out
    return work / "subset"


def test_retrieve_random_like(work, subset):
    launch(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--retriever", "random",
        "--like", subset, "--output_dir", work / "random",
    )  # fmt: skip
    from hf_tlm.retrieval import Subset

    assert len(Subset.load(work / "random").dataset) == len(Subset.load(subset).dataset)


def test_retrieve_sharded_equals_one_index(work, subset):
    out = launch(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--top_k", "4",
        "--retriever", "sharded", "--num_shards", "2", "--work_dir", work / "shards", "--output_dir", work / "sharded",
    )  # fmt: skip
    from hf_tlm.retrieval import Subset

    assert Subset.load(work / "sharded").dataset.to_list() == Subset.load(subset).dataset.to_list()
    assert "sharded, lucene" in out and "## Sources" in (work / "sharded" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--corpus", "{corpus}", "--top_k", "0"], "top_k must be at least 1; received 0"),
        (["--top_k", "3"], "--corpus is missing"),
        (["--corpus", "{task}/test.jsonl", "--retriever", "elasticsearch"], "needs --elastic_index"),
        (["--corpus", "{corpus}", "--index_dir", "{task}"], "exists and is not an index"),
    ],
)
def test_errors_of_retrieve_are_messages_without_a_traceback(work, tmp_path, arguments, message):
    filled = [argument.format(task=work / "task", corpus=work / "corpus.parquet") for argument in arguments]
    fails("recipes/retrieve.py", "--task", work / "task", *filled, "--output_dir", tmp_path / "out", message=message)


def fails(*arguments, message):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode in (1, 2)
    assert message in done.stderr and "Traceback" not in done.stderr, done.stderr[-3000:]


def test_train_tlm_with_replaced_token_detection(work, subset):
    values = {k: v for k, v in TINY_CONFIGS["electra"].items() if k not in ("vocab_size", "num_labels")}
    (work / "electra.json").write_text(json.dumps({"model_type": "electra", **values}))
    out = launch(
        "recipes/train_tlm.py", "--task", work / "task", "--subset", subset, "--model_config", work / "electra.json", *TINY,
        "--objective", "electra", "--auxiliary_size", "0.5", "--logging_steps", "1", "--output_dir", work / "electra",
    )  # fmt: skip
    assert "cost a seed" in out
    entry = json.loads((work / "electra/seed-0/stage1/trainer_state.json").read_text())["log_history"][0]
    assert 0 < entry["corpus/rtd_loss"] and 0 < entry["corpus/replaced_fraction"] < 1
    from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraForSequenceClassification

    for cls, folder in (
        (ElectraForSequenceClassification, ""),
        (ElectraForPreTraining, "discriminator"),
        (ElectraForMaskedLM, "generator"),
    ):
        _, info = cls.from_pretrained(work / "electra" / folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


@pytest.mark.timeout(600)
def test_train_tlm_on_one_and_two_processes(work, subset):
    """Equal total batches, with DDP and with FSDP: the same losses, scores, predictions and cost, to rounding."""
    results = {}
    for config, processes in ((None, 1), ("cpu_2", 2), ("fsdp", 2)):
        out = work / f"run-{config}"
        text = launch(
            "recipes/train_tlm.py", "--task", work / "task", "--subset", subset, "--model_config", work / "model.json",
            *TINY, "--max_steps", "4", "--total_batch_size", "8", "--per_device_train_batch_size", 8 // processes,
            "--stage2_total_batch_size", "8", "--logging_steps", "1", "--output_dir", out, config=config,
            processes=processes,
        )  # fmt: skip
        assert text.count("cost a seed") == 1
        history = json.loads((out / "seed-0/stage1/trainer_state.json").read_text())["log_history"]
        results[config] = {
            "results": json.loads((out / "results.json").read_text()),
            "losses": [entry["loss"] for entry in history if "loss" in entry],
            **{
                split: [json.loads(line) for line in (out / f"seed-0/predictions/{split}.jsonl").read_text().splitlines()]
                for split in ("validation", "test")
            },
        }
    assert list((work / "run-fsdp/seed-0/stage2").glob("checkpoint-*/pytorch_model_fsdp.bin")), "FSDP was not used"
    one = results.pop(None)
    for two in results.values():
        assert two["results"]["environment"]["processes"] == 2
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
        for split in ("validation", "test"):
            for ours, expected in zip(two[split], one[split], strict=True):
                assert ours["id"] == expected["id"]
                assert ours["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-4)
        for key in ("steps", "tokens", "real_tokens", "flops"):
            assert one["results"]["seeds"][0]["cost"][key] == two["results"]["seeds"][0]["cost"][key], key


def test_train_tlm_from_yaml(work, subset):
    config = work / "config.yaml"
    config.write_text(f"train_tlm:\n  model_config: {work / 'model.json'}\n  rho2: 5\nretrieve:\n  top_k: 3\n")
    launch(
        "recipes/train_tlm.py", "--config", config, "--task", work / "task", "--subset", subset, *TINY, "--seeds", "0", "1",
        "--output_dir", work / "yaml",
    )  # fmt: skip
    results = json.loads((work / "yaml/results.json").read_text())
    assert results["arguments"]["rho2"] == 5 and len(results["seeds"]) == 2


PRETRAIN = ["--max_length", "16", "--vocab_size", "120", "--max_steps", "3", "--total_batch_size", "4", "--use_cpu", "true"]
PRETRAIN += ["--report_to", "none", "--save_strategy", "no", "--logging_steps", "1", "--validation_share", "0.2"]
PRETRAIN += ["--config", "recipes/configs/pretrain/tiny.yaml"]


@pytest.mark.timeout(600)
def test_pretrain_on_one_and_two_processes(work):
    """Equal total batches: the same losses, on the same blocks, to rounding. Masked LM and ELECTRA."""
    values = {k: v for k, v in TINY_CONFIGS["electra"].items() if k not in ("vocab_size", "num_labels")}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (work / "electra.json").write_text(json.dumps({"model_type": "electra", **values, **off}))
    options = ["--objective", "electra", "--auxiliary_size", "0.5", "--model_config", work / "electra.json"]
    # As many blocks for each process: accelerate would show some of them twice to even them out.
    options += ["--max_validation_blocks", "8", "--per_device_eval_batch_size", "4"]
    records, losses = {}, {}
    for config, processes in ((None, 1), ("cpu_2", 2)):
        out = work / f"pretrain-{config}"
        text = launch(
            "recipes/pretrain.py", "--corpus", work / "corpus.parquet", *PRETRAIN, *options, "--per_device_train_batch_size",
            4 // processes, "--output_dir", out, config=config, processes=processes,
        )  # fmt: skip
        assert text.count("rtd loss") == 1 and text.count("3 steps, 192 tokens") == 1
        records[processes] = json.loads((out / "results.json").read_text())
        log = json.loads((out / "training/trainer_state.json").read_text())["log_history"]
        losses[processes] = [entry["loss"] for entry in log if "loss" in entry]
        assert (out / "generator/model.safetensors").is_file()
    assert records[2]["environment"]["processes"] == 2 and len(losses[1]) == 3
    assert losses[2] == pytest.approx(losses[1], rel=1e-4)
    for name, value in records[1]["validation"].items():
        # `loss` alone is a mean of means of batches.
        assert name == "loss" or records[2]["validation"][name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.timeout(600)
def test_coco_lm_and_a_task_trained_from_it(work, subset):
    """Pretraining on two processes; then the subset and a task, which nobody has tried."""
    values = {k: v for k, v in TINY_CONFIGS["cocolm"].items() if k not in ("vocab_size", "num_labels", "copy_head")}
    (work / "cocolm.json").write_text(json.dumps({"model_type": "cocolm", **values}))
    out = work / "cocolm"
    text = launch(
        "recipes/pretrain.py", "--corpus", work / "corpus.parquet", *PRETRAIN, "recipes/configs/pretrain/cocolm_tiny.yaml",
        "--model_config", work / "cocolm.json", "--max_steps", "2", "--per_device_train_batch_size", "2", "--output_dir",
        out, config="cpu_2", processes=2,
    )  # fmt: skip
    assert (
        text.count("scl loss") == 1 and "copy accuracy original" in text and (out / "generator/model.safetensors").is_file()
    )
    launch(
        "recipes/train_tlm.py", "--task", work / "task", "--subset", subset, *TINY, "--max_length", "16", "--objective",
        "cocolm", "--model_name_or_path", out, "--logging_steps", "1", "--output_dir", work / "cocolm-task",
    )  # fmt: skip
    log = json.loads((work / "cocolm-task/seed-0/stage1/trainer_state.json").read_text())["log_history"]
    assert {"corpus/scl_loss", "corpus/lm_loss"} <= log[0].keys() and any("task/task_loss" in entry for entry in log)
    folders = {path.name for path in (work / "cocolm-task").iterdir() if (path / "config.json").is_file()}
    assert folders == {"mlm", "generator"}


def test_pretrain_from_yaml_and_on(work):
    """A masked LM, and a task trained from it."""
    config = work / "pretrain.yaml"
    config.write_text(f"pretrain:\n  model_config: {work / 'model.json'}\n  blocks: sentences\ntrain_tlm:\n  rho1: 7\n")
    command = ["recipes/pretrain.py", "--corpus", work / "corpus.parquet", *PRETRAIN, config, "--output_dir", work / "mlm"]
    assert "perplexity" in launch(*command)
    before = (work / "mlm/results.json").read_bytes()
    assert "perplexity" in launch(*command) and (work / "mlm/results.json").read_bytes() == before
    launch(
        "recipes/train_tlm.py", "--task", work / "task", *TINY, "--rho1", "0", "--max_length", "16", "--model_name_or_path",
        work / "mlm", "--output_dir", work / "further",
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--rho1", "3"], "unknown argument --rho1"),
        (["--corpus", "{corpus}", "--stage2_max_steps", "3"], "unknown argument --stage2_max_steps"),
        ([], "--corpus is missing"),
        (["--corpus", "{corpus}", "--max_length", "500", "--validation_share", "0.9"], "does not fill one block of 500"),
        (["--corpus", "{corpus}", "--max_length", "4000"], "max_length 4000 needs 4000 positions"),
        (["--corpus", "{corpus}", "--objective", "ale"], "objective ale is ELECTRA on an ALBERT body"),
    ],
)
def test_errors_of_pretrain_are_messages_without_a_traceback(work, tmp_path, arguments, message):
    filled = [argument.format(corpus=work / "corpus.parquet") for argument in arguments]
    fails("recipes/pretrain.py", *PRETRAIN, *filled, "--output_dir", tmp_path / "out", message=message)


def test_quickstart_on_own_data(work):
    out = launch(
        "recipes/quickstart.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--output_dir",
        work / "quick", "--max_steps", "2", "--stage2_max_steps", "2", "--top_k", "4",
    )  # fmt: skip
    table = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(table) == 8 and "BM25 subset" in table[-1]
    assert (work / "quick/model/model.safetensors").is_file() and not list((work / "quick/model").glob("seed-*"))
    assert len(json.loads((work / "quick/table.json").read_text())) == 6


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--task", "{task}", "--subset", "nowhere"], "nowhere is not a saved subset"),
        (["--task", "nowhere", "--subset", "{subset}"], "No task 'nowhere'"),
        (["--task", "{task}", "--subset", "{subset}", "--label_column", "y"], "no column 'y'"),
        (["--task", "{task}"], "give --subset"),
        (["--task", "{task}", "--subset", "{subset}", "--rho1", "0.5"], "rho1 must be"),
        (["--task", "{task}", "--subset", "{subset}", "--config", "nowhere.yaml"], "Cannot read --config nowhere.yaml"),
        (["--task", "{task}", "--subset", "{subset}", "--model_config", "nowhere.json"], "neither a JSON file"),
    ],
)
def test_errors_are_messages_without_a_traceback(work, subset, tmp_path, arguments, message):
    filled = [argument.format(task=work / "task", subset=subset) for argument in arguments]
    fails("recipes/train_tlm.py", *TINY, *filled, "--output_dir", tmp_path / "out", message=message)
