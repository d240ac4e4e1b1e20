"""Hits of BM25: the weights of every variant, the one exact order that all engines keep, and the union over many queries.

The score of a passage is the float64 sum over the query's tokens (a repeated token counts each time), rounded to
float32. Passages are ordered by score, highest first, then by tie key, smallest first. Rounding makes sums equal that
differ only in the order of their terms, so engines agree and ties do not depend on the arithmetic. A passage is a hit
only if it shares a token with the query.

Variants and their names: Kamphuis et al. 2020, "Which BM25 do you mean?"; Lu 2024, "BM25S"; okapi: rank_bm25.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset
from numba import njit
from tqdm.auto import tqdm

from hf_tlm.retrieval.settings import Bm25Settings

OKAPI_EPSILON = 0.25  # of the mean idf, in place of a negative idf

# Documents int32 [n] and scores float32 [n] of one query, best first; n <= K.
Hits = tuple[np.ndarray, np.ndarray]
NO_HITS: Hits = (np.empty(0, np.int32), np.empty(0, np.float32))

UNRANKED = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Statistics:
    """What a score depends on besides query and passage: of one index, or summed over several.

    num_passages, num_tokens: of the corpus; document_frequencies: int64, aligned with the queries' vocabulary;
    average_idf: mean of ln(N - df + 0.5) - ln(df + 0.5) over all terms of the corpus, which only okapi needs.
    """

    num_passages: int
    num_tokens: int
    document_frequencies: np.ndarray
    average_idf: float | None = None


def okapi_idf(frequencies: np.ndarray, num_passages: int) -> np.ndarray:
    """float64: may be negative."""
    return np.log(num_passages - frequencies + 0.5) - np.log(frequencies + 0.5)


def average_idf(frequencies: np.ndarray, num_passages: int) -> float:
    """Mean of `okapi_idf` over the terms of a corpus; sorted, it is that of any split of the corpus, to the last bit."""
    return float(okapi_idf(np.sort(frequencies).astype(np.float64), num_passages).mean()) if len(frequencies) else 0.0


def term_weights(settings: Bm25Settings, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
    """(weights, constants), float64 [V]: every variant is the same saturation.

    A token of the query adds `constant + weight * tf / (tf + norm)` to a passage that has it tf times, and `constant` to
    every other passage, with `norm` from `length_norms`. For BM25L, c = tf / B and

        (c + delta) / (k1 + c + delta) = delta / (k1 + delta) + k1 / (k1 + delta) * tf / (tf + (k1 + delta) * B).

    Terms of no passage have weight and constant 0.
    """
    variant, k1, delta = settings.variant, settings.k1, settings.used_delta or 0.0
    n, df = statistics.num_passages, np.maximum(statistics.document_frequencies, 1).astype(np.float64)
    constants = np.zeros(len(df))
    if variant == "lucene":
        weights = np.log(1 + (n - df + 0.5) / (df + 0.5))
    elif variant == "robertson":
        weights = np.log(np.maximum((n - df + 0.5) / (df + 0.5), 1))
    elif variant == "atire":
        weights = np.log(n / df) * (k1 + 1)
    elif variant == "okapi":
        assert statistics.average_idf is not None  # whoever counts for okapi gives it
        idf = okapi_idf(df, n)
        weights = np.where(idf < 0, OKAPI_EPSILON * statistics.average_idf, idf) * (k1 + 1)
    elif variant == "bm25+":
        idf = np.log((n + 1) / df)
        weights, constants = idf * (k1 + 1), idf * delta
    else:
        idf = np.log((n + 1) / (df + 0.5)) * (k1 + 1)
        weights, constants = idf * k1 / (k1 + delta), idf * delta / (k1 + delta)
    known = statistics.document_frequencies > 0
    return weights * known, constants * known


def length_norms(settings: Bm25Settings, lengths: np.ndarray, statistics: Statistics) -> np.ndarray:
    """float64: k1 * B of passages of some lengths in tokens, B = 1 - b + b * length / mean; for BM25L (k1 + delta) * B."""
    k1 = settings.k1
    if settings.variant == "bm25l":
        k1 += settings.used_delta or 0.0
    mean = max(statistics.num_tokens, 1) / statistics.num_passages
    return k1 * (1 - settings.b + settings.b * lengths / mean)


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
