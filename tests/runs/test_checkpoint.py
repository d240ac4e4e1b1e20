"""The scores of classifiers as they are: against predictions one text at a time, by name and by number of the classes."""

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
    found = []
    for text in rows["text"]:
        inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.no_grad():
            found.append(names[int(model(**inputs).logits.argmax())])
    truth = [["down", "none", "up"][label] for label in rows["label"]]
    return {"macro_f1": f1_score(truth, found, average="macro"), "accuracy": accuracy_score(truth, found)}


def test_scores(model, save, tokenizer, task):
    scores = evaluate_checkpoint(save(NAMES), task, batch_size=5, device="cpu")
    assert set(scores) == {"validation", "test"}
    for split, found in scores.items():
        assert found == pytest.approx(expected(model, tokenizer, task.splits[split], NAMES))
    assert 0 < scores["test"]["accuracy"] < 1
    short = evaluate_checkpoint(save(NAMES), task, max_length=4, device="cpu")
    assert short["test"] == pytest.approx(expected(model, tokenizer, task.test, NAMES, max_length=4)) != scores["test"]


@pytest.mark.parametrize("names", [["0", "1", "2"], ["LABEL_0", "LABEL_1", "LABEL_2"]])
def test_classes_that_are_only_numbered(save, task, names):
    by_number = evaluate_checkpoint(save(names), task, device="cpu")
    assert by_number == evaluate_checkpoint(save(["down", "none", "up"]), task, device="cpu")
    assert by_number != evaluate_checkpoint(save(NAMES), task, device="cpu")


def test_classes_go_by_their_numbers_in_whatever_order_a_config_lists_them(save, task):
    expected = evaluate_checkpoint(save(NAMES), task, device="cpu")
    file = Path(save(NAMES)) / "config.json"
    config = json.loads(file.read_text())
    config["id2label"] = {str(number): NAMES[number] for number in (2, 0, 1)}
    file.write_text(json.dumps(config))
    assert evaluate_checkpoint(str(file.parent), task, device="cpu") == expected


def test_the_same_from_the_hub(hub, save, task, tmp_path):
    local = evaluate_checkpoint(save(NAMES), task, device="cpu")
    hub.put("alice/model", {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}, revision="v1")
    assert evaluate_checkpoint("alice/model@v1", task, device="cpu") == local


def test_other_classes_are_refused(save, task):
    with pytest.raises(ModelError, match="has the classes up, down, left; the classes of toy are down, none, up"):
        evaluate_checkpoint(save(["up", "down", "left"]), task)


def test_a_model_that_has_learned_no_task_is_refused(tokenizer, tmp_path, task):
    AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="lacks weights of a classifier .*classifier"):
        evaluate_checkpoint(str(tmp_path), task)
