"""YAML of any shape as --config: an error of one line, or the value that was meant."""

import os

import pytest

from attacks.attack import assert_refused, attack
from hf_tlm.config import ConfigError, parse
from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval.arguments import RetrievalArguments, parse_executor_options
from hf_tlm.runs.grid_points import Grid, GridArguments
from hf_tlm.tasks import TaskArguments
from hf_tlm.training import ModelArguments, ScoreModelArguments, TlmArguments

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def options(tmp_path, content, *classes, args=()):
    path = tmp_path / "options.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return parse(*classes, recipe="train_tlm", description="", args=["--config", str(path), *args])


@pytest.mark.parametrize(
    "content,expected",
    [
        # Invalid YAML, or YAML that is not accepted.
        ("a: [", "is not YAML that can be used"),
        ("\tlearning_rate: 1", "found character '\\t' that cannot start any token (line 1, column 1)"),
        ("learning_rate: 1\0", "special characters are not allowed: #x0000 at position 16"),
        ("learning_rate: 1".encode("utf-16"), "is not UTF-8 (byte 0). Save it as UTF-8"),
        ("run_name: Zürich".encode("latin-1"), "is not UTF-8 (byte 11)"),
        ("learning_rate: 1\n---\nlearning_rate: 2", "but found another document (line 2, column 1)"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor for the tag"),
        ("run_name: !!binary aGk=", "could not determine a constructor for the tag"),
        ("#" * 3_000_000, "has 3,000,000 bytes; a configuration has at most 1,048,576"),
        # Keys.
        ("3: 4", "a key must be a name; found '3'"),
        ("~: 4", "a key must be a name; found '~'"),
        ("[a, b]: 4", "a key must be a name; found a sequence"),
        ("learning_rate: 1\nlearning_rate: 2", "the key 'learning_rate' comes twice (line 2, column 1)"),
        ("train_tlm: {rho1: 1, rho1: 2}", "the key 'rho1' comes twice"),
        ("? " + "x" * 5000 + "\n: 1", "Unknown key 'xxxxxxxx"),
        # Shapes.
        ("[]", "must be a mapping of argument names to values; found []"),
        ("false", "must be a mapping of argument names to values; found False"),
        ("train_tlm: 0", "section 'train_tlm' must be a mapping; found 0"),
        ("[" * 1000 + "]" * 1000, "values nested more than 20 deep"),
        ("{a: " * 1000 + "1" + "}" * 1000, "values nested more than 20 deep"),
        (LAUGHS, "more than 100,000 values"),
        ("a: &a [*a]", "a value that contains itself"),
        ("a: *b", "found undefined alias 'b'"),
        # Values.
        ("learning_rate: fast", "learning_rate: expected a number from 0 to 100; received 'fast'"),
        ("learning_rate: .nan", "learning_rate: expected a number from 0 to 100; received nan"),
        ("learning_rate: true", "learning_rate: expected a number from 0 to 100; received 'true'"),
        ("learning_rate: 2020-01-01", "received '2020-01-01'"),
        ("learning_rate:", "learning_rate: expected a value; received none. Remove the key"),
        ("learning_rate: [1e-4, 1e-3]", "learning_rate: expected one value; received the list ['1e-4', '1e-3']"),
        ("learning_rate: {a: 1}", "learning_rate: expected a single value; received a mapping: {'a': 1}"),
        ("max_steps: 12:30:00", "received '12:30:00'"),
        ("max_steps: 0x10", "received '0x10'"),
        ("max_steps: 1.5", "max_steps: expected a whole number"),
        ("max_steps: " + "9" * 5000, "Exceeds the limit"),
        ("seeds: [0, [1]]", "seeds: expected a single value; received a list: [1]"),
        ("seeds: [0, ~]", "seeds: expected a single value; received none"),
        ("seeds: [0, {a: 1}]", "seeds: expected a single value; received a mapping"),
        ("seeds: []", "seeds: expected one value or more; received an empty list"),
        ("seeds: {0: 1}", "a key must be a name"),
        ("seeds: 0 1 2", "received '0 1 2'"),
        ("seeds: [0, -1]", "seeds: expected a whole number from 0 to 4,294,967,295; received -1"),
        ("output_dir: {a: 1}", "output_dir: expected a single value; received a mapping"),
        ("output_dir: [a, b]", "output_dir: expected one value; received the list"),
        ("output_dir: ''", "output_dir: expected a text; received an empty one"),
        ("output_dir: ' '", "output_dir: expected a text; received an empty one"),
        ("packing: [pack]", "packing: expected one value"),
        ("packing: " + "x" * 5000, "packing: expected one of ['auto', 'none', 'group', 'pack']; received 'xxx"),
        ("lowercase: maybe", "lowercase: Truthy value expected: got maybe"),
        ("lowercase: [false]", "lowercase: expected one value"),
        ("lowercase:", "lowercase: expected a value; received none"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_invalid_config_is_refused(tmp_path, content, expected):
    with pytest.raises(ConfigError) as refusal:
        options(tmp_path, content, ModelArguments, TlmArguments)
    message = str(refusal.value)
    assert expected in message and "\n" not in message and len(message) < 600, message


@pytest.mark.parametrize(
    "content,name,value",
    [
        ("\ufefflearning_rate: 1e-3", "learning_rate", 1e-3),
        ("lowercase: false", "lowercase", False),
        ("lowercase: no", "lowercase", False),
        ("save_strategy: no", "save_strategy", "no"),
        ("run_name: 2020-01-01", "run_name", "2020-01-01"),
        ("run_name: 12:30:00", "run_name", "12:30:00"),
        ("run_name: 1.10", "run_name", "1.10"),
        ("run_name: 010", "run_name", "010"),
        ("run_name: on", "run_name", "on"),
        ("rho1: .inf", "rho1", float("inf")),
        ("save_total_limit:", "save_total_limit", None),
        ("seeds: [3, 4]", "seeds", [3, 4]),
        ("train_tlm:", "rho1", 3),
        ("base: &base {rho1: 2}\ntrain_tlm: {<<: *base}".replace("base:", "retrieve:"), "rho1", 2),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_unusual_yaml_is_read_as_meant(tmp_path, content, name, value):
    parsed = options(
        tmp_path, content, ModelArguments, TlmArguments, args=["--use_cpu", "true", "--output_dir", str(tmp_path)]
    )
    (holder,) = [arguments for arguments in parsed if hasattr(arguments, name)]
    assert getattr(holder, name) == value


def test_mapping_is_accepted_for_a_json_option(tmp_path):
    content = "executor_options: {time: 1.10, partition: cpu}"
    (arguments,) = options(tmp_path, content, RetrievalArguments)
    assert parse_executor_options(arguments.executor_options) == {"time": 1.1, "partition": "cpu"}
    with pytest.raises(HfTlmError, match="--executor_options is not YAML that can be used: the key 'a' comes twice"):
        parse_executor_options("{a: 1, a: 2}")


def test_grid_is_accepted_as_a_mapping(tmp_path):
    (arguments,) = options(tmp_path, "grid: {learning_rate: [1e-4, 3e-4]}", GridArguments)
    assert arguments.read().values == {"learning_rate": [1e-4, 3e-4]}


def test_number_as_a_column_name_is_read_as_text(tmp_path):
    (arguments,) = options(tmp_path, "task: x\ntext_column: 1.0", TaskArguments)
    assert arguments.text_column == "1.0"


@pytest.mark.parametrize(
    "content,expected",
    [
        ("{learning_rate: [1e-4], learning_rate: [1e-5]}", "the key 'learning_rate' comes twice"),
        ("{learning_rate: [[1]]}", "learning_rate: expected one value; received the list"),
        ("{learning_rate: [~]}", "learning_rate: expected a value; received none"),
        ("{learning_rate: [nan]}", "learning_rate: expected a number from 0 to 100; received nan"),
        ("{learning_rate: {min: 1e-5, max: .inf}}", "learning_rate: expected a number from 0 to 100; received inf"),
        ("{" + "a: {" * 500 + "}" * 500 + "}", "nested more than 20 deep"),
    ],
    ids=lambda value: value[:40],
)
def test_invalid_grid_is_refused(content, expected):
    with pytest.raises(HfTlmError) as refusal:
        Grid.read(content)
    assert expected in str(refusal.value)


PLACES = {
    "folder": "must be a file; this is a folder",
    "pipe": "must be a file; this is a pipe or a device",
    "/dev/zero": "must be a file; this is a pipe or a device",
    "nowhere.yaml": "Cannot read --config",
    "": "--config is empty",
    "x" * 5000: "File name too long",
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[:20])
def test_config_that_is_not_a_file_is_refused(toys, tmp_path, place):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    where = str(tmp_path / place) if place in ("folder", "pipe", "nowhere.yaml") else place
    assert_refused(attack("train_tlm", *toys.commands["train_tlm"], "--config", where, limit=60), PLACES[place])
    assert not toys.out.exists()


EMPTY = [
    ("train_tlm", "output_dir"),
    ("train_tlm", "subset"),
    ("train_tlm", "task"),
    ("train_tlm", "model_config"),
    ("retrieve", "corpus"),
    ("retrieve", "output_dir"),
    ("pretrain", "corpus"),
    ("baseline", "task"),
]


@pytest.mark.parametrize("recipe,name", EMPTY)
def test_empty_text_on_the_command_line_is_refused(toys, recipe, name):
    assert_refused(
        attack(recipe, *toys.commands[recipe], f"--{name}", ""), f"--{name}: expected a text; received an empty one"
    )
    assert not toys.out.exists()


def test_selection_needs_no_output_folder(tmp_path):
    assert ScoreModelArguments().output_dir == ""
    (arguments,) = parse(ScoreModelArguments, recipe="select_influence", description="", args=["--use_cpu", "true"])
    assert arguments.output_dir == ""
    with pytest.raises(HfTlmError, match="output_dir is empty"):
        TlmArguments(output_dir=" ", use_cpu=True)


@pytest.mark.parametrize(
    "recipe,name,expected",
    [
        ("train_tlm", "seeds", "--seeds: expected a whole number"),
        ("train_tlm", "stage", "--stage: invalid choice"),
        ("retrieve", "task", "The file name is too long"),
    ],
)
def test_long_values_are_shortened_in_messages(toys, recipe, name, expected):
    assert_refused(attack(recipe, *toys.commands[recipe], f"--{name}", "x" * 100_000), expected)
