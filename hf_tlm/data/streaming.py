"""Training on blocks of a corpus while a background thread prepares further ones."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from datasets import Dataset

from hf_tlm.data.blocks import CONTIGUOUS, POLL_SECONDS, BlockShards
from hf_tlm.errors import BlocksError
from hf_tlm.utils.options import check_numbers

# More blocks than any corpus has. It stands for the size of a pass while the number of blocks is unknown, so that a draw
# (`hf_tlm.data.interleave`) still identifies a block and a pass.
INDEX_SPACE = 1 << 40
# Shards that are kept open: a batch may span two, and DataLoader workers may be at earlier ones.
_MAX_OPEN_SHARDS = 4
# Held by a preparing thread while it works. A process that forks (for DataLoader workers) waits for the next pause,
# because the child would inherit any locks that the thread's libraries hold.
_WORK_LOCK = threading.Lock()
os.register_at_fork(before=_WORK_LOCK.acquire, after_in_parent=_WORK_LOCK.release, after_in_child=_WORK_LOCK.release)


class _Stopped(Exception):
    """Raised in the preparing thread to end it."""


class Preparation:
    """A thread that prepares a corpus's shards, at most `ahead` shards beyond the one that training needs.

    Use it as a context manager: leaving it ends the thread, after the batch of passages that is being tokenised.
    """

    def __init__(self, shards: BlockShards, ahead: int):
        check_numbers(BlocksError, shards_ahead=ahead)
        self.shards, self.ahead = shards, ahead
        self._needed, self._stopped = 0, False
        self._error: Exception | None = None
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="preparing blocks", daemon=True)

    def __enter__(self) -> Preparation:
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        with self._change:
            self._stopped = True
            self._change.notify_all()
        self._thread.join()

    def need(self, number: int) -> None:
        """Report that training needs shard `number`, so that preparation may continue beyond it."""
        with self._change:
            self._needed = max(self._needed, number)
            self._change.notify_all()

    def check(self) -> None:
        """Raise a BlocksError if the thread that prepares the shards has ended with an error."""
        if self._error is not None:
            raise BlocksError(f"The corpus could not be prepared further: {self._error}") from self._error

    def _run(self) -> None:
        _WORK_LOCK.acquire()
        try:
            for shard_number in self.shards.prepare(pause=self._pause):
                with _release_lock(), self._change:
                    self._change.wait_for(functools.partial(self._may_continue, shard_number))
                if self._stopped:
                    return
        except _Stopped:
            pass
        except Exception as error:  # Any error; `check` raises it in the process that waits for the blocks.
            self._error = error
        finally:
            _WORK_LOCK.release()

    def _may_continue(self, shard_number: int) -> bool:
        return self._stopped or shard_number < self._needed + self.ahead

    def _pause(self) -> None:
        if self._stopped:
            raise _Stopped
        with _release_lock():
            time.sleep(1e-3)  # Long enough for a waiting fork to get the lock.


@contextlib.contextmanager
def _release_lock() -> Iterator[None]:
    _WORK_LOCK.release()
    try:
        yield
    finally:
        _WORK_LOCK.acquire()


class StreamedBlocks:
    """The corpus of a `TlmTrainer` as blocks whose shards may not all be prepared yet.

    Row n is the n-th block of the corpus, whichever process prepares it. The last block is left out if it is shorter than
    the others.

    Args:
        preparation: the thread that prepares the shards, in the process that runs it; None in other processes, which wait
            for the shards to appear on disk.

    Raises:
        BlocksError: the mode of the blocks is not `contiguous`, the only one whose blocks have equal lengths.
    """

    def __init__(self, shards: BlockShards, preparation: Preparation | None = None):
        if shards.mode != CONTIGUOUS:
            raise BlocksError(f"streaming_blocks needs blocks of equal length: blocks contiguous; received {shards.mode}.")
        self.shards, self.preparation = shards, preparation
        self._open: dict[int, Dataset] = {}

    def __len__(self) -> int:
        return INDEX_SPACE

    def __getstate__(self) -> dict:
        return {**self.__dict__, "preparation": None, "_open": {}}  # Workers only read finished shards.

    def __getitem__(self, indices: list[int]) -> dict[str, list[list[int]]]:
        """Return blocks by index, `{"input_ids": [...]}`. Their shards must be finished."""
        shard_numbers, rows = np.divmod(indices, self.shards.shard_size)
        blocks: list[list[int]] = [[]] * len(indices)
        for shard_number in np.unique(shard_numbers).tolist():
            positions = np.flatnonzero(shard_numbers == shard_number)
            shard: Any = self._find_shard(shard_number)
            for position, ids in zip(positions.tolist(), shard[rows[positions].tolist()]["input_ids"], strict=True):
                blocks[position] = ids
        return {"input_ids": blocks}

    def wait_for(self, number: int) -> int:
        """Wait for a shard and return its number of blocks of full length; 0 if the corpus ends before it.

        Raises:
            BlocksError: see `Preparation.check`.
        """
        if self.preparation is not None:
            self.preparation.need(number)
        while True:
            totals = self.shards.totals  # Read before the shard, because it is written after the last one.
            if (shard := self._find_shard(number)) is not None:
                return len(shard) - (len(shard[-1]["input_ids"]) < self.shards.max_length)
            if totals is not None and number >= totals["shards"]:
                return 0
            self._wait()

    def count(self) -> int:
        """Wait until the corpus is prepared and return its number of blocks of full length.

        Raises:
            BlocksError: see `Preparation.check`.
        """
        while (totals := self.shards.totals) is None:
            self._wait()
        return totals["blocks"] - (totals["last_block"] < self.shards.max_length)

    def _wait(self) -> None:
        if self.preparation is not None:
            self.preparation.check()
        time.sleep(POLL_SECONDS)

    def _find_shard(self, shard_number: int) -> Dataset | None:
        if shard_number not in self._open:
            shard = self.shards.find(shard_number)
            if shard is None:
                return None
            self._open = dict([*self._open.items()][1 - _MAX_OPEN_SHARDS :]) | {shard_number: shard}
        return self._open[shard_number]


class ShardStream:
    """`StreamedBlocks` as an endless sequence of passes, for `InterleavedBatchSampler`.

    Shards come in order, and the blocks of each in an order that depends on `key`, pass and shard only. So the sequence is
    the same in every process and after every interruption. It waits for a shard that is not prepared yet.

    Attributes:
        size, total: upper bounds of the blocks and tokens of a pass (`INDEX_SPACE`).
    """

    by_tokens = False

    def __init__(self, blocks: StreamedBlocks, key: list[int]):
        self.blocks, self.key = blocks, key
        self.size, self.total = INDEX_SPACE, INDEX_SPACE * blocks.shards.max_length
        self._count: int | None = None
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def position(self, amount: int) -> int:
        """Return `amount`, as batches are measured in texts."""
        return amount

    def tokens(self, position: int) -> int:
        """Count the tokens of the first `position` blocks."""
        return position * self.blocks.shards.max_length

    def texts(self, first: int, last: int) -> list[tuple[int, np.ndarray]]:
        """Return the blocks at first <= position < last, as a list of (pass, indices of blocks)."""
        chunks = []
        while first < last:
            pass_index, offset = self._locate(first)
            shard, row = divmod(offset, self.blocks.shards.shard_size)
            rows = self._order(pass_index, shard)[row : row + last - first]
            chunks.append((pass_index, shard * self.blocks.shards.shard_size + rows))
            first += len(rows)
        return chunks

    def _locate(self, position: int) -> tuple[int, int]:
        """Return (pass, position in it). The length of a pass becomes known when its end is reached."""
        if self._count is None:
            shard, row = divmod(position, self.blocks.shards.shard_size)
            if row < len(self._order(0, shard)):
                return 0, position
            self._count = self.blocks.count()
        return divmod(position, self._count)

    def _order(self, pass_index: int, shard: int) -> np.ndarray:
        if (pass_index, shard) not in self._orders:
            order = np.random.default_rng([*self.key, pass_index, shard]).permutation(self.blocks.wait_for(shard))
            self._orders = {(pass_index, shard): order}
        return self._orders[pass_index, shard]
