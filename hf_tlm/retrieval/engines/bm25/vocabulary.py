"""A set of words with ids 0, 1, ... in the order they were added, kept in flat arrays that kernels fill without the GIL.

    arena   uint8 [bytes]          the words in UTF-8, one after the other
    starts  int64 [capacity + 1]   word i is arena[starts[i] : starts[i + 1]]
    slots   int64 [2 ** n, 2]      open addressing: key, id + 1 (0: free)

The key of a word of at most seven bytes is the word itself, which spares most look-ups the comparison of bytes; that of
a longer one is a hash with the sign bit set. The arrays have room to spare; `trimmed` gives what is worth storing.
"""

from __future__ import annotations

import numpy as np
from numba import njit

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
