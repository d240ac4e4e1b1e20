"""The parts of a corpus are read, cached and skipped separately."""

import builtins
import gzip
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset

from hf_tlm.corpora import Corpus, CorpusArguments, CorpusError, load_corpus
from hf_tlm.corpora.corpus import Columns
from hf_tlm.corpora.loading import BATCH, read_batches
from hf_tlm.errors import HfTlmError

COLUMNS = Columns("text", None, "source")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a0\n\na2\n")
    (tmp_path / "data" / "b.jsonl").write_text('{"text": "b0", "source": "web"}\n')
    pq.write_table(pa.table({"text": ["c0", None, " \t\n", "c3"]}), tmp_path / "data" / "c.parquet")
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def texts(passages):
    return [passage["text"] for passage in passages]


def test_each_file_is_a_part(folder):
    corpus = load_corpus(str(folder))
    assert [(part.name, part.size) for part in corpus.parts] == [
        (name, (folder / name).stat().st_size) for name in ("a.txt", "b.jsonl", "c.parquet")
    ]
    assert len(load_corpus(Dataset.from_dict({"text": ["x"]})).parts) == 1
    assert len(Corpus("c", "f" * 16, lambda: iter([])).parts) == 1


def test_fingerprint_of_a_part_does_not_depend_on_other_files(folder):
    def fingerprints(**options):
        return {part.name: part.fingerprint for part in load_corpus(str(folder), **options).parts}

    before = fingerprints()
    (folder / "aa.txt").write_text("new\n")
    (folder / "b.jsonl").write_text('{"text": "other"}\n')
    after = fingerprints()
    assert {name for name in after if after[name] != before.get(name)} == {"aa.txt", "b.jsonl"}
    every = [*after.values(), *fingerprints(max_words=3).values(), *fingerprints(text_column="body").values()]
    assert len(set(every)) == len(every) == 12


def test_only_a_new_file_is_converted_again(folder, cache):
    load_corpus(str(folder)).to_dataset(cache)
    before = {path: path.stat().st_ino for path in cache.glob("*/passages.arrow")}
    (folder / "aa.txt").write_text("new\n")
    dataset = load_corpus(str(folder)).to_dataset(cache)
    assert texts(dataset) == ["a0", "a2", "new", "b0", "c0", "c3"]
    files = {path: path.stat().st_ino for path in cache.glob("*/passages.arrow")}
    assert before.items() < files.items() and len(files) == 4


def test_to_dataset_has_the_rows_of_iteration(folder, cache):
    for options in ({}, {"max_words": 1}):
        corpus = load_corpus(str(folder), **options)
        rows = list(corpus)
        assert corpus.skipped == 3
        for _ in range(2):  # Converted the first time, then read from the cache.
            corpus = load_corpus(str(folder), **options)
            dataset = corpus.to_dataset(cache)
            assert dataset.to_list() == rows
            assert corpus.skipped == 3
        assert len(dataset.cache_files) == 3  # They are memory-mapped.
        assert [row for part in corpus.parts for row in part.to_dataset(cache)] == rows


def test_parts_without_passages_are_empty(folder, cache):
    (folder / "none.txt").touch()
    (folder / "blank.txt").write_text("\n\n")
    corpus = load_corpus(str(folder))
    assert texts(corpus.to_dataset(cache)) == ["a0", "a2", "b0", "c0", "c3"]
    assert corpus.skipped == 5
    assert [len(part.to_dataset(cache)) for part in corpus.parts] == [2, 1, 0, 2, 0]
    with pytest.raises(CorpusError, match=r"has no passages \(rows without text: 2\)"):
        load_corpus([str(folder / "none.txt"), str(folder / "blank.txt")]).to_dataset(cache)


def test_part_can_be_pickled(folder):
    part = pickle.loads(pickle.dumps(load_corpus(str(folder)).parts[0]))
    assert [row["id"] for batch in part.passages() for row in batch.to_pylist()] == ["a.txt:0", "a.txt:2"]


STRINGS = ["x", None, "  ", "\u3000\x1c", "y", ""]
KINDS = {
    "string": pa.array(STRINGS),
    "large_string": pa.array(STRINGS, pa.large_string()),
    "dictionary": pa.array(STRINGS).dictionary_encode(),
    "null": pa.nulls(6),
    "integer": pa.array([1, None, -3, 0, 5, 6]),
    "float": pa.array([1.0, None, 0.5, float("nan"), 1e30, -0.0]),
    "boolean": pa.array([True, None, False, True, True, True]),
    "list": pa.array([None, ["x"], [], None, None, None]),
    "binary": pa.array([None, None, b"x", None, None, None]),
    "decimal": pa.array([None] * 5 + [1]).cast(pa.decimal128(25, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_parquet_columns_of_every_type_are_read_like_datasets_does(tmp_path, kind):
    """Texts, ids and sources give the same documents or the same error as Python objects."""
    path = tmp_path / "a.parquet"
    column = KINDS[kind]
    pq.write_table(pa.table({"text": column, "key": column, "more": ["m"] * 6, "source": column}), path)

    def outcome(read):
        try:
            return [row for batch in read() for row in batch.to_pylist()]
        except CorpusError as error:
            return str(error)

    for columns in (COLUMNS, Columns("more", "key", "source"), Columns("text", "key", "nothing")):
        text, identifier, source = columns
        corpus = load_corpus(str(path), text_column=text, id_column=identifier, source_column=source)

        def as_python(columns=columns):
            rows = load_dataset("parquet", data_files=str(path), split="train", streaming=True)
            return read_batches(rows.iter(4), "a.parquet", "a", columns)

        assert outcome(corpus.parts[0].documents) == outcome(as_python)


def test_parquet_is_read_in_several_batches(tmp_path, cache):
    table = pa.table({"more": [0] * 2500, "text": [f"text {i}" if i % 7 else None for i in range(2500)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=BATCH - 1)
    corpus = load_corpus(str(tmp_path / "a.parquet"))
    assert corpus.to_dataset(cache).to_list() == [
        {"id": f"a.parquet:{i}", "text": f"text {i}", "source": "a"} for i in range(2500) if i % 7
    ]
    assert corpus.skipped == 358
    with pytest.raises(CorpusError, match="a.parquet: no column 'body'; the columns are more, text"):
        load_corpus(str(tmp_path / "a.parquet"), text_column="body", source_column="s").to_dataset(cache)


@pytest.mark.parametrize("first_is_cached", [False, True])
def test_ids_must_be_unique_over_all_parts(tmp_path, cache, first_is_cached):
    (tmp_path / "a.jsonl").write_text('{"text": "x", "key": 7}\n')
    (tmp_path / "b.jsonl").write_text('{"text": null, "key": 8}\n{"text": "y", "key": 7}\n')
    corpus = load_corpus(str(tmp_path / "*.jsonl"), id_column="key", skip_bad_files=True)
    if first_is_cached:
        for part in corpus.parts:
            part.to_dataset(cache)
    for read in (list, lambda corpus: corpus.to_dataset(cache)):
        with pytest.raises(
            CorpusError, match="b.jsonl, row 1 .counted from 0.: a second '7' in the id column 'key'; ids must be unique"
        ):
            read(corpus)


def _cut_parquet(path):
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(5000)]}), path)
    path.write_bytes(path.read_bytes()[:-100])


def _damage_parquet(path):
    """Write a file with an intact footer and damaged pages in the middle."""
    pq.write_table(pa.table({"text": [os.urandom(50).hex() for _ in range(5000)]}), path, row_group_size=2000)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2000] = bytes(2000)
    path.write_bytes(content)


def _wrong_encoding(path):
    rows = pa.array([b"good", b"\xff\xfe bad"]).view(pa.string())
    pq.write_table(pa.table({"text": rows}), path)


BAD = {
    "cut.parquet": _cut_parquet,
    "damaged.parquet": _damage_parquet,
    "encoding.parquet": _wrong_encoding,
    "lists.parquet": lambda path: pq.write_table(pa.table({"text": [["x"]]}), path),
    "columns.parquet": lambda path: pq.write_table(pa.table({"body": ["x"]}), path),
    "cut.jsonl": lambda path: path.write_text('{"text": "x"}\n{"te'),
    "cut.txt.gz": lambda path: path.write_bytes(gzip.compress(os.urandom(300_000).hex().encode())[:-5000]),
    "columns.csv": lambda path: path.write_text("body\nx\n"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_an_error_or_skipped_completely(folder, cache, caplog, name):
    BAD[name](folder / name)
    strict, lenient = load_corpus(str(folder)), load_corpus(str(folder), skip_bad_files=True)
    assert strict.fingerprint == lenient.fingerprint
    for read in (list, lambda corpus: corpus.to_dataset(cache)):
        with pytest.raises(CorpusError, match=name):
            read(strict)
        for _ in range(2):  # A bad file is not cached as an empty one.
            caplog.clear()
            assert texts(read(lenient)) == ["a0", "a2", "b0", "c0", "c3"]
            assert lenient.skipped == 3
            assert list(lenient.bad_files) == [name]
            assert name in lenient.bad_files[name]
            assert [r.levelname for r in caplog.records if r.name.startswith("hf_tlm")] == ["WARNING"]
    bad = next(part.fingerprint for part in lenient.parts if part.name == name)
    assert len(os.listdir(cache)) == 3 and not [path for path in os.listdir(cache) if bad in path]


def test_file_without_permission_is_refused_or_skipped(folder, cache, monkeypatch):
    path = folder / "closed.txt"
    path.write_text("secret\n")
    real = builtins.open

    def guarded(file, *args, **options):  # Permissions have no effect if the tests run as root.
        if os.fspath(file) == str(path) if isinstance(file, (str, os.PathLike)) else False:
            raise PermissionError(13, "Permission denied", str(path))
        return real(file, *args, **options)

    monkeypatch.setattr(builtins, "open", guarded)
    with pytest.raises(CorpusError, match="Cannot read .*closed.txt.*Permission denied"):
        load_corpus(str(folder)).to_dataset(cache)
    corpus = CorpusArguments(corpus=str(folder), skip_bad_files=True).load()
    assert "secret" not in texts(corpus.to_dataset(cache))
    assert "Permission denied" in corpus.bad_files["closed.txt"]
    monkeypatch.undo()
    assert "secret" in texts(CorpusArguments(corpus=str(folder)).load().to_dataset(cache))


def test_corpus_of_only_bad_files_is_refused(tmp_path, cache):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "x"}\n{"te')
    with pytest.raises(CorpusError, match=r"has no passages \(rows without text: 0, files left out: 2\)"):
        load_corpus(str(tmp_path / "*.jsonl"), skip_bad_files=True).to_dataset(cache)


def test_unwritable_cache_is_not_taken_for_a_bad_file(folder, cache, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.OSFile", full)
    with pytest.raises(HfTlmError, match="is full"):
        load_corpus(str(folder), skip_bad_files=True).to_dataset(cache)
    assert os.listdir(cache) == []


def test_progress_is_shown_once_and_only_while_converting(folder, cache, capfd):
    for expected in (1, 0):
        load_corpus(str(folder)).to_dataset(cache)
        last = capfd.readouterr().err.rpartition("\r")[2]
        assert last.count("Reading the corpus: 5 passages") == last.count("file 3 of 3") == expected
