"""6 x tokens x parameters counts the layers that ALBERT shares each time they are applied."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from hf_tlm.models import GeneratorDiscriminator, LoraArguments, TlmModel, add_lora, applied_parameters, generator_config
from support.toys import TINY_CONFIGS


def config(model_type, **changes):
    return AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type] | changes)


def record_layer_calls(model):
    """Return the shared layers, and a list of their parameter counts for each call."""
    calls = []
    layers = [module for module in model.modules() if type(module).__name__ == "AlbertLayer"]
    for layer in layers:
        layer.register_forward_hook(lambda module, *_: calls.append(sum(p.numel() for p in module.parameters())))
    return layers, calls


@pytest.mark.parametrize("layers,groups,inner", [(1, 1, 1), (6, 1, 1), (6, 2, 1), (5, 2, 1), (4, 2, 2)])
def test_applied_parameters_equal_the_layer_calls(layers, groups, inner):
    shape = {"num_hidden_layers": layers, "num_hidden_groups": groups, "inner_group_num": inner}
    model = TlmModel.from_config(config("albert", **shape))
    modules, calls = record_layer_calls(model)
    ids = torch.tensor([[2, 5, 6, 3]])
    model(ids, torch.ones_like(ids))
    shared = sum(p.numel() for module in modules for p in module.parameters())
    assert len(calls) == layers * inner
    assert applied_parameters(model) == model.num_parameters() - shared + sum(calls)


@pytest.mark.parametrize("model_type", [name for name in TINY_CONFIGS if name != "albert"])
def test_other_families_share_no_layers(model_type):
    model = TlmModel.from_config(config(model_type))
    assert applied_parameters(model) == model.num_parameters() > 0


def test_both_bodies_of_ale_are_counted():
    main = config("albert", num_hidden_layers=3)
    model = GeneratorDiscriminator.from_config(main, generator_config(main, 0.5, layers=2))
    modules, calls = record_layer_calls(model)
    ids = torch.tensor([[2, 4, 6, 3]])
    model(ids, torch.ones_like(ids), mlm_labels=torch.tensor([[-100, 7, -100, -100]]))
    assert len(calls) == 5 and len(modules) == 2
    shared = sum(p.numel() for module in modules for p in module.parameters())
    assert applied_parameters(model) == model.num_parameters() - shared + sum(calls)


def test_adapters_of_shared_layers_are_counted():
    model = TlmModel.from_config(config("albert"))
    plain = applied_parameters(model)
    adapted = add_lora(model, LoraArguments(use_peft=True, lora_r=1), "unused")
    assert applied_parameters(adapted) > plain
    assert applied_parameters(adapted) > adapted.num_parameters()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_passes_of_coco_lm_equal_the_measured_flops(apart, frozen):
    """Measured by torch, with models so wide that matrix products are nearly all of the FLOPs."""
    main = config("cocolm", hidden_size=64, intermediate_size=256, num_hidden_layers=4, vocab_size=20)
    options = {"heads": "rtd", "apart": apart, "frozen": frozen}
    model = GeneratorDiscriminator.from_config(main, generator_config(main, 1, 2), **options)
    ids = torch.full((4, 8), 5)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mlm_labels": ids}
    layers = {"main": model.main.base_model.encoder, "auxiliary": model.auxiliary.base_model.encoder}
    sizes = {name: sum(p.numel() for p in layer.parameters() if p.dim() > 1) for name, layer in layers.items()}
    for view in (0.0, 1.0):
        model.second_view = view
        crops = {f"crop_{name}": inputs[name] for name in ("input_ids", "attention_mask")} if view else {}
        with FlopCounterMode(display=False) as counter:
            output = model(**inputs, **crops)
            (output.mlm_loss + output.rtd_logits.sum() + (output.cropped_vectors.sum() if crops else 0)).backward()
        thirds = 1 if frozen else 4 if apart else 3
        expected = (1 + view) * sizes["main"] + thirds / 3 * sizes["auxiliary"]
        assert counter.get_total_flops() / (6 * ids.numel()) == pytest.approx(expected, rel=0.12)
        further = view * model.main.base_model.num_parameters() + (thirds - 3) / 3 * auxiliary_parameters(model)
        assert applied_parameters(model) == pytest.approx(model.num_parameters() + further, abs=1)


def test_auxiliary_model_is_not_applied_to_texts_that_are_classified():
    main = config("cocolm")
    model = GeneratorDiscriminator.from_config(main, generator_config(main, 1, 1), heads="rtd", apart=True)
    model.corrupts = False
    assert applied_parameters(model) == model.num_parameters() - auxiliary_parameters(model)


def auxiliary_parameters(model):
    """Return the number of parameters of the auxiliary model that the main model does not share."""
    main = {id(p) for p in model.main.parameters()}
    return sum(p.numel() for p in model.auxiliary.parameters() if id(p) not in main)
