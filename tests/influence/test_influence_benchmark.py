"""benchmarks/influence.py runs, at a size at which its figures mean nothing; without bergson it says so."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("influence_benchmark", BENCHMARKS / "influence.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_sections(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark.influence_peer, "find_spec", lambda name: None)
    # A process for each run would import torch four times.
    monkeypatch.setattr(benchmark, "fresh", lambda function, **arguments: function(**arguments))
    options = ["--results_dir", str(tmp_path), "--bodies", "2x64", "--texts", "mixed", "--tasks", "2", "--passages", "5"]
    options += ["--repeats", "1", "--vocab_size", "300", "--threads", "1", "--dimensions", "8", "64"]
    monkeypatch.setattr(sys, "argv", ["influence.py", *options])
    benchmark.main()
    results = json.loads((tmp_path / "influence.json").read_text())
    printed = capsys.readouterr()
    assert (tmp_path / "influence.md").read_text() in printed.out
    assert set(results) == {"speed", "memory", "layers", "projection"} and "bergson is not installed" in printed.err
    speed = {row["side"]: row for row in results["speed"]["rows"]}
    assert len(speed) == 5 and all(row["passages/s"] > 0 for row in speed.values())
    assert [side for side, row in speed.items() if row["difference"] == 0] == ["naive, padded"]
    assert all(row["difference"] is None or row["difference"] < 1e-5 for row in speed.values())
    assert [(row["side"], row["layer"]) for row in results["memory"]["rows"]] == [
        ("forward pass of the body", None),
        ("ours", -1),
        ("ours", 1),
    ]
    layers = results["layers"]["rows"]
    assert [row["layer"] for row in layers] == [0, 1, 2] and all(row["passages/s"] > 0 for row in layers)
    assert layers[-1]["time / last layer's"] == 1
    projections = results["projection"]["rows"]
    assert [row["projection_dim"] for row in projections] == [8, 64]
    # As wide as the weight's sides: nothing is projected.
    assert projections[0]["error"] > 0.1 > 1e-5 > projections[1]["error"] and projections[1]["Spearman"] > 0.9999
    assert all(row["peak"] >= row["before"] > 100 for row in results["memory"]["rows"])


def test_agreement_with_a_peer(benchmark):
    ours = np.arange(10.0)[:, None] * [1, 2]
    theirs = ours.copy()
    # Of the second task gradient, the best passage is last and all others are a rank higher.
    theirs[9, 1] = -2
    same = benchmark.measures.agreement(ours, ours)
    assert same == pytest.approx({"Spearman": 1, "same best 20%": 1, "difference": 0})
    found = benchmark.measures.agreement(theirs, ours)
    # 1 - 6 (9^2 + 9) / (10 (10^2 - 1)), and one of the two best.
    assert found == pytest.approx({"Spearman": (1 + 1 - 540 / 990) / 2, "same best 20%": 0.75, "difference": 20 / 18})
