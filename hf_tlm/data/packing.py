"""Which row of a batch each text goes into, so that little of the batch is padding."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np


def pack(lengths: Sequence[int], capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit decreasing: every text, longest first, goes into the fullest row that still has room for it.

    At most 11/9 of the fewest possible rows, plus one (Johnson et al. 1974).

    Args:
        lengths: tokens of each text, none longer than `capacity`.
        capacity: tokens of a row.

    Returns:
        (row of each text, place in that row of its first token), int64 [N] each. Equal lengths keep their order.
    """
    lengths = np.asarray(lengths)
    rows, starts = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    room: list[tuple[int, int]] = []  # (free places, row), ascending
    for text in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[text])
        at = bisect.bisect_left(room, (length, 0))
        free, row = room.pop(at) if at < len(room) else (capacity, len(room))
        rows[text], starts[text] = row, capacity - free
        bisect.insort(room, (free - length, row))
    return rows, starts
