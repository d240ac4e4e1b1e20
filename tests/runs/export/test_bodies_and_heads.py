"""Exports of every supported body and head give torch's logits, and the same prediction for every row."""

import json
import os
import subprocess
import sys

import pytest
import transformers
from datasets import Dataset

from hf_tlm.models import ModelError
from hf_tlm.runs import export_onnx, predict
from hf_tlm.tasks import TaskSpec, task_from_datasets
from support.kind_toys import labels_of, rows_of, task_of
from support.tiny_checkpoints import files, go, pretrained
from support.toys import make_task, sentences

pytestmark = pytest.mark.slow
ALL = {"max_drop": 100, "dtypes": ["fp32", "int8", "fp16"]}
UNLABELLED = {"tagging": ["tags"], "multiple_choice": ["label"], "question_answering": ["answers", "starts"]}


def pairs_task(kind):
    """Return a task of text pairs, with classes or values as labels."""

    def rows(count, seed):
        found = sentences(count, seed)
        labels = [row["label"] if kind == "classification" else float(len(row["text"])) / 50 for row in found]
        texts = {"text": [row["text"] for row in found], "text_pair": [row["text"][::-1] for row in found]}
        return Dataset.from_dict({**texts, "label": labels})

    spec = TaskSpec(name="pairs", path="memory", kind=kind, text_columns=("text", "text_pair"))
    return task_from_datasets(spec, {"train": rows(24, 0), "validation": rows(12, 1)})


def export_and_compare(run, task, out, data, tmp_path, **changes):
    """Export a run, and check that torch and ONNX give the same predictions."""
    before = files(run)
    made = export_onnx(str(run), out, task=task, **{**ALL, **changes})
    assert files(run) == before
    found = []
    for name, options in (("torch", {"model_name_or_path": str(run), "use_cpu": True}), ("onnx", {"backend": "onnx"})):
        path = predict(**{"model_name_or_path": str(out), **options}, data=str(data), output=tmp_path / f"{name}.jsonl")
        found.append([json.loads(line) for line in path.read_text().splitlines()])
    assert len(found[0]) == len(found[1]) > 8
    for one, other in zip(*found, strict=True):
        assert one["prediction"] == pytest.approx(other["prediction"], abs=1e-4)
        assert one.get("probabilities") == pytest.approx(other.get("probabilities"), abs=1e-5)
    return made


@pytest.mark.parametrize("family", ["roberta", "electra", "albert", "distilbert", "modernbert", "cocolm"])
def test_bodies_predict_as_in_torch(family, tokenizer, tmp_path):
    # Two layers only where they differ or share weights: tracing takes most of the time, the same for each layer.
    layers = 2 if family in ("albert", "modernbert") else 1
    base = pretrained(tmp_path / "base", tokenizer, family, num_hidden_layers=layers)
    go(tmp_path / "run", base, make_task(train=24), max_steps=2)
    make_task().test.select_columns(["id", "text"]).to_json(tmp_path / "texts.jsonl")
    made = export_and_compare(tmp_path / "run", make_task(), tmp_path / "out", tmp_path / "texts.jsonl", tmp_path)
    typed = family not in ("distilbert", "modernbert", "cocolm")
    assert made.record["inputs"] == ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]


@pytest.mark.parametrize("kind", ["tagging", "question_answering", "multiple_choice", "classification", "regression", "crf"])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_heads_predict_as_in_torch(kind, family, tokenizer, tmp_path):
    base = pretrained(tmp_path / "base", tokenizer, family, num_hidden_layers=1)
    crf, kind = kind == "crf", "tagging" if kind == "crf" else kind
    task = (
        pairs_task(kind) if kind in ("classification", "regression") else task_of(kind, rows_of(kind, 12), labels_of(kind))
    )
    go(tmp_path / "run", base, task, max_steps=2, seeds=[0], crf=crf, doc_stride=4 if kind == "question_answering" else 128)
    task.validation.remove_columns(UNLABELLED.get(kind, ["label"])).to_json(tmp_path / "rows.jsonl")
    made = export_and_compare(tmp_path / "run", task, tmp_path / "out", tmp_path / "rows.jsonl", tmp_path)
    assert made.record["kind"] == kind and (tmp_path / "out/crf.safetensors").exists() == crf
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert ("best path through a CRF" in card) == crf and not (crf and "transformers.js" in card)
    for line, file in zip(made.to_text().splitlines(), made.record["files"].values(), strict=False):
        assert ("changed" in file) == (" change)" in line) == (kind != "regression"), "a number always does"
    answers = kind == "question_answering"
    assert made.record["outputs"] == (["start_logits", "end_logits"] if answers else ["logits"])


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "distilbert", "modernbert", "cocolm"])
def test_masked_lms_are_exported_without_a_task_head(family, tokenizer, tmp_path):
    folder = pretrained(tmp_path / "lm", tokenizer, family, transformers.AutoModelForMaskedLM, num_hidden_layers=1)
    made = export_onnx(str(folder), tmp_path / "out", task=make_task(), **ALL)
    assert made.record["kind"] == "fill_mask" and made.record["checked_on"]["metric"] == "masked_accuracy"
    with pytest.raises(ModelError, match="has no task head"):
        predict(str(tmp_path / "out"), __file__, tmp_path / "a.jsonl", backend="onnx")


@pytest.mark.parametrize("head", ["AutoModel", "AutoModelForMaskedLM"])
def test_adapter_is_merged(head, tokenizer, tmp_path):
    """The export has the head of the task, regardless of the base's head."""
    base = pretrained(tmp_path / "base", tokenizer, auto_class=getattr(transformers, head), num_hidden_layers=1)
    go(tmp_path / "run", base, make_task(train=24), max_steps=2, model={"use_peft": True})
    make_task().test.select_columns(["id", "text"]).to_json(tmp_path / "texts.jsonl")
    export_and_compare(tmp_path / "run", make_task(), tmp_path / "out", tmp_path / "texts.jsonl", tmp_path)
    assert not (tmp_path / "out/adapter_config.json").exists()


def test_export_is_reproducible_and_has_the_requested_opset(tokenizer, tmp_path):
    """Regardless of the hashes of strings: transformers' code iterates over sets of them."""
    head = {"auto_class": transformers.AutoModelForSequenceClassification, "num_hidden_layers": 2}
    folder = pretrained(tmp_path / "model", tokenizer, "modernbert", **head)
    # Hash seeds for which ModernBERT's layer types come in either order.
    program = (
        "import sys; from hashlib import sha256; from transformers import AutoModelForSequenceClassification as Auto; "
        "from hf_tlm.models.onnx_graph import half, quantized, to_onnx; "
        "model = Auto.from_pretrained(sys.argv[1]).eval(); print([*{*model.config.layer_types}]); "
        "graph = to_onnx(model, ['input_ids', 'attention_mask']); kinds = graph, quantized(graph), half(graph); "
        "print([sha256(kind.SerializeToString(deterministic=True)).hexdigest() for kind in kinds])"
    )
    found = []
    for seed in ("0", "1"):
        options = {"env": {**os.environ, "PYTHONHASHSEED": seed}, "capture_output": True, "text": True, "check": True}
        found.append(subprocess.run([sys.executable, "-c", program, str(folder)], **options).stdout.splitlines())
    assert (
        found[0][0] == "['full_attention', 'sliding_attention']" and found[1][0] == "['sliding_attention', 'full_attention']"
    )
    assert found[0][1] == found[1][1]
    folder = pretrained(tmp_path / "of one layer", tokenizer, "modernbert", **{**head, "num_hidden_layers": 1})
    made = export_onnx(str(folder), tmp_path / "later", dtypes=["fp32"], opset=21)
    assert made.record["opset"] == 21
