"""The stream of every optimizer step is as specified, for any rho1, accumulation and number of processes."""

import math

import pytest
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset

from hf_tlm.data.interleave import CORPUS, TASK, InterleavedBatchSampler, InterleavedDataset
from hf_tlm.files import HfTlmError

NUM_TASK, NUM_CORPUS = 13, 29


def sampler(rho1, batch_size=4, world=1, accumulation=1, steps=12, seed=3):
    return InterleavedBatchSampler(
        NUM_TASK,
        NUM_CORPUS,
        rho1=rho1,
        batch_size=batch_size,
        world_size=world,
        gradient_accumulation_steps=accumulation,
        steps_per_epoch=steps,
        seed=seed,
    )


def stream(batch):
    kinds = {TASK if draw % (NUM_TASK + NUM_CORPUS) < NUM_TASK else CORPUS for draw in batch}
    assert len(kinds) == 1, "a batch mixes streams"
    return kinds.pop()


def specified(rho1, step):
    """The released code's rule, written out: (step + 1) % external_ratio == 0 is a task batch."""
    if rho1 == 0:
        return TASK
    if math.isinf(rho1):
        return CORPUS
    return TASK if (step + 1) % (rho1 + 1) == 0 else CORPUS


@pytest.mark.parametrize("rho1", [0, 1, 3, math.inf])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("world", [1, 2])
def test_streams(rho1, accumulation, world):
    """Every process sees the same stream in every micro-batch of an optimizer step, and it is the specified one."""
    steps = 12
    per_rank = [
        list(BatchSamplerShard(sampler(rho1, world=world, accumulation=accumulation, steps=steps), world, rank))
        for rank in range(world)
    ]
    for batches in per_rank:
        assert len(batches) == steps * accumulation
        for step in range(steps):
            micro = batches[step * accumulation : (step + 1) * accumulation]
            assert {stream(batch) for batch in micro} == {specified(rho1, step)}
            assert all(len(batch) == 4 for batch in micro)


@pytest.mark.parametrize("rho1", [0, 1, 3, math.inf])
def test_every_example_once_before_any_twice(rho1):
    total = NUM_TASK + NUM_CORPUS
    draws = [draw for batch in sampler(rho1, steps=60) for draw in batch]
    for size, indices in (
        (NUM_TASK, [d % total for d in draws if d % total < NUM_TASK]),
        (NUM_CORPUS, [d % total - NUM_TASK for d in draws if d % total >= NUM_TASK]),
    ):
        passes = [indices[i : i + size] for i in range(0, len(indices) - size + 1, size)]
        assert len(passes) > 1 or not indices
        for one in passes:
            assert sorted(one) == list(range(size))
        assert len({tuple(one) for one in passes}) == len(passes), "passes are not reshuffled"


@pytest.mark.parametrize("rho1", [0, 3, math.inf])
def test_same_texts_per_step_however_they_are_split(rho1):
    def per_step(batch_size, world, accumulation):
        batches = list(sampler(rho1, batch_size, world, accumulation))
        size = world * accumulation
        return [[d for b in batches[i : i + size] for d in b] for i in range(0, len(batches), size)]

    assert per_step(8, 1, 1) == per_step(1, 1, 8) == per_step(2, 2, 2) == per_step(4, 2, 1)


def test_epochs_continue_the_streams():
    whole = list(sampler(3, steps=20))
    halves = sampler(3, steps=10)
    first = list(halves)
    halves.set_epoch(1)
    assert first + list(halves) == whole


def test_epoch_length():
    assert InterleavedBatchSampler(20, 30, rho1=0, batch_size=4).steps_per_epoch == 5
    assert InterleavedBatchSampler(20, 30, rho1=math.inf, batch_size=4).steps_per_epoch == 8
    # 7.5 corpus steps and a third as many task steps.
    assert InterleavedBatchSampler(20, 30, rho1=3, batch_size=4).steps_per_epoch == 10


@pytest.mark.parametrize("rho1", [-1, 0.5, math.nan])
def test_bad_rho1(rho1):
    with pytest.raises(HfTlmError, match="rho1"):
        sampler(rho1)


def test_missing_stream():
    with pytest.raises(HfTlmError, match="needs corpus texts"):
        InterleavedBatchSampler(5, 0, rho1=1, batch_size=2)
    with pytest.raises(HfTlmError, match="needs task texts"):
        InterleavedBatchSampler(0, 5, rho1=1, batch_size=2)


def test_rows_and_draws():
    task = Dataset.from_dict({"input_ids": [[1], [2]], "label": [0, 1]})
    corpus = Dataset.from_dict({"input_ids": [[3], [4], [5]]})
    both = InterleavedDataset(task, corpus)
    assert both.__getitems__([1, 5]) == [
        {"draw": 1, "input_ids": [2], "label": 1},
        {"draw": 5, "input_ids": [1], "label": 0},
    ]
    assert both.__getitems__([2, 9]) == [{"draw": 2, "input_ids": [3]}, {"draw": 9, "input_ids": [5]}]
