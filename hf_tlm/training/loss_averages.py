"""Named losses and shares, collected over many batches and processes for one line of the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from accelerate import Accelerator

from hf_tlm.objectives.reductions import accumulation_dtype


class LossAverages:
    """Sums and what they are divided by, by name, since they were last read."""

    def __init__(self):
        self._pairs: dict[str, torch.Tensor] = {}

    def add(self, pairs: Mapping[str, torch.Tensor], prefix: str = "") -> None:
        """Collect pairs (sum, count), `accumulation_dtype` [2], by name."""
        for name, pair in pairs.items():
            self._pairs[prefix + name] = self._pairs.get(prefix + name, 0.0) + pair

    def read(self, accelerator: Accelerator) -> dict[str, float]:
        """Return sum / count of every term over all processes, which must call this together; begin anew.

        A term of nothing (the accuracy on replaced tokens where none was) is left out.
        """
        if not self._pairs:
            return {}
        names = sorted(self._pairs)
        totals = accelerator.reduce(torch.stack([self._pairs[name] for name in names]), reduction="mean").tolist()
        self._pairs = {}
        return {name: round(total / count, 6) for name, (total, count) in zip(names, totals, strict=True) if count}


def in_pairs(terms: Mapping[str, torch.Tensor], sums: Callable[[str, torch.Tensor], tuple]) -> dict[str, torch.Tensor]:
    """The terms of an objective (`hf_tlm.objectives`), its scalars as pairs too: `sums` says of what sum and count."""

    def pair(name: str, value: torch.Tensor) -> torch.Tensor:
        if value.dim():
            return value
        return torch.stack(
            [torch.as_tensor(x).to(value.device, accumulation_dtype(value.device)) for x in sums(name, value)]
        )

    return {name: pair(name, value) for name, value in terms.items()}
