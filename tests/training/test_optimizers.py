import importlib.util
import math

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from hf_tlm.models import LoraArguments, TlmModel, add_lora, generator_config
from hf_tlm.training import ArgumentsError, TlmArguments
from hf_tlm.training import optimizers as module
from hf_tlm.training.lamb import Lamb
from hf_tlm.training.optimizers import distances_from_top, parameter_groups
from support.toys import TINY_CONFIGS
from support.training_runs import QUIET, history, trainer, weights

RATE, DECAY, EPS = 0.01, 0.1, 1e-6


def tiny(model_type, **changes):
    return AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type] | changes)


def lamb_steps(w, gradients, corrected, weight_decay=DECAY, eps=EPS):
    """Return w after the steps of Algorithm 2 of You et al. (2020), line by line; `corrected` as printed there, else as
    in the authors' code."""
    m = v = torch.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        m_hat, v_hat = (m / (1 - 0.9**t), v / (1 - 0.999**t)) if corrected else (m, v)
        u = m_hat / (v_hat.sqrt() + eps) + weight_decay * w
        w = w - RATE * w.norm() / u.norm() * u
    return w


def step_with_lamb(w, gradients, weight_decay=DECAY, eps=EPS, **group):
    parameter = nn.Parameter(w.clone())
    optimizer = Lamb([{"params": [parameter], **group}], lr=RATE, eps=eps, weight_decay=weight_decay)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("scale", [0.02, 5.0])  # Norms of 0.5 and 120; the package would clamp the latter to 10.
def test_lamb_equals_the_paper(scale, foreach):
    torch.manual_seed(0)
    w, gradients = scale * torch.randn(24, 24).double(), torch.randn(3, 24, 24).double()
    # The package also adds eps to the norm.
    torch.testing.assert_close(
        step_with_lamb(w, gradients, foreach=foreach), lamb_steps(w, gradients, False), rtol=1e-6, atol=0
    )
    # Without decay and eps the bias correction only changes the norm.
    without = {"weight_decay": 0.0, "eps": 1e-15}
    ours = step_with_lamb(w, gradients, foreach=foreach, **without)
    torch.testing.assert_close(ours, lamb_steps(w, gradients, True, **without), rtol=1e-9, atol=0)


def test_lamb_with_trust_ratio_one():
    w, gradient = torch.tensor([0.0, 0.0, 2.0]), torch.tensor([1.0, -2.0, 3.0])
    expected = w - RATE * 0.1 * gradient / (math.sqrt(0.001) * gradient.abs() + EPS)
    torch.testing.assert_close(step_with_lamb(w, [gradient], weight_decay=0.0, adam=True), expected)


def test_trainer_with_lamb_uses_the_arguments_and_resumes(tmp_path, data, tokenizer):
    options = {
        **{"rho1": 1, "max_steps": 6, "per_device_train_batch_size": 12, "config": {}, "optim": "lamb"},
        **{"adam_beta1": 0.8, "adam_beta2": 0.98, "adam_epsilon": 1e-5, "weight_decay": 0.2},
    }
    run = trainer(tmp_path / "whole", data, tokenizer, **options)
    run.train()
    optimizer = run.optimizer.optimizer
    assert isinstance(optimizer, Lamb) and not optimizer.pre_norm
    for group, decay in zip(optimizer.param_groups, (0.2, 0.0), strict=True):
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.98), 1e-5, decay)
        assert group["adam"] == (decay == 0.0)
        assert all((value.dim() < 2) == (decay == 0.0) for value in group["params"])
    saving = {**options, "save_strategy": "steps", "save_steps": 3}
    part = trainer(tmp_path / "cut", data, tokenizer, **saving)
    part.train()
    # As if the run had ended after its third step.
    resumed = trainer(tmp_path / "cut", data, tokenizer, **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-3"))
    names = ("step", "loss", "grad_norm", "learning_rate")
    assert len(history(run, *names)) == 6 and history(resumed, *names) == history(run, *names)
    for name, value in weights(resumed).items():
        assert torch.equal(value, run.model.state_dict()[name]), name


def test_lamb_with_optim_args_or_without_its_package_is_refused(monkeypatch):
    with pytest.raises(ArgumentsError, match="no optim_args; received 'x=1'"):
        TlmArguments(**QUIET, output_dir="unused", optim="lamb", optim_args="x=1")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert importlib.util.find_spec("pytorch_optimizer")
    with pytest.raises(ArgumentsError, match=r"pip install 'hf-tlm\[optim\]'"):
        TlmArguments(**QUIET, output_dir="unused", optim="lamb")
    with pytest.raises(ArgumentsError, match="unknown optimizer 'lamp'. Did you mean lamb"):
        TlmArguments(**QUIET, output_dir="unused", optim="lamp")


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_distances_from_the_top_layer(model_type):
    """With two layers, except for ALBERT's shared ones, which are one."""
    model = TlmModel.from_config(tiny(model_type))
    top = 1 if model_type == "albert" else 2
    body, seen = f"{model.base_model_prefix}.", set()
    for name, distance in distances_from_top(model).items():
        if "layers.0." in name or "layer.0." in name or "layer_groups.0." in name:
            expected = top
        elif "layers.1." in name or "layer.1." in name:
            expected = top - 1
        elif not name.startswith(body) or "pooler" in name or "final_norm" in name:
            expected = 0
        else:
            assert "embedding" in name or "relative_attention_bias" in name, name
            expected = top + 1
        assert distance == expected, name
        seen.add(distance)
    assert seen == set(range(top + 2))


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_groups_contain_every_parameter_once(model_type):
    model = TlmModel.from_config(tiny(model_type))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying = {name for name in names.values() if "bias" not in name}
    groups = parameter_groups(model, decaying, learning_rate=1.0, weight_decay=0.3, layerwise_lr_decay=0.5)
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(names)
    distances = distances_from_top(model)
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert group["lr"] == 0.5 ** distances[name], name
            assert group["weight_decay"] == (0.3 if name in decaying else 0.0), name
    assert groups[0]["lr"] == 1.0


def test_distances_of_two_bodies():
    """Each body's distances are from its own top."""

    class TwoBodies(nn.Module):
        def __init__(self):
            super().__init__()
            config = tiny("electra", num_hidden_layers=3)
            self.main, self.auxiliary = (
                TlmModel.from_config(config),
                TlmModel.from_config(generator_config(config, layers=1)),
            )
            self.auxiliary.get_input_embeddings().weight = self.main.get_input_embeddings().weight
            self.rtd_head = nn.Linear(2, 1)

    distances = distances_from_top(TwoBodies())
    assert distances["main.electra.encoder.layer.0.output.dense.weight"] == 3
    assert distances["main.electra.embeddings.word_embeddings.weight"] == 4
    assert distances["auxiliary.electra.encoder.layer.0.output.dense.weight"] == 1
    assert distances["auxiliary.electra.embeddings.LayerNorm.weight"] == 2
    assert distances["rtd_head.weight"] == distances["main.classifier.dense.weight"] == 0
    assert "auxiliary.electra.embeddings.word_embeddings.weight" not in distances, "shared: it has one place"


def test_adapters_have_the_distances_of_their_layers():
    model = add_lora(TlmModel.from_config(tiny("bert")), LoraArguments(use_peft=True), "unused")
    groups = parameter_groups(model, (), learning_rate=1.0, weight_decay=0.0, layerwise_lr_decay=0.5)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(len(group["params"]) for group in groups) == len(trained)
    assert [group["lr"] for group in groups] == [1.0, 0.5, 0.25], "heads, and the adapters of two layers"


def test_trainer_uses_layerwise_decay(tmp_path, data, tokenizer):
    """The schedule scales every group's learning rate, and the top's is logged."""
    run = trainer(tmp_path, data, tokenizer, rho1=1, max_steps=2, layerwise_lr_decay=0.5, lr_scheduler_type="constant")
    before = weights(run)
    run.train()
    groups = run.optimizer.param_groups
    assert {group["lr"] for group in groups} == {1e-2, 5e-3, 2.5e-3, 1.25e-3}
    assert [row[0] for row in history(run, "learning_rate")] == [1e-2, 1e-2]
    # Adam's first steps are as large as the learning rate, regardless of the gradient.
    change = {name: (value - before[name]).abs().max().item() for name, value in run.model.state_dict().items()}
    assert change["bert.embeddings.word_embeddings.weight"] < 3e-3 < change["classifier.weight"]


def test_stages_have_their_own_layerwise_decay():
    args = TlmArguments(**QUIET, output_dir="unused", layerwise_lr_decay=0.9, stage2_layerwise_lr_decay=0.8)
    rates = [args.for_stage(stage, "out", 0, "accuracy").layerwise_lr_decay for stage in (1, 2)]
    assert rates == [0.9, 0.8]
    for value in (0.0, 1.1):
        with pytest.raises(ArgumentsError, match=r"stage2_layerwise_lr_decay: expected"):
            TlmArguments(**QUIET, output_dir="unused", stage2_layerwise_lr_decay=value)


def test_layerwise_decay_needs_an_optimizer_that_takes_groups(tmp_path, data, tokenizer, monkeypatch):
    run = trainer(tmp_path, data, tokenizer, layerwise_lr_decay=0.5)
    own_groups = staticmethod(lambda args, model: (torch.optim.SGD, {"params": []}))
    monkeypatch.setattr("transformers.Trainer.get_optimizer_cls_and_kwargs", own_groups)
    with pytest.raises(ArgumentsError, match="layerwise_lr_decay has no effect"):
        run.create_optimizer()
