"""benchmarks/deploy.py on a tiny run: every configuration is measured in a process of its own, and results are written."""

import json

import pytest
from transformers import AutoModelForSequenceClassification

from hf_tlm.data import train_wordpiece
from hf_tlm.tasks import load_task
from support import warm
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task, sentences, write_files


@pytest.mark.slow
def test_deploy_benchmark_measures_all_configurations(tokenizer, tmp_path):
    base, run = pretrained(tmp_path / "base", tokenizer, num_hidden_layers=1, max_position_embeddings=128), tmp_path / "run"
    go(run, base, make_task(train=24), max_steps=3)
    # An encoder of another size and with another vocabulary.
    words = train_wordpiece([row["text"] for row in sentences(40, 7)], 150)
    larger = pretrained(tmp_path / "larger", words, num_hidden_layers=2, max_position_embeddings=128, vocab_size=150)
    write_files(tmp_path)
    # Long texts: the benchmark answers none twice.
    rows = [
        row | {"text": " and ".join(other["text"] for other in sentences(25, i))} for i, row in enumerate(sentences(1000))
    ]
    (tmp_path / "task/train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    go(tmp_path / "encoder", larger, load_task(str(tmp_path / "task")), max_steps=3)
    arguments = ["--models", f"task={run}", "--tasks_dir", tmp_path, "--shapes", "--corpus", tmp_path / "corpus.parquet"]
    arguments += ["--output_dir", tmp_path / "out", "--results_dir", tmp_path / "results"]
    done = warm.recipe("benchmarks/deploy.py", [*arguments, "--encoders", f"other={base}"], limit=280)
    assert done.status == 2 and "--encoders: of the tasks of --models (task); received other" in done.stderr
    done = warm.recipe("benchmarks/deploy.py", [*arguments, "--encoders", f"task={tmp_path / 'encoder'}"], limit=280)
    assert done.status == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "results/deploy.json").read_text())
    rows = found["price"]["rows"]
    sides = [(model, by) for model in ("coffee", "MiniLM") for by in ("torch", "ONNX", "ONNX int8")]
    assert [(row["model"], row["run by"]) for row in rows[:7]] == [*sides, ("TF-IDF, linear", "scikit-learn")]
    assert all(0 < row["ms, 32 tokens"] and 0 < row["texts/s, 128 tokens"] and 0 < row["MB"] for row in rows)
    batches = found["batches"]["rows"]
    assert len(batches) == 2 * len(rows) and "batches" not in rows[0]
    of_one = [batches[0][name] for name in batches[0] if name.startswith("of ")]
    assert batches[0]["tokens"] == 32 and max(of_one) == rows[0]["texts/s, 32 tokens"] and min(of_one) > 0
    words_of = found["tokenising"]["rows"]
    assert [row["tokenizer of"] for row in words_of] == ["coffee", "MiniLM"]
    assert all(row["texts"] == 1_048 and min(row["memory, second pass"], row["tokenizers"]) > 0 for row in words_of)
    whole = found["files"]["rows"]
    assert [(row["model"], row["rows"]) for row in whole] == [("coffee", 1_048), ("MiniLM", 1_048)]
    assert all(min(row["rows/s, one core"], row["rows/s, all cores"]) > 0 for row in whole)
    beside = found["threads"]["rows"]
    assert [row["model"] for row in beside] == ["coffee", "MiniLM"]
    ways = ("one core", "inside operators", "a batch on each")
    assert all(row[f"{length} tokens, {way}"] > 0 for row in beside for length in (32, 128) for way in ways)
    operators = found["operators"]["rows"]
    assert [row["model"] for row in operators] == ["coffee", "MiniLM"] and operators[0]["products with weights"] > 0
    for row, folder in zip(operators, (run, tmp_path / "encoder"), strict=True):
        assert min(row["texts/s alone, 32 tokens"], row["texts/s alone, 128 tokens"]) > 0
        shares = [value for name, value in row.items() if name not in ("model", "weights") and "alone" not in name]
        assert sum(shares) == pytest.approx(100)
        weights = AutoModelForSequenceClassification.from_pretrained(folder).state_dict()
        layers = [one for name, one in weights.items() if one.dim() == 2 and "embeddings" not in name]
        assert row["weights"] == sum(one.numel() for one in layers)
    # A process with onnxruntime imports neither torch nor transformers.
    assert rows[1]["memory MB"] < rows[0]["memory MB"] / 2
    for folder, model_rows in (run, rows[:3]), (tmp_path / "encoder", rows[3:6]):
        parameters = AutoModelForSequenceClassification.from_pretrained(folder).num_parameters()
        assert [row["parameters"] for row in model_rows] == [parameters] * 3
    (score,) = found["scores"]["rows"]
    assert 0 <= score["int8"] <= 100 and score["logits within"] < 1e-4
    results = json.loads((tmp_path / "encoder/results.json").read_text())
    assert score["MiniLM"] == pytest.approx(100 * results["seeds"][0]["test"][score["metric"]])
    exported = json.loads((tmp_path / "out/task-minilm-onnx/export.json").read_text())
    assert score["MiniLM drop"] == exported["files"]["onnx/model_quantized.onnx"]["drop"] and score["MiniLM int8"] >= 0
    picture = (tmp_path / "results/deploy.svg").read_text()
    assert "coffee, ONNX int8" in picture and "MiniLM, ONNX int8" in picture and "## What 8 bits lose" in done.stdout
