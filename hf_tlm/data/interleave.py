"""TLM's interleaving of task batches and corpus batches, as a batch sampler that is a pure function of its arguments.

Step s (counted from 0) takes a task batch when (s + 1) is a multiple of rho1 + 1 and a corpus batch otherwise: rho1
corpus batches, then one task batch, as the released code orders them. One optimizer step is one stream everywhere:
accelerate hands consecutive batches to consecutive processes, so every choice is emitted
world_size x gradient_accumulation_steps times.

Each stream is an endless sequence of passes over its data set, each pass a fresh permutation. The n-th step of a stream
takes the n-th block of that sequence whatever the number of processes, the accumulation or the batch size, as long as
their product is the same. So 1 x 8 sees the texts of 8 x 1, and a resumed run those of an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from datasets import Dataset

from hf_tlm.files import HfTlmError

TASK, CORPUS = "task", "corpus"


class InterleavedDataset:
    """Task texts and corpus texts behind one index space, for a DataLoader.

    A *draw* is an integer: pass * len(self) + index, with the task's rows first. It names one visit of one text, so the
    collator can derive the text's mask from it alone.
    """

    def __init__(self, task: Dataset, corpus: Dataset | None = None):
        self.task = task
        self.corpus = corpus
        self.num_task = len(task)
        self.num_corpus = 0 if corpus is None else len(corpus)

    def __len__(self) -> int:
        return self.num_task + self.num_corpus

    def __getitems__(self, draws: list[int]) -> list[dict]:
        """The rows of one batch (all of one stream), each with its `draw`."""
        indices = [draw % len(self) for draw in draws]
        if indices[0] < self.num_task:
            rows = self.task[indices]
        else:
            rows = self.corpus[[index - self.num_task for index in indices]]
        columns = list(rows)
        return [
            {"draw": draw, **dict(zip(columns, values, strict=True))}
            for draw, values in zip(draws, zip(*rows.values(), strict=True), strict=True)
        ]


class InterleavedBatchSampler:
    """Batches of draws (see `InterleavedDataset`) for one epoch of `steps_per_epoch` optimizer steps.

    Args:
        num_task, num_corpus: rows of each stream; a stream that is used must not be empty.
        rho1: corpus batches per task batch: an integer >= 0, or `inf` for corpus data only. 0 is task data only.
        batch_size: texts per micro-batch and process.
        steps_per_epoch: default one pass over the corpus (over the task when rho1 is 0).

    Raises:
        HfTlmError: rho1 is not one of those, or a stream that it needs is empty.
    """

    # Every batch is full and every process gets the same number, so accelerate has nothing to even out.
    drop_last = True

    def __init__(
        self,
        num_task: int,
        num_corpus: int,
        *,
        rho1: float,
        batch_size: int,
        world_size: int = 1,
        gradient_accumulation_steps: int = 1,
        steps_per_epoch: int | None = None,
        seed: int = 0,
    ):
        if rho1 < 0 or (math.isfinite(rho1) and rho1 != int(rho1)) or math.isnan(rho1):
            raise HfTlmError(f"rho1 is a number of corpus batches per task batch: 0, 1, 2, ... or inf; received {rho1}.")
        if rho1 > 0 and num_corpus == 0:
            raise HfTlmError(f"rho1 = {rho1:g} needs corpus texts, and there are none. Give a subset or set rho1 to 0.")
        if math.isfinite(rho1) and num_task == 0:
            raise HfTlmError(f"rho1 = {rho1:g} needs task texts, and there are none. Give a task or set rho1 to inf.")
        self.sizes = {TASK: num_task, CORPUS: num_corpus}
        self.rho1 = rho1
        self.batch_size = batch_size
        self.batches_per_step = world_size * gradient_accumulation_steps
        self.seed = seed
        self.epoch = 0
        self._permutations: dict[str, tuple[int, np.ndarray]] = {}
        if steps_per_epoch is None:
            texts_per_step = batch_size * self.batches_per_step
            if rho1 == 0:
                steps_per_epoch = math.ceil(num_task / texts_per_step)
            else:
                # A pass over the corpus takes its own steps and those of the task batches in between.
                steps_per_epoch = math.ceil(num_corpus / texts_per_step * (1 + 1 / rho1))
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

    def stream_of(self, step: int) -> str:
        """The stream of optimizer step `step`, counted from 0."""
        return TASK if self.count_steps(TASK, step + 1) > self.count_steps(TASK, step) else CORPUS

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.steps_per_epoch
        for step in range(first, first + self.steps_per_epoch):
            stream = self.stream_of(step)
            start = self.count_steps(stream, step) * self.batches_per_step
            for batch in range(start, start + self.batches_per_step):
                yield self._draws(stream, batch * self.batch_size)

    def _draws(self, stream: str, start: int) -> list[int]:
        """Draws start .. start + batch_size of the stream's endless sequence; a batch may span two passes."""
        size, total = self.sizes[stream], sum(self.sizes.values())
        offset = 0 if stream == TASK else self.sizes[TASK]
        draws: list[int] = []
        while len(draws) < self.batch_size:
            number, position = divmod(start + len(draws), size)
            rows = self._permutation(stream, number)[position : position + self.batch_size - len(draws)]
            draws.extend((number * total + offset + rows).tolist())
        return draws

    def _permutation(self, stream: str, number: int) -> np.ndarray:
        """The order of the `number`-th pass; the last one is kept."""
        cached = self._permutations.get(stream)
        if cached is None or cached[0] != number:
            generator = np.random.default_rng([self.seed, (TASK, CORPUS).index(stream), number])
            cached = (number, generator.permutation(self.sizes[stream]))
            self._permutations[stream] = cached
        return cached[1]
