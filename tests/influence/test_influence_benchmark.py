"""benchmarks/influence.py runs, at a size at which its timings mean nothing, and without bergson."""

import importlib.util
import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("influence_benchmark", BENCHMARKS / "influence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(benchmark, tmp_path, monkeypatch, *options):
    """Return the results of a run whose timings mean nothing."""
    # A process for each run would import torch every time.
    monkeypatch.setattr(benchmark, "fresh", lambda function, **arguments: function(**arguments))
    monkeypatch.setattr(benchmark.measures, "TRAINING_STEPS", 2)
    monkeypatch.setattr(benchmark.measures, "SEEDS", 2)
    small = ["--results_dir", str(tmp_path), "--bodies", "2x64", "--texts", "mixed", "--passages", "5", "--batch_size", "4"]
    small += ["--repeats", "1", "--vocab_size", "300", "--threads", "1", "--dimensions", "8", "64"]
    monkeypatch.setattr(sys, "argv", ["influence.py", *small, *options])
    benchmark.main()
    return json.loads((tmp_path / "influence.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_all_sections_of_the_benchmark_run(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark.influence_peer, "find_spec", lambda name: None)
    results = run(benchmark, tmp_path, monkeypatch, "--tasks", "1", "2")
    printed = capsys.readouterr()
    assert (tmp_path / "influence.md").read_text() in printed.out
    assert set(results) == {"speed", "memory", "layers", "projection"} and "bergson is not installed" in printed.err
    speed = {row["side"]: row for row in results["speed"]["rows"] if row["task gradients"] == 2}
    assert len(speed) == 5 and all(row["passages/s"] > 0 for row in speed.values())
    assert [side for side, row in speed.items() if row["difference"] == 0] == ["naive, padded"]
    assert all(row["difference"] is None or row["difference"] < 1e-5 for row in speed.values())
    memory = results["memory"]["rows"]
    assert [(row["side"], row["layer"], row["task gradients"], row["texts at a time"]) for row in memory] == [
        ("forward pass of the body", None, None, 4),
        *[("ours", layer, tasks, 4 // depth) for layer, depth in ((-1, 1), (1, 2), (0, 3)) for tasks in (1, 2)],
    ]
    assert all(row["peak"] >= row["before"] > 100 and row["ratio"] > 0.5 for row in memory)
    layers = [row for row in results["layers"]["rows"] if row["task gradients"] == 2]
    assert [row["layer"] for row in layers] == [0, 1, 2] and all(row["passages/s"] > 0 for row in layers)
    assert layers[-1]["time / last layer's"] == 1
    projections = results["projection"]["rows"]
    assert [(row["layer"], row["projection_dim"]) for row in projections] == list(product((-1, 1), (None, 8, 64)))
    for exact, small, whole in (projections[:3], projections[3:]):
        assert exact["error"] == 0 and exact["bytes / exact"] == exact["time / exact"] == exact["same best 20%"] == 1
        # At the width of the weight's sides nothing is projected.
        assert small["error"] > 0.1 > 1e-5 > whole["error"] and whole["Spearman"] > 0.9999 > small["Spearman"]
        assert small["bytes / exact"] < 0.9 and whole["bytes / exact"] == 1 and exact["seconds"] > 0


def test_bfloat16_differs_slightly(benchmark, tmp_path, monkeypatch):
    rows = run(benchmark, tmp_path, monkeypatch, "--tasks", "2", "--sections", "speed", "--dtype", "bfloat16")["speed"][
        "rows"
    ]
    assert 1e-4 < next(row["difference"] for row in rows if row["side"] == "ours") < 0.1


def test_measurements_on_a_gpu(benchmark, monkeypatch):
    """It synchronises, measures the GPU's memory, and runs for longer."""
    called = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: called.append("synchronize"))
    times = benchmark.measures.by_turns({"side": (lambda: called.append("side"), 2)}, 1)
    assert called == ["side", "synchronize"] * 2 and len(times["side"]) == 1

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: called.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3 << 20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 5 << 20)
    setting = benchmark.measures.Setting("2x64", threads=1, vocabulary=300, batch_size=4)
    assert (setting.count, setting.naive_count) == (40, 2)
    monkeypatch.setattr(benchmark.measures.Setting, "on_gpu", True)
    assert (setting.count, setting.naive_count) == (4096, 64)
    for side in ("ours", "forward pass of the body"):
        found = benchmark.measures.memory(setting, side=side, layer=-1, tasks=2)
        assert called.pop() == "reset" and found == {"texts at a time": 4, "peak": 5, "before": 3}


def test_missing_gpu_is_refused(benchmark, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(benchmark, tmp_path, monkeypatch, "--device", "cuda")
    assert "torch sees no GPU" in capsys.readouterr().err


def test_agreement_of_two_scorers(benchmark):
    ours = np.arange(10.0)[:, None] * [1, 2]
    theirs = ours.copy()
    # For the second task gradient, the best passage comes last and all others rank one higher.
    theirs[9, 1] = -2
    same = benchmark.measures.agreement(ours, ours)
    assert same == pytest.approx({"Spearman": 1, "same best 20%": 1, "difference": 0})
    found = benchmark.measures.agreement(theirs, ours)
    # 1 - 6 (9^2 + 9) / (10 (10^2 - 1)), and one of the two best.
    assert found == pytest.approx({"Spearman": (1 + 1 - 540 / 990) / 2, "same best 20%": 0.75, "difference": 20 / 18})
