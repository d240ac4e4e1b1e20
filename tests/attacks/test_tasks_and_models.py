"""Tasks that lack something, and checkpoints that are damaged, given to every recipe that takes them."""

import json
import os
import shutil

import pytest

from attacks.attack import assert_refused, attack

ROWS = [{"text": f"the gene raises the cell {number}", "label": ("up", "down")[number % 2]} for number in range(8)]
HELD_OUT = [{**row, "text": f"{row['text']} again"} for row in ROWS]


def with_column(name, value, rows=ROWS):
    return [{**row, name: value} for row in rows]


def without(name, rows=ROWS):
    return [{key: value for key, value in row.items() if key != name} for row in rows]


# Of train, and of validation.
TASKS = {
    "no texts": (without("text"), without("text", HELD_OUT)),
    "no labels": (without("label"), without("label", HELD_OUT)),
    "null texts": (with_column("text", None), HELD_OUT),
    "a null text": ([*ROWS, {"text": None, "label": "up"}], HELD_OUT),
    "empty texts": (with_column("text", ""), HELD_OUT),
    "a null label": ([*ROWS, {"text": "a", "label": None}], HELD_OUT),
    "an unknown label in validation": (ROWS, [*HELD_OUT, {"text": "a", "label": "sideways"}]),
    "a list as a text": ([*ROWS, {"text": ["a"], "label": "up"}], HELD_OUT),
    "a mapping as a label": (with_column("label", {"a": 1}), with_column("label", {"a": 1}, HELD_OUT)),
    "no rows": ([], HELD_OUT),
    "no validation rows": (ROWS, []),
    "half a character": ([*ROWS, {"text": "\ud800", "label": "up"}], HELD_OUT),
}
OF_TASKS = ["retrieve", "baseline", "train_tlm", "finetune", "few_shot", "select_influence", "quickstart", "analyze words"]


@pytest.fixture
def task(tmp_path):
    def write(train, validation):
        (tmp_path / "task").mkdir()
        for split, rows in (("train", train), ("validation", validation)):
            (tmp_path / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / "task"

    return write


@pytest.mark.parametrize("recipe", OF_TASKS)
@pytest.mark.parametrize("name", TASKS)
def test_a_task_that_lacks_something_is_refused(toys, task, recipe, name):
    outcome = attack(recipe.split()[0], *toys.commands[recipe], "--task", task(*TASKS[name]))
    assert_refused(outcome)
    assert not toys.out.exists()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("gone.jsonl")])
def test_a_split_that_is_no_file_is_not_left_out(toys, task, split, make):
    folder = task(ROWS, HELD_OUT)
    (folder / f"{split}.jsonl").unlink(missing_ok=True)
    make(folder / f"{split}.jsonl")
    assert_refused(attack("baseline", *toys.commands["baseline"], "--task", folder), f"{split}.jsonl", "Mend or remove it")
    assert not toys.out.exists()


def half(data):
    return data[: len(data) // 2]


def cut(name):
    return lambda folder: (folder / name).write_bytes(half((folder / name).read_bytes()))


def emptied(name):
    return lambda folder: (folder / name).write_bytes(b"")


def changed(name, **values):
    def change(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **values}))

    return change


MODELS = {
    "half of the weights": cut("model.safetensors"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "empty weights": emptied("model.safetensors"),
    "a huge header": lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64),
    "half a config": cut("config.json"),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "an empty config": emptied("config.json"),
    "a config that is a list": lambda folder: (folder / "config.json").write_text("[1]"),
    "another type": changed("config.json", model_type="bogus"),
    "a negative size": changed("config.json", hidden_size=-16),
    "another size": changed("config.json", hidden_size=32),
    "a size as a text": changed("config.json", hidden_size="16"),
    "half a tokenizer": cut("tokenizer.json"),
    "an empty tokenizer": emptied("tokenizer.json"),
}
OF_MODELS = {
    "train_tlm": "model_name_or_path",
    "pretrain": "model_name_or_path",
    "finetune": "model_name_or_path",
    "few_shot": "model_name_or_path",
    "select_influence": "score_model",
    "analyze embeddings": "models",
    "analyze heads": "models",
}


@pytest.mark.parametrize("recipe", OF_MODELS)
@pytest.mark.parametrize("name", MODELS)
def test_a_damaged_checkpoint_is_refused(toys, tmp_path, recipe, name):
    source = toys.run if recipe == "select_influence" else toys.checkpoint
    shutil.copytree(source, tmp_path / "model", ignore=shutil.ignore_patterns("seed-*"))
    MODELS[name](tmp_path / "model")
    outcome = attack(recipe.split()[0], *toys.commands[recipe], f"--{OF_MODELS[recipe]}", tmp_path / "model")
    assert_refused(outcome)
    assert not toys.out.exists()


LARGE = [
    ("select_influence", ("--fraction", 0.5, "--top_k", 3), "fraction"),
    ("select_influence", ("--num_passages", 10**6), "num_passages"),
    ("few_shot", ("--k", 10**6), "k"),
    ("retrieve", ("--retriever", "random", "--num_passages", 10**6), "distinct passages"),
    ("train_tlm", ("--max_length", 4096), "positions"),
    ("finetune", ("--max_length", 4096), "positions"),
]


@pytest.mark.parametrize("recipe,arguments,expected", LARGE)
def test_more_than_there_is_is_refused(toys, recipe, arguments, expected):
    assert_refused(attack(recipe, *toys.commands[recipe], *arguments), expected)
    assert not toys.out.exists()
