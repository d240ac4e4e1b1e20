"""Files to predict on that are missing, empty, damaged or lack columns, and folders that cannot be published."""

import json
import os

import pytest

from attacks.attack import assert_refused, attack, tree

ROWS = {
    "missing": (None, "rows.jsonl"),
    "empty": (b"", "rows.jsonl"),
    "another column": (b'{"body": "the gene"}\n', "text"),
    "null": (b'{"text": "the gene"}\n{"text": null}\n', "text"),
    "a list of texts": (b'{"text": ["the gene"]}\n', "text"),
    "not JSON": (b"{", "rows.jsonl"),
    "a list": (b"[1, 2]\n", "rows.jsonl"),
    "binary": (bytes(range(256)) * 8, "rows.jsonl"),
}
FOLDERS = {
    "missing": (None, ""),
    "empty": ({}, "no model"),
    "unfinished": ({"settings.json": b"{}"}, "contains an unfinished run"),
    "a config alone": ({"config.json": b"{}"}, "no model"),
    "an adapter that is damaged": ({"adapter_config.json": b"{", "adapter_model.safetensors": b""}, "adapter_config.json"),
    "an adapter of nothing": ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, "adapter"),
}


@pytest.mark.parametrize("content, expected", ROWS.values(), ids=ROWS)
def test_bad_file_to_predict_on_is_refused_before_training(toys, tmp_path, content, expected):
    rows = tmp_path / "rows.jsonl"
    if content is not None:
        rows.write_bytes(content)
    outcome = attack("finetune", *toys.commands["finetune"], "--predict", rows)
    assert_refused(outcome, expected)
    assert not list(toys.out.rglob("rows*"))
    assert not toys.out.exists()  # Nothing was trained.


@pytest.mark.parametrize("content, expected", ROWS.values(), ids=ROWS)
def test_bad_file_to_predict_on_with_a_finished_model_is_refused(toys, tmp_path, content, expected):
    rows = tmp_path / "rows.jsonl"
    if content is not None:
        rows.write_bytes(content)
    assert_refused(attack("predict", *toys.commands["predict"], "--data", rows), expected)
    assert not toys.out.exists() or not list(toys.out.iterdir())


def test_file_to_predict_on_after_tlm_training_is_checked_first(toys, tmp_path):
    (tmp_path / "rows.csv").write_text("body\nthe gene\n")
    outcome = attack("train_tlm", *toys.commands["train_tlm"], "--predict", tmp_path / "rows.csv")
    assert_refused(outcome, "no column 'text'")
    assert not toys.out.exists()


@pytest.mark.parametrize("recipe", ["finetune", "train_tlm"])
def test_file_to_predict_on_uses_the_separator_of_the_task(toys, tmp_path, recipe):
    lines = [f"the gene number {i}^{'ab'[i % 2]}\n" for i in range(40)]
    (tmp_path / "table.csv").write_text("".join(["text^label\n", *lines]))
    (tmp_path / "rows.csv").write_text("number^text\n007^the gene\n")
    command = (*toys.commands[recipe], "--task", tmp_path / "table.csv", "--separator", "^")
    outcome = attack(recipe, *command, "--predict", tmp_path / "rows.csv")
    assert outcome.status == 0, outcome.stderr
    assert json.loads((toys.out / "predictions/rows.jsonl").read_text())["number"] == "007"


def test_predictions_do_not_overwrite_input_or_model(toys, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "the gene"}) + "\n")
    for model in (toys.run, toys.checkpoint):
        command = ("--model_name_or_path", model, "--data", rows, "--use_cpu", "true", "--output")
        assert_refused(attack("predict", *command, rows), "is the file to predict on")
        before = tree(model)
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            assert_refused(attack("predict", *command, model / name), "is a file of the run")
        assert tree(model) == before
    assert_refused(attack("predict", *command, tmp_path / "out.doc"), "received '.doc'")
    assert_refused(attack("predict", *command, tmp_path), "is a folder")
    assert_refused(attack("predict", *command, tmp_path / "o.csv", "--separator", ";;", "--data", toys.texts), "separator")


def test_impossible_format_or_output_is_refused(toys, tmp_path):
    for given, expected in (
        (("--predict_format", "glue"), "GLUE"),
        (("--predict_format", "squad"), "question answering"),
        (("--predict_output", tmp_path), "is a folder"),
    ):
        assert_refused(attack("finetune", *toys.commands["finetune"], "--predict", toys.texts, *given), expected)
        assert not toys.out.exists()


def fifo(path):
    os.mkfifo(path)


@pytest.mark.parametrize("make", [fifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_path_that_is_not_a_file_is_refused_before_training(toys, tmp_path, make):
    make(tmp_path / "rows.jsonl")
    assert_refused(attack("finetune", *toys.commands["finetune"], "--predict", tmp_path / "rows.jsonl"), "is not a file")
    assert not toys.out.exists()


FORMATS = {
    "no GLUE": ("task", ("up", "down"), "glue", "supports the tasks of GLUE"),
    "no SQuAD": ("task", ("up", "down"), "squad", "is for question answering"),
    "other classes": ("cola", ("up", "down"), "glue", "the classes of cola are"),
    "numbers beyond": ("cola", ("0", "1", "2"), "glue", "this task has 2"),
}


@pytest.mark.parametrize("name,labels,format,expected", FORMATS.values(), ids=FORMATS)
def test_format_of_other_tasks_is_refused_before_training(toys, tmp_path, name, labels, format, expected):
    rows = [{"text": f"the gene raises the cell {i}", "label": labels[i % len(labels)]} for i in range(12)]
    (tmp_path / name).mkdir()
    for split in ("train", "validation"):
        column = {"sentence": "text"} if name == "cola" else {}
        lines = [{"sentence" if column else "text": row["text"], "label": row["label"]} for row in rows]
        (tmp_path / name / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = (*toys.commands["finetune"], "--task", tmp_path / name, "--predict", toys.texts, "--predict_format", format)
    assert_refused(attack("finetune", *command), expected)
    assert not toys.out.exists()


@pytest.mark.slow
def test_predictions_of_a_training_do_not_overwrite_input_or_model(toys, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "the gene"}) + "\n")
    command = (*toys.commands["finetune"], "--predict", rows, "--predict_output")
    assert_refused(attack("finetune", *command, rows), "is the file to predict on")
    assert rows.read_text() == json.dumps({"text": "the gene"}) + "\n" and not toys.out.exists()
    assert attack("finetune", *command, toys.out / "mine.jsonl").status == 0
    before = tree(toys.out)
    for name in ("model.safetensors", "config.json", "seal.json", "settings.json", "seed-0/results.json"):
        assert_refused(attack("finetune", *command, toys.out / name), "is a file of the run")
    kept = tree(toys.out)
    assert {**kept, "results.json": b""} == {**before, "results.json": b""}  # Every command rewrites results.json.
    assert attack("finetune", *command, toys.out / "mine.jsonl").status == 0


@pytest.mark.parametrize("content, expected", FOLDERS.values(), ids=FOLDERS)
def test_folder_without_a_finished_model_is_not_published(tmp_path, content, expected):
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)
    before = tree(tmp_path)
    outcome = attack("publish", "--model", folder, "--repo_id", "me/model", "--dry_run", "true")
    assert_refused(outcome, expected)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("manifest", [b"{", b"[]", b"{}", json.dumps({"files": 3}).encode(), b'{"files": {"x": 3}}'])
def test_subset_with_a_bad_manifest_is_not_published(tmp_path, manifest):
    (tmp_path / "manifest.json").write_bytes(manifest)
    outcome = attack("publish", "--subset", tmp_path, "--repo_id", "me/subset", "--dry_run", "true")
    assert_refused(outcome)
