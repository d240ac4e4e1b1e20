"""benchmarks/deploy.py on a tiny run: every side answers in its own process, and the page and the picture are written."""

import json

import pytest

from support import warm
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task, write_files


@pytest.mark.slow
def test_sides_and_scores(tokenizer, tmp_path):
    base, run = pretrained(tmp_path / "base", tokenizer, num_hidden_layers=1, max_position_embeddings=128), tmp_path / "run"
    go(run, base, make_task(train=24), max_steps=3)
    write_files(tmp_path, train=5000)
    arguments = ["--models", f"task={run}", "--tasks_dir", tmp_path, "--shapes", "--corpus", tmp_path / "corpus.parquet"]
    arguments += ["--output_dir", tmp_path / "out", "--results_dir", tmp_path / "results"]
    done = warm.recipe("benchmarks/deploy.py", arguments, limit=280)
    assert done.status == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "results/deploy.json").read_text())
    rows = found["price"]["rows"]
    sides = [("coffee", "torch"), ("coffee", "ONNX"), ("coffee", "ONNX int8"), ("TF-IDF, linear", "scikit-learn")]
    assert [(row["model"], row["run by"]) for row in rows] == sides
    assert all(0 < row["ms, 32 tokens"] and 0 < row["texts/s, 128 tokens"] and 0 < row["MB"] for row in rows)
    # Neither torch nor transformers is in a process of onnxruntime.
    assert rows[1]["memory MB"] < rows[0]["memory MB"] / 2
    (score,) = found["scores"]["rows"]
    assert 0 <= score["int8"] <= 100 and score["logits within"] < 1e-4 and score["MiniLM"] is None
    assert (tmp_path / "results/deploy.svg").read_text().count("coffee, ONNX int8") and "## What 8 bits lose" in done.stdout
