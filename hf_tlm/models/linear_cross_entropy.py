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
        of_hidden, of_weight, of_bias = (ctx.needs_input_grad[i] and inputs[i] is not None for i in range(3))
        # The first block creates the gradient of the weight, the others add to it.
        gradients = [torch.zeros_like(hidden) if of_hidden else None, None, torch.zeros_like(bias) if of_bias else None]
        # Half-precision numbers are summed in float32.
        total = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        if visit is None and not (of_weight or of_bias):
            losses, ctx.gradients = _without_weights(*inputs, labels, max_logits, outer, total.dtype, of_hidden)
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
            chosen = logits.gather(1, targets) - largest
            # From here on in place, in the memory of the logits.
            change = logits.sub_(largest).exp_()
            normalizer = change.sum(dim=1, keepdim=True)
            chosen = (chosen - normalizer.log()).squeeze(1)
            losses, slopes = (-chosen, None) if outer is None else outer(block, chosen)
            total += losses.sum()
            if not (of_hidden or of_weight or of_bias):
                continue
            # - d log p / d logits = softmax - one-hot = change * scale; products get the scale on their small side.
            change.scatter_add_(1, targets, -normalizer)
            scale = (1.0 if slopes is None else -slopes[:, None]) / normalizer
            if not one_precision:
                change, scale = change.mul_(scale), torch.ones_like(scale)
            if of_bias:
                gradients[2] += (change.t() @ scale).squeeze(1) if one_precision else change.sum(dim=0)
            change, scale = change.to(hidden.dtype), scale.to(hidden.dtype)
            if of_hidden:
                gradients[0][block] = F.linear(change, weight.t()) * scale
            if of_weight and start == 0:
                gradients[1] = F.linear(change.t(), (rows * scale).t()).to(weight.dtype)
            elif of_weight and one_precision:
                gradients[1].addmm_(change.t(), rows * scale)
            elif of_weight:
                gradients[1] += change.t() @ (rows * scale)
        if of_weight and gradients[1] is None:
            gradients[1] = torch.zeros_like(weight)
        ctx.gradients = gradients
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, of_total):
        if ctx.gradients is None:
            raise RuntimeError("linear_cross_entropy was differentiated twice; its gradients are kept for one pass only.")
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if g is None else g.mul_(of_total) for g in gradients), None, None, None, None


def _without_weights(hidden, weight, bias, labels, max_logits, outer, dtype, of_hidden):
    """Return the loss and the gradients, for calls in which only the gradient of `hidden` may be needed.

    It works in blocks of rows and of classes, and corrects the softmax when larger logits come, so that logits stay in the
    cache and a block of the weight is read once for both products. The gradient of the weight would need the normalizer,
    which is known only at the end.
    """
    total, gradient = hidden.new_zeros((), dtype=dtype), torch.empty_like(hidden) if of_hidden else None
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
        normalizer, of_all = torch.zeros_like(largest), torch.zeros_like(rows, dtype=dtype)
        chosen = torch.empty_like(largest)
        for first in range(0, len(weight), class_step):
            classes = slice(first, first + class_step)
            logits = F.linear(rows, weight[classes], None if bias is None else bias[classes]).to(dtype)
            here = ((targets >= first) & (targets < first + class_step)).nonzero()[:, 0]
            chosen[here] = logits[here].gather(1, targets[here, None] - first)
            before, largest = largest, torch.maximum(largest, logits.amax(dim=1, keepdim=True))
            shrink = (before - largest).exp_()
            exponentials = logits.sub_(largest).exp_()
            normalizer.mul_(shrink).add_(exponentials.sum(dim=1, keepdim=True))
            if of_hidden:
                of_all.mul_(shrink).add_(F.linear(exponentials.to(hidden.dtype), weight[classes].t()))
        chosen = (chosen - largest - normalizer.log()).squeeze(1)
        losses, slopes = (-chosen, None) if outer is None else outer(block, chosen)
        total += losses.sum()
        if of_hidden:
            of_rows = (of_all / normalizer).sub_(weight[targets])
            gradient[block] = (of_rows if slopes is None else of_rows * -slopes[:, None]).to(hidden.dtype)
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
