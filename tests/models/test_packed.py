"""Several texts in a row equal one a row: outputs and every gradient, for every family and objective."""

import numpy as np
import pytest
import torch

from hf_tlm.data import TlmCollator
from hf_tlm.objectives import Mlm, TaskLoss, WeightedMean
from test_tlm_model import families, tiny

OBJECTIVES = {
    "mlm": (Mlm(), 0.3, False),
    "task": (TaskLoss(), 0.0, True),
    "both": (WeightedMean((20.0, Mlm()), (1.0, TaskLoss())), 0.3, True),
}


def texts(labelled, pairs=False, count=9):
    rng = np.random.default_rng(5)
    found = []
    for draw in range(count):
        ids = [2, *rng.integers(5, 120, rng.integers(1, 20)).tolist(), 3]
        found.append({"input_ids": ids, "draw": draw})
        if labelled:
            found[-1]["label"] = draw % 3
        if pairs:
            found[-1]["token_type_ids"] = [int(i > len(ids) // 2) for i in range(len(ids))]
    return found


def collate(tokenizer, rows, row_length, mlm_probability):
    return TlmCollator(tokenizer, mlm_probability=mlm_probability, row_length=row_length, seed=1)(rows)


def loss_and_gradients(model, objective, batch):
    model.zero_grad()
    loss = objective(model(**batch), batch)["loss"]
    loss.backward()
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@families
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_equals_padded(model_type, objective, attention, tokenizer):
    objective, mlm_probability, labelled = OBJECTIVES[objective]
    model = tiny(model_type, attn_implementation=attention).eval().double()
    rows = texts(labelled, pairs=True)
    packed, padded = (collate(tokenizer, rows, length, mlm_probability) for length in (36, None))
    assert len(packed["input_ids"]) < len(padded["input_ids"]) == len(rows)
    ours = loss_and_gradients(model, objective, packed)
    # The reference is always sdpa: stock ModernBERT's eager attention has NaN gradients where a window is all padding.
    expected = loss_and_gradients(tiny(model_type).eval().double(), objective, padded)
    # ModernBERT's rotary angles are float32 whatever the model is.
    tolerance = {"rtol": 1e-5, "atol": 1e-7} if model_type == "modernbert" else {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(ours[0], expected[0], **tolerance)
    assert set(ours[1]) == set(expected[1])
    for name, gradient in ours[1].items():
        torch.testing.assert_close(gradient, expected[1][name], **tolerance, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_pools_each_text(pooling, tokenizer):
    model = tiny("modernbert", classifier_pooling=pooling).eval().double()
    rows = texts(labelled=True)
    packed, padded = (model(**collate(tokenizer, rows, length, 0.0)).logits for length in (36, None))
    torch.testing.assert_close(packed, padded, rtol=1e-5, atol=1e-7)


@families
def test_a_text_does_not_see_its_neighbours(model_type, tokenizer):
    """Changing one text of a row leaves the others' logits as they were."""
    model, rows = tiny(model_type).eval(), texts(labelled=True)
    before = model(**collate(tokenizer, rows, 36, 0.0)).logits
    rows[4]["input_ids"][1:-1] = [7] * (len(rows[4]["input_ids"]) - 2)
    changed = (model(**collate(tokenizer, rows, 36, 0.0)).logits != before).any(dim=1)
    assert changed.tolist() == [i == 4 for i in range(len(rows))]
