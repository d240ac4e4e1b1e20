"""Paths in records: they do not reveal folders of the machine or its user."""

import os

import pytest

from hf_tlm.utils.shown import counted, figures, relative_name, shown_argument, shown_path, suggested_path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A home folder `people/alice` with a working directory `work` in it, and data elsewhere."""
    for folder in ("people/alice/work/data", "people/alice/models", "mnt/My Data/bob/corpus"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "alice"))
    monkeypatch.chdir(tmp_path / "people" / "alice" / "work")
    return tmp_path


def test_paths_are_shortened(machine):
    assert shown_path(f"{machine}/people/alice/work/data/x.csv") == "data/x.csv"
    assert shown_path(f"{machine}/people/alice/models/bert") == "~/models/bert"
    assert os.path.expanduser("~/models/bert") == f"{machine}/people/alice/models/bert"
    assert shown_path(f"{machine}/mnt/My Data/bob/corpus") == ".../bob/corpus"
    assert shown_path(f"{machine}/people/alice2/x") == ".../alice2/x" and shown_path("/data") == ".../data"
    for name in ("data/x.csv", "owner/name", "../up", "~/models/bert", "", "tlm/coffee"):
        assert shown_path(name) == name


def test_relative_name_stays_within_its_folder():
    assert relative_name("runs/a b/seed-0") == "runs/a b/seed-0"
    names = ["~/x", "../x", ".../x", "/x", "x/", "x//y", "../../x", "x/../y", ".x", "~", "..", "/", "", "~bob/x", "x"]
    relative_names = [relative_name(name) for name in names]
    assert len({*relative_names, "x-0a"}) == len(names) + 1
    for name in relative_names:
        assert name and all(part and not part.startswith((".", "~")) for part in name.split("/")), name
    assert relative_name(".../x", "/a/x") != relative_name(".../x", "/b/x")


def test_root_as_the_working_directory_is_not_shown(machine, monkeypatch):
    monkeypatch.chdir("/")
    assert shown_path(f"{machine}/mnt/x/y") == ".../x/y"


@pytest.mark.parametrize(
    "argument,shown",
    [
        ("--corpus={0}/mnt/a/corpus/*.parquet", "--corpus=.../corpus/*.parquet"),
        ("{0}/mnt/a/b/1.csv,{0}/people/alice/work/data/2.csv", ".../b/1.csv,data/2.csv"),
        ('{{"task": "{0}/mnt/a/b/c", "seeds": [0]}}', '{{"task": ".../b/c", "seeds": [0]}}'),
        ("{0}/mnt/My Data/bob/corpus", ".../bob/corpus"),
        ("http://localhost:9200/tmp/x", "http://localhost:9200/tmp/x"),
        ("{{text}} and/or /this/ {{mask}}", "{{text}} and/or /this/ {{mask}}"),
        ("data/tmp/x", "data/tmp/x"),
        ("1e-4", "1e-4"),
    ],
)
def test_paths_in_arguments_are_shortened(machine, argument, shown):
    assert shown_argument(argument.format(machine)) == shown.format(machine)


@pytest.mark.parametrize(
    "value,digits,shown",
    [(0.344, 2, "0.34"), (1.26, 2, "1.3"), (99.6, 2, "100"), (132.975, 2, "133"), (1861.0, 3, "1,861"), (91.64, 3, "91.6")],
)
def test_figures_are_rounded_to_significant_digits(value, digits, shown):
    assert figures(value, digits) == shown


def test_counts_have_their_noun_in_the_right_number():
    assert [counted(number, "file") for number in (0, 1, 2, 1234)] == ["0 files", "1 file", "2 files", "1,234 files"]
    assert counted(1, "query", "queries") == "1 query" and counted(3, "query", "queries") == "3 queries"


@pytest.mark.parametrize(
    "missing,hint",
    [
        ("runs/mien", " Did you mean runs/mine?"),
        ("runs/mien/seed-0", " Did you mean runs/mine?"),  # Where the paths part.
        ("task", " Did you mean task.csv?"),
        ("{0}/tsk.csv", " Did you mean {0}/task.csv?"),
        ("alice/model", ""),
        ("", ""),
    ],
)
def test_existing_paths_are_suggested_for_a_missing_one(tmp_path, monkeypatch, missing, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "task.csv").touch()
    assert suggested_path(missing.format(tmp_path)) == hint.format(tmp_path)
