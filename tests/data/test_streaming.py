"""Blocks that are sampled while they are prepared: the samples depend neither on the process nor on the time of
preparation."""

import math
import os
import pickle
import threading
import time
from functools import partial

import numpy as np
import pytest

from hf_tlm.corpora import Corpus
from hf_tlm.data import BlocksError, BlockShards, InterleavedBatchSampler, Preparation, ShardStream, StreamedBlocks
from hf_tlm.data import streaming as module
from hf_tlm.data.interleave import InterleavedDataset
from hf_tlm.errors import HfTlmError
from support.toys import sentences

ROWS = [{"id": f"d{i}", "text": row["text"] + ".", "source": "s"} for i, row in enumerate(sentences(120, 5))]


@pytest.fixture
def make(tmp_path, tokenizer):
    def make(cache="cache", documents=None, **options):
        corpus = Corpus("c", "f" * 16, documents or partial(iter, ROWS))
        return BlockShards(corpus, tokenizer, 16, **{"shard_size": 7, "cache_dir": tmp_path / cache, **options})

    return make


def sampler(blocks, world=1, accumulation=1, steps=60):
    return InterleavedBatchSampler(
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        corpus_stream=lambda key: ShardStream(blocks, key),
        rho1=math.inf,
        batch_size=4 // (world * accumulation),
        world_size=world,
        gradient_accumulation_steps=accumulation,
        steps_per_epoch=steps,
        seed=3,
    )


def test_every_epoch_has_each_full_block_once_in_shard_order(make):
    shards = make()
    blocks = StreamedBlocks(shards)
    whole = shards.to_dataset()["input_ids"][:]
    count = len(whole) - (len(whole[-1]) < 16)
    assert count % 7 and count > 60 and len(whole) == count + 1
    stream = ShardStream(blocks, [3, 1])
    drawn = [(number, block) for number, rows in stream.texts(0, 3 * count) for block in rows.tolist()]
    passes = [[block for number, block in drawn if number == p] for p in range(3)]
    for one in passes:
        assert sorted(one) == list(range(count))
        assert [block // 7 for block in one] == sorted(block // 7 for block in range(count))
    assert len({tuple(one) for one in passes}) == 3 and passes[0][:7] != sorted(passes[0][:7])
    assert [(n, b) for n, rows in stream.texts(count - 3, count + 9) for b in rows.tolist()] == drawn[count - 3 : count + 9]
    rows = InterleavedDataset(None, blocks).__getitems__([block + number * len(blocks) for number, block in drawn[:30]])
    assert [row["input_ids"] for row in rows] == [whole[block] for _, block in drawn[:30]]
    assert [row["draw"] for row in rows] == [block for _, block in drawn[:30]]
    assert stream.tokens(5) == 80 and stream.position(9) == 9


def test_samples_do_not_depend_on_preparation_or_split_of_steps(make):
    finished = make()
    finished.to_dataset()
    expected = list(sampler(StreamedBlocks(finished)))
    slow = make("slow", lambda: (time.sleep(1e-3) or row for row in ROWS))
    with Preparation(slow, ahead=1) as preparation:
        assert list(sampler(StreamedBlocks(slow, preparation))) == expected
    # A process without the preparing thread waits for the files.
    late = make("late")
    timer = threading.Timer(0.3, late.to_dataset)
    timer.start()
    assert list(sampler(StreamedBlocks(late))) == expected
    timer.join()
    split = list(sampler(StreamedBlocks(finished), world=2, accumulation=2))
    assert [sum(split[i : i + 4], []) for i in range(0, len(split), 4)] == expected
    # A resumed run does not start at the first batch.
    assert list(sampler(StreamedBlocks(make())).batches_of(59)) == expected[59:]


def test_preparation_stays_at_most_ahead_shards_ahead(make):
    shards = make()
    with Preparation(shards, ahead=2) as preparation:
        blocks = StreamedBlocks(shards, preparation)
        for number in (0, 3):
            assert blocks.wait_for(number) == 7
            deadline = time.monotonic() + 20
            while shards.find(number + 2) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.2)
            assert shards.find(number + 2) is not None and shards.find(number + 3) is None
    assert shards.totals is None
    assert not preparation._thread.is_alive()


def failing_documents():
    yield from ROWS[:60]
    raise OSError("the disk is gone")


def test_errors_of_the_thread_are_raised_when_its_blocks_are_needed(make, monkeypatch):
    monkeypatch.setattr("hf_tlm.corpora.corpus.BATCH", 10)
    whole, shards, found = make(), make("broken", failing_documents), []
    whole.to_dataset()
    with (
        Preparation(shards, ahead=100) as preparation,
        pytest.raises(BlocksError, match="prepared further: the disk is gone"),
    ):
        for batch in sampler(StreamedBlocks(shards, preparation)):
            found.append(batch)
    assert len(found) > 5 and found == list(sampler(StreamedBlocks(whole)))[: len(found)]
    empty = make("empty", lambda: iter([]))
    with Preparation(empty, ahead=1) as preparation, pytest.raises(HfTlmError, match="has no passage"):
        next(iter(sampler(StreamedBlocks(empty, preparation))))


def test_leaving_the_context_ends_the_thread(make, monkeypatch):
    """While preparing an endless corpus, and when training fails with its own error."""

    def endless():
        number = 0
        while True:
            number += 1
            yield {"id": str(number), "text": "the gene " * 40, "source": "s"}

    shards = make(documents=endless, shard_size=10**6)
    with pytest.raises(KeyboardInterrupt), Preparation(shards, ahead=1) as preparation:
        time.sleep(0.1)
        raise KeyboardInterrupt
    assert not preparation._thread.is_alive() and not module._WORK_LOCK.locked()


def test_fork_waits_until_the_thread_holds_no_lock(make):
    """The child must not inherit locks in the middle of the thread's work."""
    shards = make(documents=lambda: ({"id": str(n), "text": "the gene " * 9, "source": "s"} for n in range(200_000)))
    with Preparation(shards, ahead=10**6) as preparation:
        StreamedBlocks(shards, preparation).wait_for(0)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(7 if module._WORK_LOCK.locked() else 0)
            assert os.waitpid(child, 0)[1] == 0
        assert preparation._thread.is_alive()


def test_pickled_blocks_have_no_preparation(make):
    shards = make()
    with Preparation(shards, ahead=100) as preparation:
        blocks = StreamedBlocks(shards, preparation)
        blocks.wait_for(1)
        worker = pickle.loads(pickle.dumps(blocks))
    expected = [shards.find(1)[1]["input_ids"], shards.find(0)[0]["input_ids"]]
    assert worker.preparation is None and worker[[8, 0]] == {"input_ids": expected} == blocks[[8, 0]]


def test_unsupported_streaming_is_refused(make):
    with pytest.raises(BlocksError, match="blocks of equal length"):
        StreamedBlocks(make(mode="sentences"))
    with pytest.raises(BlocksError, match="shards_ahead: expected"):
        Preparation(make(), ahead=0)
    with pytest.raises(HfTlmError, match="measured in texts"):
        InterleavedBatchSampler([], [], corpus_stream=lambda key: None, rho1=math.inf, batch_tokens=64)
