"""Compare a GPU with the CPU, for tests/gpu: the same model and batches on both, losses and all gradients."""

import os
from copy import deepcopy

import torch

from hf_tlm.models.cpu_kernels import set_dropout
from support.training_runs import trainer

# HF_TLM_TEST_GPU: empty (all tests skip), cpu (both sides are the CPU), or anything else (a GPU).
WANTED = os.environ.get("HF_TLM_TEST_GPU", "")
DEVICE = torch.device("cpu" if WANTED in ("", "cpu") else "cuda")
ON_CPU, ON_DEVICE = {"use_cpu": True}, {"use_cpu": DEVICE.type == "cpu"}
# Set explicitly, because the default batch layout differs between CPU and GPU.
LAYOUT = {"packing": "group"}
# Tolerances relative to a tensor's largest value, and to the largest of all gradients: some are 0 except for rounding.
CLOSE, OF_ALL = 1e-4, 1e-6


def here(batch):
    return {name: values.to(DEVICE) for name, values in batch.items()}


def on_device(model):
    return deepcopy(model).to(DEVICE)


def without_dropout(model):
    set_dropout(model, 0.0)
    return model.train()


def on_both(model, loss_of, batch):
    """Return (loss, gradients by name) on the CPU, then on the device, all moved to the CPU."""
    found = []
    for device in (torch.device("cpu"), DEVICE):
        moved = deepcopy(model).to(device)
        loss = loss_of(moved, {name: values.to(device) for name, values in batch.items()})
        assert loss.device.type == device.type
        loss.backward()
        found.append((loss.item(), {name: p.grad.cpu() for name, p in moved.named_parameters() if p.grad is not None}))
    return found


def assert_same_gradients(ours, expected, close=CLOSE, of_all=OF_ALL):
    assert ours.keys() == expected.keys() and expected
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        apart, size = (ours[name].cpu() - gradient.cpu()).abs().max().item(), gradient.abs().max().item()
        assert apart <= close * size + of_all * largest, f"{name}: {apart:.3g} apart, of {size:.3g}"


def assert_same_steps(model, loss_of, batch):
    (loss, gradients), (own_loss, own_gradients) = on_both(model, loss_of, batch)
    assert abs(own_loss - loss) <= 1e-5 * abs(loss)
    assert_same_gradients(own_gradients, gradients)


def trainers(tmp_path, data, tokenizer, **settings):
    """Yield a trainer on the CPU, then one on the device, each built when needed, as accelerate supports one device.

    All dropout is off, as devices draw different random numbers: ALBERT's classifier has a dropout of its own.
    """
    for name, where in (("cpu", ON_CPU), ("device", ON_DEVICE)):
        run = trainer(tmp_path / name, data, tokenizer, **{**LAYOUT, **settings, **where})
        set_dropout(run.model, 0.0)
        yield run


def apart(ours, expected, before):
    """Return the distance between the final weights of two trainings, relative to the distance from their start."""
    names = [name for name, value in before.items() if value.is_floating_point()]
    ways = [
        torch.cat([(end[name].cpu() - before[name].cpu()).double().flatten() for name in names]) for end in (ours, expected)
    ]
    assert ways[1].norm() > 0
    return ((ways[0] - ways[1]).norm() / ways[1].norm()).item()
