"""What is faster on CPUs: products of linear layers by oneDNN, and dropout whose random numbers cost little.

torch gives float32 products to the linear algebra library that it was built with, MKL in its x86 wheels, which uses no
AVX-512 on processors of other makers; those of bf16 it gives to oneDNN, which does.

For dropout torch draws a uniform number for every element, one after the other on one core. Here torch's generator draws
one seed for a whole tensor, and numpy's SFC64 fills it, several times faster. What is computed is dropout: each element is
kept independently with probability 1 - p (p in steps of 2^-16) and divided by it. Being seeded by torch's generator it
repeats where that does: after a resume, and where activations are checkpointed. Elsewhere, compiled, and where nothing is
dropped, torch and transformers do as they always do. `set_dropout` sets its rate in a model, on any device.

`faster_kernels` is for any device: the context that a step's passes run in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig


class OneDnnLinear(TorchFunctionMode):
    """A context in which `F.linear` of float32 on a CPU is oneDNN's, and so are its gradients, if that is faster here.

    Results differ by rounding. The gradients are not differentiable themselves. Not for code that is compiled, or
    that gradient checkpointing runs again in the backward pass, where no such context is seen.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and not kwargs and _suits(*args):
            differentiated = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in args)
            return _Linear.apply(*args) if differentiated else _product(*args)
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, weight, bias=None):
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = (*ctx.needs_input_grad, False)[:3]
        rows = gradient.flatten(0, -2)
        found = [
            _product(gradient, weight.t()) if of_inputs else None,
            _product(rows.t(), inputs.flatten(0, -2).t()) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        ]
        return tuple(found[: len(ctx.needs_input_grad)])


def _product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def _suits(*tensors: torch.Tensor | None) -> bool:
    given = [tensor for tensor in tensors if tensor is not None]
    return (
        is_faster()
        and bool(torch.backends.mkldnn.enabled)
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in given)
        and given[0].dim() > 1
        and given[0].numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def is_faster() -> bool:
    """Whether this build of torch has oneDNN, and takes MKL for float32 on a processor whose AVX-512 that does not use."""
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not has_onednn or not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # Not Linux.
        return False


def faster_kernels(device: torch.device, products: bool = True) -> AbstractContextManager[object]:
    """A context in which a model's passes take the kernels that are faster on a device.

    On a CPU linear layers are `OneDnnLinear`'s, where that is faster; elsewhere no such mode is on, in which every operation
    costs microseconds more. On a GPU attention is not cuDNN's, which makes a plan for every shape that it has not seen:
    batches of texts keep having new ones.

    Args:
        products: leave linear layers alone if false, of code that is compiled or run again in the backward pass.
    """
    if device.type == "cuda":
        return _without_cudnn_attention()
    return OneDnnLinear() if products and device.type == "cpu" and is_faster() else nullcontext()


@contextmanager
def _without_cudnn_attention() -> Iterator[None]:
    """What a caller has switched off stays so: where nothing but cuDNN's attention is left, it is what was asked for."""
    flags = torch.backends.cuda
    others = flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled() or flags.math_sdp_enabled()
    before = flags.cudnn_sdp_enabled()
    flags.enable_cudnn_sdp(before and not others)
    try:
        yield
    finally:
        flags.enable_cudnn_sdp(before)


def dropout_noise(like: torch.Tensor, p: float) -> torch.Tensor:
    """What dropout multiplies by: 0 with probability p, else 1 / (1 - p). Of the shape and type of `like`, on the CPU.

    p is rounded to a multiple of 2^-16, in both places.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_())
    bits = np.random.SFC64(seed).random_raw((like.numel() + 3) // 4).view(np.int16)[: like.numel()]
    count = max(1, round((1.0 - p) * 2**16))
    # As bytes, which torch turns into numbers twice as fast as its bools.
    kept = torch.from_numpy((bits < count - 2**15).view(np.int8))
    return kept.view(like.shape).to(like.dtype).mul_(2**16 / count)


def is_drawn_here(tensor: torch.Tensor, p: float) -> bool:
    """Whether dropout of probability p on a tensor takes `dropout_noise`."""
    return 0.0 < p < 1.0 and tensor.device.type == "cpu" and not torch.compiler.is_compiling()


class Dropout(nn.Dropout):
    """`nn.Dropout` with `dropout_noise`."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.training and is_drawn_here(hidden, self.p):
            return hidden * dropout_noise(hidden, self.p)
        return super().forward(hidden)


def set_dropout(model: nn.Module, p: float) -> None:
    """Give every dropout of a model the probability p, and its configs, so that an export says it.

    A LoRA adapter's own stays. Heads of other tasks that a config has fields for are meant too.
    """
    for path, parent in list(model.named_modules()):
        if path.endswith("lora_dropout"):
            continue
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                child.p = p
            elif name == "out_drop":  # What stock ModernBERT puts where its config has no dropout of attention.
                setattr(parent, name, Dropout(p))
        if isinstance(vars(parent).get("attention_dropout"), int | float):  # ModernBERT's: handed to the attention function.
            parent.attention_dropout = p
        config = vars(parent).get("config")
        if isinstance(config, PreTrainedConfig):
            names = [name for name in config.to_dict() if "dropout" in name]
            config.update({name: p for name in names if isinstance(getattr(config, name), int | float)})
