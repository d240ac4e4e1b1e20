"""Computing the end of the last layer only for the chosen tokens gives the outputs and gradients of computing it for
all."""

import pytest
import torch

from hf_tlm.data import TlmCollator
from hf_tlm.models.base import Tail, encode, encode_masked_positions, true_indices
from support.tiny_models import EXACT, families, tiny
from support.token_texts import texts

PLACES = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "text_ids", "first_tokens")
SHORTER = ("bert", "roberta", "electra", "cocolm")


def encode_both_ways(model, tokenizer, row_length, choose=lambda chosen: chosen):
    batch = TlmCollator(tokenizer, mlm_probability=0.3, row_length=row_length, seed=1)(texts(False, pairs=True))
    inputs, chosen = [batch.get(name) for name in PLACES], choose(batch["mlm_labels"] != -100)
    found = []
    for hidden in (
        encode_masked_positions(model.base_model, true_indices(chosen), *inputs),
        encode(model.base_model, *inputs).hidden[chosen],
    ):
        model.zero_grad()
        weights = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
        (hidden.sin() * weights).sum().backward()
        found.append((hidden, {name: p.grad for name, p in model.base_model.named_parameters()}))
    return found


def tail_output_shapes(model):
    """Return a list that records the output shapes of the modules at the end of the last layer."""
    shapes = []
    for module in Tail(model.base_model).modules:
        module.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[:2])))
    return shapes


@families
@pytest.mark.parametrize("row_length", [None, 36])
@pytest.mark.usefixtures("modernbert_in_float64")
def test_chosen_tokens_have_equal_outputs_and_gradients(model_type, row_length, tokenizer):
    model = tiny(model_type).eval().double()
    shapes = tail_output_shapes(model)
    (hidden, gradients), (expected, expected_gradients) = encode_both_ways(model, tokenizer, row_length)
    assert bool(shapes) == (model_type in SHORTER)
    assert not shapes or shapes[0] == (1, len(hidden)) and shapes[-1] != shapes[0]
    torch.testing.assert_close(hidden, expected, **EXACT)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, **EXACT, msg=lambda m, name=name: f"{name}: {m}")


def test_no_chosen_tokens_give_no_output(tokenizer):
    (hidden, gradients), _ = encode_both_ways(tiny("bert").eval(), tokenizer, None, torch.zeros_like)
    assert hidden.shape[0] == 0 and not any(g.any() for g in gradients.values() if g is not None)


def test_gradient_checkpointing_computes_complete_layers(tokenizer):
    model = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).double()
    plain = encode_both_ways(model.train(), tokenizer, None)[0]
    model.activation_checkpointing_enable()
    shapes = tail_output_shapes(model)
    again = encode_both_ways(model, tokenizer, None)[0]
    assert (1, len(again[0])) not in shapes
    torch.testing.assert_close(again[0], plain[0])
    for name, gradient in plain[1].items():
        torch.testing.assert_close(again[1][name], gradient)
