"""Every dropout of every family follows one number, as if the model had been made with it."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from hf_tlm.models import TlmModel
from hf_tlm.models.cpu_kernels import Dropout, set_dropout
from support.toys import TINY_CONFIGS

FIELDS = (
    "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob dropout attention_dropout "
    "seq_classif_dropout embedding_dropout mlp_dropout"
).split()


def made_with(model_type, p):
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    config.update({name: p for name in FIELDS if hasattr(config, name)})
    torch.manual_seed(0)
    return TlmModel.from_config(config)


def sites(model):
    """Where a model drops: module -> probability, and the numbers that are handed to an attention function."""
    found = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    return found | {
        f"{name}.attention_dropout": module.attention_dropout
        for name, module in model.named_modules()
        if isinstance(vars(module).get("attention_dropout"), float)
    }


def logits(model):
    ids = torch.arange(5, 15).repeat(2, 1)
    return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_as_if_made_with_it(model_type):
    model, wanted = made_with(model_type, 0.0), made_with(model_type, 0.3)
    set_dropout(model, 0.3)
    assert sites(model) == sites(wanted) and len(sites(model)) >= 4
    assert all(type(module) is Dropout for module in model.modules() if isinstance(module, nn.Dropout))
    own = {name: value for name, value in wanted.config.to_dict().items() if "dropout" in name}
    said = {name: value for name, value in model.config.to_dict().items() if "dropout" in name}
    assert {name: said[name] for name in FIELDS if name in own} == {name: own[name] for name in FIELDS if name in own}
    model.train()
    assert not torch.equal(logits(model), logits(model))
    set_dropout(model, 0.0)
    model.train()
    assert torch.equal(logits(model), logits(model))
