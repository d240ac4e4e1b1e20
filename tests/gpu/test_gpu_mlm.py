"""Masked language modelling and a task, for every family: loss and every gradient equal the CPU."""

import pytest
import torch
from transformers import set_seed

from hf_tlm.data import TlmCollator
from hf_tlm.data.collator import leading_texts, repeat_rows
from hf_tlm.models.linear_cross_entropy import linear_cross_entropy
from hf_tlm.objectives import Mlm, RDrop, TaskLoss, TeacherLoss, WeightedMean, WeightedSum
from support.gpu import DEVICE, assert_same_steps, here, on_device, without_dropout
from support.tiny_models import families, tiny
from support.token_texts import texts

BOTH = WeightedMean((20.0, Mlm()), (1.0, TaskLoss()))


def collate(tokenizer, row_length=None, mlm_probability=0.3, labelled=True):
    return TlmCollator(tokenizer, mlm_probability=mlm_probability, row_length=row_length, seed=1)(
        texts(labelled, pairs=True)
    )


def loss_of(objective):
    return lambda model, batch: objective(model(**batch), batch)["loss"]


@families
@pytest.mark.parametrize("row_length", [None, 36], ids=["group", "pack"])
@pytest.mark.parametrize("objective,labelled", [(Mlm(), False), (BOTH, True)], ids=["mlm", "both"])
def test_loss_and_every_gradient_equal_the_cpu(model_type, row_length, objective, labelled, tokenizer):
    model, batch = without_dropout(tiny(model_type)), collate(tokenizer, row_length, labelled=labelled)
    assert (row_length is not None) == ("text_ids" in batch)
    assert_same_steps(model, loss_of(objective), batch)


@families
def test_eager_attention_equals_the_cpu_and_sdpa(model_type, tokenizer):
    batch = collate(tokenizer, 36)
    eager = without_dropout(tiny(model_type, attn_implementation="eager"))
    assert_same_steps(eager, loss_of(BOTH), batch)
    fused = without_dropout(tiny(model_type))
    fused.load_state_dict(eager.state_dict())
    found = [loss_of(BOTH)(on_device(model), here(batch)).item() for model in (eager, fused)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_packed_equals_padded(tokenizer):
    """On the device, in float64."""
    model = on_device(without_dropout(tiny("bert")).double())
    found = []
    for row_length in (36, None):
        model.zero_grad()
        loss = loss_of(BOTH)(model, here(collate(tokenizer, row_length)))
        loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("row_length", [None, 36], ids=["group", "pack"])
def test_rdrop_equals_the_cpu(row_length, tokenizer):
    set_seed(0)
    objective = RDrop(3.0, 0.1, [0.5, 1.5, 1.0])
    model, batch = without_dropout(tiny("bert")), collate(tokenizer, row_length, 0.0)
    assert_same_steps(model, lambda own, given: objective(own(**repeat_rows(given)), given)["loss"], batch)

    class Logits(torch.nn.Module):
        """The logits of two passes with dropout."""

        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Parameter(torch.randn(2 * len(batch["labels"]), 3))

    assert_same_steps(Logits(), lambda own, given: objective(own, given)["loss"], {"labels": batch["labels"]})


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_teacher_loss_equals_the_cpu(temperature, tokenizer):
    objective = WeightedSum((1.0, TaskLoss(class_weights=[0.5, 1.5, 1.0])), (2.0, TeacherLoss(temperature)))
    model, batch = without_dropout(tiny("bert")), collate(tokenizer, 36, 0.0)
    answers = torch.rand(len(batch["labels"]), 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    answers[::3] = 0

    def loss(own, given):
        return objective(own(**{n: v for n, v in given.items() if n != "teacher_probs"}), given)["loss"]

    assert_same_steps(model, loss, {**batch, "teacher_probs": answers})


@pytest.mark.parametrize("weights_learn", [True, False])
def test_cross_entropy_in_blocks_equals_torch(weights_learn):
    """With few logits at a time, with and without the weight's gradient."""
    set_seed(0)
    made = [torch.randn(9, 8, device=DEVICE), torch.randn(50, 8, device=DEVICE), torch.randn(50, device=DEVICE)]
    labels, gradients = torch.randint(50, (9,), device=DEVICE), []
    for cross_entropy in (
        lambda *given: linear_cross_entropy(*given, labels, max_logits=120),
        lambda hidden, *linear: torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(hidden, *linear), labels, reduction="sum"
        ),
    ):
        tensors = [made[0].clone().requires_grad_(), *(each.clone().requires_grad_(weights_learn) for each in made[1:])]
        loss = cross_entropy(*tensors)
        loss.backward()
        gradients.append([loss.detach(), *(each.grad for each in tensors if each.requires_grad)])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-5)


def test_leading_texts_equal_the_cpu(tokenizer):
    for row_length in (None, 36):
        batch = collate(tokenizer, row_length)
        expected, found = leading_texts(batch, 4), leading_texts(here(batch), 4)
        assert all(torch.equal(found[name].cpu(), values) for name, values in expected.items())
