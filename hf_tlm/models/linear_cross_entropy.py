"""Cross-entropy of a linear layer's logits without holding all of them in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

# 128 MiB of float32.
MAX_LOGITS = 1 << 25
# 4 MiB of float32: they are still in a processor's cache when they are used again.
CACHED_LOGITS, CACHED_ROWS = 1 << 20, 512


class _LinearCrossEntropy(torch.autograd.Function):
    """Cross-entropy with gradients computed in the forward pass, by blocks of rows, so that no block is kept."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, max_logits, visit, outer):
        inputs = (hidden, weight, bias)
        needs_hidden, needs_weight, needs_bias = (ctx.needs_input_grad[i] and inputs[i] is not None for i in range(3))
        # The first block creates the gradient of the weight, the others add to it.
        gradients = [
            torch.zeros_like(hidden) if needs_hidden else None,
            None,
            torch.zeros_like(bias) if needs_bias else None,
        ]
        # Half-precision numbers are summed in float32.
        total = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        if visit is None and not (needs_weight or needs_bias):
            losses, ctx.gradients = _compute_for_hidden(*inputs, labels, max_logits, outer, total.dtype, needs_hidden)
            return total + losses
        one_precision = hidden.dtype == total.dtype and not torch.is_autocast_enabled(hidden.device.type)
        step = max(1, max_logits // weight.shape[0])
        for start in range(0, len(labels), step):
            rows, targets = hidden[start : start + step], labels[start : start + step, None]
            block = slice(start, start + len(rows))
            logits = F.linear(rows, weight, bias).to(total.dtype)
            if visit is not None:
                visit(block, logits)
            largest = logits.amax(dim=1, keepdim=True)
            log_p = logits.gather(1, targets) - largest
            # From here on in place, in the memory of the logits.
            unscaled_grad = logits.sub_(largest).exp_()
            normalizer = unscaled_grad.sum(dim=1, keepdim=True)
            log_p = (log_p - normalizer.log()).squeeze(1)
            losses, derivatives = (-log_p, None) if outer is None else outer(block, log_p)
            total += losses.sum()
            if not (needs_hidden or needs_weight or needs_bias):
                continue
            # - d log p / d logits = softmax - one-hot = unscaled_grad * scale; products get the scale on their small side.
            unscaled_grad.scatter_add_(1, targets, -normalizer)
            scale = (1.0 if derivatives is None else -derivatives[:, None]) / normalizer
            if not one_precision:
                unscaled_grad, scale = unscaled_grad.mul_(scale), torch.ones_like(scale)
            if needs_bias:
                gradients[2] += (unscaled_grad.t() @ scale).squeeze(1) if one_precision else unscaled_grad.sum(dim=0)
            unscaled_grad, scale = unscaled_grad.to(hidden.dtype), scale.to(hidden.dtype)
            if needs_hidden:
                gradients[0][block] = F.linear(unscaled_grad, weight.t()) * scale
            if needs_weight and start == 0:
                gradients[1] = F.linear(unscaled_grad.t(), (rows * scale).t()).to(weight.dtype)
            elif needs_weight and one_precision:
                gradients[1].addmm_(unscaled_grad.t(), rows * scale)
            elif needs_weight:
                gradients[1] += unscaled_grad.t() @ (rows * scale)
        if needs_weight and gradients[1] is None:
            gradients[1] = torch.zeros_like(weight)
        ctx.gradients = gradients
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_total):
        if ctx.gradients is None:
            raise RuntimeError("linear_cross_entropy was differentiated twice; its gradients are kept for one pass only.")
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if g is None else g.mul_(grad_total) for g in gradients), None, None, None, None


def _compute_for_hidden(hidden, weight, bias, labels, max_logits, outer, dtype, needs_hidden):
    """Return the loss and the gradients, for calls in which only the gradient of `hidden` may be needed.

    It works in blocks of rows and of classes, and corrects the softmax when larger logits come, so that logits stay in the
    cache and a block of the weight is read once for both products. The gradient of the weight would need the normalizer,
    which is known only at the end.
    """
    total, gradient = hidden.new_zeros((), dtype=dtype), torch.empty_like(hidden) if needs_hidden else None
    if hidden.device.type == "cpu":
        max_logits = min(max_logits, CACHED_LOGITS)
        row_step = min(max_logits, CACHED_ROWS)
    else:
        row_step = max(1, max_logits // len(weight))
    class_step = max(1, max_logits // row_step)
    for start in range(0, len(labels), row_step):
        block = slice(start, start + row_step)
        rows, targets = hidden[block], labels[block]
        largest = rows.new_full((len(rows), 1), -torch.inf, dtype=dtype)
        normalizer, weighted_sum = torch.zeros_like(largest), torch.zeros_like(rows, dtype=dtype)
        log_p = torch.empty_like(largest)
        for first in range(0, len(weight), class_step):
            classes = slice(first, first + class_step)
            logits = F.linear(rows, weight[classes], None if bias is None else bias[classes]).to(dtype)
            in_block = ((targets >= first) & (targets < first + class_step)).nonzero()[:, 0]
            log_p[in_block] = logits[in_block].gather(1, targets[in_block, None] - first)
            previous, largest = largest, torch.maximum(largest, logits.amax(dim=1, keepdim=True))
            rescale = (previous - largest).exp_()
            exponentials = logits.sub_(largest).exp_()
            normalizer.mul_(rescale).add_(exponentials.sum(dim=1, keepdim=True))
            if needs_hidden:
                weighted_sum.mul_(rescale).add_(F.linear(exponentials.to(hidden.dtype), weight[classes].t()))
        log_p = (log_p - largest - normalizer.log()).squeeze(1)
        losses, derivatives = (-log_p, None) if outer is None else outer(block, log_p)
        total += losses.sum()
        if needs_hidden:
            grad_rows = (weighted_sum / normalizer).sub_(weight[targets])
            gradient[block] = (grad_rows if derivatives is None else grad_rows * -derivatives[:, None]).to(hidden.dtype)
    return total, [gradient, None, None]


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    *,
    max_logits: int = MAX_LOGITS,
    visit: Callable[[slice, torch.Tensor], None] | None = None,
    outer: Callable[[slice, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None,
) -> torch.Tensor:
    """Return `F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum")`, a scalar in float32 or wider.

    At most `max_logits` logits (and at least one row) exist at any time, in the forward and in the backward pass; fewer on
    a CPU if neither weight nor bias needs a gradient. The result can be differentiated once. Under autocast the products
    are in its precision.

    Args:
        hidden: float [M, H]; M may be 0.
        weight: float [V, H]; bias: float [V] or None; labels: int64 [M], all of them classes.
        visit: called with every block of logits while it exists, as (rows of the block, logits float [rows, V]), without
            gradient; it must not change them.
        outer: replaces the loss of each row, -log p of its label: called with (rows of the block, log p float [rows]), it
            returns the loss and its derivative with respect to log p, float [rows] each. `visit` is called before it.
    """
    return _LinearCrossEntropy.apply(hidden, weight, bias, labels, max_logits, visit, outer)
