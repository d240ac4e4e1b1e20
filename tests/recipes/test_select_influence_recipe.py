"""recipes/select_influence.py as a user starts it, on one and two processes, and further pretraining on its selection."""

import json
from pathlib import Path

import datasets
import pytest

from hf_tlm.retrieval import Subset
from support.launching import PRETRAIN, fails, run_recipe

SCORE = ["--max_length", "32", "--vocab_size", "120", "--num_train_epochs", "1", "--report_to", "none", "--use_cpu", "true"]
SCORE += ["--save_strategy", "no"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_influence_on_two_processes_equals_one_and_is_trained_on(work, subset):
    common = ["recipes/select_influence.py", "--task", work / "task", "--subset", subset, *SCORE, "--fraction", "0.3"]
    # With two processes: the score model is trained first, and both read the files that one has written.
    scratch = ["--model_config", work / "model.json", "--report", "--output_dir", work / "iss"]
    models = Path(datasets.config.HF_DATASETS_CACHE) / "hf_tlm"  # Other tests may have left score models.
    before = set(models.glob("score_model-*"))
    text = run_recipe(*common, *scratch, processes=2)
    assert "influence" in (work / "iss/analysis/report.html").read_text(encoding="utf-8")
    whole, kept = Subset.load(subset), Subset.load(work / "iss")
    assert len(kept) == round(0.3 * len(whole)) and f"{len(kept)} of {len(whole)} passages by influence" in text
    table = {row["id"]: row for row in whole.dataset}
    for row in kept.dataset:
        assert {name: row[name] for name in table[row["id"]]} == table[row["id"]]
    assert datasets.load_dataset(str(work / "iss"), split="train").column_names[-2:] == ["influence", "influence_rank"]
    # With the score model as a checkpoint, one and two processes select the same passages with the same scores.
    (score_model,) = set(models.glob("score_model-*")) - before
    selections = []
    for processes in (1, 2):
        out, scores = work / f"iss-{processes}", work / f"scores-{processes}"
        text = run_recipe(
            *common, "--score_model", score_model, "--work_dir", scores, "--output_dir", out, processes=processes,
        )  # fmt: skip
        assert text.count("selected: ") == 1
        selections.append((Subset.load(out), sorted(path.read_bytes() for path in scores.rglob("scores-*"))))
    assert (
        selections[0][0].dataset.to_dict() == selections[1][0].dataset.to_dict()
        and selections[0][1] == selections[1][1] != []
    )
    assert selections[0][0].manifest["selection"]["score_model"] == [f"hf_tlm/{score_model.name}"]
    # Further pretraining of an adapter on the selected passages.
    text = run_recipe(
        "recipes/pretrain.py", "--subset", work / "iss", *PRETRAIN, "--model_name_or_path", score_model / "mlm",
        "--use_peft", "true", "--lora_r", "2", "--report", "--output_dir", work / "further",
    )  # fmt: skip
    assert 'id="curves"' in (work / "further/analysis/report.html").read_text(encoding="utf-8")
    assert "perplexity" in text and (work / "further/adapter/adapter_model.safetensors").is_file()
    record = json.loads((work / "further/results.json").read_text())
    assert record["corpus"]["name"].endswith(", for task") and record["trained_parameters"] < record["parameters"]


@pytest.mark.slow
def test_selection_by_a_teacher_on_two_processes_equals_one(work, subset):
    """No score model is trained, and both processes get the answers that one has computed."""
    common = ["recipes/select_influence.py", "--task", work / "task", "--subset", subset, "--method", "confidence"]
    common += ["--teacher", "linear", "--balance", "class", "--fraction", "0.3", "--use_cpu", "true"]
    subsets = []
    for processes in (1, 2):
        text = run_recipe(*common, "--output_dir", work / f"by-{processes}", "--report", processes=processes)
        assert text.count("selected: ") == 1 and "by how certain a teacher is of them" in text
        subsets.append(Subset.load(work / f"by-{processes}"))
        page = (work / f"by-{processes}/analysis/report.html").read_text(encoding="utf-8")
        assert "teacher score" in page and "--method confidence" in page and "--teacher linear" in page
    assert subsets[0].dataset.to_dict() == subsets[1].dataset.to_dict() and subsets[0].manifest == subsets[1].manifest
    fails("recipes/select_influence.py", *common[1:5], "--method", "confidence", "--fraction", "0.3", "--output_dir",
          work / "none", message="needs a --teacher")  # fmt: skip


@pytest.mark.slow
def test_dsir_selects_a_number_of_passages(work, subset):
    out = work / "dsir"
    text = run_recipe(
        "recipes/select_influence.py", "--task", work / "task", "--subset", subset, "--method", "dsir", "--num_passages",
        "7", "--use_cpu", "true", "--report_to", "none", "--output_dir", out,
    )  # fmt: skip
    kept = Subset.load(out)
    assert len(kept) == 7 and "selected: 7 of" in text and kept.manifest["selection"]["method"] == "dsir"


def test_options_without_effect_are_warned_about(work, subset, tmp_path, caplog):
    options = ["--method", "random", "--num_passages", "7000", "--teacher", "linear", "--rho2", "7"]
    options += ["--output_dir", tmp_path / "out"]
    fails("recipes/select_influence.py", "--task", work / "task", "--subset", subset, *options, message="7,000")
    assert "These options have no effect with method random: teacher linear, rho2 7.0." in caplog.text


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--fraction", "0.2", "--subset", "{subset}"], "--output_dir is missing"),
        (["--subset", "{subset}", "--output_dir", "{out}"], "fraction"),
        (["--num_passages", "7000", "--method", "random", "--subset", "{subset}", "--output_dir", "{out}"], "7,000"),
        (["--fraction", "0.2", "--layer", "9", "--subset", "{subset}", "--output_dir", "{out}"], "layer"),
    ],
)
def test_errors_have_no_traceback(work, subset, tmp_path, arguments, message):
    filled = [argument.format(subset=subset, out=tmp_path / "out") for argument in arguments]
    model = ["--model_config", work / "model.json"]
    fails("recipes/select_influence.py", "--task", work / "task", *SCORE, *model, *filled, message=message)
