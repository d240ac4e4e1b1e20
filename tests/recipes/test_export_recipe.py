"""The command `hf-tlm export`: a run is exported and predicted with, and options without effect are refused."""

import subprocess
import sys

import pytest
from datasets import Dataset

from support import warm
from support.tiny_checkpoints import pretrained
from support.toys import sentences

HERE = ("--model_name_or_path", ".")


def hf_tlm(*arguments, status=0):
    done = warm.command(arguments, limit=280)
    assert done.status == status, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.slow
def test_exported_run_predicts(tmp_path, tokenizer):
    """The task is found from the run's record while its data are unchanged; otherwise --task is needed."""
    table = tmp_path / "reviews.csv"
    rows = [{"body": row["text"], "label": row["label"]} for row in sentences(60, 3)]
    Dataset.from_list(rows).to_csv(table, sep=";")
    base = pretrained(tmp_path / "base", tokenizer, "modernbert")
    options = ["--task", table, "--text_column", "body", "--validation_share", "0.4", "--separator", ";"]
    train = ["--model_name_or_path", base, "--output_dir", tmp_path / "run", "--max_steps", "2", "--max_length", "32"]
    hf_tlm(
        "finetune",
        *options,
        *train,
        "--use_cpu",
        "true",
        "--save_strategy",
        "no",
        "--eval_strategy",
        "no",
        "--select_by",
        "last",
    )
    export = ["export", "--model_name_or_path", tmp_path / "run", "--output_dir", tmp_path / "out", "--max_drop", "100"]
    output = hf_tlm(*export)
    assert f"task        {table}, which the run was trained on" in output and "onnx/model_quantized.onnx" in output
    assert "checked on  validation of reviews (25 texts)" in output
    table.rename(tmp_path / "moved.csv")
    output = hf_tlm(*export, status=1)
    assert (
        "reviews.csv, the task of run, is not a file or folder on this machine. Pass --task" in output
        and "Traceback" not in output
    )
    (tmp_path / "moved.csv").rename(table)
    with table.open("a") as file:
        file.write("one more;a\n")
    assert "reviews.csv have changed since run was trained. Pass --task" in hf_tlm(*export, status=1)
    (tmp_path / "new.txt").write_text("".join(f"{row['text']}\n" for row in sentences(5, 7)))
    model = ["--model_name_or_path", tmp_path / "out", "--backend", "onnx", "--num_threads", "1"]
    hf_tlm("predict", *model, "--data", tmp_path / "new.txt", "--output", tmp_path / "new.csv")
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", *HERE, "--text_column", "body"], "--text_column has no effect without --task or --data"),
        (["export", *HERE, "--data", __file__, "--label_column", "body"], "--label_column has no effect without --task"),
        (
            ["export", *HERE],
            "int8: expected texts for the check; received none. . is not the folder of a run, which records its task. "
            "Pass --task",
        ),
        (["export"], "Model 'no/such/place' not found: expected the folder of a finished run, or a Hub id"),
        (["export", "--opset", "9"], "expected a whole number from 18 to 23; received 9"),
        (["export", "--dtypes", "int2"], "invalid choice: 'int2'"),
        (["export", "--dtypes", "fp32"], "Model 'no/such/place' not found"),
        (["export", "--task", "no-such-task"], "Model 'no/such/place' not found"),
        (["predict", "--data", __file__], "Model 'no/such/place' not found"),
        (["predict", "--data", __file__, "--num_threads", "2"], "num_threads 2 has no effect without --backend onnx"),
        (["predict", "--data", __file__, "--backend", "onnx", "--use_cpu", "true"], "use_cpu True has no effect with"),
    ],
)
def test_invalid_option_is_refused_in_one_line(arguments, words):
    command, *rest = arguments
    output = hf_tlm(
        command, "--model_name_or_path", "no/such/place", *rest, status=2 if "invalid" in words or "--opset" in rest else 1
    )
    assert words in output and "Traceback" not in output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["export", "--model_name_or_path", "./nix"],
            "Model './nix' not found: expected the folder of a finished run, or a",
        ),
        (
            ["export", "--model_name_or_path", "runs/nix"],
            "There is no local folder runs/nix, and a model on the Hub names no task. Pass --task",
        ),
        (
            ["export", "--model_name_or_path", "./baseline/linear"],
            "Model './baseline/linear' not found: expected the folder of a finished run, or a Hub id (owner/name). Did you "
            "mean baselines?",
        ),
        (["export", "--model_name_or_path", "runs/tikets"], "names no task. Did you mean runs/tickets? Pass --task"),
        (["export", "--model_name_or_path", "export"], "export is itself an export and has no weights. Pass the model from"),
        (["export", "--model_name_or_path", "baselines"], "baselines is a linear model, which has no graph to export"),
        (["predict", "--model_name_or_path", "./nix", "--data", __file__], "Model './nix' not found: expected the folder"),
        (
            ["export", "--model_name_or_path", "./nix", "--page", "true"],
            "page: expected a folder to write; received true. Name one, such as --page page.",
        ),
    ],
)
def test_mistaken_folder_is_reported_before_heavy_imports(command, words, tmp_path):
    """Importing torch and datasets takes seconds."""
    for file in ("export/export.json", "baselines/linear/linear.json", "runs/tickets/config.json"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("{}")
    program = (
        "import sys\n"
        "from hf_tlm.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert stop.code == 1, stop.code\n"
        "assert not {'torch', 'datasets'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and words in done.stderr, done.stdout + done.stderr
