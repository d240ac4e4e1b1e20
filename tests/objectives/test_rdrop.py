"""R-Drop compared with a plain transcription of its equation, value and gradient."""

from types import SimpleNamespace

import pytest
import torch

from hf_tlm.data.collator import repeat_rows
from hf_tlm.objectives import RDrop


def plain(logits, labels, alpha, smoothing):
    """Compute the loss text by text and class by class."""
    count, classes = len(labels), logits.shape[1]
    p, q = logits[:count].softmax(-1), logits[count:].softmax(-1)
    total = 0.0
    for text, label in enumerate(labels.tolist()):
        wanted = torch.full((classes,), smoothing / classes, dtype=logits.dtype)
        wanted[label] += 1 - smoothing
        entropies = [-(wanted * one[text].log()).sum() for one in (p, q)]
        forth = sum(p[text, c] * (p[text, c] / q[text, c]).log() for c in range(classes))
        back = sum(q[text, c] * (q[text, c] / p[text, c]).log() for c in range(classes))
        total = total + sum(entropies) / 2 + alpha * (forth + back) / 2
    return total / count


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_loss_and_gradient_equal_the_equation(alpha, smoothing):
    torch.manual_seed(0)
    ours = torch.randn(10, 4, requires_grad=True)
    theirs = ours.detach().double().requires_grad_()
    labels = torch.tensor([0, 3, 1, 1, 2])
    loss = RDrop(alpha, smoothing)(SimpleNamespace(logits=ours), {"labels": labels})
    expected = plain(theirs, labels, alpha, smoothing)
    loss["loss"].backward()
    expected.backward()
    assert loss["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=1e-4, atol=1e-6)
    assert loss["loss"].item() == pytest.approx((loss["task_loss"] + alpha * loss["rdrop_loss"]).item(), rel=1e-6)


def test_losses_of_micro_batches_add_up():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    whole = RDrop(1.0)(SimpleNamespace(logits=logits.flatten(0, 1)), {"labels": labels})["loss"]
    parts = [
        RDrop(1.0)(
            SimpleNamespace(logits=logits[:, rows].flatten(0, 1)), {"labels": labels[rows]}, {"task": torch.tensor(6)}
        )
        for rows in (slice(0, 2), slice(2, 6))
    ]
    assert sum(part["loss"] for part in parts).item() == pytest.approx(whole.item(), rel=1e-6)


def test_repeat_rows_repeats_a_packed_batch():
    packed = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 9, 0, 0]]),
        "text_ids": torch.tensor([[1, 1, 2, 2], [3, 3, 0, 0]]),
        "first_tokens": torch.tensor([0, 2, 4]),
        "labels": torch.tensor([0, 1, 2]),
    }
    found = repeat_rows(packed)
    assert found["input_ids"].tolist() == [[5, 6, 7, 8], [9, 9, 0, 0]] * 2
    assert found["first_tokens"].tolist() == [0, 2, 4, 8, 10, 12]
    assert found["text_ids"].tolist() == [[1, 1, 2, 2], [3, 3, 0, 0], [4, 4, 5, 5], [6, 6, 0, 0]]
    assert found["labels"].tolist() == [0, 1, 2] * 2
    assert packed["first_tokens"].tolist() == [0, 2, 4], "the batch itself is left alone"


def test_unlabelled_texts_do_not_count():
    torch.manual_seed(0)
    logits, labels = torch.randn(8, 3), torch.tensor([0, 2, -100, -100])
    labelled = logits[[0, 1, 4, 5]]
    found = RDrop(2.0)(SimpleNamespace(logits=logits), {"labels": labels})
    assert found["loss"].item() == pytest.approx(plain(labelled.double(), labels[:2], 2.0, 0.0).item(), rel=1e-5)
    none = RDrop(2.0)(SimpleNamespace(logits=logits), {"labels": torch.full((4,), -100)})
    assert none["loss"].item() == none["rdrop_loss"].item() == 0
