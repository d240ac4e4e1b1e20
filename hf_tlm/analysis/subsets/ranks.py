"""How many passages a retrieval of K a query gives, and how well they match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.subsets.columns import numbers, ranks

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset


@dataclass(frozen=True)
class SizeAgainstK:
    """How many passages a smaller K would have retrieved, and how they score.

    Attributes:
        k: int64 [K], 1 .. K.
        passages: int64 [K], in the union of all queries' top k.
        score, deviation: float64 [K], mean and standard deviation of the BM25 score of the passages whose best rank is k,
            NaN where there is none.
    """

    k: np.ndarray
    passages: np.ndarray
    score: np.ndarray
    deviation: np.ndarray


def size_against_k(subset: Subset) -> SizeAgainstK:
    """Compute the size of the union of the queries' hits for every K up to the subset's, exactly.

    A passage is in the union of the top k if its best rank is k or better. Passages that were left out (with held-out texts,
    or near-duplicates) are not counted.

    A passage's score is its best over all queries, not always the one of the query that ranked it best.

    Raises:
        AnalysisError: the subset is a part of what was retrieved; or it has no ranks.
    """
    if selection := subset.manifest.get("selection"):
        raise AnalysisError(
            f"The subset is a part ({selection['size']:,} of {selection['of']:,} passages by {selection['method']}); what a "
            "smaller K gives is to be seen in the whole."
        )
    rank = ranks(subset)
    counts = np.bincount(rank, minlength=(subset.manifest.get("top_k") or 0) + 1)[1:]
    score = numbers(subset, "score")
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.bincount(rank, score, len(counts) + 1)[1:]
        mean = total / counts
        square = np.bincount(rank, (score - mean[rank - 1]) ** 2, len(counts) + 1)[1:]
        return SizeAgainstK(np.arange(1, len(counts) + 1), counts.cumsum(), mean, np.sqrt(square / counts))


def steps(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... and the largest."""
    found = [factor * 10**power for power in range(len(str(largest))) for factor in (1, 2, 5)]
    return [step for step in found if step < largest] + [largest]
