import math
from pathlib import Path

import pytest

from hf_tlm.runs import aggregate, format_score, format_table
from hf_tlm.runs.records import SeededRun


def test_mean_and_sample_deviation():
    summary = aggregate([{"f1": 0.5, "extra": 1}, {"f1": 0.7}, {"f1": 0.6}])
    assert set(summary) == {"f1"}
    assert summary["f1"] == {"mean": pytest.approx(0.6), "std": pytest.approx(0.1), "n": 3, "values": [0.5, 0.7, 0.6]}
    assert format_score(summary["f1"]) == "60.00 ± 10.00"


def test_one_seed_has_no_deviation():
    summary = aggregate([{"f1": 0.5}])
    assert summary["f1"]["std"] is None and format_score(summary["f1"]) == "50.00"


def test_diverged_seed_gives_nan():
    summary = aggregate([{"loss": math.nan}, {"loss": 1.0}])["loss"]
    assert math.isnan(summary["mean"]) and math.isnan(summary["std"]) and summary["n"] == 2


def test_table_is_aligned():
    rows = [{"arm": "a", "f1": aggregate([{"x": 0.5}])["x"]}, {"arm": "longer", "f1": aggregate([{"x": 0.25}])["x"]}]
    assert format_table(rows, ["arm", "f1"]).splitlines() == [
        "| arm    | f1    |",
        "| ------ | ----- |",
        "| a      | 50.00 |",
        "| longer | 25.00 |",
    ]


def test_names_in_a_table_are_escaped():
    lines = format_table([{"arm": "a|b *c*\n[d](http://x)", "f1|": "1"}], ["arm", "f1|"]).splitlines()
    assert len(lines) == 3 and lines[0].endswith("| f1\\| |")
    assert lines[2].startswith(r"| a\|b \*c\* \[d\](http:")


def test_repr_of_a_run_is_one_line():
    seeds = [{"seed": 0, "validation": {"f1": 0.5}}, {"seed": 1, "validation": {"f1": 0.7}}]
    summary = {"validation": aggregate([seed["validation"] for seed in seeds]), "test": aggregate([{"f1": 0.25}])}
    run = SeededRun(seeds, summary, {"metric": "f1"}, Path("runs/a"))
    assert repr(run) == "SeededRun('runs/a', 2 seeds; f1: validation 60.00 ± 14.14, test 25.00)"
    assert repr(SeededRun(seeds[:1], {}, {"metric": "f1"}, Path("runs/a"))) == "SeededRun('runs/a', one seed; f1: none)"
