"""Scores of existing classifiers, compared with predictions text by text; classes are matched by name or by index."""

import json
from pathlib import Path

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoConfig, AutoModelForMaskedLM, BertForSequenceClassification

from hf_tlm.models import ModelError
from hf_tlm.runs import evaluate_checkpoint
from support.toys import TINY_CONFIGS

NAMES = ["none", "up", "down"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", **TINY_CONFIGS["bert"], initializer_range=1.0)
    return BertForSequenceClassification(config).eval()


@pytest.fixture
def save(model, tokenizer, tmp_path):
    def write(names):
        model.config.id2label = dict(enumerate(names))
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return write


def expected(model, tokenizer, rows, names, max_length=128):
    """Macro-F1 and accuracy of `names[the largest logit]`."""
    predicted = []
    for text in rows["text"]:
        inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.no_grad():
            predicted.append(names[int(model(**inputs).logits.argmax())])
    truth = [["down", "none", "up"][label] for label in rows["label"]]
    return {"macro_f1": f1_score(truth, predicted, average="macro"), "accuracy": accuracy_score(truth, predicted)}


def test_scores_equal_those_of_single_texts(model, save, tokenizer, task):
    scores = evaluate_checkpoint(save(NAMES), task, batch_size=5, device="cpu")
    assert set(scores) == {"validation", "test"}
    for split, found in scores.items():
        assert found == pytest.approx(expected(model, tokenizer, task.splits[split], NAMES))
    assert 0 < scores["test"]["accuracy"] < 1
    short = evaluate_checkpoint(save(NAMES), task, max_length=4, device="cpu")
    assert short["test"] == pytest.approx(expected(model, tokenizer, task.test, NAMES, max_length=4)) != scores["test"]


@pytest.mark.parametrize("names", [["0", "1", "2"], ["LABEL_0", "LABEL_1", "LABEL_2"]])
def test_numbered_classes_are_matched_by_index(save, task, names):
    by_number = evaluate_checkpoint(save(names), task, device="cpu")
    assert by_number == evaluate_checkpoint(save(["down", "none", "up"]), task, device="cpu")
    assert by_number != evaluate_checkpoint(save(NAMES), task, device="cpu")


def test_order_of_id2label_does_not_matter(save, task):
    expected = evaluate_checkpoint(save(NAMES), task, device="cpu")
    file = Path(save(NAMES)) / "config.json"
    config = json.loads(file.read_text())
    config["id2label"] = {str(number): NAMES[number] for number in (2, 0, 1)}
    file.write_text(json.dumps(config))
    assert evaluate_checkpoint(str(file.parent), task, device="cpu") == expected


def test_checkpoint_of_the_hub_has_the_same_scores(hub, save, task, tmp_path):
    local = evaluate_checkpoint(save(NAMES), task, device="cpu")
    hub.put("alice/model", {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}, revision="v1")
    assert evaluate_checkpoint("alice/model@v1", task, device="cpu") == local


def test_other_classes_are_refused(save, task):
    with pytest.raises(ModelError, match="has the classes up, down, left; the classes of toy are down, none, up"):
        evaluate_checkpoint(save(["up", "down", "left"]), task)


def test_model_without_a_classifier_is_refused(tokenizer, tmp_path, task):
    AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="lacks weights of a classifier .*classifier"):
        evaluate_checkpoint(str(tmp_path), task)
