"""recipes/finetune.py as a user starts it: two steps, on one process and on two, and predictions from the finished run."""

import json

import pytest
from transformers import AutoConfig, AutoModel, set_seed

from hf_tlm import HfTlmError
from hf_tlm.evaluation import CheckpointArguments, FinetuneArguments, FinetuneOptions, PredictArguments
from hf_tlm.parser import parse
from launching import fails, launch

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


def test_two_processes_find_what_one_finds_and_a_finished_run_predicts(work, base, tmp_path):
    one = launch(*command(work, base, tmp_path / "one", "--seeds", "0", "1"))
    assert "validation  macro_f1" in one and "over 2 seeds" in one
    launch(*command(work, base, tmp_path / "two"), processes=2)
    results = [json.loads((tmp_path / name / "results.json").read_text())["seeds"][0] for name in ("one", "two")]
    for split in ("validation", "test"):
        lines = [(tmp_path / name / f"seed-0/predictions/{split}.jsonl").read_text().splitlines() for name in ("one", "two")]
        for first, second in zip(*(map(json.loads, text) for text in lines), strict=True):
            assert first["id"] == second["id"]
            assert first["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)
        assert results[0][split] == pytest.approx(results[1][split])
    assert results[0]["cost"]["real_tokens"] == results[1]["cost"]["real_tokens"]

    predict = ["--predict", work / "task" / "test.jsonl", "--predict_output", tmp_path / "texts.jsonl"]
    before = (tmp_path / "two" / "model.safetensors").stat().st_mtime_ns
    out = launch(*command(work, base, tmp_path / "two", *predict), processes=2)
    assert f"predictions  {tmp_path / 'texts.jsonl'}" in out
    found = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in lines[1]]
    assert [line["prediction"] for line in found] == [line["prediction"] for line in expected]
    seed = tmp_path / "two" / "seed-0" / "model" / "model.safetensors"
    assert seed.stat().st_mtime_ns <= before


def test_no_model():
    fails("recipes/finetune.py", "--task", "nothing", message="the following arguments are required: --model_name_or_path")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--train_fraction", "0"], "train_fraction must lie in"),
        (["--predict_format", "glue"], "has no effect without predict"),
        (["--predict_output", "x"], "has no effect without predict"),
        (["--lora_r", "0"], "lora_r must be at least 1"),
    ],
)
def test_bad_input(arguments, message, tmp_path):
    classes = (CheckpointArguments, PredictArguments, FinetuneOptions)
    command = ["--model_name_or_path", "x", "--output_dir", str(tmp_path), "--use_cpu", "true", *arguments]
    with pytest.raises(HfTlmError, match=message):
        parse(*classes, recipe="finetune", description="", args=command)


def test_files_give_what_the_command_line_gives(tmp_path):
    sections = "finetune:\n  seeds: [1, 2]\npretrain:\n  blocks: sentences\n"
    (tmp_path / "a.yaml").write_text(f"model_name_or_path: x\nlearning_rate: 3e-5\n{sections}")
    command = ["--config", str(tmp_path / "a.yaml"), "--output_dir", str(tmp_path), "--use_cpu", "true"]
    checkpoint, args = parse(CheckpointArguments, FinetuneOptions, recipe="finetune", description="", args=command)
    assert (checkpoint.model_name_or_path, args.learning_rate, args.run_seeds) == ("x", 3e-5, [1, 2])
    assert type(args) is FinetuneArguments
