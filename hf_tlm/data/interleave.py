"""A batch sampler that interleaves task batches and corpus batches as TLM does; a pure function of its arguments.

Step s (counted from 0) uses a task batch when (s + 1) is a multiple of rho1 + 1 and a corpus batch otherwise: rho1
corpus batches, then one task batch, in the order of the released code. All batches of an optimizer step come from one
stream: accelerate hands consecutive batches to consecutive processes, so the sampler yields
world_size x gradient_accumulation_steps batches of a stream at a time.

Each stream is an endless sequence of passes over its data set. Each pass is a new permutation, which takes hardly any
memory. The n-th step of a stream uses the n-th block of that sequence, a fixed number of texts or tokens that is the
product of the number of processes, the accumulation steps and the batch size. So 1 process x 8 steps reads the same texts
as 8 x 1, and a resumed run the same as an uninterrupted one.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
from datasets import Dataset

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import Range

# Permutations up to this size are shuffled in memory, and exactly uniform.
IN_MEMORY = 1 << 16
_ROUNDS = 4
TASK, CORPUS = "task", "corpus"
# Texts per block of a pass that is not sorted by length.
_BLOCK_SIZE = 4096
# Optimizer steps whose texts are sorted by length together, the number of the Trainer's own length grouping.
GROUPED_STEPS = 50


class Shuffled:
    """A pseudo-random permutation of 0 .. size - 1 that depends on the key alone and is computed on demand.

    Large permutations are a Feistel network (Luby and Rackoff, 1988): a bijection of 2h-bit numbers, each round of which
    XORs a hash of one half into the other. It is applied again until the number is below `size`, which gives a bijection
    of 0 .. size - 1 (cycle walking), at most four times on average.
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

    def __getitem__(self, positions: slice) -> np.ndarray:
        """Return the elements at a slice of positions, int64."""
        if self._order is not None:
            return self._order[positions]
        numbers = self._permute(np.arange(*positions.indices(self.size), dtype=np.uint64))
        while len(outside := np.flatnonzero(numbers >= self.size)):
            numbers[outside] = self._permute(numbers[outside])
        return numbers.astype(np.int64)

    def _permute(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix(right + key) & self._mask)
        return left << self._half | right


def mix(numbers: Any) -> Any:
    """Hash uint64 numbers with the finalizer of splitmix64 (Steele, Lea and Flood, 2014).

    It is a bijection in which every output bit depends on every input bit.
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class InterleavedDataset:
    """Task texts and corpus texts under one index space, for a DataLoader.

    A *draw* is an integer: pass * len(self) + index, with the task's rows first. It identifies one visit of one text, so
    the collator can derive the text's mask from it alone.
    """

    def __init__(self, task: Dataset | None, corpus: Dataset | None = None):
        self.task, self.corpus = task, corpus
        self.num_task, self.num_corpus = len(task or ()), len(corpus or ())

    def __len__(self) -> int:
        return self.num_task + self.num_corpus

    def __getitems__(self, draws: list[int]) -> list[dict]:
        """Return the rows of one batch (all of one stream), each with its `draw`."""
        indices = [draw % len(self) for draw in draws]
        if indices[0] < self.num_task:
            rows = self.task[indices]  # type: ignore[index]  # A stream without rows has no draws.
        else:
            rows = self.corpus[[index - self.num_task for index in indices]]  # type: ignore[index]  # As above.
        columns = list(rows)
        return [
            {"draw": draw, **dict(zip(columns, values, strict=True))}
            for draw, values in zip(draws, zip(*rows.values(), strict=True), strict=True)
        ]


class _Stream:
    """One data set as an endless sequence of passes, cut into batches of a number of texts or tokens.

    A pass is a random order, computed in blocks on demand, so that memory does not grow with the data set.

    Args:
        lengths: int [N], number of tokens of each text.
        group: number of texts of similar length that stay together, in one step.
        window: number of texts that are sorted by length together and cut into groups of `group`, whose order is random;
            0: no sorting.
    """

    def __init__(self, lengths: np.ndarray, key: list[int], by_tokens: bool, group: int, window: int):
        self.lengths, self.key, self.by_tokens = lengths, key, by_tokens
        self.group, self.window = group, window
        self.size, self.total = len(lengths), int(lengths.sum(dtype=np.int64))
        self._passes: dict[int, _Pass] = {}

    def position(self, amount: int) -> int:
        """Return how many texts begin within the first `amount` texts or tokens of the sequence."""
        if not self.by_tokens:
            return amount
        pass_index, remainder = divmod(amount, self.total)
        return pass_index * self.size + self._get_pass(pass_index).position(remainder)

    def tokens(self, position: int) -> int:
        """Count the tokens of the first `position` texts of the sequence."""
        pass_index, remainder = divmod(position, self.size)
        return pass_index * self.total + (self._get_pass(pass_index).tokens(remainder) if remainder else 0)

    def texts(self, first: int, last: int) -> list[tuple[int, np.ndarray]]:
        """Return the texts at first <= position < last, as a list of (pass, indices of texts)."""
        chunks = []
        while first < last:
            pass_index, start = divmod(first, self.size)
            indices = self._get_pass(pass_index).texts(start, last - first)
            chunks.append((pass_index, indices))
            first += len(indices)
        return chunks

    def _get_pass(self, pass_index: int) -> _Pass:
        """Return pass `pass_index`; the last two passes are cached."""
        if pass_index not in self._passes:
            # The first texts complete the last group of the previous pass.
            start = -pass_index * self.size % self.group if self.window else 0
            new_pass = _Pass(self.lengths, [*self.key, pass_index], start, self.group, self.window)
            self._passes = {n: kept for n, kept in self._passes.items() if n == pass_index - 1} | {pass_index: new_pass}
        return self._passes[pass_index]


class _Pass:
    """One random order of a data set.

    Block 0 ends at position `start` and is not sorted. The others have `window` texts each, sorted by length in groups, or
    `_BLOCK_SIZE` texts in random order if `window` is 0.
    """

    def __init__(self, lengths: np.ndarray, key: list[int], start: int, group: int, window: int):
        self.lengths, self.key, self.group, self.window = lengths, key, group, window
        self.order = Shuffled(len(lengths), key)
        self.start, self.block_size = min(start, len(lengths)), window or _BLOCK_SIZE
        # Number of tokens before each block, for the blocks that were counted so far.
        self._tokens_before = array("q", [0])
        self._ordered_blocks: dict[int, np.ndarray] = {}

    def position(self, tokens: int) -> int:
        """Return how many texts begin within the first `tokens` tokens of the pass."""
        while self._tokens_before[-1] <= tokens:
            self._count_next_block()
        block = bisect_right(self._tokens_before, tokens) - 1
        lengths = self.lengths[self._block_texts(block)]
        return self._block_start(block) + int(
            np.searchsorted(np.cumsum(lengths) - lengths, tokens - self._tokens_before[block])
        )

    def tokens(self, position: int) -> int:
        """Count the tokens of the first `position` texts of the pass."""
        block = self._find_block(position)
        while len(self._tokens_before) <= block:
            self._count_next_block()
        return self._tokens_before[block] + int(
            self.lengths[self._block_texts(block)[: position - self._block_start(block)]].sum()
        )

    def texts(self, first: int, count: int) -> np.ndarray:
        """Return the indices of at most `count` texts from position `first`, up to the end of its block."""
        block = self._find_block(first)
        offset = first - self._block_start(block)
        return self._block_texts(block)[offset : offset + count]

    def _find_block(self, position: int) -> int:
        return 0 if position < self.start else 1 + (position - self.start) // self.block_size

    def _block_start(self, block: int) -> int:
        return 0 if block == 0 else self.start + (block - 1) * self.block_size

    def _count_next_block(self) -> None:
        """Count the tokens of the next block, for which the order within it does not matter."""
        block = len(self._tokens_before) - 1
        texts = self.order[self._block_start(block) : self._block_start(block + 1)]
        self._tokens_before.append(self._tokens_before[-1] + int(self.lengths[texts].sum(dtype=np.int64)))

    def _block_texts(self, block: int) -> np.ndarray:
        """Return the indices of the texts of a block, in order; the last two blocks are cached."""
        if block not in self._ordered_blocks:
            texts = self.order[self._block_start(block) : self._block_start(block + 1)]
            if self.window and block:
                texts = self._group_by_length(texts, np.random.default_rng([*self.key, block]))
            self._ordered_blocks = {n: kept for n, kept in self._ordered_blocks.items() if n == block - 1} | {block: texts}
        return self._ordered_blocks[block]

    def _group_by_length(self, texts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        texts = texts[np.argsort(self.lengths[texts], kind="stable")]
        num_groups = len(texts) // self.group
        groups = texts[: num_groups * self.group].reshape(num_groups, self.group)
        return np.concatenate([groups[generator.permutation(num_groups)].ravel(), texts[num_groups * self.group :]])


def _check_lengths(stream: str, lengths: Any) -> np.ndarray:
    """Return the given lengths as int [N], or raise an HfTlmError if they are something else, such as a data set."""
    try:
        array = np.asarray(None if isinstance(lengths, Dataset) else lengths)  # numpy would read a whole data set.
    except ValueError:  # Rows of different lengths.
        array = np.asarray(None)
    if array.ndim != 1 or (array.size and not (array.dtype.kind in "iu" and array.min() >= 0)):
        raise HfTlmError(
            f"{stream}_lengths must be the number of tokens of each text, as whole numbers; received "
            f"{type(lengths).__name__}. Pass hf_tlm.data.text_lengths(rows) of tokenised rows, or [] for a stream that is "
            "not used."
        )
    return array


def _check_sizes(rho1: Any, **sizes: int | None) -> None:
    """Check that rho1 and the sizes are numbers in their ranges, or raise an HfTlmError."""
    is_number = isinstance(rho1, Real) and not math.isnan(rho1)
    if not is_number or rho1 < 0 or (math.isfinite(rho1) and rho1 != int(rho1)):
        raise HfTlmError(f"rho1 must be a number of corpus batches per task batch: 0, 1, 2, ... or inf; received {rho1!r}.")
    for name, value in sizes.items():
        allowed = Range(0 if name in ("steps_per_epoch", "seed") else 1, math.inf, whole=True)
        if value is not None and not allowed.holds(value):
            raise HfTlmError(f"{name} must be {allowed}; received {value!r}.")


def _check_batch_tokens(
    batch_tokens: int, task_lengths: np.ndarray, corpus_lengths: np.ndarray, corpus_stream: Callable | None
) -> None:
    """Check that batches can be measured in tokens and hold the longest text, or raise an HfTlmError."""
    if corpus_stream is not None:
        raise HfTlmError("Batches of a streamed corpus are measured in texts: set total_batch_size, not total_batch_tokens.")
    longest = max(task_lengths.max(initial=0), corpus_lengths.max(initial=0))
    if batch_tokens < longest:
        raise HfTlmError(
            f"A text of {longest} tokens is longer than a batch of {batch_tokens} per process and micro-batch. Increase the "
            "batch size, or lower max_length or gradient accumulation."
        )


class InterleavedBatchSampler:
    """A sampler of batches of draws (see `InterleavedDataset`), in epochs of `steps_per_epoch` optimizer steps.

    Args:
        task_lengths, corpus_lengths: int [N], number of tokens of each text (`hf_tlm.data.text_lengths`); a stream that is
            used must not be empty.
        corpus_stream: a function that creates the corpus's stream from a key, instead of `corpus_lengths`, which is then
            empty; see `hf_tlm.data.streaming.ShardStream`.
        rho1: corpus batches per task batch: an integer >= 0, or `inf` for corpus data only. 0 is task data only.
        batch_size: texts per micro-batch and process.
        batch_tokens: tokens per micro-batch and process, instead of `batch_size`: a micro-batch gets the texts that begin
            within its share of the sequence, so its number of tokens differs from this by at most about one text.
        group_by_length: whether texts of similar length share a step.
        steps_per_epoch: default one pass over the corpus (over the task when rho1 is 0).

    Raises:
        HfTlmError: rho1, the lengths or a size is invalid, a stream that is needed is empty, a text is longer than
            `batch_tokens`, or not exactly one of `batch_size` and `batch_tokens` is given.
    """

    # Every process gets the same number of batches, so accelerate has nothing to even out.
    drop_last = True

    def __init__(
        self,
        task_lengths: np.ndarray,
        corpus_lengths: np.ndarray,
        *,
        rho1: float,
        corpus_stream: Callable[[list[int]], Any] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        group_by_length: bool = False,
        world_size: int = 1,
        gradient_accumulation_steps: int = 1,
        steps_per_epoch: int | None = None,
        seed: int = 0,
    ):
        _check_sizes(
            rho1,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            world_size=world_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            steps_per_epoch=steps_per_epoch,
            seed=seed,
        )
        task_lengths, corpus_lengths = _check_lengths("task", task_lengths), _check_lengths("corpus", corpus_lengths)
        if rho1 > 0 and len(corpus_lengths) == 0 and corpus_stream is None:
            raise HfTlmError(f"rho1 = {rho1:g} needs corpus texts; received none. Pass a subset, or set rho1 to 0.")
        if math.isfinite(rho1) and len(task_lengths) == 0:
            raise HfTlmError(f"rho1 = {rho1:g} needs task texts; received none. Pass a task, or set rho1 to inf.")
        if (batch_size is None) == (batch_tokens is None):
            raise HfTlmError("Pass either batch_size (texts) or batch_tokens.")
        if batch_tokens is not None:
            _check_batch_tokens(batch_tokens, task_lengths, corpus_lengths, corpus_stream)
        self.rho1 = rho1
        # None for `batch_tokens`, where batches differ in size: accelerate would drop those that are not `batch_size` long.
        self.batch_size = batch_size
        amount = batch_size or batch_tokens
        assert amount is not None
        self.amount = amount
        self.batches_per_step = world_size * gradient_accumulation_steps
        self.epoch = 0
        per_step = self.amount * self.batches_per_step
        group = per_step
        if batch_tokens is not None:
            group = max(1, int(per_step / max(1.0, float(np.mean(corpus_lengths if rho1 > 0 else task_lengths)))))
        self.streams = {
            name: _Stream(lengths, [seed, index], batch_tokens is not None, group, GROUPED_STEPS * group * group_by_length)
            for index, (name, lengths) in enumerate(((TASK, task_lengths), (CORPUS, corpus_lengths)))
        }
        if corpus_stream is not None:
            self.streams[CORPUS] = corpus_stream([seed, 1])
        if steps_per_epoch is None:
            stream = self.streams[CORPUS if rho1 > 0 else TASK]
            steps_per_pass = (stream.total if stream.by_tokens else stream.size) / per_step
            # A pass over the corpus also includes the steps of the task batches in between.
            steps_per_epoch = math.ceil(steps_per_pass * (1 + 1 / rho1) if rho1 > 0 else steps_per_pass)
        self.steps_per_epoch = steps_per_epoch

    def __len__(self) -> int:
        return self.steps_per_epoch * self.batches_per_step

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch: the next iteration starts at step `epoch * steps_per_epoch`."""
        self.epoch = epoch

    def count_steps(self, stream: str, step: int) -> int:
        """Count how many of the first `step` optimizer steps belong to `stream`."""
        task_steps = 0 if math.isinf(self.rho1) else step // (int(self.rho1) + 1)
        return task_steps if stream == TASK else step - task_steps

    def count_tokens(self, stream: str, step: int) -> int:
        """Count the tokens of `stream`, without padding, in the first `step` optimizer steps, over all processes."""
        sequence = self.streams[stream]
        batches = self.count_steps(stream, step) * self.batches_per_step
        return sequence.tokens(sequence.position(batches * self.amount)) if batches else 0

    def stream_of(self, step: int) -> str:
        """Return the stream of optimizer step `step`, counted from 0."""
        return TASK if self.count_steps(TASK, step + 1) > self.count_steps(TASK, step) else CORPUS

    def batches_of(self, step: int) -> Iterator[list[int]]:
        """Yield the micro-batches (lists of draws) of optimizer step `step`, of all processes in turn."""
        stream = self.stream_of(step)
        sequence, total = self.streams[stream], sum(stream.size for stream in self.streams.values())
        offset = 0 if stream == TASK else self.streams[TASK].size
        first = self.count_steps(stream, step) * self.batches_per_step
        for batch in range(first, first + self.batches_per_step):
            begin, end = (sequence.position(index * self.amount) for index in (batch, batch + 1))
            yield [
                draw
                for pass_index, indices in sequence.texts(begin, end)
                for draw in (pass_index * total + offset + indices.astype(np.int64)).tolist()
            ]

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.steps_per_epoch
        for step in range(first, first + self.steps_per_epoch):
            yield from self.batches_of(step)
