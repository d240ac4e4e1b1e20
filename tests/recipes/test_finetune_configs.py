"""The files of recipes/configs/finetune against the tables of the papers, transcribed as printed."""

import json
from pathlib import Path

import pytest

from hf_tlm.config import parse
from hf_tlm.runs import CheckpointArguments, FinetuneArguments, GridArguments
from hf_tlm.tasks import TASKS, TaskArguments

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "configs" / "finetune"
# COCO-LM, Tables 7 and 8: epochs; learning rates for base/base++ and for large++; batch sizes; warm-up proportions.
COCO_LM = {
    "glue_small_tasks": ("2, 3, 5, 10", "2e-5, 3e-5, 4e-5, 5e-5", "7e-6, 1e-5, 2e-5, 3e-5", "16, 32", "6%, 10%"),
    "glue_large_tasks": ("2, 3, 5", "1e-5, 2e-5, 3e-5, 4e-5", "5e-6, 7e-6, 1e-5, 2e-5", "32", "6%"),
    "squad": ("2, 3", "2e-5, 3e-5, 4e-5, 5e-5", "7e-6, 1e-5, 2e-5, 3e-5", "16, 32", "6%, 10%"),
}
# The same in both tables for every task: sequence length, Adam's epsilon and betas, weight decay; no clip norm.
COCO_LM_SHARED = {
    "max_length": 512,
    "adam_epsilon": 1e-6,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "weight_decay": 0.01,
    "max_grad_norm": 0.0,
    "lr_scheduler_type": "linear",
}
# ALE, Table VI: learning rate, train batch size, epochs.
TABLE_VI = """
    mrpc  2e-4 64  3
    cola  7e-5 32  3
    mnli  4e-4 256 3
    sst2  3e-4 256 3
    qqp   5e-4 256 3
    qnli  2e-4 256 3
    rte   3e-4 32  10
    stsb  3e-5 8   10"""
# ALE, section IV.A and Table III: length, learning rate, epochs, CRF.
SECTION_IV = {
    ("ale_race_bert",): (384, 5e-5, 3, False),
    ("ale_race_xlnet",): (384, 2e-5, 2, False),
    ("ale_penn_treebank",): (128, 5e-5, 3, False),
    ("ale_penn_treebank", "ale_penn_treebank_crf"): (128, 5e-5, 3, True),
}


def read(*names, path):
    """Return (arguments, grid) as the recipe parses them."""
    files = [str(FOLDER / f"{name}.yaml") for name in names]
    command = ["--task", "x", "--model_name_or_path", "x", "--output_dir", str(path), "--use_cpu", "true"]
    classes = (TaskArguments, CheckpointArguments, GridArguments, FinetuneArguments)
    parsed = parse(*classes, recipe="finetune", description="", args=["--config", *files, *command])
    return parsed[-1], parsed[-2].read(parsed[-1].seeds)


def numbers(text):
    """Parse the numbers of a table's cell."""
    return [float(part.rstrip("%")) / (100 if part.endswith("%") else 1) for part in text.split(", ")]


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("tasks", COCO_LM)
def test_presets_equal_coco_lm_tables_7_and_8(tmp_path, tasks, size):
    args, grid = read("cocolm", f"cocolm_{tasks}_{size}", path=tmp_path)
    epochs, base, large, batches, warmup = COCO_LM[tasks]
    expected = {
        "num_train_epochs": numbers(epochs),
        "learning_rate": numbers(base if size == "base" else large),
        "total_batch_size": numbers(batches),
        "warmup_steps": numbers(warmup),
    }
    found = {name: grid.values.get(name, [getattr(args, name)]) for name in expected}
    assert found == expected
    assert set(grid.values) == {name for name, values in expected.items() if len(values) > 1}
    assert {name: getattr(args, name) for name in COCO_LM_SHARED} == COCO_LM_SHARED
    assert (grid.seeds, grid.select_by) == ([0, 1, 2, 3, 4], "median")
    assert len(grid.points()) == {"glue_small_tasks": 64, "glue_large_tasks": 12, "squad": 32}[tasks]


def test_presets_equal_ale_table_vi(tmp_path):
    rows = [line.split() for line in TABLE_VI.strip().splitlines()]
    assert {name for name, *_ in rows} == {path.stem.removeprefix("ale_glue_") for path in FOLDER.glob("ale_glue_*")}
    for name, *values in rows:
        args, grid = read("ale_glue", f"ale_glue_{name}", path=tmp_path)
        assert grid is None
        assert [args.learning_rate, args.total_batch_size, args.num_train_epochs] == [float(value) for value in values]
        assert (args.layerwise_lr_decay, args.max_length, len(args.run_seeds)) == (0.8, 128, 10)
        assert args.seed_figure == "max"  # Table IV: "max of 10 runs".


# COCO-LM, Table 1: Spearman for STS-B, Matthews for CoLA, accuracy for the rest. ALE, Table II.
REPORTED = {
    "cocolm": "cola matthews, sst2 accuracy, mrpc accuracy, stsb spearman, qqp accuracy, mnli accuracy, rte accuracy",
    "ale_glue": "cola matthews, sst2 accuracy, mrpc accuracy, stsb pearson, qqp accuracy, mnli accuracy, rte accuracy",
}


@pytest.mark.parametrize("paper", REPORTED)
def test_metrics_are_those_of_the_papers(tmp_path, paper):
    for name, expected in (pair.split() for pair in REPORTED[paper].split(", ")):
        folder = tmp_path / f"glue_{name}"
        folder.mkdir()
        columns = {"cola": ["sentence"], "sst2": ["sentence"], "qqp": ["question1", "question2"]}
        columns["mnli"] = ["premise", "hypothesis"]
        rows = [dict.fromkeys(columns.get(name, ["sentence1", "sentence2"]), f"text {n}") for n in range(6)]
        labels = TASKS[name].classes or (0.5, 1.5, 2.5)
        lines = [json.dumps({**row, "label": labels[n % len(labels)]}) for n, row in enumerate(rows)]
        for split in ("train", "validation"):
            (folder / f"{split}.jsonl").write_text("\n".join(lines))
        files = ["cocolm", "cocolm_glue_small_tasks_base"] if paper == "cocolm" else ["ale_glue", f"ale_glue_{name}"]
        config = ["--config", *(str(FOLDER / f"{file}.yaml") for file in files)]
        given = [
            "--task",
            str(folder),
            "--model_name_or_path",
            "x",
            "--output_dir",
            str(tmp_path / "o"),
            "--use_cpu",
            "true",
        ]
        classes = (TaskArguments, CheckpointArguments, GridArguments, FinetuneArguments)
        task = parse(*classes, recipe="finetune", description="", args=[*config, *given])[0].load()
        assert task.metric == expected, name


@pytest.mark.parametrize("names", SECTION_IV, ids=lambda names: names[-1])
def test_presets_equal_ale_section_iv(tmp_path, names):
    args, _ = read(*names, path=tmp_path)
    assert (args.max_length, args.learning_rate, args.num_train_epochs, args.crf) == SECTION_IV[names]
    assert len(args.run_seeds) == 10


def test_presets_equal_tlm_table_a1(tmp_path):
    """Epochs - and 3 or 10, steps 3e4 and -, learning rate 2e-5, batch 32 and 16, clip norm - and 1, weight decay 0 and
    0.1.
    """
    default, grid = read("tlm_roberta", path=tmp_path)
    assert grid is None
    assert (default.max_steps, default.learning_rate, default.total_batch_size, default.weight_decay) == (
        30_000,
        2e-5,
        32,
        0.0,
    )
    reported, grid = read("tlm_roberta_reported", path=tmp_path)
    assert grid.values == {"num_train_epochs": [3.0, 10.0]} and reported.max_steps == -1
    assert (reported.learning_rate, reported.total_batch_size, reported.weight_decay) == (2e-5, 16, 0.1)
    assert reported.max_grad_norm == 1.0


def test_every_file_names_its_source_and_its_base_file():
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    tested = {"cocolm", "ale_glue", "tlm_roberta", "tlm_roberta_reported", *(name for key in SECTION_IV for name in key)}
    tested |= {f"cocolm_{tasks}_{size}" for tasks in COCO_LM for size in ("base", "large")}
    tested |= {f"ale_glue_{line.split()[0]}" for line in TABLE_VI.strip().splitlines()}
    assert names == tested
    for path in FOLDER.glob("*.yaml"):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith(("# COCO-LM", "# ALE", "# TLM"))
        comment = " ".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
        assert "Table" in comment or "section" in comment
        on_top = path.stem.startswith(("cocolm_", "ale_glue_")) or path.stem.endswith("_crf")
        assert ("On top of" in comment) == on_top
