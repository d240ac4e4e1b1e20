"""Finding passages that nearly repeat an earlier one: MinHash (Broder 1997) and LSH propose, exact Jaccard decides."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from hf_tlm.retrieval.analyzer import RetrievalError
from hf_tlm.retrieval.ngrams import hash_ngrams, hash_words, words

# Of the pairs at the threshold, the part that LSH must propose. A false candidate costs one comparison of two texts, a
# missed one stays in the subset.
RECALL = 0.9
CACHED_TEXTS = 4096


def check_deduplication(threshold: float, num_perm: int = 1, ngram: int = 1) -> None:
    """Check the settings of deduplication, and that its package is installed.

    Raises:
        RetrievalError: a setting out of range, or datasketch is not installed.
    """
    if not 0 < threshold <= 1 or num_perm < 1 or ngram < 1:
        raise RetrievalError(
            "Deduplication needs threshold above 0 and at most 1, num_perm of at least 1 and ngram of at least 1; "
            f"received {threshold}, {num_perm} and {ngram}."
        )
    try:
        import datasketch  # noqa: F401
    except ImportError as error:
        raise RetrievalError(
            "Finding near-duplicates needs datasketch: pip install 'hf-tlm[dedup]', or leave deduplication out."
        ) from error


def near_duplicates(
    texts: Sequence[str],
    *,
    threshold: float = 0.8,
    num_perm: int = 128,
    ngram: int = 5,
    seed: int = 0,
    progress: bool = True,
) -> np.ndarray:
    """For each text the index of the first earlier one that it nearly repeats, or -1 if it stays: int64 [texts].

    Two texts repeat each other if the Jaccard similarity of their sets of word n-grams (a text of fewer words is one) is
    at least `threshold`. Only texts that stay are compared with, so of a group the first one stays: bring the best
    first. Texts without a word repeat each other. The result depends on the texts and the arguments alone.

    LSH proposes at least `RECALL` of the pairs at the threshold and nearly all above it (with the defaults 95% at 0.8,
    99% at 0.85); nothing is dropped on an estimate. Memory: about 200 bytes a text.

    Args:
        threshold: above 0, at most 1.
        num_perm: hash functions of a MinHash; more find more of the pairs.
        progress: show a progress bar.

    Raises:
        RetrievalError: a setting out of range, or datasketch is not installed.
    """
    check_deduplication(threshold, num_perm, ngram)
    from datasketch import MinHash
    from tqdm.auto import tqdm

    # 1. Candidates: texts with an equal band, that is, a piece of the MinHash, kept as one number.
    num_bands, band_size = _shape_of_bands(threshold, num_perm)
    multipliers = np.random.default_rng(seed).integers(1 << 63, size=band_size, dtype=np.uint64) * 2 + 1
    bands = np.empty((num_bands, len(texts)), np.uint64)
    minhashes = MinHash.generator(_hashed_ngrams(texts, ngram), num_perm=num_perm, seed=seed, hashfunc=int)
    bar = tqdm(minhashes, total=len(texts), desc="Hashing passages", unit=" passages", disable=not progress)
    for index, minhash in enumerate(bar):
        values = minhash.hashvalues[: num_bands * band_size].astype(np.uint64)
        bands[:, index] = (values.reshape(num_bands, band_size) * multipliers).sum(axis=1)
    in_company = np.stack([_occurs_twice(band) for band in bands])

    # 2. Candidates in order, each compared with those before it that stay.
    @functools.lru_cache(CACHED_TEXTS)
    def ngrams_of(index: int) -> frozenset[tuple[str, ...]]:
        found = words(texts[index])
        return frozenset(tuple(found[i : i + ngram]) for i in range(max(1, len(found) - ngram + 1)))

    repeats = np.full(len(texts), -1, np.int64)
    staying: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    candidates = np.flatnonzero(in_company.any(axis=0)).tolist()
    for index in tqdm(candidates, desc="Comparing passages", unit=" passages", disable=not progress):
        buckets = [(band, int(bands[band, index])) for band in np.flatnonzero(in_company[:, index]).tolist()]
        for earlier in sorted({earlier for bucket in buckets for earlier in staying[bucket]}):
            if _jaccard(ngrams_of(index), ngrams_of(earlier)) >= threshold:
                repeats[index] = earlier
                break
        else:
            for bucket in buckets:
                staying[bucket].append(index)
    return repeats


def _shape_of_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """(bands, MinHash values in each): the longest bands, and so the fewest false candidates, with the wanted recall.

    A value is equal with a probability of the similarity s, one of b bands of r values with 1 - (1 - s^r)^b.
    """
    shapes = ((num_perm // size, size) for size in range(num_perm, 0, -1))
    good = (shape for shape in shapes if 1 - (1 - threshold ** shape[1]) ** shape[0] >= RECALL)
    return next(good, (num_perm, 1))


def _hashed_ngrams(texts: Sequence[str], n: int) -> Iterator[list[int]]:
    """The n-grams of each text as 32-bit hashes."""
    for _, hashes, offsets in hash_words(texts):
        found, of = hash_ngrams(hashes, offsets, n, short_texts=True)
        found >>= np.uint64(32)
        for start, end in pairwise(np.searchsorted(of, np.arange(len(offsets)))):
            yield np.unique(found[start:end]).tolist()


def _jaccard(first: frozenset, second: frozenset) -> float:
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


def _occurs_twice(values: np.ndarray) -> np.ndarray:
    """bool: another element is equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[inverse] > 1
