"""Text to word ids, from Arrow's buffers, without a Python object per word: what `Analyzer` defines, on every core."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from hf_tlm.retrieval.analyzer import Analyzer
from hf_tlm.retrieval.engines.bm25.vocabulary import FULL, Vocabulary, encode, find, key_step
from hf_tlm.utils.texts import POINTS, UNSPACED_SET, combining_marks, with_bigrams

# Beyond the first four planes there are no word characters.
CODE_POINTS = 0x40000
# Lower case depends on the neighbours (final sigma) or is longer than one character; Python lowers these texts itself.
CONTEXT_LETTERS = ("Σ", "İ")


@functools.cache
def lower_table(marks: bool = False) -> np.ndarray:
    """int32 [CODE_POINTS]: the lower-case code point of every word character, -1 for what words leave out, 0 for all others.

    Args:
        marks: whether combining marks are word characters, and points are left out; see `Analyzer`.
    """
    table = np.zeros(CODE_POINTS, np.int32)
    if marks:
        for mark in combining_marks():
            table[ord(mark)] = -1 if mark in POINTS else ord(mark)
    for code in range(CODE_POINTS):
        lower = chr(code).lower()
        if len(lower) == 1 and (lower.isalnum() or lower == "_"):
            table[code] = ord(lower)
    return table


@njit(nogil=True, cache=True)
def _texts_with(data, offsets, first, second, found):
    """Set `found` where a text has the character of these two bytes."""
    for text in range(len(offsets) - 1):
        hits = 0
        for i in range(offsets[text], offsets[text + 1] - 1):
            hits += (data[i] == first) & (data[i + 1] == second)
        found[text] |= hits > 0


@njit(nogil=True, cache=True)
def _tokenize(data, offsets, lower, arena, starts, slots, at_word, ids, ends):
    """Fill ids [words] and ends [texts] from where `at_word` (text, byte, words so far, size of the vocabulary) stands.

    False: the vocabulary is full; call again with a larger one.
    """
    text, at, count, size = at_word
    slots_left = len(slots) * FULL
    while text < len(offsets) - 1:
        end = offsets[text + 1]
        # Lower case can be longer than upper: two bytes become three at most.
        if starts[size] + 2 * (end - at) + 4 > len(arena):
            at_word[:] = (text, at, count, size)
            return False
        while at < end:
            # A word is written behind the arena's last one while it is read; an unknown one then is in place already.
            begin = at
            start = starts[size]
            to = start
            state = 0
            characters = 0
            while at < end:
                code = np.int64(data[at])
                if code < 0x80:
                    at += 1
                    code = np.int64(lower[code])
                    if code == 0:
                        break
                else:
                    length = 2 if code < 0xE0 else (3 if code < 0xF0 else 4)
                    code &= 0xFF >> (length + 1)
                    for i in range(at + 1, min(at + length, end)):
                        code = (code << 6) | (data[i] & 0x3F)
                    at += length
                    code = np.int64(lower[code]) if code < CODE_POINTS else np.int64(0)
                    if code == 0:
                        break
                    if code < 0:
                        continue
                    # Lead bytes of UTF-8; the last byte is written below, as an ASCII character would be.
                    length = 1 if code < 0x80 else (2 if code < 0x800 else (3 if code < 0x10000 else 4))
                    for i in range(length - 1):
                        byte = (code >> (6 * (length - 1 - i))) & 0x3F | 0x80
                        if i == 0:
                            byte = (code >> (6 * (length - 1))) | ((0xF00 >> length) & 0xFF)
                        arena[to] = byte
                        state = key_step(state, to - start, byte)
                        to += 1
                    if length > 1:
                        code = code & 0x3F | 0x80
                arena[to] = code
                state = key_step(state, to - start, code)
                to += 1
                characters += 1
            if characters < 2:
                continue
            identifier, key, slot = find(arena, starts, slots, state, start, to)
            if identifier < 0:
                if size + 2 > len(starts) or size + 1 > slots_left:
                    at_word[:] = (text, begin, count, size)
                    return False
                identifier = size
                starts[size + 1] = to
                slots[slot, 0] = key
                slots[slot, 1] = size + 1
                size += 1
            ids[count] = identifier
            count += 1
        ends[text] = count
        text += 1
        at = end
    at_word[:] = (text, at, count, size)
    return True


def buffers_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(data uint8, offsets int64 [N + 1]) of a large_string array without nulls."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    offsets = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8), offsets


def tokenize_words(
    texts: pa.Array | pa.ChunkedArray, words: Vocabulary, script: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32 [words], offsets int64 [texts + 1]) of all words, stop words too; unknown ones are added to `words`."""
    texts = texts.cast(pa.large_string())
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if texts.null_count:
        texts = texts.fill_null("")
    data, offsets = buffers_of(texts)
    needs_context = np.zeros(len(texts), bool)
    for letter in CONTEXT_LETTERS:
        first, second = letter.encode()
        _texts_with(data, offsets, first, second, needs_context)
    spread = with_bigrams if script == "unspaced" else str
    if script == "unspaced":
        needs_context |= pc.match_substring_regex(texts, f"[{UNSPACED_SET}]").to_numpy(zero_copy_only=False)
    if needs_context.any():
        mask = pa.array(needs_context)
        lowered = pa.array([spread(text.lower()) for text in texts.filter(mask).to_pylist()], texts.type)
        data, offsets = buffers_of(pc.replace_with_mask(texts, mask, lowered))
    ids = np.empty((offsets[-1] - offsets[0]) // 2 + 1, np.int32)
    ends = np.zeros(len(texts) + 1, np.int64)
    at_word = np.array([0, offsets[0], 0, len(words)])
    lower = lower_table(script == "marks")
    while not _tokenize(data, offsets, lower, words.arena, words.starts, words.slots, at_word, ids, ends[1:]):
        text, at, _, words.size = at_word
        words.reserve(len(words) + 1, 2 * (offsets[text + 1] - at) + 4)
    words.size = at_word[3]
    return ids[: at_word[2]], ends


@dataclass
class TokenizedTexts:
    """Texts as term ids in one array, 4 bytes a token. Iteration gives one list of ids per text.

    ids: int32 [tokens]; offsets: int64 [N + 1], where texts begin and end; vocabulary: the term of each id.
    """

    ids: np.ndarray
    offsets: np.ndarray
    vocabulary: list[str]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for start, end in pairwise(self.offsets):
            yield self.ids[start:end].tolist()


def term_ids(terms: Sequence[str | None], vocabulary: Vocabulary) -> np.ndarray:
    """int32: the id of each term, new ones added; -1 for None."""
    known = [term is not None for term in terms]
    ids = np.full(len(terms), -1, np.int32)
    ids[known] = vocabulary.add(*encode([term for term in terms if term is not None]))
    return ids


@njit(nogil=True, cache=True)
def keep_terms(words, offsets, term_of_word):
    """Word ids to term ids in place, those of -1 left out: (ids int32 [tokens], offsets int64 [N + 1])."""
    kept = 0
    start = offsets[0]
    for text in range(len(offsets) - 1):
        end = offsets[text + 1]
        for i in range(start, end):
            term = term_of_word[words[i]]
            if term >= 0:
                words[kept] = term
                kept += 1
        start = end
        offsets[text + 1] = kept
    return words[:kept], offsets


def tokenize_texts(texts: Sequence[str], analyzer: Analyzer) -> TokenizedTexts:
    """Tokenise texts that fit in memory: queries, or a corpus for the engines of other packages."""
    words, terms = Vocabulary(), Vocabulary()
    ids, offsets = tokenize_words(pa.array(texts, pa.large_string()), words, analyzer.script)
    ids, offsets = keep_terms(ids, offsets, term_ids(analyzer.terms(words.words()), terms))
    return TokenizedTexts(ids, offsets, terms.words())
