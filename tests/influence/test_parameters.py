"""Which parameters are chosen, where they are differentiated, and for which tokens layers are computed."""

import pytest
import torch

from hf_tlm.influence import InfluenceError, InfluenceScorer
from hf_tlm.influence.checkpoint import choose_parameters, layers_of
from hf_tlm.models.base import Tail
from support.naive import passages, task_texts, tiny


def names(model, layer, patterns=None):
    return [parameter.name for parameter in choose_parameters(model, layer, patterns).parameters]


def test_layers_are_indexed_like_hidden_states():
    model = tiny("bert")
    body = model.base_model
    for layer, index in ((0, 0), (-3, 0), (1, 1), (2, 2), (-1, 2)):
        choice = choose_parameters(model, layer, "*LayerNorm.weight")
        assert (choice.layer, choice.depth) == (index, 3 - index)
        owner = body.embeddings if index == 0 else body.encoder.layer[index - 1]
        assert {p.module for p in choice.parameters} == {m for m in owner.modules() if isinstance(m, torch.nn.LayerNorm)}


def test_shared_layers_count_from_their_first_application():
    model = tiny("albert")
    assert [choose_parameters(model, layer, None).depth for layer in (0, 1, 2)] == [3, 2, 2]
    groups = tiny("albert", num_hidden_groups=2)
    assert [choose_parameters(groups, layer, None).depth for layer in (0, 1, 2)] == [3, 2, 1]
    inner = tiny("albert", inner_group_num=2)
    assert names(inner, -1) == ["attention.dense.weight"] * 2


def test_patterns_choose_parameters():
    model = tiny("bert")
    assert names(model, -1) == ["attention.output.dense.weight"]
    assert names(model, 0) == ["word_embeddings.weight"]
    assert names(model, 1, "output.dense.*, *query.bias") == [
        "attention.self.query.bias",
        "output.dense.weight",
        "output.dense.bias",
    ]
    assert len(names(model, 1, "*")) == 16
    assert names(tiny("electra"), 0, "*project*") == ["embeddings_project.weight", "embeddings_project.bias"]
    assert names(tiny("albert"), 0, "*mapping_in.weight") == ["embedding_hidden_mapping_in.weight"]
    with pytest.raises(InfluenceError, match="No parameter of layer 0 matches 'attention.*'"):
        names(model, 0, "attention.*")
    for layer in (3, -4):
        with pytest.raises(InfluenceError, match=f"between -3 and 2 .* received {layer}"):
            names(model, layer)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "cocolm", "modernbert", "distilbert", "albert"])
def test_gradients_and_tail_are_computed_only_where_needed(family, tokenizer):
    model, seen = tiny(family), {}
    scorer = InfluenceScorer([model], tokenizer)
    scorer.fit(task_texts(), 1)
    layers = [modules[0][1] for modules in layers_of(model)[1:]]
    within = dict(layers[-1].named_modules())
    last = next(within[name] for name in ("intermediate.dense", "mlp.Wi", "ffn.lin1", "ffn_output") if name in within)
    handles = [
        module.register_forward_hook(lambda module, inputs, output, name=name: seen.setdefault(name, output))
        for name, module in (("first", layers[0]), ("last", last))
    ]
    batch = scorer.masked(passages().select([0, 1, 2]).to_list())
    scorer._checkpoints[0].of_passages(batch, None)
    for handle in handles:
        handle.remove()
    # ALBERT's first layer is also its last.
    assert seen["first"].requires_grad == (family == "albert")
    assert seen["last"].requires_grad
    masked = int((batch["mlm_labels"] != -100).sum())
    in_tail = family in ("bert", "roberta", "electra", "cocolm")
    assert (last in Tail(model.base_model).modules) == in_tail
    rows, length = batch["input_ids"].shape
    assert seen["last"].shape[:2] == ((1, masked) if in_tail else (rows, length))
    assert masked < rows * length / 2


def test_model_is_frozen_and_in_evaluation_mode(tokenizer):
    model = tiny("bert").train()
    scorer = InfluenceScorer([model], tokenizer)
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
    scorer.fit(task_texts(), 1)
    scorer.score(passages())
    assert all(parameter.grad is None for parameter in model.parameters())
