"""benchmarks/influence.py runs in both its sections, at a size at which its figures mean nothing."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_both_sections(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("influence_benchmark", BENCHMARKS / "influence.py")
    benchmark = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(benchmark)
    # A process for each run would import torch four times.
    monkeypatch.setattr(benchmark, "fresh", lambda function, **arguments: function(**arguments))
    options = ["--results_dir", str(tmp_path), "--bodies", "2x64", "--texts", "mixed", "--tasks", "2", "--passages", "5"]
    options += ["--repeats", "1", "--vocab_size", "300", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["influence.py", *options])
    benchmark.main()
    results = json.loads((tmp_path / "influence.json").read_text())
    assert (tmp_path / "influence.md").read_text() in capsys.readouterr().out
    speed = {row["side"]: row for row in results["speed"]["rows"]}
    assert len(speed) == 5 and all(row["passages/s"] > 0 for row in speed.values())
    assert [side for side, row in speed.items() if row["difference"] == 0] == ["naive, padded"]
    assert all(row["difference"] is None or row["difference"] < 1e-5 for row in speed.values())
    assert [(row["side"], row["layer"]) for row in results["memory"]["rows"]] == [
        ("forward pass of the body", None),
        ("ours", -1),
        ("ours", 1),
    ]
    assert all(row["peak"] >= row["before"] > 100 for row in results["memory"]["rows"])
