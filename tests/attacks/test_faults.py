"""A disk that fails at any operation of a write, or from it on: one line, the old or the new content, no leftovers."""

import errno
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from datasets import Dataset
from safetensors import SafetensorError
from transformers import AutoConfig, set_seed

from attacks.attack import tree as files_below
from attacks.faults import Faults, injected
from hf_tlm.corpora import load_corpus
from hf_tlm.data.blocks import BlockShards
from hf_tlm.data.tokenization import kept_tokenizer
from hf_tlm.errors import HfTlmError
from hf_tlm.models import TlmModel, export_stock
from hf_tlm.retrieval import retrieve
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.texts import Analyzer
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.problems import disk_problem
from hf_tlm.utils.seals import keep_sealed, seal_problem
from support.toys import TINY_CONFIGS

LEFTOVER = re.compile(r"\.[^/]*\.([0-9a-f]{32}|lock)(/.*)?")
OLD = re.compile(r"\.out\.old\.[0-9a-f]{32}/")


def tree(folder):
    """Return every file below a folder, without the times in the seals of Arrow files, which differ with each write."""
    return {name: re.sub(rb'"mtime_ns": \d+', b"", data) for name, data in files_below(folder).items()}


def is_leftover(name):
    """Whether a file is what a write leaves behind if it cannot clean up either."""
    return LEFTOVER.fullmatch(name) is not None


def end_of(operation, faults):
    """Run an operation; return None, or the one line that it ends with."""
    with injected(faults):
        try:
            operation()
        except HfTlmError as error:
            message = str(error)
        except (OSError, SafetensorError) as error:  # Recipes print it like this.
            assert disk_problem(error), repr(error)
            message = disk_problem(error)
        else:
            return None
    assert "\n" not in message and ("full" in message or "fails" in message), message
    return message


BOTH = ((errno.ENOSPC, True), (errno.EIO, False))


def attack_each(tmp_path, prepare, operation, check=lambda folder: None, every=2):
    """Let every operation of a write fail.

    prepare(folder) creates the earlier content, operation(folder) writes `folder/out`, check(folder) refuses an
    incomplete one.

    every: how many of the two ways to fail are tried at each operation; with 1 they alternate.
    """

    def begin(name):
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        prepare(folder)
        return folder

    folder = begin("clean")
    with injected(Faults(folder)) as counted:
        operation(folder)
    expected = tree(folder)
    check(folder)
    failed = 0
    for number in range(len(counted.seen)):
        for code, lasting in BOTH if every > 1 else BOTH[number % 2 :][:1]:
            folder = begin("faulty")
            before = tree(folder)
            faults = Faults(folder, number, code, lasting)
            message = end_of(lambda: operation(folder), faults)  # noqa: B023
            where = f"{faults.seen[number]}, number {number}: {message}"
            failed += message is not None
            moved = message is not None and "move it" in message  # Without an atomic exchange of folders.
            after = {
                OLD.sub("", name): data for name, data in tree(folder).items() if OLD.match(name) or not is_leftover(name)
            }
            assert after == expected or (message is not None and after == before), where
            lost = faults.seen[number].startswith(("unlink", "rmdir", "remove"))
            assert lost or moved or not [path for path in folder.rglob(".*") if is_leftover(path.name)], where
            operation(folder)
            assert {name: data for name, data in tree(folder).items() if name != ".out.lock"} == expected, where
            check(folder)
    assert failed > 2
    return failed


@pytest.fixture
def model():
    set_seed(0)
    return TlmModel.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"]))


def test_faults_while_writing_a_file(tmp_path):
    for older in (None, "old"):
        attack_each(
            tmp_path,
            lambda folder: older and (folder / "out").write_text(older),  # noqa: B023
            lambda folder: atomic_write(folder / "out", "new"),
        )


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False])
def test_faults_while_exporting_a_model(tmp_path, model, tokenizer, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr("hf_tlm.utils.files._swap_folders", lambda first, second: False)

    def prepare(folder):
        (folder / "out").mkdir()
        (folder / "out" / "config.json").write_text("old")

    attack_each(tmp_path, prepare, lambda folder: export_stock(model, tokenizer, folder / "out", {"README.md": "card"}))


def rows():
    texts = [f"alpha w{i % 11} beta w{i % 7} gamma" for i in range(40)]
    return Dataset.from_dict({"id": [f"p{i}" for i in range(40)], "text": texts})


def test_faults_while_building_an_index(tmp_path):
    about = {"corpus_name": "toy", "fingerprint": "f", "analyzer": Analyzer()}
    passages = rows()
    attack_each(
        tmp_path,
        lambda folder: None,
        lambda folder: Index.build(folder / "out", passages, **about, progress=False, num_threads=1),
        lambda folder: Index.load(folder / "out"),
        every=1,
    )


def test_faults_while_extending_an_index(tmp_path):
    about = {"corpus_name": "toy", "fingerprint": "f", "analyzer": Analyzer()}
    passages = rows()
    Index.build(tmp_path / "old", passages.select(range(20)), **about, progress=False)

    def extend(folder):
        index = Index.load(folder / "out")
        if len(index) < 40:
            index.extend(passages.select(range(20, 40)), fingerprint="g", num_threads=1)

    attack_each(tmp_path, lambda folder: shutil.copytree(tmp_path / "old", folder / "out"), extend, every=1)


def test_faults_while_caching_a_corpus(tmp_path, made_toys):
    corpus = load_corpus(str(made_toys.corpus))
    passages = corpus.to_dataset(tmp_path / "before")[:]
    (cached,) = (tmp_path / "before").iterdir()

    def check(folder):
        assert corpus.to_dataset(folder)[:] == passages

    attack_each(tmp_path, lambda folder: None, lambda folder: corpus.to_dataset(folder), check)
    assert (tmp_path / "clean" / cached.name).is_dir()


def test_faults_while_caching_blocks(tmp_path, made_toys, tokenizer):
    corpus = load_corpus(str(made_toys.corpus))
    corpus.to_dataset(tmp_path / "passages")

    def shards(folder):
        return BlockShards(corpus, tokenizer, 16, shard_size=20, cache_dir=folder)

    def write(folder):
        list(shards(folder).prepare())

    with injected(Faults(tmp_path / "clean")) as counted:
        write(tmp_path / "clean")
    expected = tree(tmp_path / "clean")
    for number in range(len(counted.seen)):
        folder = tmp_path / f"faulty-{number}"
        message = end_of(lambda: write(folder), Faults(folder, number))  # noqa: B023
        assert message is not None or tree(folder) == expected
        write(folder)  # Shards that were complete before the fault are reused.
        assert {name: data for name, data in tree(folder).items() if not is_leftover(name.rpartition("/")[2])} == expected


def test_faults_while_writing_a_sealed_folder(tmp_path):
    def make(folder):
        (folder / "one").write_text("1")
        (folder / "deep").mkdir()
        (folder / "deep" / "two").write_text("2")

    def check(folder):
        assert seal_problem(folder / "out", "one") is None

    attack_each(tmp_path, lambda folder: None, lambda folder: keep_sealed(folder / "out", make, "one"), check)


def test_faults_while_keeping_a_tokenizer(tmp_path, tokenizer):
    attack_each(tmp_path, lambda folder: None, lambda folder: kept_tokenizer(folder / "out", lambda: tokenizer))


def test_faults_while_saving_a_subset(tmp_path, task, corpus):
    subset = retrieve(task, corpus, top_k=3)
    other = retrieve(task, corpus, top_k=2)
    other.save(tmp_path / "other")
    attack_each(
        tmp_path,
        lambda folder: shutil.copytree(tmp_path / "other", folder / "out"),
        lambda folder: subset.save(folder / "out"),
        lambda folder: type(subset).load(folder / "out"),
    )


def test_faults_while_publishing_a_model(tmp_path, hub, model, tokenizer, monkeypatch):
    from hf_tlm.hub import publish_model

    folder = export_stock(model, tokenizer, tmp_path / "model")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    with injected(Faults(tmp_path)) as counted:
        publish_model(folder, "alice/clean")
    expected, before = hub.files("alice/clean"), tree(folder)
    assert counted.seen
    for number in range(len(counted.seen)):
        name = f"alice/faulty-{number}"
        message = end_of(lambda: publish_model(folder, name), Faults(tmp_path, number))  # noqa: B023
        assert tree(folder) == before
        if message is None:
            assert hub.files(name).keys() == expected.keys()
        publish_model(folder, name)
        assert hub.files(name).keys() == expected.keys()
    assert not [path for path in Path(work).rglob("*") if is_leftover(path.name)]
