import gzip
import json
import os
import re
import sys

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from datasets import Dataset

from hf_tlm.corpora import CorpusArguments, CorpusError, load_corpus

ROWS = [{"text": "first text", "source": "here"}, {"text": "second text", "source": "there"}]
CONTENT = {
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "json": json.dumps(ROWS),
    "csv": "text,source\nfirst text,here\nsecond text,there\n",
    "tsv": "text\tsource\nfirst text\there\nsecond text\tthere\n",
    "txt": "first text\nsecond text\n",
}
COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", CONTENT)
def test_every_file_type_and_compression_is_read(tmp_path, suffix, compression):
    path = tmp_path / f"part.{suffix}{compression}"
    path.write_bytes(COMPRESS[compression](CONTENT[suffix].encode()))
    sources = ["part", "part"] if suffix == "txt" else ["here", "there"]
    assert list(load_corpus(str(path))) == [
        {"id": f"part.{suffix}{compression}:{i}", "text": text, "source": source}
        for i, (text, source) in enumerate(zip(("first text", "second text"), sources, strict=True))
    ]


def test_parquet_is_read(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "part.parquet")
    assert [row["id"] for row in load_corpus(str(tmp_path / "part.parquet"))] == ["part.parquet:0", "part.parquet:1"]


def test_excel_sheet_is_read(tmp_path, monkeypatch):
    pytest.importorskip("openpyxl")
    pd.DataFrame([*ROWS, {"text": None, "source": "empty"}]).to_excel(tmp_path / "part.xlsx", index=False)
    corpus = load_corpus(str(tmp_path))
    assert [(row["id"], row["text"], row["source"]) for row in corpus] == [
        ("part.xlsx:0", "first text", "here"),
        ("part.xlsx:1", "second text", "there"),
    ]
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        CorpusError, match=r"Cannot read .*part.xlsx: Excel files need openpyxl.*pip install 'hf-tlm\[excel\]'"
    ):
        list(load_corpus(str(tmp_path)))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "b.txt").write_text("b0\n\nb2\n")
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "a0"}\n{"text": null}\n')
    (tmp_path / "data" / "deep" / "a.jsonl").write_text('{"text": "deep"}\n')
    (tmp_path / "data" / "notes.md").write_text("not a corpus")
    return tmp_path / "data"


def ids(corpus):
    return [row["id"] for row in corpus]


def test_folder_is_read_in_order_of_names_with_row_numbers_as_ids(folder):
    corpus = load_corpus(str(folder))
    assert ids(corpus) == ["a.jsonl:0", "b.txt:0", "b.txt:2", "deep/a.jsonl:0"]
    assert corpus.skipped == 2


def test_globs_lists_and_comma_separated_paths_are_read(folder):
    assert ids(load_corpus(f"{folder}/**/*.jsonl")) == ["a.jsonl:0", "deep/a.jsonl:0"]
    several = [str(folder / "b.txt"), str(folder / "deep")]
    assert ids(load_corpus(several)) == ids(load_corpus(",".join(several))) == ["b.txt:0", "b.txt:2", "deep/a.jsonl:0"]


def test_ids_and_fingerprint_do_not_depend_on_where_the_folder_is(folder, tmp_path, monkeypatch):
    here = load_corpus(str(folder))
    os.rename(folder, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    moved = load_corpus("moved")
    assert ids(moved) == ["a.jsonl:0", "b.txt:0", "b.txt:2", "deep/a.jsonl:0"]
    assert moved.fingerprint == here.fingerprint
    assert str(tmp_path) not in moved.name


def test_relative_and_absolute_paths_mix_and_a_file_counts_once(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert ids(load_corpus(f"b.txt,{folder}/a.jsonl,{folder}/deep/../b.txt")) == ["a.jsonl:0", "b.txt:0", "b.txt:2"]


def test_paths_with_glob_characters_are_read(tmp_path):
    (tmp_path / "part[1]").mkdir()
    path = tmp_path / "part[1]" / "a[2].txt"
    path.write_text("text\n")
    assert len(list(load_corpus(str(path)))) == len(list(load_corpus(str(path.parent)))) == 1


def test_path_with_a_comma_in_its_name_is_read(tmp_path):
    (tmp_path / "a, b.txt").write_text("text\n")
    assert ids(load_corpus(str(tmp_path / "a, b.txt"))) == ["a, b.txt:0"]


def test_empty_file_has_no_rows(folder):
    (folder / "aa.jsonl").touch()
    assert ids(load_corpus(str(folder)))[:2] == ["a.jsonl:0", "b.txt:0"]


def test_fingerprint_follows_content_names_and_settings(folder):
    def fingerprint(**options):
        return load_corpus(str(folder), **options).fingerprint

    seen = [fingerprint(), fingerprint(max_words=5), fingerprint(text_column="body"), fingerprint(source_column="s")]
    (folder / "b.txt").write_text("b0\n\nB2\n")
    seen.append(fingerprint())
    os.rename(folder / "b.txt", folder / "c.txt")
    seen.append(fingerprint())
    assert len(set(seen)) == len(seen)
    assert fingerprint() == seen[-1]


def test_columns_are_given_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("body,key,origin\nsome text,k7,web\n")
    arguments = CorpusArguments(
        corpus=str(tmp_path / "a.csv"),
        corpus_text_column="body",
        corpus_id_column="key",
        corpus_source_column="origin",
        passage_words=1,
    )
    assert list(arguments.load()) == [
        {"id": "k7#0", "text": "some", "source": "web"},
        {"id": "k7#1", "text": "text", "source": "web"},
    ]


def test_null_source_becomes_the_name_of_the_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x", "source": null}\n{"text": "y", "source": "web"}\n')
    assert [row["source"] for row in load_corpus(str(tmp_path))] == ["a", "web"]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separator_of_a_csv_is_detected(tmp_path, name, separator):
    lines = [separator.join(line) for line in (("key", "body"), ("k7", "some, text"), ("k8", "more, of, it"))]
    with fsspec.open(str(tmp_path / name), "wb", compression="infer") as file:
        file.write(("\ufeff" + "\r\n".join(lines)).encode())
    corpus = load_corpus(str(tmp_path / name), text_column="body", id_column="key")
    assert [(row["id"], row["text"]) for row in corpus] == [("k7", "some, text"), ("k8", "more, of, it")]


def test_words_that_pandas_reads_as_null_are_kept(tmp_path):
    (tmp_path / "a.csv").write_text('text\nnull\nNA\n""\n')
    corpus = load_corpus(str(tmp_path / "a.csv"))
    assert [row["text"] for row in corpus] == ["null", "NA"]
    assert corpus.skipped == 1


def test_numbers_become_texts_and_lists_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text\n1984\n")
    assert [row["text"] for row in load_corpus(str(tmp_path / "a.csv"))] == ["1984"]
    (tmp_path / "b.jsonl").write_text('{"text": ["a", "b"]}\n')
    with pytest.raises(
        CorpusError, match="b.jsonl, row 0 .counted from 0.: the column 'text' should contain texts; received a list"
    ):
        list(load_corpus(str(tmp_path / "b.jsonl")))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "Dataset"])
def test_nested_fields_are_columns_with_dotted_names(tmp_path, suffix):
    """The fingerprint of a corpus in memory depends on the chosen field."""
    rows = [
        {"page": {"text": "first text", "at": {"url": "u1"}}, "meta": {"from": "web"}},
        {"page": None, "meta": None},
        {"page": {"text": "second text", "at": {"url": "u2"}}, "meta": {"from": None}},
    ]
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    given = Dataset.from_list(rows) if suffix == "Dataset" else str(path)
    source = "in-memory" if suffix == "Dataset" else "a"
    corpus = load_corpus(given, text_column="page.text", source_column="meta.from")
    assert [(row["text"], row["source"]) for row in corpus] == [("first text", "web"), ("second text", source)]
    assert corpus.skipped == 1
    names = {"text_column": "page.text", "id_column": "page.at.url"}
    assert [row["id"] for row in load_corpus(Dataset.from_list([rows[0], rows[2]]), **names)] == ["u1", "u2"]
    changed = Dataset.from_list([{"page": {"text": "another text", "at": {"url": "u1"}}}])
    same = Dataset.from_list([{"page": {"text": "first text", "at": {"url": "u1"}}}])
    assert (
        load_corpus(changed, text_column="page.text").fingerprint != load_corpus(same, text_column="page.text").fingerprint
    )

    for wrong in ("page.body", "page.text.of", "meta.text", "pages.text"):
        with pytest.raises(CorpusError, match=f"no column '{wrong}'; the columns are page, meta. Choose another"):
            list(load_corpus(given, text_column=wrong))
    with pytest.raises(CorpusError, match="received a dict. Name the field with .* --corpus_text_column page.(at|text)"):
        list(load_corpus(given, text_column="page"))


def test_column_with_a_dot_in_its_name_wins_over_a_nested_field(tmp_path):
    pq.write_table(pa.table({"page.text": ["whole"], "page": [{"text": "field"}]}), tmp_path / "a.parquet")
    assert [row["text"] for row in load_corpus(str(tmp_path / "a.parquet"), text_column="page.text")] == ["whole"]


def test_files_with_different_columns_of_texts_are_one_corpus(tmp_path):
    (tmp_path / "own.csv").write_text("nr,body,text\n1,first,x\n2,second,y\n")
    pq.write_table(pa.table({"text": ["third"], "source": ["web"]}), tmp_path / "general.parquet")
    files = f"{tmp_path / 'own.csv'},{tmp_path}/*.parquet"
    assert [row["text"] for row in load_corpus(files, text_column="body, text")] == ["third", "first", "second"]
    nested = Dataset.from_list([{"page": {"body": "deep"}}])
    assert [row["text"] for row in load_corpus(nested, text_column="text,page.body")] == ["deep"]
    comma = Dataset.from_list([{"body,text": "whole", "text": "part"}])
    assert [row["text"] for row in load_corpus(comma, text_column="body,text")] == ["whole"]
    for wrong in ("body", "body,words"):
        with pytest.raises(
            CorpusError,
            match=f"general.parquet: no column '{wrong}'; the columns are text, source. .*or several with commas",
        ):
            list(load_corpus(files, text_column=wrong))


def test_error_on_a_missing_column_lists_the_columns(folder):
    with pytest.raises(
        CorpusError, match="b.txt: no column 'body'; the columns are text. Choose another --corpus_text_column"
    ):
        list(load_corpus(str(folder / "b.txt"), text_column="body"))


def test_text_file_is_read_by_line_paragraph_or_document(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    read = {by: load_corpus(str(tmp_path), sample_by=by) for by in ("line", "paragraph", "document")}
    assert {by: [row["text"].strip() for row in corpus] for by, corpus in read.items()} == {
        "line": ["one", "two", "three"],
        "paragraph": ["one\ntwo", "three"],
        "document": ["one\ntwo\n\nthree"],
    }
    assert len({corpus.fingerprint for corpus in read.values()}) == 3
    assert load_corpus(str(tmp_path)).fingerprint == read["line"].fingerprint


@pytest.mark.parametrize("by", ["line", "paragraph", "document"])
def test_small_text_files_are_read_like_datasets_does(tmp_path, monkeypatch, by):
    for number, text in enumerate(["a\r\nb\rc\n\n\nd", "\n", "\n\n\n", "a\n", "a\x0bb\u2028c\n\n", "\ufeffa\n \n\nb\n\n"]):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    small = [(row["id"], row["text"]) for row in load_corpus(str(tmp_path), sample_by=by)]
    monkeypatch.setattr("hf_tlm.corpora.loading.SMALL_FILE_BYTES", 0)
    assert small == [(row["id"], row["text"]) for row in load_corpus(str(tmp_path), sample_by=by)]


def test_markdown_is_read_unless_there_are_data_files(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "README.md").write_text("# Größe\n\nEin Satz\nüber zwei Zeilen.\n")
    (tmp_path / "deep" / "b.MD.gz").write_bytes(gzip.compress(b"one\n"))
    notes = load_corpus(str(tmp_path), sample_by="paragraph")
    assert [row["text"].strip() for row in notes] == ["# Größe", "Ein Satz\nüber zwei Zeilen.", "one"]
    (tmp_path / "a.md.txt").write_text("data\n")
    assert ids(load_corpus(str(tmp_path))) == ["a.md.txt:0"]
    assert len(ids(load_corpus(f"{tmp_path}/*.md,{tmp_path}/a.md.txt"))) == 4


def test_ignored_markdown_beside_data_is_warned_about_except_a_readme(tmp_path, caplog):
    (tmp_path / "README.md").write_text("about the data\n")
    (tmp_path / "a.dat").write_text("text\none\n")
    with pytest.raises(CorpusError, match="no file matches"):
        load_corpus(str(tmp_path))
    (tmp_path / "a.txt").write_text("data\n")
    assert ids(load_corpus(str(tmp_path))) == ["a.txt:0"] and "Left out" not in caplog.text
    (tmp_path / "page.md").write_text("a page\n")
    assert ids(load_corpus(str(tmp_path))) == ["a.txt:0"] and "1 .md files" in caplog.text


def test_sample_by_is_refused_without_text_files(folder):
    with pytest.raises(CorpusError, match="sample_by paragraph: only for .txt and .md files; .* has none"):
        load_corpus(str(folder / "a.jsonl"), sample_by="paragraph")
    with pytest.raises(CorpusError, match="has none"):
        load_corpus(Dataset.from_list(ROWS), sample_by="document")
    with pytest.raises(CorpusError, match="expected one of line, paragraph, document; received 'page'"):
        load_corpus(str(folder), sample_by="page")


@pytest.mark.parametrize(
    ("second", "message"), [("k1", "row 1 .counted from 0.: a second 'k1'"), (None, "row 1 .counted from 0.: null")]
)
def test_ids_of_a_column_must_be_present_and_unique(second, message):
    rows = Dataset.from_dict({"text": ["a", "b"], "key": ["k1", second]})
    with pytest.raises(CorpusError, match=message):
        list(load_corpus(rows, id_column="key"))


def test_ids_must_be_unique_over_all_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "x", "key": "same"}\n')
    with pytest.raises(CorpusError, match="b.jsonl, row 0 .counted from 0.: a second 'same'"):
        list(load_corpus(str(tmp_path), id_column="key"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bad.parquet", b"PAR1 and no more"),
        ("bad.jsonl", b'{"text": "x"}\n{"te'),
        pytest.param("bad.txt.gz", gzip.compress(os.urandom(300_000).hex().encode())[:-5000], id="a .gz cut short"),
        ("bad.jsonl.zst", b"not zstandard"),
        ("bad.parquet.gz", gzip.compress(b"PAR1", mtime=0)),
    ],
)
def test_unreadable_file_is_named(tmp_path, name, content):
    (tmp_path / "a.txt").write_text("good\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=f"Cannot read .*{name}") as error:
        list(load_corpus(str(tmp_path)))
    assert ("cannot be read compressed. Unpack it first" in str(error.value)) == (name == "bad.parquet.gz")


def test_error_on_missing_files_lists_the_known_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for pattern in ("nothing", "./no/such", "*.parquet", str(tmp_path), "no/such.parquet"):
        with pytest.raises(CorpusError, match="no file matches.*parquet.*txt"):
            load_corpus(pattern)
    (tmp_path / "corpus" / "table").mkdir(parents=True)  # Could be a Hub id too, but is a folder.
    (tmp_path / "corpus" / "table" / "a.docx").touch()
    for folder in ("corpus/table", "corpus", "."):
        with pytest.raises(CorpusError, match="no file matches in this folder.*parquet.*txt") as error:
            load_corpus(folder)
        assert "Hub" not in str(error.value) and "Did you mean" not in str(error.value)
    (tmp_path / "a.bin").touch()
    with pytest.raises(CorpusError, match="a.bin: unknown file type. Known: .parquet"):
        load_corpus("a.bin")


def test_each_of_several_paths_must_match_a_file(folder, tmp_path):
    """Otherwise a part of the corpus would be read under the name of the whole."""
    existing = str(sorted(folder.iterdir())[0])
    (tmp_path / "empty").mkdir()
    for wrong in (str(folder / "p9.jsonl"), str(tmp_path / "typo" / "*.parquet"), str(tmp_path / "empty")):
        for corpus in ([existing, wrong], f"{wrong},{existing}"):
            with pytest.raises(CorpusError, match=f"no file matches {re.escape(wrong)}, but other paths match"):
                load_corpus(corpus)


@pytest.mark.parametrize("option", [{"revision": "v1"}, {"config_name": "en"}, {"split": "test"}])
def test_hub_options_are_refused_for_files(folder, option):
    with pytest.raises(CorpusError, match=f"{next(iter(option))} of the corpus: only for a dataset on the Hub"):
        load_corpus(str(folder), **option)


def test_two_different_revisions_are_refused():
    with pytest.raises(CorpusError, match="owner/name@v1 names the revision v1, but the option names v2"):
        load_corpus("owner/name@v1", revision="v2")


def test_frame_equals_its_dataset():
    frame = pd.DataFrame(ROWS)
    given, same = (load_corpus(rows) for rows in (frame[frame.index >= 0], Dataset.from_pandas(frame)))
    assert given.fingerprint == same.fingerprint and list(given) == list(same)


def test_corpus_is_shown_on_one_line(folder):
    corpus = load_corpus(folder, max_words=9)
    assert repr(corpus) == f"Corpus('{corpus.name}', 3 files, passages of at most 9 words)"


@pytest.mark.parametrize("max_words", [0.5, -3])
def test_max_words_is_checked_before_reading(folder, max_words):
    with pytest.raises(CorpusError, match=f"max_words: expected .*; received {max_words}"):
        load_corpus(str(folder), max_words=max_words)
    assert load_corpus(str(folder), max_words=0).fingerprint == load_corpus(str(folder)).fingerprint


def test_dataset_in_memory_is_a_corpus():
    corpus = load_corpus(Dataset.from_list(ROWS))
    assert list(corpus) == [
        {"id": "row:0", "text": "first text", "source": "here"},
        {"id": "row:1", "text": "second text", "source": "there"},
    ]
    assert corpus.fingerprint == load_corpus(Dataset.from_list(ROWS)).fingerprint
    assert corpus.fingerprint != load_corpus(Dataset.from_list(ROWS[::-1])).fingerprint


@pytest.mark.parametrize("format", ["torch", "numpy", "pandas", "arrow"])
def test_format_of_a_dataset_has_no_effect(format):
    rows = Dataset.from_list([{"number": 1, **ROWS[0]}, {"number": 2, **ROWS[1]}])
    plain, formatted = (load_corpus(each, id_column="number") for each in (rows, rows.with_format(format)))
    assert list(formatted) == list(plain) and formatted.fingerprint == plain.fingerprint


def test_list_of_texts_is_refused_with_a_hint():
    with pytest.raises(CorpusError, match=r"If the list contains texts, use load_corpus\(Dataset.from_dict") as raised:
        load_corpus(["one text of many words", "and a second one " * 99])
    assert len(str(raised.value)) < 600


class FakeHub:
    """Answers the requests of `load_corpus` to the Hub from memory."""

    def __init__(self, monkeypatch):
        self.sha, self.asked = "c0ffee", {}
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: self)
        monkeypatch.setattr("hf_tlm.corpora.loading.load_dataset", self.load_dataset)

    def dataset_info(self, path, revision=None):
        self.asked["asked_revision"] = revision
        return self

    def load_dataset(self, path, name, **options):
        self.asked.update(options, path=path, name=name)
        return Dataset.from_list(ROWS).to_iterable_dataset()


def test_corpus_name_has_no_folders_above_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "work" / "data").mkdir(parents=True)
    (tmp_path / "work" / "texts.txt").write_text("a passage\n")
    (tmp_path / "work" / "data" / "texts.txt").write_text("a passage\n")
    monkeypatch.chdir(tmp_path / "work")
    names = [load_corpus(given).name for given in ("texts.txt", "./data/*.txt", str(tmp_path / "work/texts.txt"))]
    assert names == ["texts.txt", "data/*.txt", "texts.txt"]
    monkeypatch.chdir(tmp_path / "work" / "data")
    assert load_corpus("../texts.txt").name == "work/texts.txt"


def test_hub_corpus_is_pinned_to_a_commit(monkeypatch):
    hub = FakeHub(monkeypatch)
    corpus = load_corpus("someone/texts@main", config_name="en", split="validation")
    assert hub.asked == {
        "asked_revision": "main",
        "revision": "c0ffee",
        "path": "someone/texts",
        "name": "en",
        "split": "validation",
        "streaming": True,
    }
    assert corpus.name == "someone/texts@c0ffee"
    assert ids(corpus) == ["validation:0", "validation:1"]
    same = load_corpus("someone/texts", config_name="en", split="validation")
    hub.sha = "decade"
    other = load_corpus("someone/texts", config_name="en", split="validation")
    assert same.fingerprint == corpus.fingerprint != other.fingerprint


def test_unreachable_hub_is_reported():
    with pytest.raises(CorpusError, match="Cannot load the corpus 'someone/texts' from the Hub"):
        load_corpus("someone/texts")
