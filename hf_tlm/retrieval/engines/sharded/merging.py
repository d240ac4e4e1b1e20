"""What the shards of a corpus have to agree on: ids are unique, and the best of all shards are the best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numba import njit

from hf_tlm.retrieval.analyzer import RetrievalError
from hf_tlm.retrieval.engines.sharded.workspace import read_table

HASH_RANGES = 64


@njit(nogil=True, cache=True)
def merge_hits(keys, scores, ends, top_k):
    """The top_k of several lists, each ordered by (score descending, key ascending), in that order: (keys, scores).

    keys, scores: the lists one after another; ends: where each ends.
    """
    best_keys, best_scores = keys[:0].copy(), scores[:0].copy()
    start = 0
    for end in ends:
        size = min(top_k, len(best_keys) + end - start)
        merged_keys, merged_scores = np.empty(size, keys.dtype), np.empty(size, scores.dtype)
        i, j = 0, start
        for k in range(size):
            own = j == end or (
                i < len(best_keys)
                and (best_scores[i] > scores[j] or (best_scores[i] == scores[j] and best_keys[i] < keys[j]))
            )
            if own:
                merged_keys[k], merged_scores[k] = best_keys[i], best_scores[i]
                i += 1
            else:
                merged_keys[k], merged_scores[k] = keys[j], scores[j]
                j += 1
        best_keys, best_scores, start = merged_keys, merged_scores, end
    return best_keys, best_scores


@njit(nogil=True, cache=True)
def _fnv1a(data, offsets, hashes):
    for i in range(len(hashes)):
        value = np.uint64(0xCBF29CE484222325)
        for at in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        hashes[i] = value


def hash_ids(ids: pa.ChunkedArray) -> np.ndarray:
    """uint64 [N], FNV-1a."""
    parts = [np.empty(0, np.uint64)]
    for chunk in ids.chunks:
        if len(chunk):
            _, offsets, data = chunk.buffers()
            offsets = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            parts.append(np.empty(len(chunk), np.uint64))
            _fnv1a(np.frombuffer(data or b"", np.uint8), offsets, parts[-1])
    return np.concatenate(parts)


def check_ids(shards: list[Path]) -> None:
    """Raise RetrievalError if an id is in two shards; within a shard the index has seen to it."""
    hashes = [np.load(shard / "hashes.npy", mmap_mode="r") for shard in shards]
    # A range of hash values at a time: the corpus's ids need not fit in memory.
    limits = [np.uint64(i * (2**64 // HASH_RANGES)) for i in range(1, HASH_RANGES)]
    cuts = [np.concatenate([[0], np.searchsorted(h, limits), [len(h)]]) for h in hashes]
    for i in range(HASH_RANGES):
        values = np.sort(np.concatenate([h[c[i] : c[i + 1]] for h, c in zip(hashes, cuts, strict=True)]))
        repeated = np.unique(values[1:][values[1:] == values[:-1]])
        if len(repeated) == 0:
            continue
        owners: dict[str, int] = {}  # Equal hashes need not be equal ids.
        for number, (shard, own) in enumerate(zip(shards, hashes, strict=True)):
            if np.isin(repeated, own).any():
                ids = read_table(shard / "index" / "ids.arrow")["id"]
                for identifier in ids.filter(pa.array(np.isin(hash_ids(ids), repeated))).to_pylist():
                    if identifier in owners:
                        raise RetrievalError(
                            f"The passage id {identifier!r} occurs twice, in shards {owners[identifier]} and {number}. Ids "
                            "must be unique."
                        )
                    owners[identifier] = number
