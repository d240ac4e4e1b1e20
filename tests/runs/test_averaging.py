"""Averages of several models of one task: in results, in predictions and in one ONNX graph."""

import json
import math
import shutil
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset
from sklearn.metrics import f1_score
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from hf_tlm.errors import HfTlmError
from hf_tlm.runs import export_onnx, predict
from hf_tlm.runs.averaging import average, averaged_entry, model_names, read_average
from hf_tlm.runs.export.export import EXPORT_FILE
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.utils.seals import write_seal
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task

CPU = {"use_cpu": True}
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("averaged")
    base = pretrained(folder / "base", tokenizer, num_hidden_layers=1)
    result = go(folder / "out", base, make_task(train=24), seeds=list(SEEDS), num_train_epochs=8)
    return folder / "out", result


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def model_paths(folder):
    return [str(folder / f"seed-{seed}/model") for seed in SEEDS]


def naive_average(folder, split):
    """Return (mean probabilities, predicted class, label) of each row, by a plain mean."""
    found = []
    for row in zip(*(read_lines(folder / f"seed-{seed}/predictions/{split}.jsonl") for seed in SEEDS), strict=True):
        names = row[0]["probabilities"]
        mean = {name: math.fsum(one["probabilities"][name] for one in row) / len(row) for name in names}
        found.append((mean, max(mean, key=lambda name: mean[name]), row[0]["label"]))
    return found


def test_results_have_the_average_of_the_seeds(run):
    folder, result = run
    record = json.loads((folder / "results.json").read_text())["averaged"]
    assert record["n"] == 3
    for split in ("validation", "test"):
        _, predicted, labels = zip(*naive_average(folder, split), strict=True)
        assert record[split]["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    (line,) = [line for line in result.to_text().splitlines() if line.startswith("averaged")]
    assert "macro_f1 validation" in line and f"test {100 * record['test']['macro_f1']:.2f}: " in line
    assert line.endswith("of the 3 seeds' models")
    assert "| test, average of the 3 seeds' models |" in (folder / "README.md").read_text()


def test_single_seed_or_missing_predictions_have_no_average(tmp_path):
    assert averaged_entry(make_task(), tmp_path, [{"seed": 0}]) == {}
    assert averaged_entry(make_task(), tmp_path, [{"seed": 0}, {"seed": 1}]) == {}, "their predictions are not here"


def test_damaged_predictions_are_refused_with_their_file(run, tmp_path):
    """JSON and zip errors named no file, and files that had lost complete lines in every seed were averaged."""
    seeds = []
    for seed in SEEDS[:2]:
        seeds.append(tmp_path / f"seed-{seed}")
        (seeds[-1] / "predictions").mkdir(parents=True)
        shutil.copy(run[0] / f"seed-{seed}/predictions/test.jsonl", seeds[-1] / "predictions")
    assert len(read_average(seeds, "test")) == len(make_task().test)
    file = seeds[1] / "predictions/test.jsonl"
    whole = file.read_text()
    again = "Copy the file again, or run the command of the run again"
    for damaged, said in (
        ("", "test.jsonl is empty, but should have a line per text. It is damaged"),
        (whole[:-9], r"test.jsonl, line \d+, cannot be read as JSON: .* It is damaged"),
        (
            "".join(whole.splitlines(keepends=True)[:-1]),
            "seed-1/predictions/test.jsonl has .* lines and .*seed-0/pred.* has",
        ),
    ):
        file.write_text(damaged)
        with pytest.raises(HfTlmError, match=f"{said}.* {again}"):
            read_average(seeds, "test")
    file.write_text(whole)
    write_seal(seeds[1], "predictions")
    file.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(HfTlmError, match="test.jsonl has .* bytes and had .* when it was saved. It is damaged"):
        read_average(seeds[1:], "test")
    (seeds[1] / "seal.json").write_text("{")
    with pytest.raises(HfTlmError, match="seal.json cannot be read: JSONDecodeError"):
        read_average(seeds[1:], "test")


def test_regression_values_are_averaged():
    assert average([[{"prediction": 1.0}], [{"prediction": 4.0}]]) == [{"prediction": 2.5}]


def test_several_models_predict_their_average(run, tmp_path):
    folder, _ = run
    Dataset.from_list([{"text": row["text"]} for row in make_task().test]).to_json(tmp_path / "texts.jsonl")
    found = read_lines(predict(model_paths(folder), str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU))
    assert len({row["prediction"] for row in found}) > 1
    for prediction, (mean, predicted, _) in zip(found, naive_average(folder, "test"), strict=True):
        assert prediction["probabilities"] == pytest.approx(mean, abs=1e-5) and prediction["prediction"] == predicted


@pytest.mark.slow
def test_several_models_export_to_one_graph(run, one_registry, tmp_path):
    folder, _ = run
    with pytest.raises(HfTlmError, match="Several models become one export, which has no default folder. Pass --output_dir"):
        export_onnx(model_paths(folder), dtypes=["fp32"])
    made = export_onnx(
        model_paths(folder), tmp_path / "out", task=make_task(), dtypes=["fp32", "int8", "fp16"], max_drop=100
    )
    record = json.loads((tmp_path / "out" / EXPORT_FILE).read_text())
    weights = AutoModelForSequenceClassification.from_pretrained(model_paths(folder)[0]).num_parameters()
    assert record["models"] == [f"out/seed-{seed}/model" for seed in SEEDS] and record["parameters"] == 3 * weights
    files = {file["dtype"]: file for file in made.record["files"].values()}
    assert files["fp32"]["max_difference"] <= 1e-4 and files["int8"]["max_difference"] < 0.5
    assert files["fp32"]["bytes"] > 3 * 4 * weights
    assert "3 models in one" in (tmp_path / "out/README.md").read_text()
    Dataset.from_list([{"text": row["text"]} for row in make_task().test]).to_json(tmp_path / "texts.jsonl")
    with pytest.raises(HfTlmError, match="is an export, which needs onnxruntime. Pass --backend onnx"):
        predict(str(tmp_path / "out"), str(tmp_path / "texts.jsonl"), **CPU)
    for dtype, tolerance in (("fp32", 1e-5), ("fp16", 1e-2), ("int8", 0.2)):
        options = {"backend": "onnx", "onnx_dtype": dtype, "num_threads": 1}
        found = read_lines(
            predict(str(tmp_path / "out"), str(tmp_path / "texts.jsonl"), tmp_path / f"{dtype}.jsonl", **options)
        )
        for predicted, (mean, _, _) in zip(found, naive_average(folder, "test"), strict=True):
            assert predicted["probabilities"] == pytest.approx(mean, abs=tolerance)


def test_empty_and_too_large_averages_are_refused(run, tmp_path, monkeypatch):
    folder, _ = run
    assert model_names(Path("a")) == ["a"] and model_names([Path("a"), "b"]) == ["a", "b"]
    with pytest.raises(HfTlmError, match="expected one or more models; received none"):
        predict([], "texts.txt")
    (tmp_path / "texts.txt").write_text("the gene binds\n")
    assert predict(folder, str(tmp_path / "texts.txt"), tmp_path / "out.txt", **CPU) == tmp_path / "out.txt"
    monkeypatch.setattr(
        "hf_tlm.models.onnx_graph.MAX_BYTES",
        4 * sum(p.numel() for p in AutoModelForSequenceClassification.from_pretrained(model_paths(folder)[0]).parameters()),
    )
    with pytest.raises(HfTlmError, match="the weights of these models together need more. Pass fewer models"):
        export_onnx(model_paths(folder), tmp_path / "export", dtypes=["fp32"])


def test_models_that_cannot_be_averaged_are_refused(run, tmp_path, tokenizer):
    folder, _ = run
    base = pretrained(tmp_path / "base", tokenizer, num_hidden_layers=1)
    rows = {split: rows.filter(lambda row: row["label"] < 2) for split, rows in make_task(train=24).splits.items()}
    names = ClassLabel(names=make_task().label_names[:2])
    others = task_from_datasets(
        TaskSpec(name="two", path="memory"), {split: found.cast_column("label", names) for split, found in rows.items()}
    )
    go(tmp_path / "other", base, others, max_steps=1)
    texts = tmp_path / "texts.txt"
    texts.write_text("the gene binds\n")
    with pytest.raises(
        HfTlmError, match=r"same kind of task, classes and columns: out/seed-0/model has classification, classes"
    ):
        predict([model_paths(folder)[0], str(tmp_path / "other")], str(texts), tmp_path / "out.txt", **CPU)
    masked = pretrained(tmp_path / "masked", tokenizer, auto_class=AutoModelForMaskedLM)
    with pytest.raises(
        HfTlmError, match="Only models for classification and regression can be averaged; .*masked is a masked LM"
    ):
        export_onnx([model_paths(folder)[0], str(masked)], tmp_path / "out", dtypes=["fp32"])
    cut = tmp_path / "cut"
    go(cut, base, make_task(train=24), max_steps=1, max_length=16)
    with pytest.raises(HfTlmError, match="needs the same max_length; those of .*cut and out/seed-0/model differ"):
        export_onnx([model_paths(folder)[0], str(cut)], tmp_path / "out", dtypes=["fp32"])
