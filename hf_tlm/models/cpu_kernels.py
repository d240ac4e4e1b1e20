"""Faster kernels for CPUs: linear layers by oneDNN, dropout with cheap random numbers, and attention.

torch computes float32 products with the linear algebra library that it was built with, MKL in its x86 wheels, which does
not use AVX-512 on processors of other makers; it computes bf16 products with oneDNN, which does.

For dropout torch draws a uniform number for every element, one after the other on one core. Here torch's generator draws
one seed per tensor, and numpy's SFC64 fills the tensor, several times faster. The result is dropout all the same: each
element is kept independently with probability 1 - p (p in steps of 2^-16) and divided by that probability. As torch's
generator draws the seed, the noise repeats where torch's would: after a resume, and where activations are checkpointed. On
other devices, in compiled code, and where nothing is dropped, torch and transformers compute it as usual. `set_dropout`
sets the dropout rate of a model, on any device.

torch's own attention kernel has no dropout on CPUs, and its backward pass is slow (benchmarks/results/modernbert.md). In
training, attention is computed here by plain products, and local attention for the near tokens alone. Such steps are bound
by memory rather than by the processor, so these kernels pass over memory less often. Where a layer of ModernBERT sees a
limited number of tokens to either side, rows are computed in blocks, each with the keys near it. Rotary positions are
applied in one pass, which leaves queries, keys and values in the layout that the products need.

In all other cases (GPUs, compiled code, full attention when a text is scored, or is long and has no dropout) transformers'
own attention is used. Rotated numbers equal those of transformers to the last bit up to float32; outputs of attention
differ by rounding. Where a row sees nothing, as padding far from its text, outputs are 0 as in torch's kernel, and have no
gradient.

`faster_kernels` is for any device: it returns the context in which the passes of a step run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.modernbert.modeling_modernbert import ModernBertAttention

# Name of the attention that replaces `sdpa`, as described above.
ATTENTION = "hf_tlm_sdpa"
# Longest row of full attention by plain products, whose memory is quadratic in the length.
LONGEST_PLAIN = 1024
# Minimum ratio of a row's length to the keys of a block: in shorter rows a few large products are as fast as blocks.
MIN_BLOCK_RATIO = 3
# Elements that are rotated at a time: 1 MiB of float32, which stay in a processor's cache.
ROTATED_ELEMENTS = 1 << 18


class OneDnnLinear(TorchFunctionMode):
    """A context in which float32 `F.linear` on a CPU and its gradients use oneDNN, if that is faster on this machine.

    Results differ by rounding. The gradients are not differentiable themselves. It is not for compiled code, nor for code
    that gradient checkpointing runs again in the backward pass, where the context is not active.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and not kwargs and _can_use_onednn(*args):
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
        needs_inputs, needs_weight, needs_bias = (*ctx.needs_input_grad, False)[:3]
        rows = gradient.flatten(0, -2)
        gradients = [
            _product(gradient, weight.t()) if needs_inputs else None,
            _product(rows.t(), inputs.flatten(0, -2).t()) if needs_weight else None,
            rows.sum(dim=0) if needs_bias else None,
        ]
        return tuple(gradients[: len(ctx.needs_input_grad)])


def _product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def _can_use_onednn(*tensors: torch.Tensor | None) -> bool:
    present = [tensor for tensor in tensors if tensor is not None]
    return (
        is_faster()
        and bool(torch.backends.mkldnn.enabled)
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in present)
        and present[0].dim() > 1
        and present[0].numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def is_faster() -> bool:
    """Return whether torch has oneDNN, and uses MKL for float32 on a processor whose AVX-512 MKL does not use."""
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not has_onednn or not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # Not Linux.
        return False


def faster_kernels(device: torch.device, products: bool = True) -> AbstractContextManager[object]:
    """Return a context in which the passes of a model use the kernels that are faster on a device.

    On a CPU, linear layers use `OneDnnLinear` where that is faster; otherwise that mode is off, as it costs every operation
    microseconds. On a GPU, cuDNN's attention is off: it builds a plan for every new shape, and batches of texts keep having
    new shapes.

    Args:
        products: False leaves linear layers alone, for code that is compiled or run again in the backward pass.
    """
    if device.type == "cuda":
        return _without_cudnn_attention()
    return OneDnnLinear() if products and device.type == "cpu" and is_faster() else nullcontext()


@contextmanager
def _without_cudnn_attention() -> Iterator[None]:
    """Disable cuDNN's attention within the block, unless the caller has disabled all other implementations.

    What the caller has disabled stays disabled.
    """
    flags = torch.backends.cuda
    others = flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled() or flags.math_sdp_enabled()
    was_enabled = flags.cudnn_sdp_enabled()
    flags.enable_cudnn_sdp(was_enabled and not others)
    try:
        yield
    finally:
        flags.enable_cudnn_sdp(was_enabled)


def dropout_noise(like: torch.Tensor, p: float) -> torch.Tensor:
    """Return the factors of dropout, 0 with probability p, else 1 / (1 - p), with the shape and dtype of `like`, on the CPU.

    p is rounded to a multiple of 2^-16, both as the probability and in the factor.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_())
    bits = np.random.SFC64(seed).random_raw((like.numel() + 3) // 4).view(np.int16)[: like.numel()]
    count = max(1, round((1.0 - p) * 2**16))
    # As bytes, which torch converts to floats twice as fast as bools.
    kept = torch.from_numpy((bits < count - 2**15).view(np.int8))
    return kept.view(like.shape).to(like.dtype).mul_(2**16 / count)


def uses_dropout_noise(tensor: torch.Tensor, p: float) -> bool:
    """Return whether dropout of probability p on a tensor uses `dropout_noise`."""
    return 0.0 < p < 1.0 and tensor.device.type == "cpu" and not torch.compiler.is_compiling()


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws its noise by `dropout_noise` on a CPU."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.training and uses_dropout_noise(hidden, self.p):
            return hidden * dropout_noise(hidden, self.p)
        return super().forward(hidden)


def set_dropout(model: nn.Module, p: float) -> None:
    """Set the probability of every dropout of a model to p, also in its configs, so that an export records it.

    The dropout of LoRA adapters stays. Config fields for the heads of other tasks are set too.
    """
    for path, parent in list(model.named_modules()):
        if path.endswith("lora_dropout"):
            continue
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                child.p = p
            elif name == "out_drop":  # Not a dropout in stock ModernBERT if its config has none for attention.
                setattr(parent, name, Dropout(p))
        if isinstance(vars(parent).get("attention_dropout"), int | float):  # ModernBERT's: an argument of attention.
            parent.attention_dropout = p
        config = vars(parent).get("config")
        if isinstance(config, PreTrainedConfig):
            names = [name for name in config.to_dict() if "dropout" in name]
            config.update({name: p for name in names if isinstance(getattr(config, name), int | float)})


def _iterate_blocks(length: int, window: int | None) -> Iterator[tuple[slice, slice]]:
    """Yield slices of rows, and of the keys that they may see: all at once, or in blocks of 2 x `window` rows."""
    if window is None:
        yield slice(None), slice(None)
        return
    for start in range(0, length, 2 * window):
        stop = min(length, start + 2 * window)
        yield slice(start, stop), slice(max(0, start - window), min(length, stop + window))


class _Attention(torch.autograd.Function):
    """softmax(scaling x query @ key^T + mask) @ value with dropout; backward reads the saved weights and their noise."""

    @staticmethod
    def forward(ctx, query, key, value, mask, scaling, dropout, window):
        texts, heads, length, _ = query.shape
        query, key, value = (each.flatten(0, 1) for each in (query * scaling, key, value))
        output = query.new_empty(texts, length, heads, value.shape[-1])
        saved: list[torch.Tensor] = []
        mask_is_bool = mask is not None and mask.dtype == torch.bool
        for rows, columns in _iterate_blocks(length, window):
            weights = torch.bmm(query[:, rows], key[:, columns].transpose(1, 2))
            scores = weights.unflatten(0, (texts, heads))
            if mask_is_bool:
                hidden = ~mask[..., rows, columns]
                # Not -inf: a row that sees nothing would be NaN.
                scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
            elif mask is not None:
                scores.add_(mask[..., rows, columns])
            torch.ops.aten._softmax.out(weights, -1, False, out=weights)
            saved.append(weights)
            if dropout:
                saved.append(dropout_noise(weights, dropout))
                weights = weights * saved[-1]
            block_output = torch.bmm(weights, value[:, columns]).unflatten(0, (texts, heads))
            if mask_is_bool:
                saved.append(hidden.view(torch.uint8).amin(-1, keepdim=True) == 1)  # `all` takes several times as long.
                block_output.masked_fill_(saved[-1], 0)
            output[:, rows] = block_output.transpose(1, 2)
        ctx.save_for_backward(query, key, value, *saved)
        ctx.heads, ctx.scaling, ctx.dropout, ctx.window = heads, scaling, dropout, window
        ctx.mask_is_bool = mask_is_bool
        ctx.mask_shape = mask.shape if mask is not None and ctx.needs_input_grad[3] else None
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        query, key, value, *saved = ctx.saved_tensors
        length = query.shape[1]
        gradient = gradient.transpose(1, 2).flatten(0, 1)
        blocks = list(_iterate_blocks(length, ctx.window))
        grad_query, grad_mask = torch.empty_like(query), None
        if len(blocks) > 1:  # A key is near rows of two blocks, whose gradients are summed with one rounding.
            grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        remaining = iter(saved)
        for rows, columns in blocks:
            weights = next(remaining)
            noise = next(remaining) if ctx.dropout else None
            grad_block = gradient[:, rows]
            if ctx.mask_is_bool:
                grad_block = grad_block.unflatten(0, (-1, ctx.heads)).masked_fill(next(remaining), 0).flatten(0, 1)
            noisy_weights = weights if noise is None else weights * noise
            block_grad_value = torch.bmm(noisy_weights.transpose(1, 2), grad_block)
            grad_scores = torch.bmm(grad_block, value[:, columns].transpose(1, 2))
            if noise is not None:
                grad_scores *= noise
            torch.ops.aten._softmax_backward_data.out(grad_scores, weights, -1, weights.dtype, grad_input=grad_scores)
            if ctx.mask_shape is not None:
                grad_mask = grad_scores.unflatten(0, (-1, ctx.heads)).sum_to_size(ctx.mask_shape)
            grad_query[:, rows] = torch.bmm(grad_scores, key[:, columns])
            block_grad_key = torch.bmm(grad_scores.transpose(1, 2), query[:, rows])
            if len(blocks) == 1:
                grad_key, grad_value = block_grad_key, block_grad_value
            else:
                grad_key[:, columns] += block_grad_key
                grad_value[:, columns] += block_grad_value
        gradients = (grad_query.mul_(ctx.scaling), grad_key, grad_value)
        return *(each.unflatten(0, (-1, ctx.heads)) for each in gradients), grad_mask, None, None, None


def _block_window(module: nn.Module, mask: torch.Tensor | None, length: int, sliding_window: int | None) -> int | None:
    """Return how many tokens to either side a row sees if computing it in blocks is faster, else None."""
    if sliding_window is None or mask is None or mask.dtype != torch.bool:
        return None
    # The window of masks, transformers' and ours; the one that attention gets as an argument is larger by one.
    config: Any = module.config
    window = config.sliding_window
    return window if 0 < MIN_BLOCK_RATIO * 4 * window <= length else None


def _uses_cpu_kernels(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _uses_plain_products(module: nn.Module, query: torch.Tensor, dropout: float, window: int | None) -> bool:
    if module.is_causal or not _uses_cpu_kernels(query):
        return False
    if window is not None or uses_dropout_noise(query, dropout):
        return True
    return module.training and query.requires_grad and query.shape[-2] <= LONGEST_PLAIN


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Compute attention as transformers' `sdpa` does, on CPUs by plain products where these are faster.

    Args:
        query: float [R, heads, S, D]; key, value: float [R, heads, K, D], K = S in a text's attention to itself.
        attention_mask: [R, 1, S, K], or any shape that broadcasts to the scores: bool, True where a token attends to
            another, or float, added to the scores.
        sliding_window: of a layer with local attention, else None. Its mask is [R, 1, S, S] and excludes the same tokens.

    Returns:
        (float [R, S, heads, D], None)
    """
    window = _block_window(module, attention_mask, query.shape[2], sliding_window)
    if not _uses_plain_products(module, query, dropout, window):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _Attention.apply(query, key, value, attention_mask, scaling, dropout, window), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class _Rotate(torch.autograd.Function):
    """The split of ModernBERT's joint product into queries, keys and values, the first two rotated by their positions."""

    @staticmethod
    def forward(ctx, joint, cosines, sines, heads):
        texts, length, width = joint.shape
        states = joint.view(texts, length, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
        rotated = torch.empty(states.shape, dtype=joint.dtype)
        dtype = torch.promote_types(joint.dtype, torch.float32)
        cosines, sines = cosines[:, None].to(dtype), sines[:, None].to(dtype)
        ctx.save_for_backward(cosines, sines)
        _rotate_into(states, cosines, sines, rotated)
        return rotated.unbind()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        cosines, sines = ctx.saved_tensors
        texts, heads, length, size = gradients[0].shape
        grad_joint = torch.empty(texts, length, 3, heads, size, dtype=gradients[0].dtype)
        _rotate_into(gradients, cosines, -sines, grad_joint.permute(2, 0, 3, 1, 4))
        return grad_joint.view(texts, length, -1), None, None, None


def _rotate_into(states: Any, cosines: torch.Tensor, sines: torch.Tensor, rotated: torch.Tensor) -> None:
    """Write (query, key, value), float [R, heads, S, D] each, to `rotated` [3, R, heads, S, D], the first two rotated.

    They are rotated in float32 or wider, as in transformers, a few texts at a time.

    Args:
        cosines, sines: float32 or wider [R or 1, 1, S, D], whose two halves along D are equal.
    """
    texts, heads, length, size = states[0].shape
    half, step = size // 2, max(1, ROTATED_ELEMENTS // (heads * length * size))
    input_buffer, output_buffer = torch.empty(2, min(step, texts), heads, length, size, dtype=cosines.dtype).unbind()
    for start in range(0, texts, step):
        block = slice(start, start + step)
        cosine, sine = (each[block] if len(each) > 1 else each for each in (cosines, sines))
        for source, target in zip(states[:2], rotated[:2], strict=True):
            chunk = source[block]
            inputs, result = input_buffer[: len(chunk)].copy_(chunk), output_buffer[: len(chunk)]
            torch.mul(inputs, cosine, out=result)
            # Products are rounded before they are added, as transformers' are.
            inputs *= sine
            result[..., :half] -= inputs[..., half:]
            result[..., half:] += inputs[..., :half]
            target[block] = result
    rotated[2].copy_(states[2])


class RotaryAttention(ModernBertAttention):
    """ModernBERT's attention with rotary positions applied in one pass on a CPU."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        if not (_uses_cpu_kernels(hidden_states) and self.config._attn_implementation == ATTENTION):
            return super().forward(hidden_states, position_embeddings, attention_mask, **kwargs)
        joint = self.Wqkv(hidden_states)
        query, key, value = _Rotate.apply(joint, *position_embeddings, joint.shape[-1] // 3 // self.head_dim)
        output, _ = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.head_dim**-0.5,
            sliding_window=self.sliding_window,
        )
        return self.out_drop(self.Wo(output.reshape(*joint.shape[:2], -1))), None


def use_cpu_kernels(model: PreTrainedModel) -> None:
    """Replace the dropout of a model by `Dropout` and, if it uses `sdpa`, its attention by `attention`, in place."""
    uses_sdpa = model.config._attn_implementation in ("sdpa", ATTENTION)  # ATTENTION: another model has this config.
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))
            elif type(child) is ModernBertAttention and uses_sdpa:
                child.__class__ = RotaryAttention  # Its weights and hooks stay.
    if uses_sdpa:
        model.config._attn_implementation = ATTENTION
