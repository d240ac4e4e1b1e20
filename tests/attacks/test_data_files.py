"""Files of corpora and tasks that are damaged or hold something other than texts are refused with their position."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attacks.attack import assert_refused, call
from hf_tlm.corpora import CorpusError, load_corpus
from hf_tlm.retrieval import Index, Subset
from hf_tlm.tasks import TaskError, TaskSpec, load_task, unlabelled

BOM = b"\xef\xbb\xbf"
ROWS = b"a good film,pos\na bad film,neg\n"

# Content -> part of the message.
WRONG_CSV = {
    "the first row is too long": (b"text,label\nslow, but good,pos\n" + ROWS, "line 2 has 3 fields, but the header has 2"),
    "every row is too long": (b"text,label\na,b,pos\nc,d,neg\n", "line 2 has 3 fields"),
    "a later row is too long": (b"text,label\n" + ROWS + b"slow, but good,pos\n", "line 4 has 3 fields"),
    "a row after ten thousand": (b"text,label\n" + ROWS * 6000 + b"slow, but good,pos\n", "line 12002 has 3 fields"),
    "after quoted line ends": (b'text,label\n"a\nb",pos\nslow, but good,pos\n', "line 4 has 3 fields"),
    "after a byte order mark": (BOM + b"text,label\r\n\r\nslow, but good,pos\r\n", "line 3 has 3 fields"),
    "a comma too many": (b"text,label\na good film,pos,\na bad film,neg,\n", "line 2 has 3 fields"),
    "row names": (b"text,label\n1,a good film,pos\n2,a bad film,neg\n", "Put fields that contain commas in double quotes"),
    "a quote that is not closed": (b'text,label\n"a good film,pos\n', "row of line 2 has a field that begins with a double"),
    "a later quote that is not closed": (b"text,label\n" + ROWS + b'"a film,pos\n' + ROWS, "row of line 4 has a field that"),
    "another encoding": ("text,label\na,b\n".encode("utf-16"), "not UTF-8 text"),
}
FINE_CSV = {
    "byte order mark, CRLF and empty lines": BOM + b"text,label\r\na good film,pos\r\na bad film,neg\r\n\r\n\r\n",
    "quotes": b'text,label\n"a good film",pos\n"a bad film","neg"\n\n',
    "a number before the text": b",text,label\n0,a good film,pos\n1,a bad film,neg\n",
    "a column of pandas": b"text,label,__index_level_0__\na good film,pos,0\na bad film,neg,1\n",
}


def read_corpus(path):
    return [row["text"] for row in load_corpus(str(path))]


def read_task(path):
    """Read a file as both splits of a task."""
    folder = path.parent / "task"
    folder.mkdir()
    for split in ("train", "validation"):
        os.link(path, folder / f"{split}{path.suffix}")
    return list(load_task(str(folder)).train["text"])


def read_unlabelled(path):
    return [text for rows in unlabelled(str(path), TaskSpec(name="t", path="here")) for text in rows["text"]]


READERS = {"corpus": (read_corpus, CorpusError), "task": (read_task, TaskError), "predict": (read_unlabelled, TaskError)}


@pytest.fixture(params=READERS)
def reader(request):
    """A reader of files, and the type of its errors."""
    return READERS[request.param]


@pytest.mark.parametrize("content,message", WRONG_CSV.values(), ids=WRONG_CSV)
def test_malformed_csv_is_refused_with_the_line(tmp_path, reader, content, message):
    read, error = reader
    (tmp_path / "file.csv").write_bytes(content)
    with pytest.raises(error, match=r"Cannot read .*\.csv") as raised:
        read(tmp_path / "file.csv")
    assert message in str(raised.value)


@pytest.mark.parametrize("content", FINE_CSV.values(), ids=FINE_CSV)
def test_valid_csv_is_read(tmp_path, reader, content):
    (tmp_path / "file.csv").write_bytes(content)
    assert reader[0](tmp_path / "file.csv") == ["a good film", "a bad film"]


def test_byte_order_mark_is_not_part_of_the_text(tmp_path):
    (tmp_path / "file.txt").write_bytes(BOM + b"a good film\r\na bad film\r\n")
    assert read_corpus(tmp_path / "file.txt") == read_unlabelled(tmp_path / "file.txt") == ["a good film", "a bad film"]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def texts(*values):
    return [{"text": value, "label": label} for value, label in zip(values, ("pos", "neg") * 4, strict=False)]


WIDE = {
    "csv": "text,label\r\na good film,pos\r\na bad film,neg\r\n",
    "jsonl": '{"text": "a good film", "label": "pos"}\n{"text": "a bad film", "label": "neg"}\n',
    "json": '[{"text": "a good film", "label": "pos"}]',
    "txt": "a good film\na bad film\n",
}


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-16", "UTF-32LE", "UTF-32"])
@pytest.mark.parametrize("suffix", WIDE)
def test_utf_16_and_utf_32_are_refused_with_their_name(tmp_path, reader, suffix, encoding):
    """Zeros between letters are valid UTF-8: they would end up in texts and column names."""
    read, error = reader
    file = tmp_path / f"file.{suffix}"
    file.write_bytes(WIDE[suffix].encode(encoding))
    marked = "" if encoding[-1] in "62" else ", without a byte order mark"
    with pytest.raises(error, match=rf"not UTF-8 text but {encoding}{marked}\. Save .*: iconv -f {encoding} -t UTF-8"):
        read(file)


def test_json_lines_in_latin_1_are_refused(tmp_path, reader):
    """Arrow accepts the bytes, which would raise an error where the text is used."""
    read, error = reader
    (tmp_path / "file.jsonl").write_bytes('{"text": "für", "label": "pos"}\n'.encode("latin-1") * 3)
    with pytest.raises(error, match=r"jsonl.*: it is not UTF-8 text .byte 0xfc.\. Save it as UTF-8"):
        read(tmp_path / "file.jsonl")


def test_zero_within_a_text_is_accepted(tmp_path, reader):
    (tmp_path / "file.jsonl").write_text('{"text": "a\\u0000b", "label": "x"}\n{"text": "c", "label": "y"}\n')
    assert reader[0](tmp_path / "file.jsonl")[0] == "a\0b"
    (tmp_path / "file.txt").write_text("a\0b\n")
    if reader[0] is not read_task:
        assert reader[0](tmp_path / "file.txt") == ["a\0b"]


NO_TEXTS = {
    "lists": (texts(["a", "b"], ["c"]), 0, "list"),
    "a list at last": (texts("a", "b", ["c"]), 2, "list"),
    "mappings": (texts({"en": "a"}, {"en": "b"}), 0, "dict"),
    "a mapping at last": (texts("a", "b", {"en": "b"}), 2, "dict"),
}


@pytest.mark.parametrize("write", [lines, json.dumps], ids=["lines", "array"])
@pytest.mark.parametrize("rows,row,kind", NO_TEXTS.values(), ids=NO_TEXTS)
def test_value_that_is_not_a_text_is_refused_with_the_row(tmp_path, reader, rows, row, kind, write):
    read, error = reader
    (tmp_path / "file.json").write_text(write(rows))
    with pytest.raises(error, match=f"row {row}\\b") as raised:
        read(tmp_path / "file.json")
    assert kind in str(raised.value)


@pytest.mark.parametrize("write", [lines, json.dumps], ids=["lines", "array"])
def test_lone_surrogate_is_refused(tmp_path, reader, write):
    read, error = reader
    (tmp_path / "file.json").write_text(write(texts("a", "half \ud83d a character")))
    with pytest.raises(error, match=r"Cannot read .*\.json"):
        read(tmp_path / "file.json")


@pytest.mark.parametrize("pattern", ["", "*.txt", "gone.txt"])
def test_broken_link_in_a_corpus_is_refused(tmp_path, pattern):
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    with pytest.raises(CorpusError, match=r"gone.txt is a link to .*nowhere.txt, which does not exist"):
        load_corpus(f"{tmp_path}/{pattern}")


@pytest.mark.parametrize("write", [lines, json.dumps], ids=["lines", "array"])
def test_numbers_among_texts_become_texts(tmp_path, reader, write):
    (tmp_path / "file.json").write_text(write(texts("a", 3, "b")))
    assert reader[0](tmp_path / "file.json") == ["a", "3", "b"]


TAGGED = {"tokens": ["a", "b"], "tags": ["X", "Y"]}
CHOICES = {"context": "c", "question": "q", "options": ["a", "b"], "label": "A"}
ANSWERS = {"context": "a b", "question": "q", "answers": {"text": ["a"], "answer_start": [0]}}
SCORED = {"text": "a", "label": 1.5}
# A row, its changes, the kind of its task, and part of the message.
WRONG_VALUES = {
    "a list as a word": (TAGGED, {"tokens": ["a", ["b"]]}, None, "with word that is a list; the first is row 2"),
    "words as one string": (TAGGED, {"tokens": "a b"}, None, "no list of words"),
    "tags as one string": (TAGGED, {"tags": "X Y"}, None, "tags that are no list"),
    "a number as tags": (TAGGED, {"tags": 3}, None, "tags that are no list"),
    "a list as a tag": (TAGGED, {"tags": ["X", ["Y"]]}, None, "with tag that is a list"),
    "a list as a passage": (CHOICES, {"context": ["c"]}, None, "context that is a list"),
    "a list as an option": (CHOICES, {"options": ["a", ["b"]]}, None, "option that is a list"),
    "a mapping as options": (CHOICES, {"options": {"A": "a"}}, None, "null option"),
    "a list as a choice": (CHOICES, {"label": ["A"]}, None, "a label that is no option"),
    "a mapping as a question": (ANSWERS, {"question": {"q": "q"}}, None, "question that is a dict"),
    "a number as an answer": (ANSWERS, {"answers": {"text": [3], "answer_start": [0]}}, None, "an answer that is no text"),
    "a list as a number": (SCORED, {"label": [1.5]}, "regression", "a label that is no number"),
}


@pytest.mark.parametrize("row,change,kind,message", WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_value_of_another_type_is_refused_with_the_row(tmp_path, row, change, kind, message):
    rows = [row, row, row | change]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.json").write_text(json.dumps([{"id": str(i), **row} for i, row in enumerate(rows)]))
    with pytest.raises(TaskError) as raised:
        load_task(str(tmp_path), kind=kind)
    assert message in str(raised.value)


TABLE = pa.table({"text": [f"a text of a film {i}" for i in range(500)], "label": ["pos", "neg"] * 250})


def flipped(data):
    """Change a letter in a page, which only its checksum shows."""
    position = data.index(b"a text of a film 250")
    return data[:position] + b"A" + data[position + 1 :]


PARQUET = {
    "a changed page": (flipped, "CRC checksum"),
    "half a file": (lambda data: data[: len(data) // 2], "magic bytes"),
    "the last byte is missing": (lambda data: data[:-1], "magic bytes"),
    "a head alone": (lambda data: data[:4], "smaller than"),
    "another footer": (lambda data: data[:-100] + bytes(92) + data[-8:], ""),
}


@pytest.mark.parametrize("damage,message", PARQUET.values(), ids=PARQUET)
def test_damaged_parquet_is_refused(tmp_path, reader, damage, message):
    read, error = reader
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(TABLE, tmp_path / "whole.parquet", **options)
    assert len(read(tmp_path / "whole.parquet")) == 500
    (tmp_path / "below").mkdir()
    (tmp_path / "below/file.parquet").write_bytes(damage((tmp_path / "whole.parquet").read_bytes()))
    with pytest.raises(error, match=r"Cannot read .*\.parquet") as raised:
        read(tmp_path / "below/file.parquet")
    assert message in str(raised.value)


@pytest.fixture
def written(toys, tmp_path):
    """A folder with a corpus, and below it outputs of commands: a subset, an index, a run, a model."""
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a text"]}), folder / "deep/corpus.parquet")
    Subset.load(toys.subset).save(folder / "out/subset")
    rows = load_corpus(str(folder / "deep")).to_dataset(tmp_path / "cache")
    Index.build(folder / "out/index", rows, corpus_name="deep", fingerprint="f")
    (folder / "run/seed-0").mkdir(parents=True)
    (folder / "run/settings.json").write_text(json.dumps({"arguments": {}, "model": {}}))
    (folder / "run/seed-0/vocab.txt").write_text("[PAD]\n")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text('{"model_type": "bert"}')
    (folder / "model/vocab.txt").write_text("[PAD]\n")
    (folder / ".being written").mkdir()
    (folder / ".being written/half.txt").write_text("half a text")
    return folder


@pytest.mark.parametrize("pattern,count", [("", 8), ("**/*.parquet", 1), ("*", 0), ("*/corpus.parquet", 0)])
def test_outputs_of_commands_are_left_out_of_a_corpus(written, caplog, pattern, count):
    files = f"{written}/{pattern}" if pattern != "*" else str(written / "deep")
    assert read_corpus(files) == ["a text"]
    counted = "1 file" if count == 1 else f"{count} files"
    assert (f"{counted} of {files}, in" in caplog.text) == (count > 0)


def test_outputs_of_commands_are_read_if_named(written):
    data = written / "out/subset/data"
    assert len(read_corpus(data)) == len(read_corpus(f"{data}/*.parquet")) > 1
    with pytest.raises(CorpusError, match=r"No corpus: all matching files are left out: 1 file of "):
        load_corpus(f"{written}/out/**/*.parquet")


@pytest.mark.parametrize("folder", ["out/subset", "out/index", "run", "model"])
def test_output_of_a_command_is_no_corpus(written, folder):
    """Its records would be read as texts."""
    with pytest.raises(CorpusError, match=f"{folder} is a folder that hf_tlm wrote .* Pass a subset as --subset"):
        load_corpus(str(written / folder))
    assert read_corpus(written / ".being written") == ["half a text"]


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 3}', "{", "[" * 100_000], ids=range(5))
def test_folder_with_a_foreign_manifest_is_read(tmp_path, content):
    (tmp_path / "below").mkdir()
    (tmp_path / "below/manifest.json").write_text(content)
    (tmp_path / "below/a.txt").write_text("a text")
    assert read_corpus(f"{tmp_path}/**/*.txt") == ["a text"]


BAD_LINES = {
    "null": (b"null\n", "line 1 is null"),
    "null before a row": (b' null {"text": "a"}\n', "line 1 is null"),
    "a deep list": (
        b'{"text": "a"}\n{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n",
        "line 2 is nested more than 1,000 levels deep",
    ),
    "deep objects": (b'{"text": ' * 50_000 + b"1" + b"}" * 50_000 + b"\n", "line 1 is nested more than 1,000 levels deep"),
    "deep lines": (b'{"text": ' + b"[\n" * 50_000 + b"]\n" * 50_000 + b"}\n", "more than 1,000 levels"),
}


def read_guarded(kind, path):
    """Read in a separate process, which the reader may crash."""
    READERS[kind][0](Path(path))


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("name", [".jsonl", ".json"])
@pytest.mark.parametrize("content,message", BAD_LINES.values(), ids=BAD_LINES)
def test_lines_that_crash_the_parser_are_refused(tmp_path, kind, name, content, message):
    (tmp_path / f"file{name}").write_bytes(content)
    assert_refused(call(read_guarded, kind, tmp_path / f"file{name}"), message)


def test_brackets_within_texts_are_not_nesting(tmp_path, reader):
    rows = texts("[" * 5000, '\\"{' * 5000)
    (tmp_path / "file.jsonl").write_text(lines(rows))
    assert reader[0](tmp_path / "file.jsonl") == [row["text"] for row in rows]
