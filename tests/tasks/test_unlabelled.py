import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from hf_tlm.corpora import tables
from hf_tlm.tasks import TaskError, TaskSpec, reading, unlabelled
from hf_tlm.tasks.reading import unlabelled_chunks

TEXTS = TaskSpec(name="t", path="memory")
PAIRS = TaskSpec(name="t", path="memory", kind="regression", text_columns=("a", "b"))
QUESTIONS = TaskSpec(name="t", path="memory", kind="question_answering")
CHOICES = TaskSpec(name="t", path="memory", kind="multiple_choice", columns={"context": "passage"})
TAGS = TaskSpec(name="t", path="memory", kind="tagging")


def write(path, records):
    rows = Dataset.from_list(records)
    {".parquet": rows.to_parquet, ".csv": rows.to_csv, ".jsonl": rows.to_json}[path.suffix](str(path))
    return str(path)


def rows(path, spec, **options):
    return [row for chunk in unlabelled(path, spec, **options) for row in chunk]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_texts_are_read_in_chunks_with_row_numbers_as_ids(tmp_path, suffix):
    path = write(tmp_path / f"new{suffix}", [{"text": f"text {i}", "other": i} for i in range(5)])
    chunks = list(unlabelled(path, TEXTS, chunk=2))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert [row for chunk in chunks for row in chunk] == [{"id": str(i), "text": f"text {i}"} for i in range(5)]


DATES = {"at": "2024-05-01T10:00:00+02:00", "meta": {"days": ["2024-05-01"]}, "closed": "2024-05-02 00:00:00Z"}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("size", [2, 100])
def test_dates_in_json_lines_stay_as_written(tmp_path, indent, size):
    """Arrow converts strings that are dates to times in UTC, without their time zone."""
    records = [{"text": f"text {i}", **DATES} | ({"late": i} if i > 2 else {}) for i in range(5)]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps(record, indent=indent) for record in records))
    columns = {}
    for chunk in unlabelled_chunks(str(tmp_path / "new.jsonl"), TEXTS, chunk=size):
        for name, cells in chunk.source.items():
            columns[name] = columns.get(name, []) + cells
    assert columns == {name: [record.get(name) for record in records] for name in records[-1]}
    table = reading.read_file(tmp_path / "new.jsonl", {})
    assert table["at"][:] == columns["at"] and table["meta"][:] == columns["meta"]


def test_line_that_is_not_json_among_dates_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 1 << 14)
    (tmp_path / "new.jsonl").write_text(f"{json.dumps({'text': 'one', **DATES})}\n" * 500 + "{oops}\n")
    with pytest.raises(TaskError, match="Cannot read .*new.jsonl"):
        rows(str(tmp_path / "new.jsonl"), TEXTS)


def test_objects_of_many_kinds_are_no_traces_of_an_agent(tmp_path):
    """`datasets` takes tables with the columns type and message for such traces, and refuses them."""
    messages = [{"body": "one"}, {"body": "two", "to": "x"}, {"body": "three", "at": 5}]
    lines = [json.dumps({"type": "bug", "message": message, "label": "ab"[i % 2]}) for i, message in enumerate(messages)]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    spec = TaskSpec(name="t", path="memory", text_columns=("message.body",))
    assert [row["text"] for row in rows(str(tmp_path / "new.jsonl"), spec)] == ["one", "two", "three"]
    assert reading.read_file(tmp_path / "new.jsonl", {})["message"][:] == messages


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_integers_beyond_int64_are_kept(tmp_path, suffix):
    records = [{"id": 2**64 - 1 - i, "text": f"text {i}"} for i in range(3)]
    path = tmp_path / f"new{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        pq.write_table(pa.Table.from_pylist(records, pa.schema({"id": pa.uint64(), "text": pa.string()})), path)
    (chunk,) = unlabelled_chunks(str(path), TEXTS)
    assert chunk.source["id"] == [record["id"] for record in records]
    assert chunk.rows["id"][:] == [str(record["id"]) for record in records]
    assert [str(number) for number in reading.read_file(path, {})["id"]] == chunk.rows["id"][:]


def test_separator_is_given(tmp_path):
    (tmp_path / "new.csv").write_text("text^number\nthe gene^007\n")
    assert [row["text"] for row in rows(str(tmp_path / "new.csv"), TEXTS, separator="^")] == ["the gene"]


def test_ids_of_the_source_are_kept_and_labels_not_read(tmp_path):
    path = write(tmp_path / "new.jsonl", [{"id": "x", "a": "one", "b": "two", "label": "?"}])
    assert rows(path, PAIRS) == [{"id": "x", "text": "one", "text_pair": "two"}]


def test_text_file_has_one_text_per_line(tmp_path):
    (tmp_path / "new.txt").write_text("first\nsecond\n")
    assert [row["text"] for row in rows(str(tmp_path / "new.txt"), TEXTS)] == ["first", "second"]


def test_questions_are_read_from_tables_and_squad_files(tmp_path):
    flat = write(tmp_path / "new.jsonl", [{"id": 7, "context": "c", "question": "q"}])
    official = tmp_path / "test-v2.0.json"
    paragraph = {"context": "c", "qas": [{"id": "7", "question": "q"}]}
    official.write_text(json.dumps({"version": "v2.0", "data": [{"title": "A", "paragraphs": [paragraph]}]}))
    assert rows(flat, QUESTIONS) == rows(str(official), QUESTIONS) == [{"id": "7", "context": "c", "question": "q"}]


def test_options_and_sentences_are_read(tmp_path):
    path = write(tmp_path / "new.parquet", [{"passage": "p", "question": "q", "options": ["x", "y"]}])
    assert rows(path, CHOICES) == [{"id": "0", "context": "p", "question": "q", "options": ["x", "y"]}]
    (tmp_path / "new.conll").write_text("The\ncat\n\nRuns\n")
    words = [{"id": "0", "tokens": ["The", "cat"]}, {"id": "1", "tokens": ["Runs"]}]
    assert rows(str(tmp_path / "new.conll"), TAGS) == words
    assert [len(chunk) for chunk in unlabelled(str(tmp_path / "new.conll"), TAGS, chunk=1)] == [1, 1]


def test_missing_id_is_also_filled_in_the_source_columns(tmp_path):
    """Otherwise predictions in JSON lines would have the null of the source."""
    (tmp_path / "new.conll").write_text("# sent_id = a\nThe\n\nRuns\n")
    found = [chunk.source["id"] for chunk in unlabelled_chunks(str(tmp_path / "new.conll"), TAGS, chunk=1)]
    assert found == [["a"], ["1"]]


def test_id_column_of_the_training_is_optional(tmp_path):
    """A model trained with --id_column can predict on a file with one text per line."""
    spec = TaskSpec(name="t", path="memory", id_column="nr")
    (tmp_path / "new.txt").write_text("first\nsecond\n")
    assert [row["id"] for row in rows(str(tmp_path / "new.txt"), spec)] == ["0", "1"]
    assert [row["id"] for row in rows(write(tmp_path / "new.csv", [{"nr": 7, "text": "a"}]), spec)] == ["7"]


@pytest.mark.parametrize(
    "spec, message",
    [
        (
            TEXTS,
            "no column 'text'; the columns are words. Choose columns with --text_column and --text_pair_column, or rename",
        ),
        (CHOICES, "no column 'passage', 'question', 'options'; the columns are words. Rename"),
        (TAGS, "no column 'tokens'; the columns are words. Rename"),
    ],
)
def test_error_on_a_missing_column_does_not_name_training_options(tmp_path, spec, message):
    """--columns and --task_kind are options of training only."""
    with pytest.raises(TaskError, match=f"{message} the columns of the file to their names in training.$"):
        rows(write(tmp_path / "new.jsonl", [{"words": ["a"]}]), spec)


def test_column_file_is_read_for_a_model_trained_on_a_table(tmp_path):
    (tmp_path / "new.txt").write_text("The DT\ncat NN\n")
    for columns, words in (({"tokens": "words"}, ["The", "cat"]), ({"tokens": "1"}, ["DT", "NN"])):
        spec = TaskSpec(name="t", path="memory", kind="tagging", columns=columns)
        assert [row["tokens"] for row in rows(str(tmp_path / "new.txt"), spec)] == [words]


def test_questions_must_have_equally_many_options(tmp_path):
    records = [{"passage": "p", "question": "q", "options": options} for options in (["x", "y", "z"], ["x", "y"])]
    path = write(tmp_path / "new.jsonl", records)
    with pytest.raises(TaskError, match="1 of 2 rows with another number of options than 3; the first is row 1 .*2 options"):
        rows(path, CHOICES)
    assert [row["options"] for row in rows(path, CHOICES, drop_bad_rows=True)] == [["x", "y", "z"]]


def test_bad_rows_are_named_by_their_number_in_the_file(tmp_path, caplog):
    path = write(tmp_path / "new.jsonl", [{"text": text} for text in ("a", "b", " ", None)])
    with pytest.raises(
        TaskError, match="1 of 2 rows with blank text; the first is row 2 (?s:.*)null text; the first is row 3"
    ):
        rows(path, TEXTS, chunk=2)
    assert [row["id"] for row in rows(path, TEXTS, drop_bad_rows=True)] == ["0", "1"]
    assert "rows left out: 1 with blank text, 1 with null text." in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("new.csv", "body\nx\n", "no column 'text'; the columns are body"),
        ("new.jsonl", "", "no rows to predict on"),
        ("new.doc", "x", "expected a file of one of the types .parquet, .*received '.doc'"),
        ("new.parquet", "PAR1", "Cannot read .*new.parquet"),
        ("absent.csv", None, "No file .*absent.csv"),
        ("absent.txt", None, "No file .*absent.txt"),
        (".", None, "No file .* to predict on: .* This is a folder: pass one of its files"),
    ],
)
def test_unusable_file_is_refused(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        rows(str(tmp_path / name), TEXTS)


def test_file_whose_rows_are_all_left_out_is_refused(tmp_path):
    (tmp_path / "new.csv").write_text("text,n\n,1\n,2\n")
    with pytest.raises(TaskError, match="new.csv has no rows to predict on: all 2 were left out"):
        rows(str(tmp_path / "new.csv"), TEXTS, drop_bad_rows=True)


def test_test_split_of_a_hub_dataset_is_streamed(monkeypatch):
    requests = []

    def hub(path, name=None, **options):
        requests.append((path, name, options["revision"], options["streaming"]))
        splits = {"train": ["no"], "test": ["yes"]}
        return DatasetDict({split: Dataset.from_dict({"text": texts}) for split, texts in splits.items()})

    monkeypatch.setattr(reading, "load_dataset", hub)
    spec = TaskSpec(name="t", path="someone/films", config_name="small")
    assert [row["text"] for row in rows("someone/films@v1", spec)] == ["yes"]
    assert [row["text"] for row in rows("someone/else", spec)] == ["yes"]
    assert requests == [("someone/films", "small", "v1", True), ("someone/else", None, None, True)]
