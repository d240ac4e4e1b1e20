"""Tokenization of texts into word ids, from Arrow's buffers, without a Python object per word.

It computes what `Analyzer` defines, but on all cores. A vocabulary is a set of words with ids 0, 1, ... in the order they
were added, in flat arrays that kernels fill without the GIL:

    arena   uint8 [bytes]          the words in UTF-8, one after the other
    starts  int64 [capacity + 1]   word i is arena[starts[i] : starts[i + 1]]
    slots   int64 [2 ** n, 2]      open addressing: key, id + 1 (0: free)

The key of a word of at most seven bytes is the word itself, so that most look-ups need not compare bytes; the key of a
longer word is a hash with the sign bit set. The arrays have spare capacity; `trimmed` returns them without it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from hf_tlm.retrieval.texts import Analyzer
from hf_tlm.utils.texts import POINTS, UNSPACED_SET, combining_marks, with_bigrams

# The planes after the first four have no word characters.
CODE_POINTS = 0x40000
# Their lower case depends on neighbours (final sigma) or is longer than one character: Python lower-cases texts with them.
CONTEXT_LETTERS = ("Σ", "İ")
PACKED = 7
LONG = -(2**63)
MULTIPLIER = 0x2545F4914F6CDD1D
FULL = 0.5  # Share of slots in use at which their number is doubled.


@njit(nogil=True, cache=True, inline="always")
def key_step(state, length, byte):
    """Return the state of a word's key after one more byte; `length` bytes came before, and the initial state is 0."""
    return (state << 8) | byte if length < PACKED else (state ^ byte) * MULTIPLIER


@njit(nogil=True, cache=True, inline="always")
def first_slot(key, mask):
    """Return the slot at which the search for a key starts."""
    return ((key * MULTIPLIER) >> 24) & mask


def longer(array: np.ndarray) -> np.ndarray:
    """Return a copy with twice the capacity, at least 256 elements."""
    copy = np.zeros(max(2 * len(array), 1 << 8), array.dtype)
    copy[: len(array)] = array
    return copy


@njit(nogil=True, cache=True)
def more_slots(slots):
    """Return the same entries in twice as many slots."""
    larger = np.zeros((2 * len(slots), 2), slots.dtype)
    mask = len(larger) - 1
    for entry in range(len(slots)):
        if slots[entry, 1]:
            slot = first_slot(slots[entry, 0], mask)
            while larger[slot, 1]:
                slot = (slot + 1) & mask
            larger[slot] = slots[entry]
    return larger


@njit(nogil=True, cache=True)
def find(arena, starts, slots, state, begin, end):
    """Look up the word in arena[begin:end].

    Args:
        state: result of `key_step` over the word's bytes.

    Returns:
        (id or -1, key, slot of the word, or the free slot to add it to).
    """
    packed = end - begin <= PACKED
    key = state if packed else state | LONG
    mask = len(slots) - 1
    slot = first_slot(key, mask)
    while slots[slot, 1]:
        if slots[slot, 0] == key:
            identifier = slots[slot, 1] - 1
            if packed:
                return identifier, key, slot
            start = starts[identifier]
            if starts[identifier + 1] - start == end - begin:
                i = begin
                while i < end and arena[i] == arena[start + i - begin]:
                    i += 1
                if i == end:
                    return identifier, key, slot
        slot = (slot + 1) & mask
    return np.int64(-1), key, slot


@njit(nogil=True, cache=True)
def _add_words(data, offsets, arena, starts, slots, size, ids, add):
    """Look up words and write their ids; add unknown ones if `add`, else give -1. Return the new size of the vocabulary."""
    for i in range(len(offsets) - 1):
        # Copy the word behind the last one to look it up; a new word is then in its final position already.
        begin = starts[size]
        end = begin + offsets[i + 1] - offsets[i]
        state = 0
        for j in range(end - begin):
            byte = np.int64(data[offsets[i] + j])
            arena[begin + j] = byte
            state = key_step(state, j, byte)
        identifier, key, slot = find(arena, starts, slots, state, begin, end)
        if identifier < 0 and add:
            identifier = size
            starts[size + 1] = end
            slots[slot, 0] = key
            slots[slot, 1] = size + 1
            size += 1
        ids[i] = identifier
    return size


class Vocabulary:
    """A vocabulary of words and their ids; the module's docstring describes its arrays.

    It is not thread-safe, but arrays obtained from it stay valid while it grows.
    """

    def __init__(self, arena=None, starts=None, slots=None):
        self.arena = np.zeros(1 << 12, np.uint8) if arena is None else arena
        self.starts = np.zeros(1 << 8, np.int64) if starts is None else starts
        self.slots = np.zeros((1 << 8, 2), np.int64) if slots is None else slots
        self.size = 0 if starts is None else len(starts) - 1

    def __len__(self) -> int:
        return self.size

    def reserve(self, words: int, num_bytes: int) -> None:
        """Reserve capacity for more words, and for the number of their bytes.

        The kernels do not grow the arrays themselves: arrays that may be replaced would halve their speed.
        """
        while len(self.arena) < self.starts[self.size] + num_bytes:
            self.arena = longer(self.arena)
        while len(self.starts) < self.size + words + 1:
            self.starts = longer(self.starts)
        while len(self.slots) * FULL < self.size + words:
            self.slots = more_slots(self.slots)

    def trimmed(self) -> dict[str, np.ndarray]:
        """Return the three arrays without spare capacity."""
        starts = self.starts[: self.size + 1]
        return {"arena": self.arena[: starts[-1]], "starts": starts, "slots": self.slots}

    def encoded(self, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return words first to last (exclusive) as (data uint8 [bytes], offsets int64 [words + 1]).

        This is the input of `add` of another vocabulary.
        """
        starts = self.starts[first : (self.size if last is None else last) + 1]
        return self.arena[starts[0] : starts[-1]], starts - starts[0]

    def words(self, first: int = 0, last: int | None = None) -> list[str]:
        """Return words first to last (exclusive) as strings."""
        arena, starts = self.encoded(first, last)
        data, offsets = arena.tobytes(), starts.tolist()
        return [data[start:end].decode() for start, end in zip(offsets, offsets[1:], strict=False)]

    def add(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the ids (int32) of words as `encoded` returns them; unknown words are added in their order."""
        ids = np.empty(len(offsets) - 1, np.int32)
        self.reserve(len(ids), len(data) + 1)
        self.size = _add_words(data, offsets, self.arena, self.starts, self.slots, self.size, ids, True)
        return ids

    def find(self, words: list[str]) -> np.ndarray:
        """Return the ids (int32) of words; -1 for an unknown word."""
        return self.find_encoded(*encode(words))

    def find_encoded(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the ids (int32) of words as `encoded` returns them; -1 for an unknown word."""
        ids = np.empty(len(offsets) - 1, np.int32)
        # A look-up writes the word behind the last one, for which a vocabulary on disk has no capacity.
        arena = np.concatenate([self.arena[: self.starts[self.size]], np.empty(len(data), np.uint8)])
        _add_words(data, offsets, arena, self.starts, self.slots, self.size, ids, False)
        return ids


def encode(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode words as (data uint8, offsets int64)."""
    pieces = [word.encode() for word in words]
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    # From a bytearray, so that the array is writable like all others that the kernels receive.
    return np.frombuffer(bytearray().join(pieces), np.uint8), offsets


@functools.cache
def lower_table(marks: bool = False) -> np.ndarray:
    """Return the table from code points to lower-case code points: int32 [CODE_POINTS].

    Characters that are dropped from words map to -1, and characters that are not part of words to 0.

    Args:
        marks: whether combining marks are word characters, and vowel points are dropped; see `Analyzer`.
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
    """Set `found` for each text that contains the character encoded by these two bytes."""
    for text in range(len(offsets) - 1):
        hits = 0
        for i in range(offsets[text], offsets[text + 1] - 1):
            hits += (data[i] == first) & (data[i + 1] == second)
        found[text] |= hits > 0


@njit(nogil=True, cache=True)
def _tokenize(data, offsets, lower, arena, starts, slots, at_word, ids, ends):
    """Tokenize texts into ids [words] and ends [texts], continuing from the state `at_word`, which is updated.

    Args:
        at_word: (index of the text, byte, number of words so far, size of the vocabulary).

    Returns:
        Whether all texts are done; False if the vocabulary is full: call again with a larger one.
    """
    text, at, count, size = at_word
    slots_left = len(slots) * FULL
    while text < len(offsets) - 1:
        end = offsets[text + 1]
        # Lower case can be longer than upper case: at most three bytes for two.
        if starts[size] + 2 * (end - at) + 4 > len(arena):
            at_word[:] = (text, at, count, size)
            return False
        while at < end:
            # The word is written behind the arena's last one while it is read; a new word is then in its final position.
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
                    # Write all bytes of the UTF-8 encoding but the last, which is written below like an ASCII character.
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
    """Return the buffers of a large_string array without nulls as (data uint8, offsets int64 [N + 1])."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    offsets = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8), offsets


def tokenize_words(
    texts: pa.Array | pa.ChunkedArray, words: Vocabulary, script: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Split texts into words, stop words included; unknown words are added to `words`.

    Returns:
        (word ids int32 [words], offsets int64 [texts + 1]).
    """
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
    """Tokenized texts: the term ids of all texts in one array, 4 bytes per token. Iteration gives one list of ids per text.

    ids: int32 [tokens]; offsets: int64 [N + 1], start and end of each text; vocabulary: the term of each id.
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
    """Return the id of each term (int32), -1 for None; unknown terms are added to the vocabulary."""
    is_term = [term is not None for term in terms]
    ids = np.full(len(terms), -1, np.int32)
    ids[is_term] = vocabulary.add(*encode([term for term in terms if term is not None]))
    return ids


@njit(nogil=True, cache=True)
def keep_terms(words, offsets, term_of_word):
    """Convert word ids to term ids in place, and drop words whose term is -1.

    Returns:
        (term ids int32 [tokens], offsets int64 [N + 1]).
    """
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
    """Tokenize texts that fit in memory: queries, or a corpus for the engines of other packages."""
    words, terms = Vocabulary(), Vocabulary()
    ids, offsets = tokenize_words(pa.array(texts, pa.large_string()), words, analyzer.script)
    ids, offsets = keep_terms(ids, offsets, term_ids(analyzer.terms(words.words()), terms))
    return TokenizedTexts(ids, offsets, terms.words())
