"""Tiles of postings: the inverted index of up to TILE consecutive passages, small enough for a core's cache.

    terms   int32  [T]        the tile's terms, ascending
    starts  int32  [T + 1]    term i has the postings starts[i] : starts[i + 1]
    docs    uint16 [P]        passages, counted from the tile's first, ascending within a term
    counts  uint8  [P]        occurrences of the term in the passage; MANY stands for MANY or more, see `many`
    many    int64  [M, 2]     (posting, occurrences) of these postings

Every passage belongs to one tile. A uniform sample of all passages is stored again as a tile of its own, from which a
search estimates the score of the K-th best passage in advance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

TILE = 16_384  # At most 65,535, because docs is uint16; the accumulator of a tile fits the L1 cache.
SAMPLE = 8_192
MANY = 255
_ALIGN = 64


@dataclass
class Tile:
    """A tile of postings of num_docs passages; the module's docstring describes its arrays."""

    num_docs: int
    terms: np.ndarray
    starts: np.ndarray
    docs: np.ndarray
    counts: np.ndarray
    many: np.ndarray

    def to_bytes(self) -> tuple[list[int], bytes]:
        """Return the shape (num_docs, T, P, M) for `from_buffer`, and the bytes of the arrays, each aligned."""
        pieces = []
        for array in (self.terms, self.starts, self.docs, self.counts, self.many):
            data = array.tobytes()
            pieces += [data, bytes(-len(data) % _ALIGN)]
        return [self.num_docs, len(self.terms), len(self.docs), len(self.many)], b"".join(pieces)

    @classmethod
    def from_buffer(cls, buffer, offset: int, shape: tuple[int, int, int, int]) -> Tile:
        """Create a tile as a view of the bytes that `to_bytes` returned, at `offset` of a buffer."""
        num_docs, num_terms, postings, num_many = map(int, shape)
        arrays = []
        for dtype, count in (
            (np.int32, num_terms),
            (np.int32, num_terms + 1),
            (np.uint16, postings),
            (np.uint8, postings),
            (np.int64, 2 * num_many),
        ):
            arrays.append(np.frombuffer(buffer, dtype, count, offset))
            size = arrays[-1].nbytes
            offset += size + -size % _ALIGN
        terms, starts, docs, counts, many = arrays
        return cls(num_docs, terms, starts, docs, counts, many.reshape(-1, 2))


@njit(nogil=True, cache=True)
def _document_frequencies(ids, offsets, place, frequencies):
    """Count the passages of every term into frequencies[place[term]].

    Args:
        place: int32, position in the tile of every term that occurs.
    """
    last = np.full(len(frequencies), -1, np.int32)
    for doc in range(len(offsets) - 1):
        for i in range(offsets[doc], offsets[doc + 1]):
            term = place[ids[i]]
            if last[term] != doc:
                last[term] = doc
                frequencies[term] += 1


@njit(nogil=True, cache=True)
def _fill(ids, offsets, place, starts, docs, counts):
    """Fill in `docs` and `counts` of every posting.

    Passages are visited in order, so those of each term ascend.
    """
    last = np.full(len(starts) - 1, -1, np.int32)
    to = starts[:-1].copy()
    for doc in range(len(offsets) - 1):
        for i in range(offsets[doc], offsets[doc + 1]):
            term = place[ids[i]]
            if last[term] != doc:
                last[term] = doc
                docs[to[term]] = doc
                counts[to[term]] = 1
                to[term] += 1
            else:
                counts[to[term] - 1] += 1


def make_tile(ids: np.ndarray, offsets: np.ndarray, num_terms: int) -> Tile:
    """Build the tile of some passages.

    Args:
        ids: int32 [tokens], term ids below num_terms.
        offsets: int64 [passages + 1].
    """
    occurs = np.zeros(num_terms, bool)
    occurs[ids] = True
    terms = np.flatnonzero(occurs).astype(np.int32)
    place = np.empty(num_terms, np.int32)
    place[terms] = np.arange(len(terms), dtype=np.int32)
    starts = np.zeros(len(terms) + 1, np.int32)
    _document_frequencies(ids, offsets, place, starts[1:])
    np.cumsum(starts, out=starts)
    docs, counts = np.empty(starts[-1], np.uint16), np.empty(starts[-1], np.int32)
    _fill(ids, offsets, place, starts, docs, counts)
    high = np.flatnonzero(counts >= MANY)
    many = np.stack([high, counts[high]], axis=1).astype(np.int64)
    return Tile(len(offsets) - 1, terms, starts, docs, np.minimum(counts, MANY).astype(np.uint8), many)


def tokens_of(tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    """Invert `make_tile`: return (ids, offsets), with the tokens of each passage in another order."""
    counts = tile.counts.astype(np.int64)
    counts[tile.many[:, 0]] = tile.many[:, 1]
    docs = np.repeat(tile.docs.astype(np.int64), counts)
    ids = np.repeat(np.repeat(tile.terms, np.diff(tile.starts)), counts)
    offsets = np.zeros(tile.num_docs + 1, np.int64)
    np.cumsum(np.bincount(docs, minlength=tile.num_docs), out=offsets[1:])
    return ids[np.argsort(docs, kind="stable")], offsets


def sampling_order(documents: np.ndarray) -> np.ndarray:
    """Return sort keys of passages in a fixed random order, uint64 (splitmix64 of their numbers).

    The passages with the smallest keys are a uniform sample.
    """
    state = (documents.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class Sample:
    """A sample of the passages added: the first SAMPLE ones in `sampling_order`, with their tokens, in bounded memory."""

    def __init__(self) -> None:
        self._documents: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._limit = np.uint64(2**64 - 1)

    def add(self, documents: np.ndarray, ids: np.ndarray, offsets: np.ndarray) -> None:
        """Add passages to choose from.

        Args:
            documents: int64 [n], their numbers.
            ids, offsets: see `make_tile`.
        """
        chosen = sampling_order(documents) <= self._limit
        lengths = np.diff(offsets)
        self._documents.append(documents[chosen])
        self._lengths.append(lengths[chosen])
        self._ids.append(ids[np.repeat(chosen, lengths)])
        if sum(map(len, self._documents)) > 2 * SAMPLE:
            self._prune()

    def _prune(self) -> None:
        """Keep only the sample, and the limit that later passages must be below."""
        documents, lengths, ids = map(np.concatenate, (self._documents, self._lengths, self._ids))
        order = sampling_order(documents)
        if len(order) > SAMPLE:
            self._limit = np.partition(order, SAMPLE - 1)[SAMPLE - 1]
        chosen = order <= self._limit
        self._documents, self._lengths = [documents[chosen]], [lengths[chosen]]
        self._ids = [ids[np.repeat(chosen, lengths)]]

    def tile(self, num_terms: int) -> tuple[np.ndarray, Tile]:
        """Return the numbers of the sampled passages (int64), and their tile."""
        self._prune()
        offsets = np.zeros(len(self._lengths[0]) + 1, np.int64)
        np.cumsum(self._lengths[0], out=offsets[1:])
        return self._documents[0], make_tile(self._ids[0], offsets, num_terms)
