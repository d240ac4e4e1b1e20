"""TLM's interleaving of task batches and corpus batches, as a batch sampler that is a pure function of its arguments.

Step s (counted from 0) takes a task batch when (s + 1) is a multiple of rho1 + 1 and a corpus batch otherwise: rho1
corpus batches, then one task batch, as the released code orders them. One optimizer step is one stream everywhere:
accelerate hands consecutive batches to consecutive processes, so every choice is emitted
world_size x gradient_accumulation_steps times.

Each stream is an endless sequence of passes over its data set, each pass a fresh permutation, which takes no memory to
speak of. The n-th step of a stream takes the n-th block of that sequence, of so many texts or tokens, whatever the number
of processes, the accumulation or the batch size, as long as their product is the same. So 1 x 8 sees the texts of 8 x 1,
and a resumed run those of an uninterrupted one.
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

# Up to this many are shuffled as usual, and exactly uniformly.
IN_MEMORY = 1 << 16
_ROUNDS = 4
TASK, CORPUS = "task", "corpus"
# Texts of a pass that are looked at together where they are not sorted.
_BLOCK = 4096
# Optimizer steps whose texts are sorted by length together, as in the Trainer's own length grouping.
GROUPED_STEPS = 50


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
            left, right = right, left ^ (mix(right + key) & self._mask)
        return left << self._half | right


def mix(numbers: Any) -> Any:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014): a bijection of uint64, all bits of which depend on all."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class InterleavedDataset:
    """Task texts and corpus texts behind one index space, for a DataLoader.

    A *draw* is an integer: pass * len(self) + index, with the task's rows first. It names one visit of one text, so the
    collator can derive the text's mask from it alone.
    """

    def __init__(self, task: Dataset | None, corpus: Dataset | None = None):
        self.task = task
        self.corpus = corpus
        self.num_task = 0 if task is None else len(task)
        self.num_corpus = 0 if corpus is None else len(corpus)

    def __len__(self) -> int:
        return self.num_task + self.num_corpus

    def __getitems__(self, draws: list[int]) -> list[dict]:
        """The rows of one batch (all of one stream), each with its `draw`."""
        indices = [draw % len(self) for draw in draws]
        if indices[0] < self.num_task:
            rows = self.task[indices]  # type: ignore[index]  # No draw names a row of a stream that is not there.
        else:
            rows = self.corpus[[index - self.num_task for index in indices]]  # type: ignore[index]  # As above.
        columns = list(rows)
        return [
            {"draw": draw, **dict(zip(columns, values, strict=True))}
            for draw, values in zip(draws, zip(*rows.values(), strict=True), strict=True)
        ]


class _Stream:
    """One data set as an endless sequence of passes, cut into batches of so many texts or tokens.

    A pass is a random order in blocks, each of which is made when a text of it is asked for, so that a data set of any size
    takes no memory here.

    lengths: int [N], tokens of each text. by_tokens: what batches are measured in. window: texts that are sorted by
    length together, in groups of `group`, which stay in a random order; 0 leaves the passes as they were drawn.
    """

    def __init__(self, lengths: np.ndarray, key: list[int], by_tokens: bool, group: int, window: int):
        self.lengths, self.key, self.by_tokens = lengths, key, by_tokens
        self.group, self.window = group, window
        self.size, self.total = len(lengths), int(lengths.sum(dtype=np.int64))
        self._passes: dict[int, _Pass] = {}

    def position(self, amount: int) -> int:
        """How many texts begin within the first `amount` texts or tokens of the sequence."""
        if not self.by_tokens:
            return amount
        number, rest = divmod(amount, self.total)
        return number * self.size + self._pass(number).position(rest)

    def tokens(self, position: int) -> int:
        """Tokens of the first `position` texts of the sequence."""
        number, rest = divmod(position, self.size)
        return number * self.total + (self._pass(number).tokens(rest) if rest else 0)

    def texts(self, first: int, last: int) -> list[tuple[int, np.ndarray]]:
        """The texts first <= position < last, as (pass, indices of texts)."""
        found = []
        while first < last:
            number, start = divmod(first, self.size)
            indices = self._pass(number).texts(start, last - first)
            found.append((number, indices))
            first += len(indices)
        return found

    def _pass(self, number: int) -> _Pass:
        """Two are kept."""
        if number not in self._passes:
            # The first texts complete the last group of the pass before.
            start = -number * self.size % self.group if self.window else 0
            made = _Pass(self.lengths, [*self.key, number], start, self.group, self.window)
            self._passes = {n: kept for n, kept in self._passes.items() if n == number - 1} | {number: made}
        return self._passes[number]


class _Pass:
    """One order of a data set. Block 0 ends at `start`; the others are of `window` texts each, sorted in groups."""

    def __init__(self, lengths: np.ndarray, key: list[int], start: int, group: int, window: int):
        self.lengths, self.key, self.group, self.window = lengths, key, group, window
        self.order = Shuffled(len(lengths), key)
        self.start, self.block = min(start, len(lengths)), window or _BLOCK
        # Tokens before each block, as far as they were asked for.
        self._before = array("q", [0])
        self._made: dict[int, np.ndarray] = {}

    def position(self, tokens: int) -> int:
        """How many texts begin within the first `tokens` tokens."""
        while self._before[-1] <= tokens:
            self._count()
        number = bisect_right(self._before, tokens) - 1
        lengths = self.lengths[self._texts(number)]
        return self._edge(number) + int(np.searchsorted(np.cumsum(lengths) - lengths, tokens - self._before[number]))

    def tokens(self, position: int) -> int:
        """Tokens of the first `position` texts."""
        number = self._block_of(position)
        while len(self._before) <= number:
            self._count()
        return self._before[number] + int(self.lengths[self._texts(number)[: position - self._edge(number)]].sum())

    def texts(self, first: int, count: int) -> np.ndarray:
        """Indices of at most `count` texts from place `first`: those of its block."""
        number = self._block_of(first)
        begin = first - self._edge(number)
        return self._texts(number)[begin : begin + count]

    def _block_of(self, position: int) -> int:
        return 0 if position < self.start else 1 + (position - self.start) // self.block

    def _edge(self, number: int) -> int:
        """The first place of a block."""
        return 0 if number == 0 else self.start + (number - 1) * self.block

    def _count(self) -> None:
        """Count the tokens of one block more. Their order within it does not matter."""
        number = len(self._before) - 1
        texts = self.order[self._edge(number) : self._edge(number + 1)]
        self._before.append(self._before[-1] + int(self.lengths[texts].sum(dtype=np.int64)))

    def _texts(self, number: int) -> np.ndarray:
        """Indices of the texts of a block, in their order; two blocks are kept."""
        if number not in self._made:
            texts = self.order[self._edge(number) : self._edge(number + 1)]
            if self.window and number:
                texts = self._by_length(texts, np.random.default_rng([*self.key, number]))
            self._made = {n: kept for n, kept in self._made.items() if n == number - 1} | {number: texts}
        return self._made[number]

    def _by_length(self, texts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        texts = texts[np.argsort(self.lengths[texts], kind="stable")]
        whole = len(texts) // self.group
        groups = texts[: whole * self.group].reshape(whole, self.group)
        return np.concatenate([groups[generator.permutation(whole)].ravel(), texts[whole * self.group :]])


def _lengths(stream: str, given: Any) -> np.ndarray:
    """What was given as lengths, int [N]; an HfTlmError if it is something else, a data set for instance."""
    try:
        found = np.asarray(None if isinstance(given, Dataset) else given)  # A data set would be read whole.
    except ValueError:  # rows of several lengths
        found = np.asarray(None)
    if found.ndim != 1 or (found.size and not (found.dtype.kind in "iu" and found.min() >= 0)):
        raise HfTlmError(
            f"{stream}_lengths are how many tokens each text has, whole numbers; received {type(given).__name__}. Pass "
            "hf_tlm.data.text_lengths(rows) of tokenised rows, [] for a stream that is not used."
        )
    return found


def _check_sizes(rho1: Any, **sizes: int | None) -> None:
    """Raise an HfTlmError for a rho1 that is none, or for a size that is no whole number of its range."""
    number = isinstance(rho1, Real) and not math.isnan(rho1)
    if not number or rho1 < 0 or (math.isfinite(rho1) and rho1 != int(rho1)):
        raise HfTlmError(f"rho1 is a number of corpus batches per task batch: 0, 1, 2, ... or inf; received {rho1!r}.")
    for name, value in sizes.items():
        whole = Range(0 if name in ("steps_per_epoch", "seed") else 1, math.inf, whole=True)
        if value is not None and not whole.holds(value):
            raise HfTlmError(f"{name} is {whole}; received {value!r}.")


def _check_batch_tokens(
    batch_tokens: int, task_lengths: np.ndarray, corpus_lengths: np.ndarray, corpus_stream: Callable | None
) -> None:
    """Raise an HfTlmError where batches cannot be of so many tokens."""
    if corpus_stream is not None:
        raise HfTlmError("Batches of a corpus that is streamed are measured in texts: total_batch_size, not _tokens.")
    longest = max(task_lengths.max(initial=0), corpus_lengths.max(initial=0))
    if batch_tokens < longest:
        raise HfTlmError(
            f"A text of {longest} tokens is longer than a batch of {batch_tokens} per process and micro-batch. Raise "
            "the batch, lower max_length, or accumulate less."
        )


class InterleavedBatchSampler:
    """Batches of draws (see `InterleavedDataset`) for one epoch of `steps_per_epoch` optimizer steps.

    Args:
        task_lengths, corpus_lengths: int [N], tokens of each text (`hf_tlm.data.text_lengths`); a stream that is used
            must not be empty.
        corpus_stream: instead of `corpus_lengths` (then empty) what makes the corpus's stream of a key, see
            `hf_tlm.data.streaming.ShardStream`.
        rho1: corpus batches per task batch: an integer >= 0, or `inf` for corpus data only. 0 is task data only.
        batch_size: texts per micro-batch and process.
        batch_tokens: tokens per micro-batch and process instead: it gets the texts that begin within its share of the
            sequence, so it holds that many give or take a text.
        group_by_length: texts of similar length share a step.
        steps_per_epoch: default one pass over the corpus (over the task when rho1 is 0).

    Raises:
        HfTlmError: rho1 is not one of those, lengths or sizes are not what they should be, a stream that is needed is empty,
            or a text is longer than `batch_tokens`.
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
        task_lengths, corpus_lengths = _lengths("task", task_lengths), _lengths("corpus", corpus_lengths)
        if rho1 > 0 and len(corpus_lengths) == 0 and corpus_stream is None:
            raise HfTlmError(f"rho1 = {rho1:g} needs corpus texts, and there are none. Give a subset or set rho1 to 0.")
        if math.isfinite(rho1) and len(task_lengths) == 0:
            raise HfTlmError(f"rho1 = {rho1:g} needs task texts, and there are none. Give a task or set rho1 to inf.")
        if (batch_size is None) == (batch_tokens is None):
            raise HfTlmError("Give batch_size (texts) or batch_tokens, one of them.")
        if batch_tokens is not None:
            _check_batch_tokens(batch_tokens, task_lengths, corpus_lengths, corpus_stream)
        self.rho1 = rho1
        # None, as a sampler's batches may differ in size: accelerate would drop those that are not `batch_size` long.
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
            name: _Stream(lengths, [seed, number], batch_tokens is not None, group, GROUPED_STEPS * group * group_by_length)
            for number, (name, lengths) in enumerate(((TASK, task_lengths), (CORPUS, corpus_lengths)))
        }
        if corpus_stream is not None:
            self.streams[CORPUS] = corpus_stream([seed, 1])
        if steps_per_epoch is None:
            stream = self.streams[CORPUS if rho1 > 0 else TASK]
            whole_pass = (stream.total if stream.by_tokens else stream.size) / per_step
            # A pass over the corpus takes its own steps and those of the task batches in between.
            steps_per_epoch = math.ceil(whole_pass * (1 + 1 / rho1) if rho1 > 0 else whole_pass)
        self.steps_per_epoch = steps_per_epoch

    def __len__(self) -> int:
        return self.steps_per_epoch * self.batches_per_step

    def set_epoch(self, epoch: int) -> None:
        """The next iteration yields the steps from `epoch * steps_per_epoch`."""
        self.epoch = epoch

    def count_steps(self, stream: str, step: int) -> int:
        """How many of the first `step` optimizer steps belong to `stream`."""
        task_steps = 0 if math.isinf(self.rho1) else step // (int(self.rho1) + 1)
        return task_steps if stream == TASK else step - task_steps

    def count_tokens(self, stream: str, step: int) -> int:
        """Tokens of `stream`, padding not counted, in the first `step` optimizer steps, over all processes."""
        sequence = self.streams[stream]
        batches = self.count_steps(stream, step) * self.batches_per_step
        return sequence.tokens(sequence.position(batches * self.amount)) if batches else 0

    def stream_of(self, step: int) -> str:
        """The stream of optimizer step `step`, counted from 0."""
        return TASK if self.count_steps(TASK, step + 1) > self.count_steps(TASK, step) else CORPUS

    def batches_of(self, step: int) -> Iterator[list[int]]:
        """The micro-batches of optimizer step `step`, those of all processes in turn: lists of draws."""
        stream = self.stream_of(step)
        first = self.count_steps(stream, step) * self.batches_per_step
        for batch in range(first, first + self.batches_per_step):
            yield self._draws(stream, batch)

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.steps_per_epoch
        for step in range(first, first + self.steps_per_epoch):
            yield from self.batches_of(step)

    def _draws(self, stream: str, batch: int) -> list[int]:
        """The texts of the stream's `batch`-th micro-batch, which may span two passes."""
        sequence, total = self.streams[stream], sum(stream.size for stream in self.streams.values())
        first, last = (sequence.position(at * self.amount) for at in (batch, batch + 1))
        offset = 0 if stream == TASK else self.streams[TASK].size
        return [
            draw
            for number, indices in sequence.texts(first, last)
            for draw in (number * total + offset + indices.astype(np.int64)).tolist()
        ]
