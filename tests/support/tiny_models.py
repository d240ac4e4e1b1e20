"""Tiny models of every family, and the quantities to compare: inputs, losses and every gradient."""

import pytest
from transformers import AutoConfig, set_seed

from hf_tlm.models import TlmModel
from support.toys import TINY_CONFIGS

EXACT = {"rtol": 1e-9, "atol": 1e-12}
families = pytest.mark.parametrize("model_type", TINY_CONFIGS)


def tiny(model_type, **changes):
    set_seed(0)
    return TlmModel.from_config(AutoConfig.for_model(model_type, **{**TINY_CONFIGS[model_type], **changes}))


def loss_and_gradients(model, objective, batch):
    model.zero_grad()
    loss = objective(model(**batch), batch)["loss"]
    loss.backward()
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def main_input(model, inputs):
    """Return the ids that the main model reads, caught by a hook on its body, and the model's output."""
    caught = {}
    hook = model.main.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: caught.update(kwargs), with_kwargs=True
    )
    output = model(**inputs)
    hook.remove()
    return caught["input_ids"], output
