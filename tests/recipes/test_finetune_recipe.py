"""recipes/finetune.py as a user starts it: two steps on one and two processes, and predictions of the finished run."""

import json
import runpy
import sys

import pytest
from transformers import AutoConfig, AutoModel, set_seed

from hf_tlm import HfTlmError
from hf_tlm.config import parse
from hf_tlm.runs import CheckpointArguments, FinetuneArguments, PredictArguments
from support.launching import ROOT, fails, run_recipe

FAST = ["--max_length", "32", "--max_steps", "2", "--total_batch_size", "8", "--report_to", "none", "--use_cpu", "true"]
FAST += ["--learning_rate", "1e-2"]


@pytest.fixture(scope="module")
def base(work, tokenizer):
    set_seed(0)
    config = AutoConfig.from_pretrained(work / "model.json", vocab_size=len(tokenizer))
    AutoModel.from_config(config).save_pretrained(work / "base")
    tokenizer.save_pretrained(work / "base")
    return work / "base"


def finetune_command(work, base, out, *more):
    files = ["--task", work / "task", "--model_name_or_path", base, "--output_dir", out]
    return ["recipes/finetune.py", *files, *FAST, *more]


def run_here(monkeypatch, capsys, *arguments):
    """Run the recipe in this process; return its standard output."""
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_compute_the_results_of_one_and_predict(work, base, tmp_path, monkeypatch, capsys):
    one = run_here(monkeypatch, capsys, *finetune_command(work, base, tmp_path / "one", "--seeds", "0", "1", "--report"))
    page = (tmp_path / "one/analysis/report.html").read_text(encoding="utf-8")
    assert "validation: errors, the most confident first" in page and 'id="scores"' in page and "What is missing" not in page
    assert "validation  macro_f1" in one and "over 2 seeds" in one
    predict = ["--predict", work / "task" / "test.jsonl", "--predict_output"]
    out = run_recipe(*finetune_command(work, base, tmp_path / "two", *predict, tmp_path / "two.jsonl"), processes=2)
    assert f"predictions  {tmp_path / 'two.jsonl'}" in out
    records = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two")]
    assert [record["environment"]["processes"] for record in records] == [1, 2]
    results = [record["seeds"][0] for record in records]
    for split in ("validation", "test"):
        lines = [(tmp_path / name / f"seed-0/predictions/{split}.jsonl").read_text().splitlines() for name in ("one", "two")]
        for first, second in zip(*(map(json.loads, text) for text in lines), strict=True):
            assert first["id"] == second["id"]
            assert first["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)
        assert results[0][split] == pytest.approx(results[1][split])
    assert results[0]["cost"]["real_tokens"] == results[1]["cost"]["real_tokens"]

    seed = tmp_path / "two" / "seed-0" / "model" / "model.safetensors"
    before = seed.stat().st_mtime_ns
    run_here(monkeypatch, capsys, *finetune_command(work, base, tmp_path / "two", *predict, tmp_path / "again.jsonl"))
    assert seed.stat().st_mtime_ns == before
    expected = [json.loads(line)["prediction"] for line in lines[1]]
    for name in ("two", "again"):
        assert [json.loads(line)["prediction"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()] == expected


@pytest.mark.slow
def test_teacher_on_two_processes_gives_the_results_of_one(work, base, subset, tmp_path, monkeypatch, capsys):
    """Both processes use the teacher's answers; texts, passages and answers of each step are divided between them."""
    run_here(monkeypatch, capsys, *finetune_command(work, base, tmp_path / "teacher"))
    taught = [
        "--subset",
        subset,
        "--teacher",
        tmp_path / "teacher",
        "--teacher_passages",
        "20",
        "--teacher_temperature",
        "2",
    ]
    run_recipe(*finetune_command(work, base, tmp_path / "two", *taught), processes=2)
    run_here(monkeypatch, capsys, *finetune_command(work, base, tmp_path / "one", *taught))
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert two["environment"]["processes"] == 2 and one["teacher"] == two["teacher"] and one["teacher"]["passages"] > 0
    for split in ("validation", "test"):
        lines = [(tmp_path / name / f"seed-0/predictions/{split}.jsonl").read_text().splitlines() for name in ("one", "two")]
        for first, second in zip(*(map(json.loads, text) for text in lines), strict=True):
            assert first["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)
    assert one["seeds"][0]["cost"]["real_tokens"] == two["seeds"][0]["cost"]["real_tokens"]


def test_missing_model_or_task_is_reported():
    fails("recipes/finetune.py", "--task", "nothing", message="the following arguments are required: --model_name_or_path")
    fails("recipes/finetune.py", "--task", "nothing", "--model_name_or_path", "x", message="No task 'nothing'")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--predict_format", "glue"], "has no effect without predict"),
        (["--predict_output", "x"], "has no effect without predict"),
    ],
)
def test_invalid_options_are_refused(arguments, message, tmp_path):
    classes = (CheckpointArguments, PredictArguments, FinetuneArguments)
    finetune_command = ["--model_name_or_path", "x", "--output_dir", str(tmp_path), "--use_cpu", "true", *arguments]
    with pytest.raises(HfTlmError, match=message):
        parse(*classes, recipe="finetune", description="", args=finetune_command)


def test_options_are_read_from_a_config_file(tmp_path):
    sections = "finetune:\n  seeds: [1, 2]\npretrain:\n  blocks: sentences\n"
    (tmp_path / "a.yaml").write_text(f"model_name_or_path: x\nlearning_rate: 3e-5\n{sections}")
    finetune_command = ["--config", str(tmp_path / "a.yaml"), "--output_dir", str(tmp_path), "--use_cpu", "true"]
    checkpoint, args = parse(
        CheckpointArguments, FinetuneArguments, recipe="finetune", description="", args=finetune_command
    )
    assert (checkpoint.model_name_or_path, args.learning_rate, args.run_seeds) == ("x", 3e-5, [1, 2])
    assert type(args) is FinetuneArguments


@pytest.mark.parametrize("option", ["--optim muon --use_peft true", "--crf true --use_peft true"])
def test_conflicting_options_are_refused_before_the_task_is_read(option, tmp_path):
    nowhere = ["--task", tmp_path / "nowhere", "--model_name_or_path", "a/b", "--output_dir", tmp_path / "out"]
    fails("recipes/finetune.py", *nowhere, *FAST, *option.split(), message="use_peft")
