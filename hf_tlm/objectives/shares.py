"""Shares of tokens, as the terms of objectives that are a quotient over many steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def share(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """A pair (sum, count), float64 [2] without gradient: what was so, of how many."""
    total = total.detach().double()
    return torch.stack([total, torch.as_tensor(count, dtype=torch.float64, device=total.device)])


def corruption_shares(outputs, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a batch's corruption was like, as pairs: `replaced_fraction` of all tokens, and `generator_accuracy`, of masked
    tokens those at which the auxiliary model's most likely one is the original.

    Reads `outputs.replaced` bool [T], `outputs.guesses` and `batch["mlm_labels"]`.
    """
    return {
        "replaced_fraction": share(outputs.replaced.sum(), outputs.replaced.numel()),
        "generator_accuracy": share(outputs.guesses, (batch["mlm_labels"] != -100).sum()),
    }
