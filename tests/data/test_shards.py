"""Blocks on disk are the same in whichever way they were prepared, and shards are complete or absent."""

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


def files_of(shards):
    """Return every file of the shards by name, except states and seals, which depend on the progress and time of
    preparation."""
    return {
        path.relative_to(shards.folder).as_posix(): path.read_bytes()
        for path in sorted(shards.folder.rglob("*"))
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
def test_shards_have_the_blocks_of_all_passages(make, tokenizer, mode):
    shards = make(mode=mode)
    blocks = shards.to_dataset()
    maker = BlockMaker(tokenizer, 16, mode)
    list(maker.add([row["text"] for row in shards.corpus]))
    maker.finish()
    assert blocks["input_ids"][:] == [block.tolist() for block in maker.blocks]
    assert blocks.cache_files and len(blocks) > 50
    assert [len(shards.find(number)) for number in range(shards.totals["shards"] - 1)] == [7] * (len(blocks) // 7)
    expected = {
        "last_block": len(blocks[-1]["input_ids"]),
        "blocks": len(blocks),
        "tokens": maker.tokens,
        "passages": 90,
        "held_out": 0,
        "bad_files": {},
    }
    assert shards.totals == {"shards": -(-len(blocks) // 7), **expected}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["contiguous", "sentences"])
@pytest.mark.parametrize("batch", [2, 1000])
def test_interrupted_preparation_resumes(make, monkeypatch, mode, batch):
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
        assert files_of(cut) == files_of(whole)
        assert len(written) == whole.totals["shards"] - calls, "what was there was made again"


@pytest.mark.parametrize("shard_size", [7, 8])
def test_preparation_interrupted_before_the_totals_resumes(make, shard_size):
    shards = make(shard_size=shard_size)
    shards.to_dataset()
    before = files_of(shards)
    (shards.folder / module.TOTALS_FILE).unlink()
    assert shards.totals is None
    shards.to_dataset()
    assert files_of(shards) == before and shards.totals["last_block"] < 16


def test_text_longer_than_a_shard_is_split_over_several(make, tokenizer):
    rows = [{"id": "a", "text": "the gene " * 800, "source": "s"}, {"id": "b", "text": "the cell", "source": "s"}]
    shards = make(corpus=Corpus("long", "1", lambda: iter(rows)), shard_size=3)
    assert len(shards.to_dataset()) == shards.totals["blocks"] > 30
    # Resume within the long text.
    for number in range(5, shards.totals["shards"]):
        (shards.folder / f"shard-{number:05d}" / module.STATE_FILE).unlink()
    before = files_of(shards)
    shards.to_dataset()
    assert files_of(shards) == before


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
def test_preparation_resumes_after_a_kill(make, tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    done = warm.program(PROGRAM, [tmp_path / name for name in ("corpus", "tokenizer", "cache")])
    assert done.status == -signal.SIGKILL, done.stderr
    cut, whole = make(), make("whole")
    assert cut.find(2) is not None and cut.find(3) is None
    # The kill left an unfinished folder.
    stale = [path.name for path in cut.folder.iterdir() if path.name.startswith(".")]
    assert len(stale) == 1
    assert cut.to_dataset()["input_ids"][:] == whole.to_dataset()["input_ids"][:]


@pytest.mark.parametrize("harm", ["truncate", "unlink", "fewer", "state"])
def test_damaged_shard_is_rebuilt(make, harm, caplog):
    made = make()
    made.to_dataset()
    before = files_of(made)
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
    assert files_of(made) == before


def test_finished_shards_do_not_read_the_corpus_again(make, monkeypatch):
    made = make(validation_share=0.2)
    first, held = made.to_dataset()["input_ids"][:], made.validation(4)["input_ids"][:]
    monkeypatch.setattr(Corpus, "batches", None)
    again = make(validation_share=0.2)
    assert again.to_dataset()["input_ids"][:] == first and again.validation(4)["input_ids"][:] == held


def test_every_setting_has_its_own_folder(make, tmp_path, tokenizer):
    folders = [
        make(**options).folder for options in ({}, {"mode": "sentences"}, {"shard_size": 8}, {"validation_share": 0.1})
    ]
    folders.append(make(corpus=corpus_files(tmp_path / "other", ROWS[1:])).folder)
    folders.append(BlockShards(make().corpus, tokenizer, 17, shard_size=7, cache_dir=tmp_path / "cache").folder)
    assert len(set(folders)) == 6
    tokenizer("a text", truncation=True, max_length=3)  # Changes the truncation of the tokenizer.
    assert make().folder == folders[0]


def test_held_out_passages_are_only_in_the_validation_blocks(make, tokenizer):
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
    # The same passages in any corpus; passages of one document are held out together.
    alone = Corpus("one", "1", lambda: iter(held[:1]), max_words=5)
    assert {is_held_out(alone, row["id"], 0.2) for row in alone} == {True} and len(list(alone)) > 1
    # Also in a subset, which is already cut; in an uncut corpus an id with such a suffix is another document.
    document, passages = held[0]["id"], replace(made.corpus, cut=True)
    assert is_held_out(passages, f"{document}#0", 0.2) and is_held_out(passages, f"{document}#12", 0.2)
    assert {is_held_out(made.corpus, f"{document}#{number}", 0.2) for number in range(30)} == {True, False}
    with pytest.raises(BlocksError, match="holds out none of the passages"):
        make(validation_share=1e-9).validation(3)


def test_unreadable_files_are_refused_or_skipped(make, tmp_path):
    corpus_files(tmp_path / "bad")
    (tmp_path / "bad" / "1.parquet").write_bytes(b"nothing")
    with pytest.raises(CorpusError, match="1.parquet"):
        make(corpus=load_corpus(str(tmp_path / "bad"))).to_dataset()
    made = make(corpus=load_corpus(str(tmp_path / "bad"), skip_bad_files=True))
    made.to_dataset()
    assert made.totals["passages"] == 60 and list(made.totals["bad_files"]) == ["1.parquet"]


def test_empty_corpora_and_invalid_options_are_refused(make):
    with pytest.raises(BlocksError, match="has no passage to train on .2 rows without text"):
        make(corpus=Corpus("empty", "1", lambda: iter([{"id": i, "text": " ", "source": "s"} for i in "ab"]))).to_dataset()
    with pytest.raises(BlocksError, match="has 3 tokens, which do not fill one block of 16"):
        make(corpus=Corpus("small", "2", lambda: iter([{"id": "a", "text": "the gene.", "source": "s"}]))).to_dataset()
    for options, message in (({"validation_share": 1.0}, "received 1.0"), ({"shard_size": 0}, "received 0")):
        with pytest.raises(BlocksError, match=message):
            make(**options)


def test_another_process_waits_for_the_preparation(make):
    made, other = make(), make()
    timer = threading.Timer(0.3, made.to_dataset)
    timer.start()
    other.wait()
    assert other.totals == made.totals and other.find(made.totals["shards"] - 1) is not None
    timer.join()


def test_states_record_how_far_the_corpus_was_read(make):
    made = make(validation_share=0.2)
    made.to_dataset()
    states = [json.loads((made.folder / f"shard-{n:05d}/state.json").read_text()) for n in range(made.totals["shards"])]
    passages = [state["passages"] for state in states]
    assert passages == sorted(passages) and passages[-1] == 90 and 0 < passages[0] < 30
    assert {state["part"] for state in states} == {0, 1, 2}
