"""Text to word ids, from Arrow's buffers, without a Python object per word: what `Analyzer` defines, on every core.

A vocabulary is a set of words with ids 0, 1, ... in the order they were added, in flat arrays that kernels fill without
the GIL:

    arena   uint8 [bytes]          the words in UTF-8, one after the other
    starts  int64 [capacity + 1]   word i is arena[starts[i] : starts[i + 1]]
    slots   int64 [2 ** n, 2]      open addressing: key, id + 1 (0: free)

The key of a word of at most seven bytes is the word itself, which spares most look-ups the comparison of bytes; that of
a longer one is a hash with the sign bit set. The arrays have room to spare; `trimmed` gives what is worth storing.
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

# Beyond the first four planes there are no word characters.
CODE_POINTS = 0x40000
# Lower case depends on the neighbours (final sigma) or is longer than one character; Python lowers these texts itself.
CONTEXT_LETTERS = ("Σ", "İ")
PACKED = 7
LONG = -(2**63)
MULTIPLIER = 0x2545F4914F6CDD1D
FULL = 0.5  # share of the slots in use at which their number is doubled


@njit(nogil=True, cache=True, inline="always")
def key_step(state, length, byte):
    """The state of a word's key after one more byte; `length` bytes came before, and the state began as 0."""
    return (state << 8) | byte if length < PACKED else (state ^ byte) * MULTIPLIER


@njit(nogil=True, cache=True, inline="always")
def first_slot(key, mask):
    return ((key * MULTIPLIER) >> 24) & mask


def longer(array: np.ndarray) -> np.ndarray:
    """A copy with twice the room, and some at least."""
    copy = np.zeros(max(2 * len(array), 1 << 8), array.dtype)
    copy[: len(array)] = array
    return copy


@njit(nogil=True, cache=True)
def more_slots(slots):
    """The same entries in twice as many slots."""
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
    """(id or -1, key, slot where it is or would go) of the word in arena[begin:end] that gave `state`."""
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
    for i in range(len(offsets) - 1):
        # Written behind the last word to be looked for; a new one then is in place already.
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
    """See the module. Not for several threads at once, but arrays taken from it stay valid while it grows."""

    def __init__(self, arena=None, starts=None, slots=None):
        self.arena = np.zeros(1 << 12, np.uint8) if arena is None else arena
        self.starts = np.zeros(1 << 8, np.int64) if starts is None else starts
        self.slots = np.zeros((1 << 8, 2), np.int64) if slots is None else slots
        self.size = 0 if starts is None else len(starts) - 1

    def __len__(self) -> int:
        return self.size

    def reserve(self, words: int, num_bytes: int) -> None:
        """Make room for so many more words, and their bytes.

        Kernels have no room of their own to find: it costs them half their speed to hold arrays that may change.
        """
        while len(self.arena) < self.starts[self.size] + num_bytes:
            self.arena = longer(self.arena)
        while len(self.starts) < self.size + words + 1:
            self.starts = longer(self.starts)
        while len(self.slots) * FULL < self.size + words:
            self.slots = more_slots(self.slots)

    def trimmed(self) -> dict[str, np.ndarray]:
        """The three arrays without the room to spare."""
        starts = self.starts[: self.size + 1]
        return {"arena": self.arena[: starts[-1]], "starts": starts, "slots": self.slots}

    def encoded(self, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Words first to last as (data uint8 [bytes], offsets int64 [words + 1]) for `add` of another vocabulary."""
        starts = self.starts[first : (self.size if last is None else last) + 1]
        return self.arena[starts[0] : starts[-1]], starts - starts[0]

    def words(self, first: int = 0, last: int | None = None) -> list[str]:
        arena, starts = self.encoded(first, last)
        data, offsets = arena.tobytes(), starts.tolist()
        return [data[start:end].decode() for start, end in zip(offsets, offsets[1:], strict=False)]

    def add(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Ids, int32, of words as `encoded` gives them; new ones are added in their order."""
        ids = np.empty(len(offsets) - 1, np.int32)
        self.reserve(len(ids), len(data) + 1)
        self.size = _add_words(data, offsets, self.arena, self.starts, self.slots, self.size, ids, True)
        return ids

    def find(self, words: list[str]) -> np.ndarray:
        """Ids, int32, of some words; -1 where a word is not known."""
        return self.find_encoded(*encode(words))

    def find_encoded(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The same of words as `encoded` gives them."""
        ids = np.empty(len(offsets) - 1, np.int32)
        # Looking up writes the word behind the last one, for which a vocabulary on disk has no room.
        arena = np.concatenate([self.arena[: self.starts[self.size]], np.empty(len(data), np.uint8)])
        _add_words(data, offsets, arena, self.starts, self.slots, self.size, ids, False)
        return ids


def encode(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Words as (data uint8, offsets int64)."""
    pieces = [word.encode() for word in words]
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return np.frombuffer(bytearray().join(pieces), np.uint8), offsets  # a bytearray: writable, as all arrays of the kernels


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
