import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import f1_score, matthews_corrcoef
from transformers import EvalPrediction

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import KIND_METRICS, METRICS, compute_metrics_for, load_metric
from hf_tlm.tasks import METRICS as TASK_METRICS

REFERENCES = [0, 0, 0, 1, 1, 2]
PREDICTIONS = [0, 0, 1, 1, 2, 2]


def test_classification_metrics_by_hand():
    # Class 0: precision 1, recall 2/3. Class 1: 1/2, 1/2. Class 2: 1/2, 1.
    names = ("accuracy", "micro_f1", "macro_f1", "matthews")
    values = {name: load_metric(name).compute(predictions=PREDICTIONS, references=REFERENCES)[name] for name in names}
    assert values["accuracy"] == values["micro_f1"] == pytest.approx(4 / 6)
    assert values["macro_f1"] == pytest.approx((4 / 5 + 1 / 2 + 2 / 3) / 3)
    # 4 of 6 correct; predicted [2, 2, 2] times, references [3, 2, 1] times.
    assert values["matthews"] == pytest.approx((4 * 6 - (2 * 3 + 2 * 2 + 2 * 1)) / ((36 - 12) * (36 - 14)) ** 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_classification_metrics_equal_scikit_learn(seed):
    references, predictions = np.random.default_rng(seed).integers(0, 5, (2, 100))
    for name in ("micro", "macro"):
        ours = load_metric(f"{name}_f1").compute(predictions=predictions, references=references)
        assert ours[f"{name}_f1"] == pytest.approx(f1_score(references, predictions, average=name))
    ours = load_metric("matthews").compute(predictions=predictions, references=references)["matthews"]
    assert ours == pytest.approx(matthews_corrcoef(references, predictions)) and abs(ours) > 1e-3


def test_classes_that_never_occur_do_not_count():
    assert load_metric("macro_f1").compute(predictions=[0, 0], references=[0, 0]) == {"macro_f1": 1.0}
    # A class that is predicted but never correctly counts with 0.
    assert load_metric("macro_f1").compute(predictions=[0, 3], references=[0, 0])["macro_f1"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["accuracy", "micro_f1", "macro_f1", "matthews"])
def test_compute_metrics_of_a_classifier(name):
    logits = np.eye(3)[PREDICTIONS] * 2 - 1
    scores = compute_metrics_for(name)(EvalPrediction(predictions=logits, label_ids=np.array(REFERENCES)))
    assert set(scores) == {name, "accuracy"} and scores["accuracy"] == pytest.approx(4 / 6)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_compute_metrics_of_a_regression(shape):
    outputs = EvalPrediction(predictions=np.array([0.0, 1, 4]).reshape(shape), label_ids=np.array([0.0, 1, 2]))
    scores = compute_metrics_for("pearson", "spearman")(outputs)
    assert scores == {"pearson": pytest.approx(4 / (2 * 26 / 3) ** 0.5), "spearman": pytest.approx(1)}


@pytest.mark.parametrize("names", [("squad_f1",), ("pearson", "accuracy"), ("accuracy", "pearson"), ("tag_accuracy",)])
def test_metrics_of_different_heads_are_refused(names):
    with pytest.raises(HfTlmError, match="metrics of classification only, or of regression only"):
        compute_metrics_for(*names)


def test_binary_f1(caplog):
    f1 = load_metric("f1")
    # Class 1: precision 2/3, recall 1/2.
    assert f1.compute(predictions=[1, 1, 1, 0, 0, 0], references=[1, 1, 0, 1, 1, 0]) == {"f1": pytest.approx(4 / 7)}
    assert f1.compute(predictions=[0, 0], references=[1, 0]) == {"f1": 0.0} and not caplog.text
    assert f1.compute(predictions=[0, 0], references=[0, 0]) == {"f1": 0.0}
    assert "class 1 occurs in neither" in caplog.text
    with pytest.raises(HfTlmError, match="received class 2"):
        f1.compute(predictions=[0, 1], references=[0, 2])


@pytest.mark.parametrize("side", ["predictions", "references"])
def test_matthews_of_a_single_class_is_zero_with_a_warning(side, caplog):
    values = {"predictions": [0, 1, 1], "references": [0, 1, 0], side: [1, 1, 1]}
    assert load_metric("matthews").compute(**values) == {"matthews": 0.0}
    assert f"the {side} are all of one class" in caplog.text


def test_every_task_metric_exists():
    assert set(TASK_METRICS) == set(METRICS)
    assert set().union(*KIND_METRICS.values()) == set(METRICS)


def test_unknown_metric_is_refused():
    with pytest.raises(HfTlmError, match="received 'bleu'"):
        load_metric("bleu")


def test_diverged_training_is_not_scored():
    with pytest.raises(HfTlmError, match="diverged"):
        compute_metrics_for("accuracy")(EvalPrediction(predictions=np.full((2, 3), np.nan), label_ids=np.array([0, 1])))


def test_texts_without_a_label_are_not_scored():
    """As in the loss and the collator, -100 is not a class."""
    logits, labels = np.eye(3)[PREDICTIONS + [0, 1]], np.array(REFERENCES + [-100, -100])
    scores = compute_metrics_for("macro_f1")(EvalPrediction(predictions=logits, label_ids=labels))
    assert scores["macro_f1"] == pytest.approx(f1_score(REFERENCES, PREDICTIONS, average="macro"))
    assert scores["accuracy"] == pytest.approx(4 / 6)
    with pytest.raises(HfTlmError, match="None of the evaluated texts has a label"):
        compute_metrics_for("accuracy")(EvalPrediction(predictions=logits[:2], label_ids=np.array([-100, -100])))


def test_first_of_several_outputs_is_the_logits():
    """As the Trainer passes them for a model with hidden states."""
    logits, labels = np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])
    alone, among = (EvalPrediction(predictions=one, label_ids=labels) for one in (logits, (logits, np.zeros((2, 5, 7)))))
    assert compute_metrics_for("macro_f1")(among) == compute_metrics_for("macro_f1")(alone)


@pytest.mark.parametrize(
    ("name", "outputs", "labels"),
    [
        ("accuracy", (2,), (2,)),
        ("accuracy", (2, 5, 3), (2, 5)),
        ("accuracy", (2, 3), (2, 3)),
        ("pearson", (2, 3), (2,)),
    ],
)
def test_outputs_of_other_shapes_are_refused(name, outputs, labels):
    given = EvalPrediction(predictions=np.zeros(outputs), label_ids=np.zeros(labels, dtype=int))
    with pytest.raises(HfTlmError, match=r"^Expected (logits \[N, classes\]|numbers .*), of N texts with a label each"):
        compute_metrics_for(name)(given)


@pytest.mark.parametrize(
    ("predictions", "references", "what"),
    [
        ([0.7, 0.2], [1, 0], "predictions"),
        ([[0.7, 0.3], [0.2, 0.8]], [1, 0], "predictions"),
        (["a", "b"], ["a", "b"], "predictions"),
        ([1, 0], [1, -100], "references"),
        ([1.0, float("nan")], [1, 0], "predictions"),
        ([[1, 0], [1]], [1, 0], "predictions"),
    ],
)
@pytest.mark.parametrize("name", KIND_METRICS["classification"])
def test_values_that_are_no_class_index_are_refused(name, predictions, references, what):
    """Probabilities would be truncated to 0, and -100 would be a class."""
    with pytest.raises(HfTlmError, match=rf"^{name}: expected {what} to be indices of classes, \[N\]; received"):
        load_metric(name).compute(predictions=predictions, references=references)
    whole = load_metric(name).compute(predictions=np.array([1.0, 0.0]), references=[1, 0])
    assert whole == load_metric(name).compute(predictions=[1, 0], references=[1, 0])


@pytest.mark.parametrize(
    "classes",
    [np.array([1, 0], dtype=object), pandas.Series([1, 0], dtype="Int64"), torch.tensor([1.0, 0.0], requires_grad=True)],
    ids=["objects", "Int64", "tensor with a gradient"],
)
def test_classes_may_be_in_frames_and_tensors(classes):
    assert load_metric("macro_f1").compute(predictions=classes, references=classes)["macro_f1"] == 1


def test_metric_name_that_is_no_string_is_refused():
    for ask in (load_metric, compute_metrics_for):
        with pytest.raises(HfTlmError, match=r"^metric: expected one of .*; received \['accuracy'\]"):
            ask(["accuracy"])
