"""benchmarks/evaluation.py runs, at a size at which its timings mean nothing."""

import json

import pytest
from datasets import Dataset

from support import warm
from support.toys import sentences


@pytest.mark.slow
def test_both_orders_of_texts_are_measured(tmp_path):
    folder = tmp_path / "tasks" / "hyperpartisan"
    folder.mkdir(parents=True)
    for split, count in (("train", 40), ("validation", 80)):
        rows = [
            {"text": row["text"] * (1 + at % 5), "label": "yes" if at % 2 else "no"}
            for at, row in enumerate(sentences(count, count))
        ]
        Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    arguments = [
        "--tasks",
        "hyperpartisan",
        "--tasks_dir",
        tmp_path / "tasks",
        "--repeats",
        "2",
        "--results_dir",
        tmp_path / "results",
    ]
    done = warm.recipe("benchmarks/evaluation.py", arguments)
    assert done.status == 0, done.stderr[-3000:]
    (row,) = json.loads((tmp_path / "results" / "evaluation.json").read_text())["evaluation"]["rows"]
    assert row["texts"] == 80 and row["fill"] < row["fill, longest first"] <= 1
    assert row["ratio"] == row["as they come"] / row["longest first"]
    assert [len(values) for values in row["all"].values()] == [2, 2]
    assert row["logits within"] < 1e-5
