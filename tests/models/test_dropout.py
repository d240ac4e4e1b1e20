"""Dropout on CPUs: its distribution, gradients and seed; models without dropout are unchanged; setting its rate."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from hf_tlm.models import TlmModel
from hf_tlm.models.cpu_kernels import ATTENTION, Dropout, dropout_noise, set_dropout
from support.toys import TINY_CONFIGS


@pytest.mark.parametrize("p", [0.1, 0.5, 0.997])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_noise_has_the_right_distribution(p, dtype):
    torch.manual_seed(0)
    like = torch.empty(401, 999, dtype=dtype)
    noise = dropout_noise(like, p)
    assert noise.shape == like.shape and noise.dtype == dtype
    # Kept elements are scaled so that the mean is 1 at the share that is really kept.
    share = round((1 - p) * 2**16) / 2**16
    assert set(noise.unique().tolist()) == {0.0, torch.tensor(1 / share, dtype=dtype).item()}
    kept = (noise != 0).double()
    # Five standard deviations, for the share that is kept and for pairs of neighbours that are both kept.
    for sample, expected in (
        (kept, 1 - p),
        (kept[:, 1:] * kept[:, :-1], (1 - p) ** 2),
        (kept[1:] * kept[:-1], (1 - p) ** 2),
    ):
        assert abs(sample.mean().item() - expected) < 5 * (2 * expected * (1 - expected) / sample.numel()) ** 0.5


def test_noise_follows_torchs_generator():
    torch.manual_seed(3)
    like, state = torch.empty(7, 5), torch.get_rng_state()
    first, second = dropout_noise(like, 0.5), dropout_noise(like, 0.5)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout_noise(like, 0.5), first) and torch.equal(dropout_noise(like, 0.5), second)


def test_module_applies_noise_only_in_training():
    module, hidden = Dropout(0.25), torch.randn(64, 32, requires_grad=True)
    dropped = module(hidden)
    dropped.sum().backward()
    noise = hidden.grad
    assert torch.equal(dropped, hidden * noise) and noise.unique().equal(torch.tensor([0.0, 1 / 0.75]))
    assert module.eval()(hidden) is hidden
    assert not Dropout(1.0)(hidden).any() and Dropout(0.0)(hidden).equal(hidden)


@pytest.mark.parametrize("model_type", list(TINY_CONFIGS))
def test_models_use_this_dropout(model_type):
    """Every dropout module of a model is replaced, and nothing else; a stock model is unchanged."""
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    model = TlmModel.from_config(copy.deepcopy(config))
    assert not [name for name, module in model.named_modules() if type(module) is nn.Dropout]
    assert model.config._attn_implementation == ATTENTION and ATTENTION not in str(model.config.to_dict())
    stock = AutoModelForSequenceClassification.from_config(config)
    assert stock.config._attn_implementation == "sdpa"
    state = model.state_dict()
    stock.load_state_dict({name: state[name] for name in stock.state_dict()})
    inputs = {"input_ids": torch.randint(5, 90, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.int64)}
    inputs["attention_mask"][1, 4:] = 0
    assert torch.equal(model.eval()(**inputs).logits, stock.eval()(**inputs).logits)


FIELDS = (
    "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob dropout attention_dropout "
    "seq_classif_dropout embedding_dropout mlp_dropout"
).split()


def model_with_dropout(model_type, p):
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    config.update({name: p for name in FIELDS if hasattr(config, name)})
    torch.manual_seed(0)
    return TlmModel.from_config(config)


def sites(model):
    """Return the dropout probabilities of a model, by module, including those passed to an attention function."""
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
def test_set_dropout_equals_creating_the_model_with_it(model_type):
    """Every dropout of every model family gets the number."""
    model, wanted = model_with_dropout(model_type, 0.0), model_with_dropout(model_type, 0.3)
    set_dropout(model, 0.3)
    assert sites(model) == sites(wanted) and len(sites(model)) >= 4
    assert all(type(module) is Dropout for module in model.modules() if isinstance(module, nn.Dropout))
    expected = {name: value for name, value in wanted.config.to_dict().items() if "dropout" in name}
    recorded = {name: value for name, value in model.config.to_dict().items() if "dropout" in name}
    assert {name: recorded[name] for name in FIELDS if name in expected} == {
        name: expected[name] for name in FIELDS if name in expected
    }
    model.train()
    assert not torch.equal(logits(model), logits(model))
    set_dropout(model, 0.0)
    model.train()
    assert torch.equal(logits(model), logits(model))
