"""Random orders of any number of things, in no memory to speak of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Up to this many are shuffled as usual, and exactly uniformly.
IN_MEMORY = 1 << 16
_ROUNDS = 4


class Shuffled:
    """0 .. size - 1 in an order that depends on the key alone; what stands at a place is computed where it is asked for.

    Large orders are a Feistel network (Luby and Rackoff, 1988): a bijection of 2h-bit numbers, each round of which adds a
    hash of one half to the other. It is applied until the number is below `size` again, so that what remains is a bijection
    of those, at most four times on average.
    """

    def __init__(self, size: int, key: Sequence[int]):
        self.size = size
        generator = np.random.default_rng(key)
        self._order = None
        if size <= IN_MEMORY:
            self._order = np.arange(size)
            generator.shuffle(self._order)
        self._keys = generator.integers(2**63, size=_ROUNDS, dtype=np.uint64)
        half = ((size - 1).bit_length() + 1) // 2
        self._half, self._mask = np.uint64(half), np.uint64(2**half - 1)

    def __getitem__(self, places: slice) -> np.ndarray:
        """int64: what stands at places `start` to `stop`."""
        if self._order is not None:
            return self._order[places]
        numbers = self._permute(np.arange(*places.indices(self.size), dtype=np.uint64))
        while len(outside := np.flatnonzero(numbers >= self.size)):
            numbers[outside] = self._permute(numbers[outside])
        return numbers.astype(np.int64)

    def _permute(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_hash(right + key) & self._mask)
        return left << self._half | right


def _hash(numbers: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014) of uint64 numbers."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
