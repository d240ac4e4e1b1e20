"""Filters of retrieved passages: decontamination against held-out texts, and near-duplicate removal.

A hash is a polynomial in an odd base modulo 2^64 (Karp and Rabin 1987, "Efficient randomized pattern-matching
algorithms"). An odd number has an inverse modulo 2^64, so prefix sums give the hash of any span by one subtraction. Equal
words have equal hashes; the converse is only very likely, so the words are compared before a hash match is acted on.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from tqdm.auto import tqdm

from hf_tlm.retrieval.texts import RetrievalError
from hf_tlm.tasks.spec import Task, columns_of_texts
from hf_tlm.utils.texts import UNSPACED, batch_by_size

BATCH_CHARACTERS = 1 << 20
BETWEEN, LETTER, WORD = range(3)
PLANES = (range(0x40000), range(0xE0000, 0xE1000))  # The other planes have no letters, numbers or marks.
CODE_BASE, WORD_BASE = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
FILTER_BITS = (16, 27)  # Minimum and maximum of log2 of the filter's size: at most 128 MiB.
# Minimum share of the pairs at the threshold that LSH must propose. A false candidate costs one comparison of two texts; a
# missed pair stays in the subset.
RECALL = 0.9
CACHED_TEXTS = 4096


def words(text: str) -> list[str]:
    """Split a text into words: runs of letters, digits and marks of any script, after NFKC and lower-casing.

    In scripts written without spaces (`UNSPACED`) every character is a word, so that an n-gram there is n characters.
    """
    text = _normalise(text)
    _, starts, ends = _find_words(text)
    return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def hash_words(texts: Iterable[str]) -> Iterator[tuple[list[str], np.ndarray, np.ndarray]]:
    """Hash the words of texts in batches of about `BATCH_CHARACTERS` characters.

    Yields:
        (texts, word hashes uint64 [words], offsets int64 [texts + 1]) of each batch.
    """
    for batch in batch_by_size(texts, BATCH_CHARACTERS):
        yield batch, *_hash_batch(batch)


def hash_ngrams(
    hashes: np.ndarray, offsets: np.ndarray, n: int, *, short_texts: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Hash the n-grams of words that `hash_words` hashed.

    Args:
        hashes, offsets: a batch of `hash_words`.
        short_texts: count a text of fewer than n words, but at least one, as one n-gram.

    Returns:
        (hashes uint64 [n-grams], index of the text of each int64 [n-grams], ascending).
    """
    lengths = np.diff(offsets)
    text_of_word = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.arange(len(hashes))
    ends = np.minimum(starts + n, offsets[1:][text_of_word])
    kept = ends - starts == n
    if short_texts:
        kept |= (lengths[text_of_word] < n) & (starts == offsets[text_of_word])
    return _hash_spans(hashes, starts[kept], ends[kept], WORD_BASE), text_of_word[kept]


@functools.cache
def _code_point_kinds() -> np.ndarray:
    """Return the class of every code point, uint8: BETWEEN words, a LETTER of a word, or a WORD by itself."""
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    for plane in PLANES:
        kinds[plane.start : plane.stop] = [unicodedata.category(chr(code))[0] in "LNM" for code in plane]
    for first, last in UNSPACED:
        kinds[first : last + 1] *= WORD
    return kinds


def _normalise(text: str) -> str:
    """Apply NFKC and lower-casing to a text."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()


def _find_words(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the words of a normalised text.

    Returns:
        (code points uint32 [characters], starts int64 [words], ends int64 [words]).
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = np.full(len(codes) + 2, BETWEEN, np.uint8)
    np.take(_code_point_kinds(), codes, out=kinds[1:-1])
    letter, word = kinds == LETTER, kinds[1:-1] == WORD
    starts = np.flatnonzero(letter[1:-1] & ~letter[:-2] | word)
    ends = np.flatnonzero(letter[1:-1] & ~letter[2:] | word) + 1
    return codes, starts, ends


def _hash_batch(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hash the words of texts: (hashes uint64 [words], offsets int64 [texts + 1])."""
    texts = [_normalise(text) for text in texts]
    codes, starts, ends = _find_words("\n".join(texts))
    borders = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return _hash_spans(codes, starts, ends, CODE_BASE), np.searchsorted(starts, borders)


def _hash_spans(values: np.ndarray, starts: np.ndarray, ends: np.ndarray, base: int) -> np.ndarray:
    """Return the hash of each span, uint64: the sum of values[i] * base^(i - start) over the span, with its bits mixed."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * _powers(base, len(values)), out=sums[1:])
    hashes = (sums[ends] - sums[starts]) * _powers(pow(base, -1, 1 << 64), len(values))[starts]
    # Without mixing, the low bits of a hash would depend only on the low bits of the values.
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _powers(base: int, n: int) -> np.ndarray:
    """Return the powers 1, base, base^2, ... modulo 2^64: uint64 [n]."""
    powers = np.full(n, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, out=powers)


@dataclass(frozen=True)
class Leak:
    """The reason why a passage is removed: the held-out text that it leaks.

    held_out: id of the held-out text with the highest share; of several the first.
    reason: "contains" if the passage contains all words of the text consecutively; "shares" if they only share n-grams.
    share: shared n-grams as a share of the distinct n-grams of the held-out text or of the passage, whichever is larger; 1
        if contained.
    """

    held_out: str
    reason: str
    share: float


class Decontaminator:
    """A detector of passages that contain held-out texts, by n-gram overlap as in GPT-3 (Brown et al. 2020, appendix C).

    A passage leaks a held-out text of `ngram` words or more if more than `threshold` of the distinct n-grams of either one
    occur in both: of the text's n-grams, because a long text may be cut into several passages; of the passage's, because it
    may be a piece of a long text. So a passage that contains the complete text leaks it. A shorter text leaks only if the
    passage contains all of its words consecutively; and if it has fewer than `min_characters` (words joined by spaces),
    only if the passage consists of nothing else, because "yes" occurs in half of a corpus. Words are those of
    `hf_tlm.retrieval.filters.words`: case, punctuation and white space do not count; in scripts without spaces an n-gram is
    `ngram` characters.

    Memory: the held-out texts, and about 20 bytes for each of their n-grams (50 while they are sorted); passages are
    streamed.

    Args:
        held_out: (id, text) pairs, as `held_out_texts` returns them. Texts without a word are never found.
        ngram: words of an n-gram, at least 1.
        threshold: at least 0 and below 1.
        min_characters: at least 0.

    Raises:
        RetrievalError: a setting is out of range.
    """

    def __init__(
        self, held_out: Iterable[tuple[str, str]], *, ngram: int = 13, threshold: float = 0.2, min_characters: int = 50
    ):
        if ngram < 1 or not 0 <= threshold < 1 or min_characters < 0:
            raise RetrievalError(
                "Decontamination needs ngram of at least 1, threshold of at least 0 and below 1, and min_characters of "
                f"at least 0; received {ngram}, {threshold} and {min_characters}."
            )
        self.ngram, self.threshold = ngram, threshold
        self.settings = {"ngram": ngram, "threshold": threshold, "min_characters": min_characters}
        self._held_out = list(held_out)
        self._whole_texts: dict[str, int] = {}  # text leaked only by an equal passage -> its index in held_out
        lengths, keys, owners, num_before = {ngram}, [], [], 0
        for texts, hashes, offsets in hash_words(text for _, text in self._held_out):
            ngrams, text_of_ngram = hash_ngrams(hashes, offsets, ngram, short_texts=True)
            is_whole = np.zeros(len(texts), bool)
            for position in np.flatnonzero(np.diff(offsets) < ngram).tolist():
                text = " ".join(words(texts[position]))
                if len(text) < min_characters:
                    self._whole_texts.setdefault(text, num_before + position)
                    is_whole[position] = True
                else:
                    lengths.add(int(offsets[position + 1] - offsets[position]))
            keys.append(ngrams[~is_whole[text_of_ngram]])
            owners.append(text_of_ngram[~is_whole[text_of_ngram]] + num_before)
            num_before += len(texts)
        self._whole_texts.pop("", None)
        self._lengths = sorted(lengths - {0})
        self._build_index(np.concatenate([np.empty(0, np.uint64), *keys]), np.concatenate([np.empty(0, np.int64), *owners]))

    def _build_index(self, keys: np.ndarray, owners: np.ndarray) -> None:
        """Build the index of the n-grams: sorted by hash, then text, without repetitions within a text."""
        order = np.argsort(keys, kind="stable")
        keys, owners = keys[order], owners[order].astype(np.int32)
        is_first = np.ones(len(keys), bool)
        is_first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
        self._keys, self._owners = keys[is_first], owners[is_first]
        self._sizes = np.bincount(self._owners, minlength=len(self._held_out))
        # One look-up in this filter saves most n-grams of the passages a binary search.
        bits = min(max(FILTER_BITS[0], (8 * len(keys)).bit_length()), FILTER_BITS[1])
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, bool)
        self._filter[self._keys >> self._shift] = True

    def __len__(self) -> int:
        """Return the number of held-out texts."""
        return len(self._held_out)

    def leaks(self, texts: Iterable[str]) -> Iterator[Leak | None]:
        """Yield for each passage, in order, what it leaks, or None if it may stay."""
        for batch, hashes, offsets in hash_words(texts):
            ngrams, passage_of_ngram = hash_ngrams(hashes, offsets, self.ngram)
            starts = np.searchsorted(passage_of_ngram, np.arange(len(batch) + 1))
            hits, passage_of_hit = self._find_hits(hashes, offsets)
            hit_starts = np.searchsorted(passage_of_hit, np.arange(len(batch) + 1))
            is_short = np.diff(offsets) < self.ngram
            for i, text in enumerate(batch):
                if hit_starts[i] < hit_starts[i + 1]:
                    num_own = len(np.unique(ngrams[starts[i] : starts[i + 1]]))
                    yield self._find_worst_leak(text, np.unique(hits[hit_starts[i] : hit_starts[i + 1]]), num_own)
                elif is_short[i] and (position := self._whole_texts.get(" ".join(words(text)))) is not None:
                    yield Leak(self._held_out[position][0], "contains", 1.0)
                else:
                    yield None

    def _find_hits(self, hashes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the held-out n-grams among those of a batch of passages, by hash.

        Word runs of the lengths of the short held-out texts are looked up too.

        Returns:
            (hashes, index of the passage of each, ascending).
        """
        hits, passages = [], []
        for length in self._lengths:
            ngrams, passage_of_ngram = hash_ngrams(hashes, offsets, length)
            candidates = np.flatnonzero(self._filter[ngrams >> self._shift])
            candidates = candidates[np.argsort(ngrams[candidates])]  # Sorted, so that binary search stays in the CPU cache.
            ngrams, passage_of_ngram = ngrams[candidates], passage_of_ngram[candidates]
            positions = np.searchsorted(self._keys, ngrams)
            is_held_out = positions < len(self._keys)
            is_held_out[is_held_out] = self._keys[positions[is_held_out]] == ngrams[is_held_out]
            hits.append(ngrams[is_held_out])
            passages.append(passage_of_ngram[is_held_out])
        all_hits, all_passages = np.concatenate(hits), np.concatenate(passages)
        order = np.argsort(all_passages, kind="stable")
        return all_hits[order], all_passages[order]

    def _find_worst_leak(self, text: str, hits: np.ndarray, num_own: int) -> Leak | None:
        """Return the leak with the highest share, confirmed on the words, or None.

        Args:
            hits: distinct hashes of held-out n-grams in the passage `text`.
            num_own: number of distinct n-grams of `text`.
        """
        starts, ends = (np.searchsorted(self._keys, hits, side) for side in ("left", "right"))
        owners = np.concatenate([self._owners[start:end] for start, end in zip(starts, ends, strict=True)])
        owners, shared = np.unique(owners, return_counts=True)
        shares = np.maximum(shared / self._sizes[owners], shared / max(num_own, 1))
        passage = words(text)
        for candidate in np.lexsort((owners, -shares)):
            if shares[candidate] <= self.threshold:
                break
            if leak := self._confirm_leak(passage, *self._held_out[owners[candidate]]):
                return leak
        return None

    def _confirm_leak(self, passage: list[str], held_out: str, text: str) -> Leak | None:
        """Check on words instead of hashes whether the passage leaks a held-out text; return the leak, or None."""
        text_words = words(text)
        if f" {' '.join(text_words)} " in f" {' '.join(passage)} ":
            return Leak(held_out, "contains", 1.0)
        text_ngrams, passage_ngrams = _ngram_set(text_words, self.ngram), _ngram_set(passage, self.ngram)
        shared = len(text_ngrams & passage_ngrams)
        share = max(shared / max(len(text_ngrams), 1), shared / max(len(passage_ngrams), 1))
        return Leak(held_out, "shares", share) if share > self.threshold else None


def held_out_texts(task: Task) -> list[tuple[str, str]]:
    """Return (`<split>/<id>`, text) of every validation and test example.

    A pair of texts gives three entries: each text, and both joined by a space.
    """
    texts = []
    for split in [split for split in ("validation", "test") if split in task.splits]:
        rows = task.splits[split]
        for identifier, *parts in zip(rows["id"][:], *(rows[name][:] for name in columns_of_texts(rows)), strict=True):
            joined = [" ".join(parts)] if len(parts) > 1 else []
            texts += [(f"{split}/{identifier}", part) for part in parts + joined]
    return texts


def _ngram_set(words: list[str], n: int) -> set[tuple[str, ...]]:
    """Return the distinct n-grams of a list of words."""
    return set(zip(*(words[start:] for start in range(n)), strict=False))


def check_deduplication(threshold: float, num_perm: int = 1, ngram: int = 1) -> None:
    """Check the settings of deduplication and that its package is installed, or raise a RetrievalError."""
    if not 0 < threshold <= 1 or num_perm < 1 or ngram < 1:
        raise RetrievalError(
            "Deduplication needs threshold above 0 and at most 1, num_perm of at least 1 and ngram of at least 1; "
            f"received {threshold}, {num_perm} and {ngram}."
        )
    try:
        import datasketch  # noqa: F401
    except ImportError as error:
        raise RetrievalError(
            "Finding near-duplicates needs datasketch: pip install 'hf-tlm[dedup]', or do not deduplicate."
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
    """Find near-duplicates of earlier texts with MinHash LSH.

    Two texts are near-duplicates if the Jaccard similarity of their sets of word n-grams is at least `threshold`; a text of
    fewer than `ngram` words counts as one n-gram. Texts are compared only with earlier ones that stay, so the first of a
    group stays: pass the best texts first. Texts without a word are duplicates of each other. The result depends only on
    the texts and the arguments.

    LSH proposes at least `RECALL` of the pairs at the threshold and nearly all above it (with the defaults 95% at 0.8, 99%
    at 0.85); every proposed pair is verified on its n-grams, so no text is dropped on an estimate. Memory: about 200 bytes
    per text.

    Args:
        threshold: above 0, at most 1.
        num_perm: hash functions of a MinHash; more of them find more of the pairs.
        ngram: words of an n-gram.
        seed: seed of the hash functions.
        progress: show a progress bar.

    Returns:
        int64 [texts]: the index of the first earlier text that each one nearly repeats, or -1 if it stays.

    Raises:
        RetrievalError: a setting is out of range, or datasketch is not installed.
    """
    check_deduplication(threshold, num_perm, ngram)
    from datasketch import MinHash

    # 1. Candidates are texts that share a band, a slice of the MinHash, which is stored as one number.
    num_bands, band_size = _choose_band_shape(threshold, num_perm)
    multipliers = np.random.default_rng(seed).integers(1 << 63, size=band_size, dtype=np.uint64) * 2 + 1
    bands = np.empty((num_bands, len(texts)), np.uint64)
    minhashes = MinHash.generator(_hash_ngram_sets(texts, ngram), num_perm=num_perm, seed=seed, hashfunc=int)
    bar = tqdm(minhashes, total=len(texts), desc="Hashing passages", unit=" passages", disable=not progress)
    for index, minhash in enumerate(bar):
        values = minhash.hashvalues[: num_bands * band_size].astype(np.uint64)
        bands[:, index] = (values.reshape(num_bands, band_size) * multipliers).sum(axis=1)
    shares_band = np.stack([_is_repeated(band) for band in bands])

    # 2. Compare each candidate, in order, with the earlier ones that stay.
    @functools.lru_cache(CACHED_TEXTS)
    def ngrams_of(index: int) -> frozenset[tuple[str, ...]]:
        text_words = words(texts[index])
        return frozenset(_ngram_set(text_words, ngram) or [tuple(text_words)])

    repeats = np.full(len(texts), -1, np.int64)
    kept_in_bucket: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    candidates = np.flatnonzero(shares_band.any(axis=0)).tolist()
    for index in tqdm(candidates, desc="Comparing passages", unit=" passages", disable=not progress):
        buckets = [(band, int(bands[band, index])) for band in np.flatnonzero(shares_band[:, index]).tolist()]
        for earlier in sorted({earlier for bucket in buckets for earlier in kept_in_bucket[bucket]}):
            if _jaccard(ngrams_of(index), ngrams_of(earlier)) >= threshold:
                repeats[index] = earlier
                break
        else:
            for bucket in buckets:
                kept_in_bucket[bucket].append(index)
    return repeats


def _choose_band_shape(threshold: float, num_perm: int) -> tuple[int, int]:
    """Choose the number of LSH bands and of MinHash values in each: (bands, values).

    The longest bands with a recall of at least `RECALL` are chosen, because they give the fewest false candidates. Two
    texts of similarity s agree in a value with probability s, and in at least one of b bands of r values with probability
    1 - (1 - s^r)^b.
    """
    shapes = ((num_perm // size, size) for size in range(num_perm, 0, -1))
    accepted = (shape for shape in shapes if 1 - (1 - threshold ** shape[1]) ** shape[0] >= RECALL)
    return next(accepted, (num_perm, 1))


def _hash_ngram_sets(texts: Sequence[str], n: int) -> Iterator[list[int]]:
    """Yield the distinct n-grams of each text as 32-bit hashes."""
    for _, hashes, offsets in hash_words(texts):
        ngrams, text_of_ngram = hash_ngrams(hashes, offsets, n, short_texts=True)
        ngrams >>= np.uint64(32)
        for start, end in pairwise(np.searchsorted(text_of_ngram, np.arange(len(offsets)))):
            yield np.unique(ngrams[start:end]).tolist()


def _jaccard(first: frozenset, second: frozenset) -> float:
    """Return the Jaccard similarity of two sets."""
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


def _is_repeated(values: np.ndarray) -> np.ndarray:
    """Return for each element whether another one is equal to it."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[inverse] > 1
