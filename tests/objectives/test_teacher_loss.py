"""The loss against a teacher's answers, compared with a plain transcription of its equation; texts without a label."""

import math
from types import SimpleNamespace

import pytest
import torch

from hf_tlm.objectives import TaskLoss, TeacherLoss, WeightedSum


def random_logits_and_answers(count=6, classes=4):
    torch.manual_seed(0)
    return torch.randn(count, classes, requires_grad=True), torch.rand(count, classes).softmax(-1)


def test_loss_and_gradient_equal_the_equation():
    logits, answers = random_logits_and_answers()
    mine = logits.detach().double().requires_grad_()
    found = TeacherLoss()(SimpleNamespace(logits=logits), {"teacher_probs": answers})
    expected = 0.0
    for text in range(6):
        likely = mine[text].softmax(-1)
        for label in range(4):
            expected = expected - answers[text, label].double() * likely[label].log() / 6
    found["loss"].backward()
    expected.backward()
    assert found["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    assert found["teacher_loss"].item() == found["loss"].item()
    torch.testing.assert_close(logits.grad.double(), mine.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
def test_loss_with_a_temperature_equals_the_equation(temperature):
    """Loss and gradient equal a plain transcription; texts without an answer do not count."""
    logits, answers = random_logits_and_answers()
    answers[2] = 0
    mine = logits.detach().double().requires_grad_()
    found = TeacherLoss(temperature)(SimpleNamespace(logits=logits), {"teacher_probs": answers})["loss"]
    expected, texts = 0.0, [0, 1, 3, 4, 5]
    for text in texts:
        soft = answers[text].double() ** (1 / temperature)
        likely = (mine[text] / temperature).exp()
        for label in range(4):
            term = soft[label] / soft.sum() * (likely[label] / likely.sum()).log()
            expected = expected - temperature**2 * term / len(texts)
    found.backward()
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(logits.grad.double(), mine.grad, rtol=1e-4, atol=1e-6)
    assert TeacherLoss(temperature).count({"teacher_probs": answers})["teacher"] == 5


def test_regression_loss_is_the_squared_difference():
    logits = torch.tensor([[1.0], [2.0], [5.0]], requires_grad=True)
    answers = torch.tensor([[0.5], [math.nan], [4.0]])
    found = TeacherLoss()(SimpleNamespace(logits=logits), {"teacher_probs": answers})["loss"]
    found.backward()
    assert found.item() == pytest.approx((0.25 + 1) / 2) and logits.grad.flatten().tolist() == [0.5, 0, 1]


def test_loss_is_smallest_for_equal_probabilities():
    _, answers = random_logits_and_answers()
    same = TeacherLoss()(SimpleNamespace(logits=answers.log()), {"teacher_probs": answers})["loss"]
    assert same.item() == pytest.approx(-(answers * answers.log()).sum(-1).mean().item(), rel=1e-6)
    other = TeacherLoss()(SimpleNamespace(logits=answers.flip(1).log()), {"teacher_probs": answers})["loss"]
    assert other > same


def test_losses_of_micro_batches_with_missing_labels_add_up():
    logits, answers = random_logits_and_answers()
    labels = torch.tensor([0, -100, -100, -100, 3, 1])
    both = WeightedSum((1.0, TaskLoss(0.1)), (2.0, TeacherLoss()))
    batch = {"labels": labels, "teacher_probs": answers}
    assert {name: int(n) for name, n in both.count(batch).items()} == {"task": 3, "teacher": 6}
    whole = both(SimpleNamespace(logits=logits), batch)
    labelled = TaskLoss(0.1)(SimpleNamespace(logits=logits[[0, 4, 5]]), {"labels": labels[[0, 4, 5]]})["loss"]
    assert whole["task_loss"].item() == pytest.approx(labelled.item(), rel=1e-6)
    counts = both.count(batch)
    parts = [
        both(SimpleNamespace(logits=logits[rows]), {name: values[rows] for name, values in batch.items()}, counts)
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6))  # The second has no label at all.
    ]
    assert sum(part["loss"] for part in parts).item() == pytest.approx(whole["loss"].item(), rel=1e-6)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 1.0]])
def test_batch_without_labels_has_zero_task_loss(weights):
    logits, _ = random_logits_and_answers()
    found = TaskLoss(class_weights=weights)(SimpleNamespace(logits=logits), {"labels": torch.full((6,), -100)})["loss"]
    found.backward()
    assert found.item() == 0.0 and logits.grad.abs().max() == 0
