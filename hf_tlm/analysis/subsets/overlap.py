"""Which passages subsets have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.subsets.columns import column

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset


@dataclass(frozen=True)
class Overlap:
    """Of N subsets, A a row and B a column.

    passages: int64 [N, N], how many both have, on the diagonal how many A has; jaccard: float64 [N, N], those that both have
    of those that one of them has; containment: float64 [N, N], the share of A's passages that B has; per_query: float64
    [N, N], the mean over queries of the Jaccard index of their passages, NaN for subsets without queries or of different
    tasks. A query's passages are those that it ranked better than any other query did: nothing else is stored of a
    retrieval. Queries with a passage in one of the two are counted.
    """

    names: Sequence[str]
    passages: np.ndarray
    jaccard: np.ndarray
    containment: np.ndarray
    per_query: np.ndarray


def subset_overlap(subsets: Mapping[str, Subset]) -> Overlap:
    """Overlap of each two subsets by the ids of their passages.

    Raises:
        AnalysisError: fewer than two subsets; an empty one; their corpora are different ones or not known, so that the same
            id would be another passage.
    """
    if len(subsets) < 2:
        raise AnalysisError(f"Overlap is between two or more subsets; received {len(subsets)}.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: nothing can overlap with it.")
    if len(corpora := by_corpus(subsets)) > 1:
        raise AnalysisError(f"Ids of different corpora cannot be compared: {describe_corpora(corpora, subsets)}.")
    ids = _codes([column(subset, "id") for subset in subsets.values()])
    queries = _codes([column(subset, "best_query") for subset in subsets.values()])
    tasks = [subset.manifest["task"]["fingerprint"] for subset in subsets.values()]
    size = 1 + max(int(own.max()) for own in ids)
    sets = [np.unique(own) for own in ids]
    # Of each passage and its query one number, sorted; none where there are no queries.
    hits = [np.unique(query[query >= 0] * size + own[query >= 0]) for own, query in zip(ids, queries, strict=True)]
    both = np.diag([len(own) for own in sets])
    per_query = np.diag([1.0 if len(own) else np.nan for own in hits])
    for a, b in combinations(range(len(sets)), 2):
        both[a, b] = both[b, a] = len(np.intersect1d(sets[a], sets[b], assume_unique=True))
        same_task = tasks[a] == tasks[b] and tasks[a] is not None
        per_query[a, b] = per_query[b, a] = _per_query(hits[a], hits[b], size) if same_task else np.nan
    sizes = both.diagonal()
    return Overlap(list(subsets), both, both / (sizes[:, None] + sizes - both), both / sizes[:, None], per_query)


def by_corpus(subsets: Mapping[str, Subset]) -> list[list[str]]:
    """Names of subsets whose corpora have the same fingerprint; each of an unknown one is alone."""
    found: dict[str, list[str]] = {}
    for name, subset in subsets.items():
        fingerprint = subset.manifest["corpus"]["fingerprint"]
        found.setdefault(f"unknown to {name}" if fingerprint is None else f"={fingerprint}", []).append(name)
    return list(found.values())


def describe_corpora(groups: Sequence[Sequence[str]], subsets: Mapping[str, Subset]) -> str:
    """Whose corpus is which."""
    said = []
    for names in groups:
        corpus = subsets[names[0]].manifest["corpus"]
        said.append(f"{', '.join(names)} of {corpus['name']} (fingerprint {corpus['fingerprint'] or 'unknown'})")
    return "; ".join(said)


def _codes(columns: Sequence[pa.ChunkedArray]) -> list[np.ndarray]:
    """int64 [rows] each: equal numbers for equal strings, -1 for null."""
    whole = pa.chunked_array([chunk.cast("large_string") for own in columns for chunk in own.chunks], "large_string")
    codes = whole.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    return np.split(codes, np.cumsum([len(own) for own in columns])[:-1])


def _per_query(first: np.ndarray, second: np.ndarray, size: int) -> float:
    """Mean Jaccard index; first, second: sorted query * size + passage."""
    if not len(first) or not len(second):
        return float("nan")
    queries = 1 + max(first[-1], second[-1]) // size
    both = np.bincount(np.intersect1d(first, second, assume_unique=True) // size, minlength=queries)
    either = np.bincount(first // size, minlength=queries) + np.bincount(second // size, minlength=queries) - both
    return float((both[either > 0] / either[either > 0]).mean())
