"""The figure of several seeds: their mean, or what some papers report in its place."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any


def _of_known(figure: Callable[[Sequence[float]], float]) -> Callable[[Sequence[float]], float]:
    """Of scores with a NaN the figure is NaN, as their mean is; else it would be another in another order."""
    return lambda scores: math.nan if any(map(math.isnan, scores)) else figure(scores)


# `--seed_figure` -> what it is called, and how it comes of the seeds' scores.
SEED_FIGURES: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "mean": ("mean", statistics.fmean),
    "median": ("median", _of_known(statistics.median)),
    "max": ("maximum", _of_known(max)),
}


def seed_figure(name: Any) -> tuple[str, Callable[[Sequence[float]], float]]:
    """The word and the function by a name of `SEED_FIGURES`, as records have it; by any other those of the mean."""
    return SEED_FIGURES.get(str(name), SEED_FIGURES["mean"])
