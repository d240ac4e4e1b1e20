"""The command: a run of its own is exported and predicted with, and options that do nothing are refused."""

import pytest

from support import warm
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task, sentences, write_files


def hf_tlm(*arguments, status=0):
    done = warm.command(arguments, limit=280)
    assert done.status == status, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.slow
def test_export_and_predict(tmp_path, tokenizer):
    write_files(tmp_path)
    base = pretrained(tmp_path / "base", tokenizer, "modernbert")
    go(tmp_path / "run", base, make_task(), max_steps=2)
    checked = ["--task", tmp_path / "task", "--max_drop", "100"]
    said = hf_tlm("export", "--model_name_or_path", tmp_path / "run", "--output_dir", tmp_path / "out", *checked)
    assert "onnx/model_quantized.onnx" in said and "checked on  validation of task (24 texts)" in said
    (tmp_path / "new.txt").write_text("".join(f"{row['text']}\n" for row in sentences(5, 7)))
    model = ["--model_name_or_path", tmp_path / "out", "--backend", "onnx", "--num_threads", "1"]
    hf_tlm("predict", *model, "--data", tmp_path / "new.txt", "--output", tmp_path / "new.csv")
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "--text_column", "body"], "--text_column has no effect without --task"),
        (["export", "--opset", "9"], "expected a whole number from 18 to 23; received 9"),
        (["export", "--dtypes", "int2"], "invalid choice: 'int2'"),
        (["export", "--dtypes", "fp32"], "No model 'no/such/place'"),
        (["predict", "--data", __file__, "--num_threads", "2"], "num_threads 2 has no effect without --backend onnx"),
        (["predict", "--data", __file__, "--backend", "onnx", "--use_cpu", "true"], "use_cpu True has no effect with"),
    ],
)
def test_refused_in_a_line(arguments, words):
    command, *rest = arguments
    said = hf_tlm(
        command, "--model_name_or_path", "no/such/place", *rest, status=2 if "invalid" in words or "opset" in rest[0] else 1
    )
    assert words in said and "Traceback" not in said
