"""Building blocks of losses: reading from a batch, means and shares over tokens, and weighted sums of losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import torch

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import to_python

Batch = Mapping[str, torch.Tensor]
# The entries of a batch that objectives read, and where they come from.
_ENTRY_SOURCES = {
    "mlm_labels": "which TlmCollator adds if it masks tokens (mlm_probability)",
    "labels": "the texts' classes or values",
    "teacher_probs": "a teacher's answers, a column of that name in the data that TlmCollator batches",
    "attention_mask": "1 for tokens and 0 for padding",
}


# The keys of what `corruption_shares` returns.
CORRUPTION_SHARES = ("replaced_fraction", "generator_accuracy")


def accumulation_dtype(device: torch.device | str) -> torch.dtype:
    """Return the dtype of sums over many tokens: float64, and float32 on Apple's GPUs (mps), which have no float64."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def read(batch: Batch, name: str, objective: Any) -> torch.Tensor:
    """Return the entry of a batch that an objective needs, or raise an HfTlmError if the batch lacks it."""
    if name not in batch:
        raise HfTlmError(
            f"{type(objective).__name__} needs {name} in a batch, {_ENTRY_SOURCES[name]}; received a batch with "
            f"{', '.join(batch) or 'nothing'}."
        )
    return batch[name]


def share(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """Return a share as its pair (sum, count), `accumulation_dtype` [2] without gradient."""
    total = total.detach().to(accumulation_dtype(total.device))
    return torch.stack([total, count.to(total) if isinstance(count, torch.Tensor) else total.new_full((), count)])


def mean(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return total / count, or the total, which is 0, if the count is 0.

    The count is not clamped to 1: one that is itself a mean over processes may be between 0 and 1.
    """
    return total / (count + (count == 0))


def corruption_shares(outputs, batch: Batch) -> dict[str, torch.Tensor]:
    """Return statistics of the corruption of a batch, as pairs (sum, count).

    `replaced_fraction` is the share of all tokens that were replaced. `generator_accuracy` is the share of masked tokens at
    which the most likely token of the auxiliary model is the original.

    Reads `outputs.replaced` bool [T], `outputs.guesses` and `batch["mlm_labels"]`.
    """
    return {
        "replaced_fraction": share(outputs.replaced.sum(), outputs.replaced.numel()),
        "generator_accuracy": share(outputs.guesses, (batch["mlm_labels"] != -100).sum()),
    }


class WeightedSum:
    """A weighted sum of losses, e.g. `WeightedSum((20.0, Mlm()), (1.0, TaskLoss()))` for rho2 * L_mlm + L_task.

    That is the equation of the TLM paper (section 3.1). A part with weight 0 is not computed.

    Raises:
        HfTlmError: a part is not a pair of a weight and a loss; a weight is negative or not finite, or no weight is
            positive; or two parts have the same name, so that their counts and losses would overwrite each other.
    """

    def __init__(self, *parts: tuple[float, Any]):
        for part in parts:
            is_pair = isinstance(part, (tuple, list)) and len(part) == 2
            if not (is_pair and isinstance(to_python(part[0]), Real) and callable(part[1])):
                raise HfTlmError(
                    f"{type(self).__name__} needs pairs of a weight and a loss, such as (1.0, TaskLoss()); received "
                    f"{part!r:.60}."
                )
        if any(weight < 0 or not math.isfinite(weight) for weight, _ in parts) or not any(w > 0 for w, _ in parts):
            raise HfTlmError(
                f"{type(self).__name__} needs finite weights >= 0, one of them positive; "
                f"received {[weight for weight, _ in parts]}."
            )
        self.parts = [(weight, objective) for weight, objective in parts if weight > 0]
        self.divisor = 1.0
        names = list(self._names())
        if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise HfTlmError(
                f"{type(self).__name__} needs losses with different names, by which they are counted and logged; received "
                f"{names.count(repeated[0])} named {repeated[0]!r:.60}. Remove all but one, or give a class of yours "
                "another `name`."
            )

    def _names(self) -> Iterator[str]:
        """Yield the names of all parts that have one, including the parts of nested sums."""
        for _, objective in self.parts:
            if isinstance(objective, WeightedSum):
                yield from objective._names()
            elif (name := getattr(objective, "name", None)) is not None:
                yield name

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the counts of all parts by name."""
        return {name: n for _, objective in self.parts for name, n in objective.count(batch).items()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return `{"loss"}` and the named, unweighted terms of all parts."""
        loss, terms = 0.0, {}
        for weight, objective in self.parts:
            values = objective(outputs, batch, counts)
            loss = loss + weight * values.pop("loss")
            terms.update(values)
        return {"loss": loss / self.divisor, **terms}


class WeightedMean(WeightedSum):
    """A weighted mean of losses, as in TLM's released code: (rho2 * L_mlm + L_task) / (rho2 + 1).

    It is the weighted sum divided by the sum of the weights. The gradient has the direction of the sum's, but its size does
    not depend on rho2, so that one learning rate serves all rho2.
    """

    def __init__(self, *parts: tuple[float, Any]):
        super().__init__(*parts)
        self.divisor = sum(weight for weight, _ in self.parts)
