"""Shares of tokens, as the terms of objectives that are a quotient over many steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def accumulation_dtype(device: torch.device | str) -> torch.dtype:
    """Return the dtype of sums over many tokens: float64, and float32 on Apple's GPUs (mps), which have no float64."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def share(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """A pair (sum, count), `accumulation_dtype` [2] without gradient: what was so, of how many."""
    total = total.detach().to(accumulation_dtype(total.device))
    return torch.stack([total, count.to(total) if isinstance(count, torch.Tensor) else total.new_full((), count)])


def mean(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return total / count, and 0 of nothing.

    A count that is itself a mean over processes may lie between 0 and 1.
    """
    return total / (count + (count == 0))


def corruption_shares(outputs, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what a batch's corruption was like, as pairs (sum, count) of shares.

    `replaced_fraction` is of all tokens. `generator_accuracy` is of masked tokens: those at which the auxiliary model's most
    likely one is the original.

    Reads `outputs.replaced` bool [T], `outputs.guesses` and `batch["mlm_labels"]`.
    """
    return {
        "replaced_fraction": share(outputs.replaced.sum(), outputs.replaced.numel()),
        "generator_accuracy": share(outputs.guesses, (batch["mlm_labels"] != -100).sum()),
    }
