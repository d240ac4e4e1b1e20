"""Products of linear layers by oneDNN, where nothing is differentiated.

torch gives float32 products to the linear algebra library that it was built with, MKL in its x86 wheels, which uses no
AVX-512 on processors of other makers; those of bf16 it gives to oneDNN, which does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class OneDnnLinear(TorchFunctionMode):
    """A context in which `F.linear` of float32 on a CPU is oneDNN's, if this build of torch has it, and none of its inputs
    needs a gradient. Results differ by rounding.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and not kwargs and _suits(*args):
            return torch.ops.mkldnn._linear_pointwise(args[0], args[1], args[2] if len(args) > 2 else None, "none", [], "")
        return func(*args, **(kwargs or {}))


def _suits(*tensors: torch.Tensor | None) -> bool:
    given = [tensor for tensor in tensors if tensor is not None]
    return (
        _is_there()
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in given)
        and given[0].numel() > 0
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given))
        and not torch.is_autocast_enabled("cpu")
    )


def _is_there() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
