"""Attention in exports equals that of the stock models, for scores of any size."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.masking_utils import (
    bidirectional_mask_function,
    eager_mask,
    sliding_window_bidirectional_mask_function,
)
from transformers.models.modernbert import modeling_modernbert

from hf_tlm.models.onnx_graph import _attention, _mask, _sorted_sets, exportable_attention
from support.toys import TINY_CONFIGS


def weights(query, key, mask):
    """Return the weights of `_attention`, float [B, H, S, S]."""
    eye = torch.eye(key.shape[2], dtype=query.dtype).expand(*key.shape[:2], -1, -1)
    return _attention(None, query, key, eye, mask)[0].transpose(1, 2)


@pytest.mark.parametrize("size", [1, 30, 300])
def test_masked_positions_have_tiny_but_normal_weights(size):
    """Scores range over 1,000 and more, and masked ones exceed all others of their row."""
    generator = torch.Generator().manual_seed(0)
    query, key = (size * torch.randn(2, 3, 17, 8, generator=generator) for _ in range(2))
    seen = torch.rand(2, 1, 17, 17, generator=generator) < 0.5
    seen |= torch.eye(17, dtype=torch.bool)
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    found = weights(query, key, mask)
    scores = (query.double() @ key.double().transpose(-1, -2)) * 8**-0.5
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    assert (found.double() - expected).abs().max() < 2e-7 * max(1.0, scores.abs().max().item())
    assert found[~seen.expand_as(found)].max() < 1e-25
    assert found.min() >= torch.finfo(torch.float32).tiny


def test_fully_masked_row_has_no_nan():
    states = torch.randn(1, 1, 5, 4)
    found = weights(states, states, torch.full((1, 1, 5, 5), torch.finfo(torch.float32).min))
    assert torch.equal(found, torch.full((1, 1, 5, 5), 0.2))


def test_grouped_query_attention_uses_its_own_class():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 50, "pad_token_id": 0}
    config = AutoConfig.for_model("eurobert", **sizes, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    ids = torch.randint(5, 30, (3, 12))
    with torch.no_grad():
        stock = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        with exportable_attention(model, 23):
            assert model.config._attn_implementation == "eager"
            found = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    assert torch.allclose(found, stock, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 0, 3, 20])
def test_mask_equals_that_of_transformers(window, dtype):
    """With padding at either side, with and without windows."""
    seen = torch.ones(3, 9, dtype=torch.bool)
    seen[1, 4:], seen[2, :3] = False, False
    function = bidirectional_mask_function if window is None else sliding_window_bidirectional_mask_function(window)
    sizes = {"batch_size": 3, "q_length": 9, "kv_length": 9, "mask_function": function, "allow_is_causal_skip": False}
    for mask in (seen, None):
        found, stock = (make(**sizes, attention_mask=mask, dtype=dtype) for make in (_mask, eager_mask))
        assert found.dtype == dtype and torch.equal(found.expand(3, 1, 9, 9), stock)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "distilbert", "modernbert"])
def test_models_keep_their_logits_and_are_restored(family):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(family, **TINY_CONFIGS[family])).eval()
    attention = model.config._attn_implementation
    other = copy.deepcopy(model)
    inputs = {"input_ids": torch.randint(5, 30, (3, 12)), "attention_mask": torch.ones(3, 12, dtype=torch.int64)}
    inputs["attention_mask"][0, 4:] = 0
    with torch.no_grad():
        stock = model(**inputs).logits
        for opset in (18, 23):
            with exportable_attention(model, opset):
                assert model.config._attn_implementation != attention
                assert torch.allclose(model(**inputs).logits, stock, atol=1e-6)
                assert torch.equal(other(**inputs).logits, stock)  # As if used by another thread.
        assert torch.equal(model(**inputs).logits, stock)
    assert model.config._attn_implementation == attention
    assert not any("forward" in vars(module) for module in model.modules())


def test_sets_are_sorted_within_the_context():
    """Also when nested, and where the elements cannot be ordered."""
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("modernbert", **TINY_CONFIGS["modernbert"]))
    names = vars(modeling_modernbert)
    with _sorted_sets(model):
        with _sorted_sets(model):
            pass
        assert [*names["set"](["b", "c", "a"])] == ["a", "b", "c"]
        assert {*names["set"]([1, "a", None])} == {1, "a", None}
    assert "set" not in names
