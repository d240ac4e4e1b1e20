"""BM25's rank of passages against their influence: whether ISS chooses what BM25 would have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.subsets.columns import check_positive, numbers, ranks

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class RankBin:
    """Influence of the passages whose best rank is first .. last; quantiles: of QUANTILES."""

    first: int
    last: int
    passages: int
    mean: float
    deviation: float
    quantiles: Sequence[float]


@dataclass(frozen=True)
class RankInfluence:
    """How the influence of passages depends on their rank.

    Attributes:
        spearman: correlation of rank (1 is the best) and influence, below 0 where better ranks have more influence, NaN
            where one of the two does not vary.
        passages: those with influence.
        of: those that they were selected from.
    """

    bins: Sequence[RankBin]
    spearman: float
    passages: int
    of: int


def rank_against_influence(subset: Subset, bins: int = 10) -> RankInfluence:
    """Distribution of influence by groups of ranks.

    Only the passages that were selected have influence: what is seen is how it goes with rank among them. Ties share their
    mean rank in the correlation.

    Args:
        bins: groups of about as many passages each; passages of the same rank are in one, so that there may be fewer groups.

    Raises:
        AnalysisError: bins below 1; the passages have no influence, or no rank.
    """
    from scipy.stats import spearmanr

    check_positive(bins=bins)
    if "influence" not in subset.dataset.column_names:
        raise AnalysisError("The passages have no influence: the subset was not selected by ISS.")
    rank = ranks(subset)
    influence = numbers(subset, "influence")
    values, place, counts = np.unique(rank, return_inverse=True, return_counts=True)
    # A rank is where the middle of its passages is.
    group = ((counts.cumsum() - counts / 2) * bins // len(rank)).astype(np.int64)
    found = []
    for own in np.unique(group):
        members, inside = values[group == own], influence[group[place] == own]
        quantiles = np.quantile(inside, QUANTILES).tolist()
        span = int(members[0]), int(members[-1])
        found.append(RankBin(*span, len(inside), float(inside.mean()), float(inside.std()), quantiles))
    varies = len(values) > 1 and np.ptp(influence) > 0
    spearman = float(spearmanr(rank, influence).statistic) if varies else float("nan")
    return RankInfluence(found, spearman, len(rank), (subset.manifest.get("selection") or {}).get("of", len(rank)))
