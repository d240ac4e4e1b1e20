"""Products of linear layers by oneDNN, with their gradients.

torch gives float32 products to the linear algebra library that it was built with, MKL in its x86 wheels, which uses no
AVX-512 on processors of other makers; those of bf16 it gives to oneDNN, which does.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


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
