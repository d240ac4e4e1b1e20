"""Two runs on the same rows: where both are right, only one, neither, and whether that could be chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.report.predictions import Predictions


@dataclass(frozen=True)
class Agreement:
    """Counts of rows: both models right, only the first, only the second, neither; and McNemar's exact p."""

    both: int
    first: int
    second: int
    neither: int

    @property
    def p(self) -> float:
        """The two-sided p-value of McNemar's test (Psychometrika 1947), with the binomial distribution.

        It is how likely so uneven a split of the rows that only one has right is, were both as likely to.
        """
        from scipy.stats import binomtest

        only_one = self.first + self.second
        return float(binomtest(self.first, only_one, 0.5).pvalue) if only_one else 1.0


@dataclass(frozen=True)
class Pairing:
    """Two runs' predictions with their rows in one order.

    first, second: float [seeds, N], scores; first_right, second_right: bool.
    seeds: pairs of places of the seeds that are compared: those that both have, else the best of each.
    names: of these pairs.
    """

    ids: Sequence[str]
    first: np.ndarray
    second: np.ndarray
    first_right: np.ndarray
    second_right: np.ndarray
    seeds: Sequence[tuple[int, int]]
    names: Sequence[str]

    def agreements(self) -> list[Agreement]:
        """One for each pair of seeds."""
        return [agreement(self.first_right[a], self.second_right[b]) for a, b in self.seeds]


def agreement(first: np.ndarray, second: np.ndarray) -> Agreement:
    """Count the rows that both models have right, only one of them, or neither.

    Args:
        first, second: bool [N], whether each model has each row right.
    """
    parts = (first & second, first & ~second, ~first & second, ~first & ~second)
    return Agreement(*(int(part.sum()) for part in parts))


def pair(first: Predictions, second: Predictions, best: tuple[int | None, int | None]) -> Pairing:
    """Bring the rows of two runs into one order.

    Args:
        best: the seed of each that is best on validation, for runs without common seeds.

    Raises:
        AnalysisError: the runs are of other rows.
    """
    place = {identifier: at for at, identifier in enumerate(second.ids)}
    if first.kind != second.kind or len(place) != len(first.ids) or set(place) != set(first.ids):
        raise AnalysisError(
            f"Two runs are compared on the same rows, and their {first.split} predictions are of others "
            f"({len(first.ids):,} and {len(second.ids):,}). Give two runs on one task."
        )
    order = np.array([place[identifier] for identifier in first.ids])
    common = [seed for seed in first.seeds if seed in second.seeds]
    pairs = [(seed, seed) for seed in common]
    if not pairs:
        chosen = zip(best, (first.seeds, second.seeds), strict=True)
        # One seed of each of the two.
        pairs = [tuple(seed if seed in seeds else seeds[0] for seed, seeds in chosen)]  # type: ignore[list-item]
    return Pairing(
        first.ids,
        first.scores,
        second.scores[:, order],
        first.right,
        second.right[:, order],
        [(first.seeds.index(a), second.seeds.index(b)) for a, b in pairs],
        [f"{a}" if a == b else f"{a} and {b}" for a, b in pairs],
    )
