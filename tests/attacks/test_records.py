"""Damaged records of a table's runs cause a warning, and the run is repeated; invalid tasks of a table are refused."""

import json
import re
import shutil

import pytest

from attacks.attack import assert_refused, attack

CONTENTS = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "a list": lambda data: b"[]",
    "null": lambda data: b"null",
    "deep": lambda data: b"[" * 100_000,
    "no status": lambda data: b'{"seeds": 3}',
    "a status alone": lambda data: b'{"status": "finished"}',
    "a failure without its reason": lambda data: b'{"status": "failed", "name": "a", "kind": "train_tlm", "settings": {}}',
    "a cost that is a text": lambda data: json.dumps({**json.loads(data), "cost": "much"}).encode(),
    "a score that is a text": lambda data: json.dumps({**json.loads(data), "test": {"macro_f1": "high"}}).encode(),
    "settings that are a list": lambda data: json.dumps({**json.loads(data), "settings": [1]}).encode(),
}


@pytest.fixture(scope="module")
def table(made_toys, tmp_path_factory):
    """The folder of a finished table of one arm, and the command."""
    folder = tmp_path_factory.mktemp("table")
    command = ("--tasks", made_toys.task, "--arms", "task only", "--seeds", 0, "--corpus", made_toys.corpus)
    command += ("--config", made_toys.table, "--output_dir", folder / "out", "--records_dir", folder / "records")
    outcome = attack("reproduce", *command)
    assert outcome.status == 0, outcome.stderr
    shutil.copytree(folder / "records", folder / "whole")
    return folder, command


# A preparation has neither costs nor scores, so these do not damage it.
ONLY_IN_RUNS = ("a cost that is a text", "a score that is a text")
CASES = [(place, name) for name in CONTENTS for place in ("runs", "preparations")]


@pytest.mark.slow
@pytest.mark.parametrize("place,name", [case for case in CASES if case[0] == "runs" or case[1] not in ONLY_IN_RUNS])
def test_step_with_a_damaged_record_is_repeated(table, place, name):
    """A preparation is only repeated when a run needs it, so its run has no record here."""
    folder, command = table
    shutil.copytree(folder / "whole", folder / "records", dirs_exist_ok=True)
    records = {kind: next((folder / "records" / kind).iterdir()) for kind in ("runs", "preparations")}
    before = {kind: json.loads(record.read_text()) for kind, record in records.items()}
    damaged = records[place]
    damaged.write_bytes(CONTENTS[name](damaged.read_bytes()))
    if place == "preparations":
        records["runs"].unlink()
    outcome = attack("reproduce", *command)
    assert outcome.status == 0 and "Traceback" not in outcome.stderr, outcome.stderr
    assert re.search(f"{re.escape(str(damaged))} .*It will be created again", outcome.stderr), outcome.stderr
    for kind, record in records.items():
        after = json.loads(record.read_text())
        assert after["status"] == "finished" and after["settings"] == before[kind]["settings"]
        assert after.get("test") == before[kind].get("test")


TASKS = ['"a"', '"12"', "3", "[0.7]", "[true]", "[-1]", "[]", "[[0]]", '["0"]']


@pytest.mark.parametrize("seeds", TASKS)
def test_seeds_of_a_task_are_whole_numbers(toys, seeds):
    task = f'{{"task": "{toys.task}", "seeds": {seeds}}}'
    assert_refused(attack("reproduce", *toys.commands["reproduce"], "--tasks", task), "a list of whole numbers")
    assert not toys.out.exists()


@pytest.mark.parametrize(
    "option,value,expected",
    [
        ("tasks_dir", "/nowhere at all", "expected a folder of tasks"),
        ("tasks", '{"task": 3}', "needs its name"),
        ("tasks", '{"task": ' + "[" * 5000 + "]" * 5000 + "}", "a name or a JSON object"),
    ],
)
def test_invalid_task_of_a_table_is_refused(toys, option, value, expected):
    assert_refused(attack("reproduce", *toys.commands["reproduce"], f"--{option}", value), expected)
    assert not toys.out.exists()
