"""Tokenised queries as distinct terms with weights, which is what an index adds up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_tlm.retrieval.bm25 import Bm25Settings, Statistics, term_weights
from hf_tlm.retrieval.engines.bm25.tokenize import TokenizedTexts


@dataclass
class QueryTerms:
    """Queries as distinct terms: those of query q are starts[q] : starts[q + 1].

    starts: int64 [Q + 1]; terms: int32, ids in the index, -1 where it lacks the term; counts: int32, occurrences in the
    query; weights: float64, the term's weight; constants: float64 [Q], what every passage gets.
    """

    starts: np.ndarray
    terms: np.ndarray
    counts: np.ndarray
    weights: np.ndarray
    constants: np.ndarray

    def slice(self, first: int, last: int) -> QueryTerms:
        start, end = self.starts[first], self.starts[last]
        return QueryTerms(
            self.starts[first : last + 1] - start,
            self.terms[start:end],
            self.counts[start:end],
            self.weights[start:end],
            self.constants[first:last],
        )

    def select(self, rows: np.ndarray) -> QueryTerms:
        """Some of the queries."""
        lengths = np.diff(self.starts)
        chosen = np.zeros(len(lengths), bool)
        chosen[rows] = True
        entries = np.repeat(chosen, lengths)
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths[chosen], out=starts[1:])
        return QueryTerms(starts, self.terms[entries], self.counts[entries], self.weights[entries], self.constants[chosen])


def query_terms(
    queries: TokenizedTexts,
    index_ids: np.ndarray,
    settings: Bm25Settings,
    statistics: Statistics,
    max_query_terms: int | None = None,
) -> QueryTerms:
    """Merge repeated terms, drop those of no passage, and keep the `max_query_terms` of highest idf (then the first).

    index_ids: int32 [vocabulary of the queries], as in `QueryTerms.terms`.
    """
    number = len(queries)
    owner = np.repeat(np.arange(number, dtype=np.int64), np.diff(queries.offsets))
    pairs = owner * max(len(queries.vocabulary), 1) + queries.ids
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    known = statistics.document_frequencies[queries.ids[first]] > 0
    first, counts = first[known], counts[known]
    if max_query_terms is not None:
        # Rarest first within each query; equally rare ones in the query's order.
        order = np.lexsort((first, statistics.document_frequencies[queries.ids[first]], owner[first]))
        starts = np.searchsorted(owner[first][order], np.arange(number))
        rank = np.arange(len(order)) - starts[owner[first][order]]
        kept = np.sort(order[rank < max_query_terms])
        first, counts = first[kept], counts[kept]
    terms, owner = queries.ids[first], owner[first]
    starts = np.searchsorted(owner, np.arange(number + 1))
    weights, constants = term_weights(settings, statistics)
    return QueryTerms(
        starts,
        index_ids[terms],
        counts.astype(np.int32),
        weights[terms],
        np.bincount(owner, counts * constants[terms], number),
    )
