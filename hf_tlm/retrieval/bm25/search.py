"""Exact top-K search of thousands of long queries: batches of queries over tiles of passages that fit the CPU cache.

For one tile and one batch of queries, every posting of the batch's terms gets a small integer, an upper bound of its
contribution to the score in units of `step`. Terms that occur in more than one of DENSE_RATIO passages get a row with one
byte per passage instead. A query adds up its rows (vectorised) and its few rare postings; the passages whose sum reaches
the query's threshold are scored exactly, and no other passage can be among the K best. The threshold is estimated from a
uniform sample of the corpus and verified: if fewer than K passages reach it, the query is run again without the estimate.
It rises whenever more passages than needed have reached it.

Exact scores are sums of float64 terms in 64-bit fixed point. Such a sum does not depend on the order of its terms, so
results do not depend on tiles, batches, threads or shards. `benchmarks/retrieval_design.md` explains the design in detail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hf_tlm.retrieval.bm25.kernel import NO_THRESHOLD, bounds_of, decode, last_scores, places_of, search_tile
from hf_tlm.retrieval.bm25.tiles import Tile
from hf_tlm.retrieval.bm25.tokenize import TokenizedTexts
from hf_tlm.retrieval.hits import Hits, Statistics, term_weights
from hf_tlm.retrieval.settings import Bm25Settings

DENSE_RATIO = 16
BLOCK = 64  # The width of a tile's rows is a multiple of this.
FIXED_BITS = 61
# A tile, float64 [passages] length norms, int32 [passages] positions when all passages are sorted by id.
TileArguments = tuple[Tile, np.ndarray, np.ndarray]


@dataclass
class QueryTerms:
    """The distinct terms of a batch of queries, in flat arrays; query q has the entries starts[q] : starts[q + 1].

    starts: int64 [Q + 1]; terms: int32, ids in the index, -1 if it lacks the term; counts: int32, occurrences in the
    query; weights: float64, the term's weight; constants: float64 [Q], added to the score of every passage.
    """

    starts: np.ndarray
    terms: np.ndarray
    counts: np.ndarray
    weights: np.ndarray
    constants: np.ndarray

    def slice(self, first: int, last: int) -> QueryTerms:
        """Return the queries first to last (exclusive)."""
        start, end = self.starts[first], self.starts[last]
        return QueryTerms(
            self.starts[first : last + 1] - start,
            self.terms[start:end],
            self.counts[start:end],
            self.weights[start:end],
            self.constants[first:last],
        )

    def select(self, rows: np.ndarray) -> QueryTerms:
        """Return the queries with these numbers, which must ascend."""
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
    """Convert tokenized queries to QueryTerms.

    Repeated terms are merged, terms of no passage are dropped, and of the rest the `max_query_terms` with the highest idf
    (then the first) are kept.

    Args:
        index_ids: int32 [vocabulary of the queries], ids in the index as in `QueryTerms.terms`.
    """
    num_queries = len(queries)
    owner = np.repeat(np.arange(num_queries, dtype=np.int64), np.diff(queries.offsets))
    pairs = owner * max(len(queries.vocabulary), 1) + queries.ids
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    occurs = statistics.document_frequencies[queries.ids[first]] > 0
    first, counts = first[occurs], counts[occurs]
    if max_query_terms is not None:
        # Within each query the rarest terms come first, equally rare ones in the query's order.
        order = np.lexsort((first, statistics.document_frequencies[queries.ids[first]], owner[first]))
        starts = np.searchsorted(owner[first][order], np.arange(num_queries))
        rank = np.arange(len(order)) - starts[owner[first][order]]
        kept = np.sort(order[rank < max_query_terms])
        first, counts = first[kept], counts[kept]
    terms, owner = queries.ids[first], owner[first]
    starts = np.searchsorted(owner, np.arange(num_queries + 1))
    weights, constants = term_weights(settings, statistics)
    return QueryTerms(
        starts,
        index_ids[terms],
        counts.astype(np.int32),
        weights[terms],
        np.bincount(owner, counts * constants[terms], num_queries),
    )


class Buffer:
    """A buffer that is reused for every tile, because allocating memory would cost as much as the computation in it."""

    def __init__(self, dtype, zeros: bool = False):
        self._array, self._zeros = np.empty(0, dtype), zeros

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of this shape in the buffer, which grows if needed; zeroed if `zeros` was set."""
        size = math.prod(shape)
        if size > len(self._array):
            self._array = np.empty(size + size // 4, self._array.dtype)
        array = self._array[:size].reshape(shape)
        if self._zeros:
            array[...] = 0
        return array


class Batch:
    """A search of a batch of queries over any number of tiles; its memory grows with the batch, not with the corpus."""

    def __init__(self, queries: QueryTerms, top_k: int):
        self.queries, self.top_k = queries, top_k
        in_index = queries.terms >= 0
        self.terms, slots = np.unique(queries.terms[in_index], return_inverse=True)
        self.slots = np.full(len(queries.terms), -1, np.int32)
        self.slots[in_index] = slots
        self.weights = np.zeros(len(self.terms))
        self.weights[slots] = queries.weights[in_index]
        num_queries = len(queries.constants)
        self.owner = np.repeat(np.arange(num_queries), np.diff(queries.starts))
        self.slack = np.bincount(self.owner, queries.counts, num_queries).astype(np.int64) + 1
        total = np.bincount(self.owner, queries.counts * np.abs(queries.weights), num_queries)
        # Powers of two, chosen so that a score in fixed point cannot overflow.
        self.scales = np.exp2(FIXED_BITS - np.ceil(np.log2(np.maximum(total, 1e-9))) - 1)
        self.positive = np.bincount(self.owner, queries.counts * np.maximum(queries.weights, 0), num_queries)
        self.negative = np.bincount(self.owner, queries.counts * np.maximum(-queries.weights, 0), num_queries)
        self.keys = np.empty((num_queries, 2 * top_k + BLOCK), np.int64)
        self.filled = np.zeros(num_queries, np.int32)
        self.thresholds = np.full(num_queries, NO_THRESHOLD)
        self._rows, self._bounds = Buffer(np.uint8, zeros=True), Buffer(np.uint16)

    def add(self, tile: Tile, norms: np.ndarray, order: np.ndarray) -> None:
        """Search a tile and add its candidates.

        Args:
            norms: float64 [passages of the tile], length norms.
            order: int32 [passages of the tile], positions when all passages are sorted by id.
        """
        queries = self.queries
        positions = places_of(tile.terms, self.terms)
        present = positions >= 0
        if not present.any():
            return
        frequencies = np.where(present, tile.starts[positions + 1] - tile.starts[positions], 0)
        dense = frequencies * DENSE_RATIO > tile.num_docs
        rows = np.where(dense, np.cumsum(dense), 0).astype(np.int32)
        positive = np.maximum(self.weights, 0)
        # The step must be small enough that few passages pass needlessly, but bounds in dense rows must fit a byte.
        step = max(positive[dense].max(initial=0) / 253, positive[present].max() / 1000) or 1.0
        width = -(-tile.num_docs // BLOCK) * BLOCK
        row_bounds, row_counts = self._rows((2, 1 + int(dense.sum()), width))
        bounds = self._bounds((len(tile.docs),))
        postings = tile.starts, tile.docs, tile.counts, tile.many, norms
        score_arguments = rows, self.weights, step, bounds, row_bounds, row_counts
        bounds_of(*postings, positions, *score_arguments)
        # The slack, how far a sum of bounds may be above the true score, is a step per term occurrence, a rounding to
        # float32 (within which scores are ties), and what okapi subtracts for terms of negative weight.
        tolerance = 3e-7 * (self.positive + np.abs(queries.constants)) + self.negative
        slack = self.slack + np.ceil(tolerance / step).astype(np.int64)
        fits_uint16 = self.positive / step + self.slack < 2**16
        for chosen, kind in ((np.flatnonzero(fits_uint16), np.uint16), (np.flatnonzero(~fits_uint16), np.uint32)):
            if len(chosen):
                search_tile(
                    *postings, order, positions, *score_arguments,
                    chosen, queries.starts, self.slots, queries.counts, slack, self.scales, queries.constants,
                    self.top_k, self.keys, self.filled, self.thresholds, np.empty(width, kind),
                )  # fmt: skip

    def hits(self, query: int, by_place: np.ndarray) -> Hits:
        """Return the top_k hits of one query.

        Args:
            by_place: int32 [N], the passages sorted by id.
        """
        keys = self.keys[query, : self.filled[query]]
        keys.sort()
        num_hits = min(len(keys), self.top_k)
        documents, scores = np.empty(num_hits, np.int32), np.empty(num_hits, np.float32)
        decode(keys, by_place, documents, scores)
        return documents, scores


def search_batch(
    queries: QueryTerms,
    top_k: int,
    num_tiles: int,
    tile_of: Callable[[int], TileArguments],
    sample: TileArguments | None,
    by_place: np.ndarray,
) -> Iterator[Hits]:
    """Yield the hits of each query of a batch.

    Args:
        tile_of: returns a tile by number, with its norms and order.
        sample: a uniform sample of all N passages, to estimate thresholds from; None: thresholds are not estimated, but
            rise during the search.
        by_place: int32 [N], the passages sorted by id.
    """
    batch = Batch(queries, top_k)
    estimated = np.full(len(batch.thresholds), NO_THRESHOLD)
    if sample is not None:
        expected = top_k * sample[0].num_docs / len(by_place)
        # With three standard deviations, one estimate in a thousand fails.
        num_needed = math.ceil(expected + 3 * math.sqrt(expected) + 2)
        if num_needed < sample[0].num_docs:
            trial = Batch(queries, num_needed)
            trial.add(*sample)
            estimated = last_scores(trial.keys, trial.filled, num_needed)
    batch.thresholds[:] = estimated
    for tile in range(num_tiles):
        batch.add(*tile_of(tile))
    failed = np.flatnonzero((batch.filled < top_k) & (estimated > NO_THRESHOLD))
    repeated = {}
    if len(failed):
        results = search_batch(queries.select(failed), top_k, num_tiles, tile_of, None, by_place)
        repeated = dict(zip(failed.tolist(), results, strict=True))
    for query in range(len(batch.filled)):
        yield repeated.get(query) or batch.hits(query, by_place)
