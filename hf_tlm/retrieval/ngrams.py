"""Texts as normalised words and as 64-bit hashes of their n-grams, on arrays: what contamination and repeats are read from.

A hash is a polynomial in an odd base modulo 2^64 (Karp and Rabin 1987, "Efficient randomized pattern-matching
algorithms"). An odd number has an inverse there, so prefix sums give the hash of any span by one difference. Equal words
have equal hashes; the converse is only very likely, so whoever acts on a hash compares the words first.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

BATCH_CHARACTERS = 1 << 20
BETWEEN, LETTER, WORD = range(3)
# Scripts written without spaces: Thai, Lao, Myanmar, Khmer; Hiragana, Katakana, Bopomofo; Han.
UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x312F), (0x31A0, 0x31FF), (0x3400, 0x4DBF),
            (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
PLANES = (range(0x40000), range(0xE0000, 0xE1000))  # The others have neither letters nor numbers nor marks.
CODE_BASE, WORD_BASE = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


def words(text: str) -> list[str]:
    """The words of a text: runs of letters, digits and marks of any script, after NFKC and lower case.

    In scripts written without spaces (`UNSPACED`) every character is a word, so that an n-gram there is n characters.
    """
    text = _normalise(text)
    _, starts, ends = _find_words(text)
    return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def hash_words(texts: Iterable[str]) -> Iterator[tuple[list[str], np.ndarray, np.ndarray]]:
    """Batches of about `BATCH_CHARACTERS`: (texts, word hashes uint64 [words], offsets int64 [texts + 1])."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text) + 1
        if size >= BATCH_CHARACTERS:
            yield batch, *_hash_batch(batch)
            batch, size = [], 0
    if batch:
        yield batch, *_hash_batch(batch)


def hash_ngrams(
    hashes: np.ndarray, offsets: np.ndarray, n: int, *, short_texts: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The n-grams of words hashed by `hash_words`: (hashes uint64 [n-grams], text of each int64 [n-grams], ascending).

    Args:
        short_texts: a text of fewer than n words, but not of none, counts as one n-gram.
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
def _kinds() -> np.ndarray:
    """uint8 [code points]: BETWEEN words, a LETTER of a word, or a WORD by itself."""
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    for plane in PLANES:
        kinds[plane.start : plane.stop] = [unicodedata.category(chr(code))[0] in "LNM" for code in plane]
    for first, last in UNSPACED:
        kinds[first : last + 1] *= WORD
    return kinds


def _normalise(text: str) -> str:
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()


def _find_words(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(code points uint32 [characters], starts int64 [words], ends int64 [words]) of a normalised text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = np.full(len(codes) + 2, BETWEEN, np.uint8)
    np.take(_kinds(), codes, out=kinds[1:-1])
    letter, word = kinds == LETTER, kinds[1:-1] == WORD
    starts = np.flatnonzero(letter[1:-1] & ~letter[:-2] | word)
    ends = np.flatnonzero(letter[1:-1] & ~letter[2:] | word) + 1
    return codes, starts, ends


def _hash_batch(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    texts = [_normalise(text) for text in texts]
    codes, starts, ends = _find_words("\n".join(texts))
    borders = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return _hash_spans(codes, starts, ends, CODE_BASE), np.searchsorted(starts, borders)


def _hash_spans(values: np.ndarray, starts: np.ndarray, ends: np.ndarray, base: int) -> np.ndarray:
    """uint64: sum of values[i] * base^(i - start) over each span, its bits mixed."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * _powers(base, len(values)), out=sums[1:])
    hashes = (sums[ends] - sums[starts]) * _powers(pow(base, -1, 1 << 64), len(values))[starts]
    # Without mixing, the low bits of a hash depend on the low bits of the values alone.
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _powers(base: int, n: int) -> np.ndarray:
    """uint64 [n]: 1, base, base^2, ..."""
    powers = np.full(n, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, out=powers)
