"""recipes/finetune.py as a user starts it: two steps, on one process and on two, and predictions from the finished run."""

import json
import runpy
import sys

import pytest
from transformers import AutoConfig, AutoModel, set_seed

from launching import ROOT, launch

FAST = ["--max_length", "32", "--max_steps", "2", "--total_batch_size", "8", "--report_to", "none", "--use_cpu", "true"]
FAST += ["--learning_rate", "1e-2"]


@pytest.fixture(scope="module")
def base(work, tokenizer):
    set_seed(0)
    config = AutoConfig.from_pretrained(work / "model.json", vocab_size=len(tokenizer))
    AutoModel.from_config(config).save_pretrained(work / "base")
    tokenizer.save_pretrained(work / "base")
    return work / "base"


def command(work, base, out, *more):
    files = ["--task", work / "task", "--model_name_or_path", base, "--output_dir", out]
    return ["recipes/finetune.py", *files, *FAST, *more]


def here(monkeypatch, capsys, *arguments):
    """Run the recipe in this process; its standard output."""
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    return capsys.readouterr().out


def test_two_processes_find_what_one_finds_and_a_finished_run_predicts(work, base, tmp_path, monkeypatch, capsys):
    one = here(monkeypatch, capsys, *command(work, base, tmp_path / "one", "--seeds", "0", "1"))
    assert "validation  macro_f1" in one and "over 2 seeds" in one
    predict = ["--predict", work / "task" / "test.jsonl", "--predict_output"]
    out = launch(*command(work, base, tmp_path / "two", *predict, tmp_path / "two.jsonl"), processes=2)
    assert f"predictions  {tmp_path / 'two.jsonl'}" in out
    results = [json.loads((tmp_path / name / "results.json").read_text())["seeds"][0] for name in ("one", "two")]
    for split in ("validation", "test"):
        lines = [(tmp_path / name / f"seed-0/predictions/{split}.jsonl").read_text().splitlines() for name in ("one", "two")]
        for first, second in zip(*(map(json.loads, text) for text in lines), strict=True):
            assert first["id"] == second["id"]
            assert first["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)
        assert results[0][split] == pytest.approx(results[1][split])
    assert results[0]["cost"]["real_tokens"] == results[1]["cost"]["real_tokens"]

    seed = tmp_path / "two" / "seed-0" / "model" / "model.safetensors"
    before = seed.stat().st_mtime_ns
    here(monkeypatch, capsys, *command(work, base, tmp_path / "two", *predict, tmp_path / "again.jsonl"))
    assert seed.stat().st_mtime_ns == before
    expected = [json.loads(line)["prediction"] for line in lines[1]]
    for name in ("two", "again"):
        assert [json.loads(line)["prediction"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()] == expected


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--task", "nothing"], "the following arguments are required"),
        (["--task", "nothing", "--model_name_or_path", "x"], "No task 'nothing'"),
        (["--task", "x", "--model_name_or_path", "x", "--train_fraction", "0"], "train_fraction must lie in (0, 1]"),
        (["--task", "x", "--model_name_or_path", "x", "--predict_format", "glue"], "has no effect without predict"),
    ],
)
def test_bad_input(arguments, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        here(monkeypatch, capsys, "recipes/finetune.py", *arguments)
    assert stop.value.code in (1, 2) and message in capsys.readouterr().err
