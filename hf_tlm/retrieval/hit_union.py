"""The union of many queries' hits: what each passage got from all of them (TLM, section 3.2); what an engine found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset
from numba import njit
from tqdm.auto import tqdm

UNRANKED = np.iinfo(np.int32).max


@njit(nogil=True, cache=True)
def _add(query, documents, scores, best_rank, score_at_best_rank, best_score, best_query, n_queries):
    for i in range(len(documents)):
        document, score, rank = documents[i], scores[i], i + 1
        n_queries[document] += 1
        best_score[document] = max(best_score[document], score)
        known = best_rank[document]
        if rank < known or (rank == known and score > score_at_best_rank[document]):
            best_rank[document] = rank
            score_at_best_rank[document] = score
            best_query[document] = query


class HitUnion:
    """Arrays indexed by passage, which grow as needed; n_queries is 0 where no query hit.

    best_rank: int32, from 1; best_score: float32, over all queries; best_query: int32, the query that gave the best
    rank (of several the one with the highest score, then the first); score_at_best_rank: float32; n_queries: int32.
    """

    def __init__(self, num_passages: int = 0):
        self.best_rank = np.full(num_passages, UNRANKED, np.int32)
        self.score_at_best_rank = np.full(num_passages, -np.inf, np.float32)
        self.best_score = np.full(num_passages, -np.inf, np.float32)
        self.best_query = np.full(num_passages, -1, np.int32)
        self.n_queries = np.zeros(num_passages, np.int32)

    def add(self, query: int, documents: np.ndarray, scores: np.ndarray) -> None:
        """The hits of one query, best first. Queries come in order, so a later one has to be strictly better.

        documents: integers [n], passages; scores: float32 [n].
        """
        if len(documents) and documents.max() >= len(self.n_queries):
            self._grow(max(int(documents.max()) + 1, 2 * len(self.n_queries)))
        _add(
            query, documents, scores,
            self.best_rank, self.score_at_best_rank, self.best_score, self.best_query, self.n_queries,
        )  # fmt: skip

    def order(self, tie_key: np.ndarray) -> np.ndarray:
        """int64: the passages hit, ordered by best rank, best score (highest first) and tie key."""
        rows = np.flatnonzero(self.n_queries)
        return rows[np.lexsort((tie_key[rows], -self.best_score[rows], self.best_rank[rows]))]

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """A subset's, of some passages."""
        return {
            "rank": self.best_rank[rows],
            "score": self.best_score[rows],
            "n_queries": self.n_queries[rows],
            "best_query": self.best_query[rows],
        }

    def _grow(self, size: int) -> None:
        longer = HitUnion(size)
        for name, array in vars(self).items():
            getattr(longer, name)[: len(array)] = array
        vars(self).update(vars(longer))


def union_of(hits: Iterable[tuple[np.ndarray, np.ndarray]], total: int, size: int = 0) -> tuple[HitUnion, list[int]]:
    """The union of the hits of `total` queries, of which a progress bar tells, and the numbers of those that have none.

    Args:
        hits: of each query in turn, see `HitUnion.add`.
        size: passages that there is room for at once.
    """
    HitUnion(1).add(0, np.zeros(1, np.int32), np.zeros(1, np.float32))  # Compiled before the bar, not under it.
    union, without_hits = HitUnion(size), []
    for query, (documents, scores) in enumerate(tqdm(hits, total=total, desc="Retrieving", unit=" queries")):
        union.add(query, documents, scores)
        if len(documents) == 0:
            without_hits.append(query)
    return union, without_hits


@dataclass
class RetrievalResult:
    """Passages (id, text, source) in the order of a subset, the subset's other columns, and counts.

    columns: rank, score, n_queries and best_query, the number of a query; counts: passages (of the corpus), sources
    (passages of the corpus per source) and bad_files where the engine knows them; without_hits: numbers of the queries that
    are not empty and hit nothing.
    """

    passages: Dataset
    columns: dict[str, Any]
    counts: dict[str, Any]
    without_hits: Sequence[int] = ()

    def select(self, rows: np.ndarray) -> RetrievalResult:
        """Some of the passages."""
        columns = {name: np.asarray(values)[rows] for name, values in self.columns.items()}
        return replace(self, passages=self.passages.select(rows), columns=columns)
