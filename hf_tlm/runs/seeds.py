"""Several seeds into one figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hf_tlm.utils.markdown import markdown_table


def aggregate(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Mean and sample standard deviation (n - 1; None for a single seed) of every score that all seeds have.

    Returns:
        name -> {"mean", "std", "n", "values"}, values in the order given.
    """
    summary = {}
    for name in scores[0]:
        if all(name in score for score in scores):
            values = [float(score[name]) for score in scores]
            summary[name] = {
                "mean": statistics.fmean(values),
                "std": _deviation(values),
                "n": len(values),
                "values": values,
            }
    return summary


def _deviation(values: Sequence[float]) -> float | None:
    """NaN where a value is not finite, as the loss of a model that diverged: `statistics.stdev` has no answer then."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def format_score(score: Mapping[str, Any]) -> str:
    """`12.34 ± 0.56` in percent, from a value of `aggregate`; without a deviation for a single seed."""
    text = f"{100 * score['mean']:.2f}"
    return text if score["std"] is None else f"{text} ± {100 * score['std']:.2f}"


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return format_score(value)
    return value if isinstance(value, str) else str(value)


def format_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A markdown table, padded to be readable as text; values of `aggregate` become percentages, and no name is markup."""
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    return markdown_table(columns, cells, padded=True, longest=500).rstrip("\n")
