"""Blocks on disk: equal however they came there, and never a part of them."""

import json
import os
import signal
import threading
from dataclasses import replace

import pytest
from datasets import Dataset

from hf_tlm.corpora import Corpus, CorpusError, load_corpus
from hf_tlm.data import BlockMaker, BlocksError, BlockShards
from hf_tlm.data import blocks as module
from hf_tlm.data.blocks import is_held_out
from support import warm
from support.toys import sentences

ROWS = [{"id": f"d{i}", "text": row["text"] + ". " + row["text"], "source": "s"} for i, row in enumerate(sentences(90, 5))]


def corpus_files(folder, rows=ROWS, count=3):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        Dataset.from_list(rows[number::count]).to_parquet(folder / f"{number}.parquet")
    return load_corpus(str(folder))


def contents(made):
    """Every file of shards by name, without states and seals, which say how far preparation had read, and when."""
    return {
        path.relative_to(made.folder).as_posix(): path.read_bytes()
        for path in sorted(made.folder.rglob("*"))
        if path.is_file() and path.name != module.STATE_FILE and path.suffix != ".seal"
    }


@pytest.fixture
def make(tmp_path, tokenizer):
    corpus = corpus_files(tmp_path / "corpus")

    def make(cache="cache", **options):
        options = {"corpus": corpus, "mode": "contiguous", "shard_size": 7, **options}
        return BlockShards(tokenizer=tokenizer, max_length=16, cache_dir=tmp_path / cache, **options)

    return make


@pytest.mark.parametrize("mode", ["contiguous", "sentences"])
def test_shards_hold_the_blocks_of_all_passages(make, tokenizer, mode):
    made = make(mode=mode)
    blocks = made.to_dataset()
    maker = BlockMaker(tokenizer, 16, mode)
    list(maker.add([row["text"] for row in made.corpus]))
    maker.finish()
    assert blocks["input_ids"][:] == [block.tolist() for block in maker.blocks]
    assert blocks.cache_files and len(blocks) > 50
    assert [len(made.find(number)) for number in range(made.totals["shards"] - 1)] == [7] * (len(blocks) // 7)
    expected = {
        "last_block": len(blocks[-1]["input_ids"]),
        "blocks": len(blocks),
        "tokens": maker.tokens,
        "passages": 90,
        "held_out": 0,
        "bad_files": {},
    }
    assert made.totals == {"shards": -(-len(blocks) // 7), **expected}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["contiguous", "sentences"])
@pytest.mark.parametrize("batch", [2, 1000])
def test_a_preparation_that_was_stopped_continues(make, monkeypatch, mode, batch):
    monkeypatch.setattr("hf_tlm.corpora.loading.BATCH", batch)
    whole = make(mode=mode, validation_share=0.2)
    whole.to_dataset()
    for calls in (1, 2, 3, 7):
        cut = make(f"cut{calls}", mode=mode, validation_share=0.2)
        write, written = module._save_blocks, []

        def save(*arguments, calls=calls, write=write, written=written):
            written.append(arguments)
            if len(written) > calls:
                raise KeyboardInterrupt
            write(*arguments)

        monkeypatch.setattr(module, "_save_blocks", save)
        with pytest.raises(KeyboardInterrupt):
            cut.to_dataset()
        assert cut.totals is None and cut.find(calls - 1) is not None and cut.find(calls) is None
        monkeypatch.setattr(
            module, "_save_blocks", lambda *arguments, write=write, written=written: write(*written.append(0) or arguments)
        )
        written.clear()
        cut.to_dataset()
        monkeypatch.setattr(module, "_save_blocks", write)
        assert contents(cut) == contents(whole)
        assert len(written) == whole.totals["shards"] - calls, "what was there was made again"


@pytest.mark.parametrize("shard_size", [7, 8])
def test_a_preparation_that_was_stopped_before_its_very_end(make, shard_size):
    made = make(shard_size=shard_size)
    made.to_dataset()
    before = contents(made)
    (made.folder / module.TOTALS_FILE).unlink()
    assert made.totals is None
    made.to_dataset()
    assert contents(made) == before and made.totals["last_block"] < 16


def test_blocks_longer_than_a_shard_are_cut_over_several(make, tokenizer):
    rows = [{"id": "a", "text": "the gene " * 800, "source": "s"}, {"id": "b", "text": "the cell", "source": "s"}]
    made = make(corpus=Corpus("long", "1", lambda: iter(rows)), shard_size=3)
    assert len(made.to_dataset()) == made.totals["blocks"] > 30
    # From the middle of the long one.
    for number in range(5, made.totals["shards"]):
        (made.folder / f"shard-{number:05d}" / module.STATE_FILE).unlink()
    before = contents(made)
    made.to_dataset()
    assert contents(made) == before


PROGRAM = """
import os, signal, sys
from hf_tlm.corpora import load_corpus
from hf_tlm.data import BlockShards, load_tokenizer
corpus, tokenizer, cache = sys.argv[1:]
renamed, original = [], os.rename
def rename(source, target):
    renamed.append(target)
    if len(renamed) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    original(source, target)
os.rename = rename
BlockShards(load_corpus(corpus), load_tokenizer(tokenizer), 16, shard_size=7, cache_dir=cache).to_dataset()
"""


@pytest.mark.slow
def test_sigkill(make, tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    done = warm.program(PROGRAM, [tmp_path / name for name in ("corpus", "tokenizer", "cache")])
    assert done.status == -signal.SIGKILL, done.stderr
    cut, whole = make(), make("whole")
    assert cut.find(2) is not None and cut.find(3) is None
    # The kill left its unfinished folder.
    stale = [path.name for path in cut.folder.iterdir() if path.name.startswith(".")]
    assert len(stale) == 1
    assert cut.to_dataset()["input_ids"][:] == whole.to_dataset()["input_ids"][:]


@pytest.mark.parametrize("harm", ["truncate", "unlink", "fewer", "state"])
def test_a_damaged_shard_is_made_again(make, harm, caplog):
    made = make()
    made.to_dataset()
    before = contents(made)
    folder = made.folder / "shard-00002"
    if harm == "truncate":
        os.truncate(folder / module.BLOCKS_FILE, 900)
    elif harm == "unlink":
        (folder / module.BLOCKS_FILE).unlink()
    elif harm == "fewer":
        (folder / module.BLOCKS_FILE).write_bytes(
            (made.folder / f"shard-{made.totals['shards'] - 1:05d}" / module.BLOCKS_FILE).read_bytes()
        )
    else:
        (folder / module.STATE_FILE).write_text("{")
    assert made.find(2) is None and "is damaged" in caplog.text
    made.to_dataset()
    assert contents(made) == before


def test_what_is_there_is_not_read_again(make, monkeypatch):
    made = make(validation_share=0.2)
    first, held = made.to_dataset()["input_ids"][:], made.validation(4)["input_ids"][:]
    monkeypatch.setattr(Corpus, "batches", None)
    again = make(validation_share=0.2)
    assert again.to_dataset()["input_ids"][:] == first and again.validation(4)["input_ids"][:] == held


def test_every_setting_has_a_folder_of_its_own(make, tmp_path, tokenizer):
    folders = [
        make(**options).folder for options in ({}, {"mode": "sentences"}, {"shard_size": 8}, {"validation_share": 0.1})
    ]
    folders.append(make(corpus=corpus_files(tmp_path / "other", ROWS[1:])).folder)
    folders.append(BlockShards(make().corpus, tokenizer, 17, shard_size=7, cache_dir=tmp_path / "cache").folder)
    assert len(set(folders)) == 6
    tokenizer("a text", truncation=True, max_length=3)  # Leaves its truncation in the tokenizer.
    assert make().folder == folders[0]


def test_held_out_passages_are_in_the_validation_blocks_alone(make, tokenizer):
    made = make(validation_share=0.2)
    held = [row for row in made.corpus if is_held_out(made.corpus, row["id"], 0.2)]
    rest = [row for row in made.corpus if row not in held]
    assert 8 < len(held) < 30
    for rows, blocks in ((held, made.validation(1000)), (rest, made.to_dataset())):
        maker = BlockMaker(tokenizer, 16)
        list(maker.add([row["text"] for row in rows]))
        maker.finish()
        assert blocks["input_ids"][:] == [block.tolist() for block in maker.blocks]
    assert made.totals["held_out"] == len(held) and made.totals["passages"] == 90
    few = made.validation(3)
    assert few["input_ids"][:] == made.validation(1000)["input_ids"][:3] and few["draw"][:] == [-1, -2, -3]
    # The same passages whatever is beside them; those of one document together.
    alone = Corpus("one", "1", lambda: iter(held[:1]), max_words=5)
    assert {is_held_out(alone, row["id"], 0.2) for row in alone} == {True} and len(list(alone)) > 1
    # So do they in a subset, which is not cut again; a name with such an end is that of a document else.
    document, passages = held[0]["id"], replace(made.corpus, cut=True)
    assert is_held_out(passages, f"{document}#0", 0.2) and is_held_out(passages, f"{document}#12", 0.2)
    assert {is_held_out(made.corpus, f"{document}#{number}", 0.2) for number in range(30)} == {True, False}
    with pytest.raises(BlocksError, match="holds out none of the passages"):
        make(validation_share=1e-9).validation(3)


def test_files_that_cannot_be_read(make, tmp_path):
    corpus_files(tmp_path / "bad")
    (tmp_path / "bad" / "1.parquet").write_bytes(b"nothing")
    with pytest.raises(CorpusError, match="1.parquet"):
        make(corpus=load_corpus(str(tmp_path / "bad"))).to_dataset()
    made = make(corpus=load_corpus(str(tmp_path / "bad"), skip_bad_files=True))
    made.to_dataset()
    assert made.totals["passages"] == 60 and list(made.totals["bad_files"]) == ["1.parquet"]


def test_errors(make):
    with pytest.raises(BlocksError, match="has no passage to train on .2 rows without text"):
        make(corpus=Corpus("empty", "1", lambda: iter([{"id": i, "text": " ", "source": "s"} for i in "ab"]))).to_dataset()
    with pytest.raises(BlocksError, match="has 3 tokens, which do not fill one block of 16"):
        make(corpus=Corpus("small", "2", lambda: iter([{"id": "a", "text": "the gene.", "source": "s"}]))).to_dataset()
    for options, message in (({"validation_share": 1.0}, "received 1.0"), ({"shard_size": 0}, "received 0")):
        with pytest.raises(BlocksError, match=message):
            make(**options)


def test_another_process_waits(make):
    made, other = make(), make()
    timer = threading.Timer(0.3, made.to_dataset)
    timer.start()
    other.wait()
    assert other.totals == made.totals and other.find(made.totals["shards"] - 1) is not None
    timer.join()


def test_states_say_how_far_the_corpus_was_read(make):
    made = make(validation_share=0.2)
    made.to_dataset()
    states = [json.loads((made.folder / f"shard-{n:05d}/state.json").read_text()) for n in range(made.totals["shards"])]
    passages = [state["passages"] for state in states]
    assert passages == sorted(passages) and passages[-1] == 90 and 0 < passages[0] < 30
    assert {state["part"] for state in states} == {0, 1, 2}
