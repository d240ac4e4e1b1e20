"""Several texts packed in a row equal one text per row: outputs and every gradient, for every family and objective."""

import pytest
import torch
from transformers import modeling_flash_attention_utils

from hf_tlm.data import TlmCollator
from hf_tlm.models import ModelError
from hf_tlm.objectives import Mlm, TaskLoss, WeightedMean
from support.tiny_models import EXACT, families, loss_and_gradients, tiny
from support.token_texts import texts
from support.toys import TINY_CONFIGS

OBJECTIVES = {
    "mlm": (Mlm(), 0.3, False),
    "task": (TaskLoss(), 0.0, True),
    "both": (WeightedMean((20.0, Mlm()), (1.0, TaskLoss())), 0.3, True),
}


def collate(tokenizer, rows, row_length, mlm_probability):
    return TlmCollator(tokenizer, mlm_probability=mlm_probability, row_length=row_length, seed=1)(rows)


@families
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.usefixtures("modernbert_in_float64")
def test_packed_equals_padded(model_type, objective, attention, tokenizer):
    objective, mlm_probability, labelled = OBJECTIVES[objective]
    model = tiny(model_type, attn_implementation=attention).eval().double()
    rows = texts(labelled, pairs=True)
    packed, padded = (collate(tokenizer, rows, length, mlm_probability) for length in (36, None))
    assert len(packed["input_ids"]) < len(padded["input_ids"]) == len(rows)
    ours = loss_and_gradients(model, objective, packed)
    # The reference is always sdpa: stock ModernBERT's eager attention has NaN gradients where a window is all padding.
    expected = loss_and_gradients(tiny(model_type).eval().double(), objective, padded)
    torch.testing.assert_close(ours[0], expected[0], **EXACT)
    assert set(ours[1]) == set(expected[1])
    for name, gradient in ours[1].items():
        torch.testing.assert_close(gradient, expected[1][name], **EXACT, msg=lambda m, name=name: f"{name}: {m}")


def test_missing_attention_mask_means_tokens_of_texts(tokenizer):
    model, inputs = tiny("electra").eval(), collate(tokenizer, texts(True), 36, 0.3)
    assert 0 in inputs["text_ids"]
    with torch.no_grad():
        expected = model(**inputs)
        found = model(**{name: value for name, value in inputs.items() if name != "attention_mask"})
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.mlm_loss, expected.mlm_loss)


def varlen_attention(q, k, v, cu_seqlens, max_seqlen, causal, scale, window):
    """Compute what a flash attention kernel does: [T, heads, D], text by text, without dropout, half a window to each
    side."""
    assert cu_seqlens.dtype == torch.int32 and max_seqlen == cu_seqlens.diff().max() and not causal
    parts = []
    for start, end in zip(cu_seqlens.tolist()[:-1], cu_seqlens.tolist()[1:], strict=True):
        q_text, k_text, v_text = (x[start:end].transpose(0, 1) for x in (q, k, v))
        positions = torch.arange(end - start)
        near = (positions[:, None] - positions).abs() <= (window[0] if window[0] >= 0 else end)
        parts.append(torch.nn.functional.scaled_dot_product_attention(q_text, k_text, v_text, near, scale=scale))
    return torch.cat([part.transpose(0, 1) for part in parts])


@pytest.mark.parametrize("model_type", [name for name in TINY_CONFIGS if name != "cocolm"])
@pytest.mark.usefixtures("modernbert_in_float64")
def test_flash_attention_receives_packed_texts(model_type, tokenizer, monkeypatch):
    """With transformers' own code, and a plain function instead of the kernel, which needs a GPU."""
    calls = []

    def kernel(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, softmax_scale=None, window_size=(-1, -1)
    ):
        calls.append(len(q))
        return varlen_attention(q, k, v, cu_seqlens_q, max_seqlen_q, causal, softmax_scale, window_size)

    kernels = (None, kernel, None, None, None)
    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", lambda *args, **kwargs: kernels)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    objective, rows = WeightedMean((20.0, Mlm()), (1.0, TaskLoss())), texts(True, pairs=True)
    batch = collate(tokenizer, rows, 36, 0.3)
    assert len(rows) > len(batch["input_ids"]) > 1
    model = tiny(model_type).eval().double()
    model.base_model.config._attn_implementation = "flash_attention_2"
    ours = loss_and_gradients(model, objective, batch)
    assert calls == [int(batch["attention_mask"].sum())] * 2  # Two layers, and no padding.
    expected = loss_and_gradients(tiny(model_type).eval().double(), objective, collate(tokenizer, rows, None, 0.3))
    torch.testing.assert_close(ours[0], expected[0], **EXACT)
    for name, gradient in ours[1].items():
        torch.testing.assert_close(gradient, expected[1][name], **EXACT, msg=lambda m, name=name: f"{name}: {m}")


def test_flash_attention_with_relative_positions_is_refused():
    with pytest.raises(ModelError, match="cannot create a cocolm model from this config: .*not support Flash Attention"):
        tiny("cocolm", attn_implementation="flash_attention_2")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.usefixtures("modernbert_in_float64")
def test_modernbert_pools_each_text(pooling, tokenizer):
    model = tiny("modernbert", classifier_pooling=pooling).eval().double()
    rows = texts(labelled=True)
    packed, padded = (model(**collate(tokenizer, rows, length, 0.0)).logits for length in (36, None))
    torch.testing.assert_close(packed, padded, **EXACT)


@families
def test_packed_texts_do_not_attend_to_each_other(model_type, tokenizer):
    """Changing one text of a row does not change the logits of the others."""
    model, rows = tiny(model_type).eval(), texts(labelled=True)
    before = model(**collate(tokenizer, rows, 36, 0.0)).logits
    rows[4]["input_ids"][1:-1] = [7] * (len(rows[4]["input_ids"]) - 2)
    changed = (model(**collate(tokenizer, rows, 36, 0.0)).logits != before).any(dim=1)
    assert changed.tolist() == [i == 4 for i in range(len(rows))]
