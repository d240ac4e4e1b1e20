"""Drawing tokens from a softmax with given random numbers."""

from __future__ import annotations

import torch


def sample_tokens(logits: torch.Tensor, uniforms: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r"""One token a row from softmax(logits / temperature), by inverting its distribution function.

    One uniform number a token is all the randomness there is, so that a sample is reproducible wherever its number is,
    whatever else is in the batch (`hf_tlm.data.masking.uniforms`).

    Args:
        logits: float [M, V].
        uniforms: float [M], in [0, 1).
        temperature: 0, or a number too small to divide by, takes the most likely token.

    Returns:
        int64 [M]. A token of probability 0 is never drawn. Of logits that are not finite some token: their loss is not
        finite either, and is what ends the run.
    """
    if temperature < torch.finfo(logits.dtype).tiny:
        return logits.argmax(dim=-1)
    # Any sum but 1 would do: the numbers are scaled to it.
    weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).exp_()
    # Rounding must not reach the total, which no token exceeds.
    if torch.are_deterministic_algorithms_enabled():
        # Sums of floats depend on their order, which a GPU does not keep, so that torch refuses them; these do not.
        cumulative = (weights.double() * 2**40).long().cumsum(dim=-1)
        total = cumulative[:, -1:]
        below = torch.minimum((uniforms[:, None].double() * total).long(), total - 1)
    else:
        cumulative = weights.cumsum(dim=-1)
        total = cumulative[:, -1:]
        below = uniforms[:, None].to(cumulative.dtype) * total
        below = torch.minimum(below, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, below.contiguous(), right=True).squeeze(-1)
    return drawn.clamp_(max=logits.shape[-1] - 1)
