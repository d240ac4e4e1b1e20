"""benchmarks/modernbert.py runs, at a size at which its timings mean nothing."""

import json
from statistics import median

import pytest

from support import warm


@pytest.mark.slow
def test_stock_and_own_passes_are_measured(tmp_path):
    arguments = [
        *("--bodies", "3x128", "--passes", "training, stage 2", "scoring, long texts", "--precisions", "float32"),
        *("--repeats", "2", "--results_dir", tmp_path / "results"),
    ]
    done = warm.recipe("benchmarks/modernbert.py", arguments)
    assert done.status == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "results" / "modernbert.json").read_text())["modernbert"]["rows"]
    assert [row["pass"] for row in rows] == ["training, stage 2", "scoring, long texts"]
    for row in rows:
        pairs = list(zip(row["all"]["stock"], row["all"]["ours"], strict=True))
        assert len(pairs) == 2 and row["ratio"] == median(stock / ours for stock, ours in pairs)
        assert row["lowest"] <= row["ratio"] <= row["highest"] and row["apart"] < 1e-5
