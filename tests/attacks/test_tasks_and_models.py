"""Incomplete tasks and damaged checkpoints, given to every recipe that takes them."""

import json
import os
import shutil

import pytest

from attacks.attack import assert_refused, attack
from attacks.bad_input.checkpoints import LARGE, MODELS, OF_MODELS
from attacks.bad_input.tasks import HELD_OUT, OF_TASKS, ROWS, TASKS


@pytest.fixture
def task(tmp_path):
    def write(train, validation):
        (tmp_path / "task").mkdir()
        for split, rows in (("train", train), ("validation", validation)):
            (tmp_path / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / "task"

    return write


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OF_TASKS)
@pytest.mark.parametrize("name", TASKS)
def test_incomplete_task_is_refused(toys, task, recipe, name):
    outcome = attack(recipe.split()[0], *toys.commands[recipe], "--task", task(*TASKS[name]))
    assert_refused(outcome)
    assert not toys.out.exists()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("gone.jsonl")])
def test_split_that_is_not_a_file_is_refused(toys, task, split, make):
    folder = task(ROWS, HELD_OUT)
    (folder / f"{split}.jsonl").unlink(missing_ok=True)
    make(folder / f"{split}.jsonl")
    assert_refused(
        attack("baseline", *toys.commands["baseline"], "--task", folder),
        f"{split}.jsonl",
        "is a broken link, or not a file. Repair or remove it",
    )
    assert not toys.out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OF_MODELS)
@pytest.mark.parametrize("name", MODELS)
def test_damaged_checkpoint_is_refused(toys, tmp_path, recipe, name):
    source = toys.run if recipe == "select_influence" else toys.checkpoint
    shutil.copytree(source, tmp_path / "model", ignore=shutil.ignore_patterns("seed-*"))
    MODELS[name](tmp_path / "model")
    outcome = attack(recipe.split()[0], *toys.commands[recipe], f"--{OF_MODELS[recipe]}", tmp_path / "model")
    assert_refused(outcome)
    assert not toys.out.exists()


@pytest.mark.parametrize("recipe,arguments,expected", LARGE)
def test_size_larger_than_the_data_is_refused(toys, recipe, arguments, expected):
    assert_refused(attack(recipe, *toys.commands[recipe], *arguments), expected)
    assert not toys.out.exists()


TABLES = {
    "nothing to classify": (b"text,label\na,x\nb,x\nc,x\n", (), "at least two classes"),
    "no such columns": (b"Body;queue\na;x\nb;y\n", (), "the columns are Body, queue"),
    "a header alone": (b"text,label\n", (), "it has no rows"),
    "of another separator": (b"text;label\na;x\nb;y\n", ("--separator", ","), "the columns are text;label"),
    "a separator of two": (b"text;label\na;x\nb;y\n", ("--separator", ";;"), "one character"),
    "too few texts": (b"text,label\na,x\nb,y\n", (), "too few for a validation split"),
    "shares that leave nothing": (b"text,label\na,x\nb,y\n", ("--validation_share", 0.5, "--test_share", 0.5), "below 1"),
    "names for other classes": (
        "".join(["text,label\n", *(f"text {i},{i % 2}\n" for i in range(60))]).encode(),
        ("--label_names", "a", "b", "c"),
        "expected 2 different names",
    ),
    "not UTF-8": ("text,label\nTür,x\nStraße,y\n".encode("latin-1"), (), "UTF-8"),
    "binary": (bytes(range(255, 127, -1)) * 8, (), "not UTF-8 text"),
}


@pytest.mark.parametrize("recipe", ["retrieve", "train_tlm", "finetune"])
@pytest.mark.parametrize("content,options,expected", TABLES.values(), ids=TABLES)
def test_table_that_is_not_a_task_is_refused(toys, tmp_path, recipe, content, options, expected):
    (tmp_path / "table.csv").write_bytes(content)
    assert_refused(attack(recipe, *toys.commands[recipe], "--task", tmp_path / "table.csv", *options), expected)
    assert not toys.out.exists()
