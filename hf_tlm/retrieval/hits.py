"""Hits of BM25: the term weights of every variant, the exact order shared by all engines, and the union over many queries.

The score of a passage is the float64 sum over the query's tokens (a repeated token counts each time), rounded to
float32. Passages are ordered by score, highest first, then by tie key, smallest first. Rounding removes the differences
between sums over the same terms in another order, so engines agree and ties do not depend on the arithmetic. A passage is
a hit only if it shares a token with the query.

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

OKAPI_EPSILON = 0.25  # This share of the mean idf replaces a negative idf.

# Documents int32 [n] and scores float32 [n] of one query, best first; n <= K.
Hits = tuple[np.ndarray, np.ndarray]
NO_HITS: Hits = (np.empty(0, np.int32), np.empty(0, np.float32))

UNRANKED = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Statistics:
    """Corpus statistics that a score depends on besides query and passage, of one index or summed over several.

    num_passages, num_tokens: size of the corpus; document_frequencies: int64, aligned with the queries' vocabulary;
    average_idf: mean of ln(N - df + 0.5) - ln(df + 0.5) over all terms of the corpus, which only okapi needs.
    """

    num_passages: int
    num_tokens: int
    document_frequencies: np.ndarray
    average_idf: float | None = None


def okapi_idf(frequencies: np.ndarray, num_passages: int) -> np.ndarray:
    """Return okapi's idf, ln(N - df + 0.5) - ln(df + 0.5), as float64; it may be negative."""
    return np.log(num_passages - frequencies + 0.5) - np.log(frequencies + 0.5)


def average_idf(frequencies: np.ndarray, num_passages: int) -> float:
    """Return the mean of `okapi_idf` over the terms of a corpus.

    The frequencies are sorted first, so that the sum is the same to the last bit however the corpus is split.
    """
    return float(okapi_idf(np.sort(frequencies).astype(np.float64), num_passages).mean()) if len(frequencies) else 0.0


def term_weights(settings: Bm25Settings, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight and the constant of every term: (weights, constants), float64 [V] each.

    All variants have the same form. A token of the query adds `constant + weight * tf / (tf + norm)` to a passage that has
    it tf times, and `constant` to every other passage, with `norm` from `length_norms`. For BM25L, c = tf / B and

        (c + delta) / (k1 + c + delta) = delta / (k1 + delta) + k1 / (k1 + delta) * tf / (tf + (k1 + delta) * B).

    Terms that occur in no passage have weight and constant 0.
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
        assert statistics.average_idf is not None  # Statistics for okapi always contain it.
        idf = okapi_idf(df, n)
        weights = np.where(idf < 0, OKAPI_EPSILON * statistics.average_idf, idf) * (k1 + 1)
    elif variant == "bm25+":
        idf = np.log((n + 1) / df)
        weights, constants = idf * (k1 + 1), idf * delta
    else:
        idf = np.log((n + 1) / (df + 0.5)) * (k1 + 1)
        weights, constants = idf * k1 / (k1 + delta), idf * delta / (k1 + delta)
    occurs = statistics.document_frequencies > 0
    return weights * occurs, constants * occurs


def length_norms(settings: Bm25Settings, lengths: np.ndarray, statistics: Statistics) -> np.ndarray:
    """Return the length norm of each passage as float64: k1 * B, with B = 1 - b + b * length / mean length.

    For BM25L it is (k1 + delta) * B. Lengths are in tokens.
    """
    k1 = settings.k1
    if settings.variant == "bm25l":
        k1 += settings.used_delta or 0.0
    mean = max(statistics.num_tokens, 1) / statistics.num_passages
    return k1 * (1 - settings.b + settings.b * lengths / mean)


class HitUnion:
    """The union of the hits of many queries, as arrays indexed by passage, which grow as needed.

    best_rank: int32, from 1; best_score: float32, over all queries; best_query: int32, the query that gave the best
    rank (of several the one with the highest score, then the first); score_at_best_rank: float32; n_queries: int32, number
    of queries that hit the passage, 0 if none.
    """

    def __init__(self, num_passages: int = 0):
        self.best_rank = np.full(num_passages, UNRANKED, np.int32)
        self.score_at_best_rank = np.full(num_passages, -np.inf, np.float32)
        self.best_score = np.full(num_passages, -np.inf, np.float32)
        self.best_query = np.full(num_passages, -1, np.int32)
        self.n_queries = np.zeros(num_passages, np.int32)

    def add(self, query: int, documents: np.ndarray, scores: np.ndarray) -> None:
        """Add the hits of one query.

        Queries are added in order, so that a later one replaces the best query only if it is strictly better.

        Args:
            query: number of the query.
            documents: int [n], the passages hit, best first.
            scores: float32 [n].
        """
        if len(documents) and documents.max() >= len(self.n_queries):
            self._grow(max(int(documents.max()) + 1, 2 * len(self.n_queries)))
        _add(
            query, documents, scores,
            self.best_rank, self.score_at_best_rank, self.best_score, self.best_query, self.n_queries,
        )  # fmt: skip

    def order(self, tie_key: np.ndarray) -> np.ndarray:
        """Return the passages that were hit (int64), ordered by best rank, best score (highest first) and tie key."""
        rows = np.flatnonzero(self.n_queries)
        return rows[np.lexsort((tie_key[rows], -self.best_score[rows], self.best_rank[rows]))]

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of a subset for some passages."""
        return {
            "rank": self.best_rank[rows],
            "score": self.best_score[rows],
            "n_queries": self.n_queries[rows],
            "best_query": self.best_query[rows],
        }

    def _grow(self, size: int) -> None:
        """Enlarge the arrays to `size` passages."""
        longer = HitUnion(size)
        for name, array in vars(self).items():
            getattr(longer, name)[: len(array)] = array
        vars(self).update(vars(longer))


def union_of(hits: Iterable[tuple[np.ndarray, np.ndarray]], total: int, size: int = 0) -> tuple[HitUnion, list[int]]:
    """Compute the union of the hits of all queries, with a progress bar, and the numbers of the queries without hits.

    Args:
        hits: documents and scores of each query in order, see `HitUnion.add`.
        total: number of queries, for the progress bar.
        size: passages to allocate memory for at the start.
    """
    HitUnion(1).add(0, np.zeros(1, np.int32), np.zeros(1, np.float32))  # Compile before the bar starts.
    union, without_hits = HitUnion(size), []
    for query, (documents, scores) in enumerate(tqdm(hits, total=total, desc="Retrieving", unit=" queries")):
        union.add(query, documents, scores)
        if len(documents) == 0:
            without_hits.append(query)
    return union, without_hits


@dataclass
class RetrievalResult:
    """The result of a retrieval: passages (id, text, source) in the order of a subset, its other columns, and counts.

    columns: rank, score, n_queries and best_query (the number of a query); counts: passages (of the corpus), sources
    (passages of the corpus per source) and bad_files if the engine knows them; without_hits: numbers of the queries that
    are not empty and hit nothing.
    """

    passages: Dataset
    columns: dict[str, Any]
    counts: dict[str, Any]
    without_hits: Sequence[int] = ()

    def select(self, rows: np.ndarray) -> RetrievalResult:
        """Return the result with only the passages of these rows."""
        columns = {name: np.asarray(values)[rows] for name, values in self.columns.items()}
        return replace(self, passages=self.passages.select(rows), columns=columns)


@njit(nogil=True, cache=True)
def _add(query, documents, scores, best_rank, score_at_best_rank, best_score, best_query, n_queries):
    """Add the hits of one query to the arrays of a HitUnion."""
    for i in range(len(documents)):
        document, score, rank = documents[i], scores[i], i + 1
        n_queries[document] += 1
        best_score[document] = max(best_score[document], score)
        known = best_rank[document]
        if rank < known or (rank == known and score > score_at_best_rank[document]):
            best_rank[document] = rank
            score_at_best_rank[document] = score
            best_query[document] = query
