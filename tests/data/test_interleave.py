"""The stream of every optimizer step follows the specification, for any rho1, accumulation and number of processes."""

import math

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset

from hf_tlm.data.interleave import CORPUS, TASK, InterleavedBatchSampler, InterleavedDataset
from hf_tlm.errors import HfTlmError

NUM_TASK, NUM_CORPUS = 13, 29


def lengths(count):
    return np.random.default_rng(count).integers(3, 20, count)


def sampler(rho1, batch_size=4, world=1, accumulation=1, steps=12, seed=3):
    return InterleavedBatchSampler(
        lengths(NUM_TASK),
        lengths(NUM_CORPUS),
        rho1=rho1,
        batch_size=batch_size,
        world_size=world,
        gradient_accumulation_steps=accumulation,
        steps_per_epoch=steps,
        seed=seed,
    )


def stream_of(batch):
    kinds = {TASK if draw % (NUM_TASK + NUM_CORPUS) < NUM_TASK else CORPUS for draw in batch}
    assert len(kinds) == 1, "a batch mixes streams"
    return kinds.pop()


def expected_stream(rho1, step):
    """Return the stream by the released code's rule: (step + 1) % external_ratio == 0 is a task batch."""
    if rho1 == 0:
        return TASK
    if math.isinf(rho1):
        return CORPUS
    return TASK if (step + 1) % (rho1 + 1) == 0 else CORPUS


@pytest.mark.parametrize("rho1", [0, 1, 3, math.inf])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("world", [1, 2])
def test_streams_follow_rho1_on_every_process(rho1, accumulation, world):
    """All micro-batches of an optimizer step have the specified stream, on all processes."""
    steps = 12
    per_rank = [
        list(BatchSamplerShard(sampler(rho1, world=world, accumulation=accumulation, steps=steps), world, rank))
        for rank in range(world)
    ]
    for batches in per_rank:
        assert len(batches) == steps * accumulation
        for step in range(steps):
            micro = batches[step * accumulation : (step + 1) * accumulation]
            assert {stream_of(batch) for batch in micro} == {expected_stream(rho1, step)}
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
def test_texts_of_a_step_do_not_depend_on_the_split(rho1):
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


def test_steps_per_epoch():
    assert InterleavedBatchSampler(lengths(20), lengths(30), rho1=0, batch_size=4).steps_per_epoch == 5
    assert InterleavedBatchSampler(lengths(20), lengths(30), rho1=math.inf, batch_size=4).steps_per_epoch == 8
    # 7.5 corpus steps and a third as many task steps.
    assert InterleavedBatchSampler(lengths(20), lengths(30), rho1=3, batch_size=4).steps_per_epoch == 10


@pytest.mark.parametrize("rho1", [-1, 0.5, math.nan])
def test_invalid_rho1_is_refused(rho1):
    with pytest.raises(HfTlmError, match="rho1"):
        sampler(rho1)


def test_missing_texts_of_a_stream_are_refused():
    with pytest.raises(HfTlmError, match="needs corpus texts"):
        InterleavedBatchSampler(lengths(5), lengths(0), rho1=1, batch_size=2)
    with pytest.raises(HfTlmError, match="needs task texts"):
        InterleavedBatchSampler(lengths(0), lengths(5), rho1=1, batch_size=2)


@pytest.mark.parametrize("given", [Dataset.from_dict({"text": ["a"]}), ["a text"], [[1, 2], [3]], [2, -1], [1.5], 3, None])
def test_invalid_lengths_are_refused(given):
    with pytest.raises(HfTlmError, match="task_lengths must be the number of tokens of each text.*hf_tlm.data.text_lengths"):
        InterleavedBatchSampler(given, lengths(5), rho1=1, batch_size=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number, 1 or more; received 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, 1 or more; received 2.5"),
        ({"batch_size": None, "batch_tokens": -8}, "batch_tokens must be a whole number, 1 or more; received -8"),
        ({"world_size": 0}, "world_size must be a whole number, 1 or more; received 0"),
        ({"gradient_accumulation_steps": -1}, "gradient_accumulation_steps must be a whole number, 1 or more; received -1"),
        ({"steps_per_epoch": -1}, "steps_per_epoch must be a whole number, 0 or more; received -1"),
        ({"seed": "a"}, "seed must be a whole number, 0 or more; received 'a'"),
        ({"rho1": "3"}, "rho1 must be a number of corpus batches per task batch: .*; received '3'"),
    ],
)
def test_invalid_arguments_are_refused(changes, message):
    with pytest.raises(HfTlmError, match=message):
        InterleavedBatchSampler([3, 4], [5, 6], **{"rho1": 1, "batch_size": 2} | changes)


def test_interleaved_dataset_returns_rows_with_their_draw():
    task = Dataset.from_dict({"input_ids": [[1], [2]], "label": [0, 1]})
    corpus = Dataset.from_dict({"input_ids": [[3], [4], [5]]})
    both = InterleavedDataset(task, corpus)
    assert both.__getitems__([1, 5]) == [
        {"draw": 1, "input_ids": [2], "label": 1},
        {"draw": 5, "input_ids": [1], "label": 0},
    ]
    assert both.__getitems__([2, 9]) == [{"draw": 2, "input_ids": [3]}, {"draw": 9, "input_ids": [5]}]


def by_tokens(rho1=3, tokens=64, world=1, accumulation=1, steps=40, **options):
    return InterleavedBatchSampler(
        lengths(NUM_TASK),
        lengths(NUM_CORPUS),
        rho1=rho1,
        batch_tokens=tokens,
        world_size=world,
        gradient_accumulation_steps=accumulation,
        steps_per_epoch=steps,
        seed=3,
        **options,
    )


def test_batches_have_the_requested_tokens():
    """Each text is in the batch in whose share of the sequence it starts; a step's texts do not depend on the split."""
    whole, split = list(by_tokens()), list(by_tokens(tokens=32, accumulation=2))
    assert [sorted(batch) for batch in whole] == [sorted(a + b) for a, b in zip(split[::2], split[1::2], strict=True)]
    sizes = np.concatenate([lengths(NUM_TASK), lengths(NUM_CORPUS)])
    tokens = [sum(sizes[draw % len(sizes)] for draw in batch) for batch in whole]
    assert all(64 - 20 < count < 64 + 20 for count in tokens) and abs(np.mean(tokens) - 64) < 3
    corpus = [draw % len(sizes) for batch in whole for draw in batch if draw % len(sizes) >= NUM_TASK]
    assert sorted(corpus[:NUM_CORPUS]) == list(range(NUM_TASK, NUM_TASK + NUM_CORPUS))


def test_batches_of_tokens_reach_every_process():
    world, accumulation = 2, 2
    batches = list(by_tokens(tokens=32, world=world, accumulation=accumulation))
    shards = [
        list(
            BatchSamplerShard(by_tokens(tokens=32, world=world, accumulation=accumulation), world, rank, even_batches=False)
        )
        for rank in range(world)
    ]
    assert [batch for pair in zip(*shards, strict=True) for batch in pair] == batches


def test_text_longer_than_a_token_batch_is_refused():
    with pytest.raises(HfTlmError, match="longer than a batch of 8"):
        by_tokens(tokens=8)


@pytest.mark.parametrize("make", [sampler, by_tokens])
@pytest.mark.parametrize("rho1", [0, 3, math.inf])
def test_token_counts_equal_the_sum_over_batches(make, rho1):
    """The closed form equals the sum over the batches."""
    ours, sizes = make(rho1, steps=40), np.concatenate([lengths(NUM_TASK), lengths(NUM_CORPUS)])
    counted = {TASK: 0, CORPUS: 0}
    for step, batch in enumerate(list(ours)):
        assert {name: ours.count_tokens(name, step) for name in counted} == counted
        counted[stream_of(batch)] += sum(sizes[draw % len(sizes)] for draw in batch)


def test_length_groups_reduce_padding():
    """Steps have texts of similar length in every epoch, and every text still occurs once before any occurs twice."""
    sizes = np.random.default_rng(0).integers(3, 128, 1003)
    options = {"rho1": math.inf, "batch_size": 4, "gradient_accumulation_steps": 2, "seed": 1, "steps_per_epoch": 125}
    plain, grouped = (InterleavedBatchSampler([], sizes, group_by_length=g, **options) for g in (False, True))

    def padding(batches):
        return 1 - sum(sizes[d % 1003].sum() for d in batches) / sum(4 * max(sizes[d % 1003]) for d in batches)

    for epoch in range(3):
        plain.set_epoch(epoch), grouped.set_epoch(epoch)
        ours = [np.array(batch) for batch in grouped]
        assert padding(ours) < 0.12 < 0.3 < padding([np.array(batch) for batch in plain])
        # The groups come in a random order.
        first, second = np.split(np.array([sizes[batch % 1003].mean() for batch in ours[:124]]), 2)
        assert abs(first.mean() - second.mean()) < 15
    grouped.set_epoch(0)
    draws = [draw for batch in grouped for draw in batch]
    grouped.set_epoch(1)
    draws += [draw for batch in grouped for draw in batch]
    assert sorted(draws[:1003]) == list(range(1003))
    assert {draw // 1003 for draw in draws[1003:]} == {1}
