"""Shares of tokens, as the terms of objectives that are a quotient over many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hf_tlm.errors import HfTlmError

Batch = Mapping[str, torch.Tensor]
# What objectives read of batches, and where batches have it from.
_OF_BATCHES = {
    "mlm_labels": "which TlmCollator gives where it masks tokens (mlm_probability)",
    "labels": "the texts' classes or values",
    "teacher_probs": "a teacher's answers, a column of that name in the data that TlmCollator batches",
    "attention_mask": "1 for tokens and 0 for padding",
}


def accumulation_dtype(device: torch.device | str) -> torch.dtype:
    """Return the dtype of sums over many tokens: float64, and float32 on Apple's GPUs (mps), which have no float64."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def read(batch: Batch, name: str, objective: Any) -> torch.Tensor:
    """What an objective reads of a batch, or an HfTlmError where the batch has none."""
    if name not in batch:
        raise HfTlmError(
            f"{type(objective).__name__} reads {name} of a batch, {_OF_BATCHES[name]}; received one of "
            f"{', '.join(batch) or 'nothing'}."
        )
    return batch[name]


def share(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """A pair (sum, count), `accumulation_dtype` [2] without gradient: what was so, of how many."""
    total = total.detach().to(accumulation_dtype(total.device))
    return torch.stack([total, count.to(total) if isinstance(count, torch.Tensor) else total.new_full((), count)])


def mean(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The quotient, and 0 of nothing. A count that is itself a mean over processes may lie between 0 and 1."""
    return total / (count + (count == 0))


# What `corruption_shares` gives.
CORRUPTION_SHARES = ("replaced_fraction", "generator_accuracy")


def corruption_shares(outputs, batch: Batch) -> dict[str, torch.Tensor]:
    """Return what a batch's corruption was like, as pairs (sum, count) of shares.

    `replaced_fraction` is of all tokens. `generator_accuracy` is of masked tokens: those at which the auxiliary model's most
    likely one is the original.

    Reads `outputs.replaced` bool [T], `outputs.guesses` and `batch["mlm_labels"]`.
    """
    return {
        "replaced_fraction": share(outputs.replaced.sum(), outputs.replaced.numel()),
        "generator_accuracy": share(outputs.guesses, (batch["mlm_labels"] != -100).sum()),
    }
