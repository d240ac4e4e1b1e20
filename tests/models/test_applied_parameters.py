"""6 x tokens x parameters counts the layers that ALBERT shares as often as they are applied."""

import pytest
import torch
from transformers import AutoConfig

from hf_tlm.models import CorruptAndPredict, LoraArguments, TlmModel, add_lora, applied_parameters, auxiliary_config
from toys import TINY_CONFIGS


def config(model_type, **changes):
    return AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type] | changes)


def watched(model):
    """The parameters of every layer, each time it is called."""
    calls = []
    layers = [module for module in model.modules() if type(module).__name__ == "AlbertLayer"]
    for layer in layers:
        layer.register_forward_hook(lambda module, *_: calls.append(sum(p.numel() for p in module.parameters())))
    return layers, calls


@pytest.mark.parametrize("layers,groups,inner", [(1, 1, 1), (6, 1, 1), (6, 2, 1), (5, 2, 1), (4, 2, 2)])
def test_against_the_calls(layers, groups, inner):
    shape = {"num_hidden_layers": layers, "num_hidden_groups": groups, "inner_group_num": inner}
    model = TlmModel.from_config(config("albert", **shape))
    modules, calls = watched(model)
    ids = torch.tensor([[2, 5, 6, 3]])
    model(ids, torch.ones_like(ids))
    shared = sum(p.numel() for module in modules for p in module.parameters())
    assert len(calls) == layers * inner
    assert applied_parameters(model) == model.num_parameters() - shared + sum(calls)


@pytest.mark.parametrize("model_type", [name for name in TINY_CONFIGS if name != "albert"])
def test_other_bodies_share_nothing(model_type):
    model = TlmModel.from_config(config(model_type))
    assert applied_parameters(model) == model.num_parameters() > 0


def test_ale_has_two_such_bodies():
    main = config("albert", num_hidden_layers=3)
    model = CorruptAndPredict.from_config(main, auxiliary_config(main, 0.5, layers=2))
    modules, calls = watched(model)
    ids = torch.tensor([[2, 4, 6, 3]])
    model(ids, torch.ones_like(ids), mlm_labels=torch.tensor([[-100, 7, -100, -100]]))
    assert len(calls) == 5 and len(modules) == 2
    shared = sum(p.numel() for module in modules for p in module.parameters())
    assert applied_parameters(model) == model.num_parameters() - shared + sum(calls)


def test_with_an_adapter():
    model = TlmModel.from_config(config("albert"))
    plain = applied_parameters(model)
    adapted = add_lora(model, LoraArguments(use_peft=True, lora_r=1), "unused")
    assert applied_parameters(adapted) > plain
    assert applied_parameters(adapted) > adapted.num_parameters()
