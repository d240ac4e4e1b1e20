"""A user's own tables as tasks: files, separators, held-out texts, classes that are numbers."""

import datetime
import json
import random
import subprocess

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from hf_tlm.corpora import CorpusError, load_corpus, tables
from hf_tlm.errors import HfTlmError
from hf_tlm.tasks import TaskArguments, TaskError, TaskSpec, load_task, reading
from hf_tlm.tasks.reading import unlabelled, unlabelled_chunks

WORDS = "Drucker Lüfter Netz Konto Rechnung Passwort Bildschirm Tür Schlüssel Straße".split()
SHARES = {"label_column": "queue", "text_columns": "Body"}


def tickets(count, classes=("billing", "network", "hardware"), seed=0):
    draw = random.Random(seed)
    return [
        {"Body": f"{' '.join(draw.choices(WORDS, k=6))} {i}", "queue": classes[i % len(classes)], "nr": i}
        for i in range(count)
    ]


def write(path, rows):
    frame = pd.DataFrame(rows)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return str(path)


def texts_of(task):
    return {split: set(rows["text"][:]) for split, rows in task.splits.items()}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ".CSV"])
def test_tables_of_every_file_type_give_the_same_task(tmp_path, suffix):
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
    rows = tickets(60)
    task = load_task(write(tmp_path / f"tickets{suffix}", rows), **SHARES)
    assert (task.name, task.label_names) == ("tickets", ("billing", "hardware", "network"))
    assert task.held_out == {"validation": 0.1, "test": 0.1}
    assert task.fingerprint == load_task(Dataset.from_list(rows), **SHARES).fingerprint
    assert set.union(*texts_of(task).values()) == {row["Body"] for row in rows}
    assert task.train["id"][0] == "row-0"


@pytest.mark.parametrize("made", ["data", "columns", "index", "split", "table", "records"])
def test_json_object_with_all_rows_is_a_table(tmp_path, made):
    rows = tickets(60)
    text = json.dumps({"data": rows}) if made == "data" else pd.DataFrame(rows).to_json(orient=made)
    (tmp_path / "t.json").write_text(text)
    assert (
        load_task(str(tmp_path / "t.json"), **SHARES).fingerprint == load_task(Dataset.from_list(rows), **SHARES).fingerprint
    )
    corpus = load_corpus(str(tmp_path / "t.json"), text_column="Body")
    assert [row["text"] for row in corpus] == [row["Body"] for row in rows]


@pytest.mark.parametrize(
    "row",
    [
        {"data": [{"a": 1}], "text": "x"},
        {"by_id": {"1": "a"}, "text": {"body": "x"}},
        {"columns": ["a"], "text": "x"},
        {"1": {"a": "b"}, "text": "x"},
    ],
)
def test_lines_of_json_that_begin_like_a_table_are_rows(tmp_path, row):
    (tmp_path / "t.json").write_text(f"{json.dumps(row)}\n" * 2)
    assert reading.read_file(tmp_path / "t.json", {})[:] == {name: [value] * 2 for name, value in row.items()}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("early", [None, [1], 3, {"a": 2}, "missing"])
def test_field_that_changes_its_type_late_in_a_large_file_is_read(tmp_path, monkeypatch, early, suffix):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 1 << 14)
    rows = [{"text": f"text {i}", "label": "ab"[i % 2], "more": early, "long": "x" * 1000} for i in range(120)]
    rows += [{"text": f"last {i}", "label": "ab"[i % 2], "more": {"a": 1, "b": 2}, "long": ""} for i in range(10)]
    write(tmp_path / "late.jsonl", [{name: row[name] for name in row if row[name] != "missing"} for row in rows])
    path = (tmp_path / "late.jsonl").rename(tmp_path / f"task{suffix}")
    task = load_task(path)
    assert set.union(*texts_of(task).values()) == {row["text"] for row in rows}
    some = unlabelled(str(path), task.spec, chunk=50)
    assert [text for chunk in some for text in chunk["text"]] == [row["text"] for row in rows]
    assert list(tables.row_batches(path, "json", 125))[-1]["more"][-1] == {"a": 1, "b": 2}


def test_held_out_splits_are_stratified():
    rows = [{"text": f"text {i}", "label": "rare" if i % 20 == 0 else "common"} for i in range(1000)]
    task = load_task(Dataset.from_list(rows), validation_share=0.2, test_share=0.1)
    for split, share in (("validation", 0.2), ("test", 0.1)):
        counts = task.report[split]["classes"]
        for name, size in (("rare", 50), ("common", 950)):
            assert abs(counts[name] - share * size) <= 2, (split, counts)


@pytest.mark.parametrize("seed", range(5))
def test_longer_file_keeps_the_held_out_texts(seed):
    rows = tickets(400, seed=seed)
    short, long = (texts_of(load_task(Dataset.from_list(some), **SHARES)) for some in (rows[:150], rows))
    for split, texts in short.items():
        assert texts <= long[split]


def test_equal_texts_are_in_the_same_split():
    rows = tickets(200)
    again = [{**row, "Body": f"  {row['Body']} "} for row in rows] + rows
    task = load_task(Dataset.from_list(rows + again), **SHARES)
    sides = {}
    for split, texts in texts_of(task).items():
        for text in texts:
            assert sides.setdefault(text.strip(), split) == split
    assert not any(task.texts_also_in_train.values())


def test_repeated_column_name_is_warned_about(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(tables, "_warned_headers", set())
    lines = ["Body,queue,queue,,", *(f"{row['Body']},{row['queue']},{'xy'[i % 2]},," for i, row in enumerate(tickets(60)))]
    (tmp_path / "two.csv").write_text("\n".join(lines))
    task = load_task(str(tmp_path / "two.csv"), **SHARES)
    assert set(task.label_names) == {"billing", "hardware", "network"}
    assert (
        "two.csv names columns more than once (queue): the first of each keeps the name, the next is queue.1" in caplog.text
    )
    caplog.clear()
    assert load_task(str(tmp_path / "two.csv"), text_columns="Body", label_column="queue.1").label_names == ("x", "y")
    write(tmp_path / "one.csv", tickets(60))
    caplog.clear()
    load_task(str(tmp_path / "one.csv"), **SHARES)
    assert "more than once" not in caplog.text


def test_rows_merged_by_an_unbalanced_quote_are_warned_about(tmp_path, caplog):
    """Otherwise half of the rows, with their labels, would silently be within the texts of others."""
    lines = [f'"unbalanced text {i}\t{"ab"[i % 2]}' if i < 20 else f"text {i}\t{'ab'[i % 2]}" for i in range(60)]
    path = tmp_path / "odd.tsv"
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    for _ in range(2):
        task = load_task(str(path))
    assert sum(map(len, task.splits.values())) == 50
    (warning,) = [line for line in caplog.messages if "double quote" in line]
    assert warning.startswith(f"{path}: 10 rows span several lines, the first one lines 2 to 3, because a field begins with")
    caplog.clear()
    fine = [f'"text {i}\nof ""two"" lines",{"ab"[i % 2]}' for i in range(30)] + [f'"text" {i},"a\nb"' for i in range(5)]
    (tmp_path / "fine.csv").write_text("\r\n".join(["sep=,", "text,label", *fine, "last,a"]))
    load_task(str(tmp_path / "fine.csv"))
    assert "double quote" not in caplog.text
    (tmp_path / "open.csv").write_text("\n".join(["text,label", *(f"text {i},a" for i in range(9)), '"text,b', "text 9,b"]))
    with pytest.raises(TaskError, match="line 11 has a field that begins with a double quote which is never closed"):
        load_task(str(tmp_path / "open.csv"))
    assert "closed in the middle of a later line" not in caplog.text


def test_quotes_escaped_by_a_backslash_are_explained(tmp_path, caplog):
    """Spark and MySQL write them; other readers end the field there."""
    rows = [f'"he said \\"text {i}\\" twice",{"ab"[i % 2]}' for i in range(40)]
    (tmp_path / "odd.csv").write_text("\n".join(["text,label", '"C:\\",a', *rows]))
    for _ in range(2):
        load_task(str(tmp_path / "odd.csv"))
    (warning,) = caplog.messages
    assert warning.startswith(f"{tmp_path}/odd.csv, line 3: a double quote is escaped by a backslash. Double such quotes")
    sed = warning[warning.index("sed") :].replace("old.csv", "odd.csv")
    subprocess.run(sed.replace("new.csv", "train.csv"), shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "train.csv").read_text().splitlines()[2] == '"he said ""text 0"" twice",a'
    (tmp_path / "comma.csv").write_text("\n".join(["text,label", '"fine",a', '"he said \\"no, no\\" twice",b']))
    with pytest.raises(TaskError, match="line 3 has more fields than the header, because a double quote is escaped by"):
        load_task(str(tmp_path / "comma.csv"))


def test_beginning_of_a_large_csv_is_checked_for_unbalanced_quotes(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 1 << 20)
    rows = "".join(f"text {i},a\n" for i in range(1 << 17))
    odd = '"unbalanced,a\nand "more,b\n'
    for name, text in (("early", odd + rows + odd), ("late", rows + odd)):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{text}")
        tables._warn_of_quotes(tmp_path / f"{name}.csv", ",")
    (warning,) = caplog.messages
    assert "early.csv: 1 rows in its first 1 MB span several lines, the first one lines 2 to 3" in warning


def test_repeated_column_name_in_many_shards_is_warned_about_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(tables, "_warned_headers", set())
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("text,text\none,two\n")
    (tmp_path / "other.csv").write_text("body,body\none,two\n")

    def read_twice():
        caplog.clear()
        for path in sorted(tmp_path.glob("*.csv")) * 2:
            list(tables.row_batches(path, "csv", 10))
        return [line for line in caplog.messages if "more than once" in line]

    monkeypatch.setenv("RANK", "1")
    assert not read_twice()
    monkeypatch.setenv("RANK", "0")
    first, second = read_twice()
    for line, name, column in ((first, "0.csv", "text"), (second, "other.csv", "body")):
        assert f"{name} names columns more than once ({column})" in line
    assert not read_twice()


def test_two_columns_of_one_name_in_a_parquet_file_are_refused(tmp_path):
    columns = [pa.array(values) for values in (["one", "two"], ["three", "four"], ["a", "b"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["text", "text", "label"]), tmp_path / "t.parquet")
    expected = "more than one column has the name 'text'. Rename one of them"
    with pytest.raises(TaskError, match=expected):
        load_task(str(tmp_path / "t.parquet"), **SHARES)
    with pytest.raises(CorpusError, match=expected):
        list(load_corpus(str(tmp_path / "t.parquet")))


def test_held_out_texts_depend_on_content_more_than_on_order():
    rows = tickets(300, ("one", "two"))
    first, last = (texts_of(load_task(Dataset.from_list(some), **SHARES)) for some in (rows, rows[::-1]))
    assert len(first["test"] & last["test"]) > 2 * len(first["test"]) * 0.1


def test_questions_to_a_context_are_in_the_same_split():
    rows = [
        {
            "context": f"Story {i // 5} of {WORDS[i // 5 % 10]}",
            "question": f"Who {i}?",
            "answer_text": "Story",
            "answer_start": 0,
        }
        for i in range(200)
    ]
    task = load_task(Dataset.from_list(rows))
    contexts = [set(rows["context"][:]) for rows in task.splits.values()]
    assert task.kind == "question_answering" and len(set.union(*contexts)) == sum(map(len, contexts))


def test_validation_share_of_a_folder_without_a_validation_split(tmp_path):
    write(tmp_path / "train.csv", tickets(60))
    write(tmp_path / "test.csv", tickets(10, seed=1))
    with pytest.raises(TaskError, match="--validation_share 0.1 holds out"):
        load_task(str(tmp_path), **SHARES)
    task = load_task(str(tmp_path), validation_share=0.2, **SHARES)
    assert task.held_out == {"validation": 0.2} and len(task.test) == 10 and len(task.train) + len(task.validation) == 60
    with pytest.raises(TaskError, match="test_share 0.2: .* already has a test split. Remove the option"):
        load_task(str(tmp_path), validation_share=0.2, test_share=0.2, **SHARES)


def test_dict_of_datasets_gives_the_splits():
    task = load_task(
        DatasetDict(train=Dataset.from_list(tickets(30)), dev=Dataset.from_list(tickets(9))), name="mine", **SHARES
    )
    assert (task.name, list(task.splits), task.held_out) == ("mine", ["train", "validation"], {})
    single = load_task(DatasetDict(all=Dataset.from_list(tickets(60))), **SHARES)
    assert set(single.splits) == {"train", "validation", "test"}
    parts = {"first": Dataset.from_list(tickets(30)), "second": Dataset.from_list(tickets(9))}
    with pytest.raises(
        TaskError, match=r"expected the splits train, validation \(valid, dev\) and test, .*; received first, second\."
    ):
        load_task(DatasetDict(parts), **SHARES)


def test_hub_dataset_of_one_split_is_a_table(monkeypatch):
    monkeypatch.setattr(reading, "load_dataset", lambda *args, **options: DatasetDict(all=Dataset.from_list(tickets(60))))
    assert load_task("me/tickets", **SHARES).held_out == {"validation": 0.1, "test": 0.1}


@pytest.mark.parametrize("kind", ["torch", "numpy", "pandas"])
def test_format_of_a_dataset_has_no_effect(kind):
    rows = Dataset.from_list([{**row, "queue": row["nr"] % 3} for row in tickets(60)])
    task = load_task(rows.with_format(kind), **SHARES)
    assert task.label_names == ("0", "1", "2") and task.fingerprint == load_task(rows, **SHARES).fingerprint


def test_dataset_with_a_transform_is_refused():
    rows = Dataset.from_list(tickets(60)).with_transform(lambda batch: batch)
    for data, where in ((rows, "the data"), ({"train": rows, "validation": rows}, "train")):
        with pytest.raises(TaskError, match=rf"{where} has a transform \(with_transform\), .* Apply the transform with map"):
            load_task(data, **SHARES)


@pytest.mark.parametrize(
    "data", [[{"text": "a", "label": 1}], {"train": [1]}, 3, Dataset.from_list(tickets(30)).to_iterable_dataset()]
)
def test_data_that_are_no_dataset_are_refused(data):
    with pytest.raises(TaskError, match="task: expected a name, a path, a datasets.Dataset"):
        load_task(data)


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_separator_is_detected_and_quotes_are_kept(tmp_path, separator):
    rows = [{**row, "Body": f'{row["Body"]}; so, | und\t"so"'} for row in tickets(40)]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False, sep=separator, encoding="utf-8-sig")
    task = load_task(str(tmp_path / "t.csv"), **SHARES)
    assert set.union(*texts_of(task).values()) == {row["Body"] for row in rows}
    assert load_task(str(tmp_path / "t.csv"), separator=separator, **SHARES).fingerprint == task.fingerprint


@pytest.mark.parametrize("separator", [";", ","])
def test_table_in_cp1252_is_refused_for_every_separator(tmp_path, separator):
    """Commas in texts must not make the undecodable file pass for a comma-separated table."""
    rows = [{**row, "Body": f"{row['Body']}, für {i % 3 * ', mich'}"} for i, row in enumerate(tickets(40))]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False, sep=separator, encoding="cp1252")
    with pytest.raises(TaskError, match="it is not UTF-8 text .byte 0xfc.. Save it as UTF-8 .in Excel: CSV UTF-8.,.*iconv"):
        load_task(str(tmp_path / "t.csv"), **SHARES)


def test_wrong_separator_is_refused(tmp_path):
    with pytest.raises(TaskError, match="separator must be one character"):
        load_task(write(tmp_path / "t.csv", tickets(30)), separator="::", **SHARES)
    with pytest.raises(TaskError, match="no column 'Body'; the columns are Body,queue,nr"):
        load_task(write(tmp_path / "t.csv", tickets(30)), separator=";", **SHARES)


def test_semicolons_in_texts_of_a_comma_separated_file_stay(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"a;b;c {i},{'yn'[i % 2]}\n" for i in range(40)))
    assert load_task(str(tmp_path / "t.csv")).train["text"][0] == "a;b;c 0"


def test_separator_is_detected_if_rows_end_before_empty_cells(tmp_path):
    """As Excel writes them from the 17th row on, if none of the next 16 rows has the last cell."""
    rows = [f"text {i}, or so;{'yn'[i % 2]}" + (";a note" if i == 3 else ";" if i < 16 else "") for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["text;label;note", *rows]))
    assert load_task(str(tmp_path / "t.csv")).train["text"][0] == "text 0, or so"
    (tmp_path / "one.csv").write_text("text; or more\n" + "".join(f"text {i}\n" for i in range(9)))
    assert tables.find_separator(tmp_path / "one.csv") == ","


def test_leading_zeros_of_a_csv_are_kept_as_in_predict(tmp_path):
    """Also in ids and classes of digits."""
    lines = ["id,text,label", *(f"{i:05},{i:04},{'01' if i % 2 else '02'}" for i in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    task = load_task(str(tmp_path / "t.csv"))
    assert task.label_names == ("01", "02")
    assert task.train[0] == {"id": "00000", "text": "0000", "label": 1}
    (rows,) = unlabelled(str(tmp_path / "t.csv"), task.spec)
    assert {(row["id"], row["text"]) for row in task.train} <= set(zip(rows["id"], rows["text"], strict=True))


def test_column_of_a_long_csv_may_begin_empty_or_with_numbers(tmp_path):
    """A reader that takes types from the first 10,000 rows would fail at the first row of another type."""
    late = 10_500
    rows = [(f"text {i}", 1 if i < late else "A", "" if i < late else "seen") for i in range(late + 500)]
    lines = ["text,label,note", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert load_task(str(tmp_path / "t.csv")).label_names == ("1", "A")
    assert sum(len(batch["note"]) for batch in tables.row_batches(tmp_path / "t.csv", "csv", 1000)) == len(rows)


@pytest.mark.parametrize(
    "train, dev, names",
    [
        (["01", "02", "A1"], ["01", "02"], ("01", "02", "A1")),
        (["TRUE", "FALSE", "unsure"], ["TRUE", "FALSE"], ("FALSE", "TRUE", "unsure")),
        (["1.0", "2.0", "n/a"], ["1.0", "2.0"], ("1.0", "2.0", "n/a")),
        (["1.0", "2.0", "10.0"], ["10", "2", "1"], ("1", "2", "10")),
        (["true", "FALSE", "True"], ["false", ""], ("False", "True")),
        (["1e0", "2", "nan"], ["1", "2"], ("1", "2")),
        (["10000000000000000001", "10000000000000000002"], ["10000000000000000001"], None),
    ],
)
def test_classes_of_csv_files_are_the_same_in_every_split(tmp_path, train, dev, names):
    for split, labels in (("train", train), ("dev", dev)):
        lines = ["text,label", *(f"{split} {i},{label}" for i, label in enumerate(labels))]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines))
    task = load_task(str(tmp_path), drop_bad_rows=True)
    assert task.label_names == (names or tuple(train))
    assert len(task.validation) == len([label for label in dev if label])


def test_number_and_its_text_are_one_class(tmp_path):
    """A file that mixes both would otherwise have two classes of the same name."""
    for labels, names in (([1, "1", "two"], ("1", "two")), ([1, True, "two"], ("1", "True", "two"))):
        rows = [{"text": f"text {i}", "label": labels[i % 3]} for i in range(90)]
        assert load_task(write(tmp_path / f"{len(names)}.jsonl", rows)).label_names == names


def test_whole_floats_are_the_same_classes_in_every_split(tmp_path):
    for split, labels in (("train", [1.0, 2.0, 4.0, None]), ("validation", [1, 2, 4]), ("test", [4.0, 2.0])):
        rows = [{"text": f"{split} {i}", "label": label} for i, label in enumerate(labels)]
        write(tmp_path / f"{split}{'.jsonl' if split == 'validation' else '.parquet'}", rows)
    task = load_task(str(tmp_path), drop_bad_rows=True)
    assert task.label_names == ("1", "2", "4")
    assert [rows["label"][:] for rows in task.splits.values()] == [[0, 1, 2], [0, 1, 2], [2, 1]]


def test_nan_counts_as_no_label():
    labels = [float(i % 3) for i in range(60)]
    rows = Dataset.from_dict({"text": [f"text {i}" for i in range(60)], "label": [*labels[:-1], float("nan")]})
    with pytest.raises(TaskError, match="1 of .* rows with no label"):
        load_task(rows)
    assert load_task(rows, drop_bad_rows=True).label_names == ("0", "1", "2")


def test_classes_that_are_numbers_are_sorted_by_value():
    rows = Dataset.from_list([{"text": f"text {i}", "label": float(i % 11 + 1)} for i in range(220)])
    assert load_task(rows).label_names == tuple(map(str, range(1, 12)))
    names = [f"star {i}" for i in range(11)]
    task = load_task(rows, label_names=names)
    assert task.label_names == tuple(names) and task.train[0]["label"] == 0


@pytest.mark.parametrize("indexed", [False, True])
def test_label_names_name_numbers_that_are_strings_in_their_order(indexed):
    """As names, 10 would be before 2, and so the tenth class would get the second name."""
    numbers, names = [str(i) for i in range(1, 12)], [f"star {i}" for i in range(1, 12)]
    rows = Dataset.from_list([{"text": f"text {i}", "label": numbers[i % 11]} for i in range(220)])
    rows = rows.cast_column("label", ClassLabel(names=sorted(numbers))) if indexed else rows
    assert load_task(rows).label_names == tuple(sorted(numbers))
    task = load_task(rows, label_names=names)
    assert task.label_names == tuple(names)
    assert all(names[row["label"]] == names[int(row["text"].split()[1]) % 11] for row in task.train)
    turned = load_task(rows, label_names=numbers[::-1])
    assert all(turned.label_names[row["label"]] == numbers[int(row["text"].split()[1]) % 11] for row in turned.train)


def test_label_names_reorder_the_classes():
    rows = Dataset.from_list(tickets(60))
    names = ("network", "billing", "hardware")
    task = load_task(rows, label_names=names, **SHARES)
    assert task.label_names == names and task.train[0]["label"] == 1  # billing
    for wrong in (names[:2], (*names[:2], "network"), ("a", "b", "c")):
        with pytest.raises(TaskError, match="label_names: expected 3 different names, for the classes billing, hardware"):
            load_task(rows, label_names=wrong, **SHARES)
    with pytest.raises(TaskError, match="classes False, True .* Classes that are not numbers keep their names"):
        load_task(rows.map(lambda row: {"queue": row["nr"] % 2 == 0}), label_names=["no", "yes"], **SHARES)


def test_error_on_a_folder_without_a_table_lists_its_files(tmp_path):
    for name in ("part1.csv", "part2.csv", "notes.docx"):
        (tmp_path / name).write_text("text,label\n")
    with pytest.raises(TaskError, match="contains notes.docx, part1.csv, part2.csv: expected files named train"):
        load_task(str(tmp_path))
    (tmp_path / "none").mkdir()
    with pytest.raises(TaskError, match="none contains nothing: expected files"):
        load_task(str(tmp_path / "none"))


@pytest.mark.parametrize("made", [lambda rows: rows, lambda rows: DatasetDict(train=rows)])
def test_folder_of_save_to_disk_is_refused_with_a_hint(tmp_path, made):
    made(Dataset.from_list(tickets(30))).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(TaskError, match=r"saved was written by save_to_disk.*load_task\(load_from_disk\('.*saved'"):
        load_task(str(tmp_path / "saved"), **SHARES)


def test_only_table_of_a_folder_is_read(tmp_path):
    write(tmp_path / "export.csv", tickets(60))
    (tmp_path / "README.md").write_text("Tickets.")
    task = load_task(str(tmp_path), **SHARES)
    assert task.name == tmp_path.name and task.held_out


def test_multi_label_data_are_refused():
    rows = Dataset.from_list([{"text": f"text {i}", "label": ["a", "b"][: i % 3]} for i in range(40)])
    with pytest.raises(TaskError, match="multi-label.* not supported"):
        load_task(rows)
    features = Features({"text": Value("string"), "label": List(ClassLabel(names=["a", "b"]))})
    with pytest.raises(TaskError, match="multi-label.* not supported"):
        load_task(Dataset.from_dict({"text": ["x", "y"], "label": [[0], [1, 0]]}, features=features))


def test_bytes_are_neither_classes_nor_texts():
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(40)]
    for column, message in (
        ("label", "a label in 'label' is bytes, such as b'a', not a class"),
        ("text", "that is a bytes"),
    ):
        coded = Dataset.from_list([{**row, column: row[column].encode()} for row in rows])
        with pytest.raises(
            TaskError, match=rf"(?s){message}.*Convert the column to texts first, for instance with frame.name..str.decode"
        ):
            load_task(coded)


@pytest.mark.parametrize("name", ["new.csv", "new.jsonl"])
def test_column_names_with_trailing_blanks_are_quoted(tmp_path, name):
    path = write(tmp_path / name, [{"text ": f"text {i}", "label": "ab"[i % 2]} for i in range(40)])
    with pytest.raises(TaskError, match="no column 'text'; the columns are 'text ', label. Choose"):
        load_task(path)
    with pytest.raises(HfTlmError, match="no column 'text'; the columns are 'text ', label. Choose"):
        list(load_corpus(path))


@pytest.mark.parametrize("name", ["new.json", "new.jsonl"])
def test_lone_surrogates_in_json_are_refused(tmp_path, name):
    rows = [{"text": f"text {i}" + "\ud800" * (i == 5), "label": "ab"[i % 2]} for i in range(40)]
    text = json.dumps(rows) if name == "new.json" else "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / name).write_text(text)
    spec = TaskSpec(name="reviews", path="")
    for read in (load_task, lambda path: list(load_corpus(path)), lambda path: list(unlabelled(path, spec))):
        with pytest.raises(HfTlmError, match=r"Cannot read .*half a character, .*Remove such halves: text.encode"):
            read(str(tmp_path / name))


def test_labels_that_look_like_lists_are_warned_about(tmp_path, caplog):
    rows = [{**row, "queue": str(["billing", "network"][: 1 + row["nr"] % 2])} for row in tickets(60)]
    assert load_task(write(tmp_path / "many.csv", rows), **SHARES).num_labels == 2
    assert "look like lists, such as ['billing', 'network']. Several classes per text (multi-label)" in caplog.text
    for separator, warned in ((";", True), (", ", True), ("|", True), (" and ", False)):
        caplog.clear()
        rows = [
            {**row, "queue": separator.join(["billing", "network"][row["nr"] % 3 // 2 : 1 + row["nr"] % 3])} for row in rows
        ]
        load_task(write(tmp_path / "joined.csv", rows), **SHARES)
        assert (f"look like lists, such as billing{separator}network." in caplog.text) == warned
    for alone in ("[{}]", "{}, urgent"):
        caplog.clear()
        load_task(
            write(tmp_path / "one.csv", [{**row, "queue": alone.format(row["queue"])} for row in tickets(60)]), **SHARES
        )
        assert "look like lists" not in caplog.text


def test_too_few_texts_to_hold_out_are_refused():
    with pytest.raises(
        TaskError, match="4 different texts in 4 classes, which 'queue' names, are too few for a validation split of 10%"
    ):
        load_task(Dataset.from_list(tickets(4, ("a", "b", "c", "d"))), **SHARES)


@pytest.mark.parametrize("shares", [(0.6, 0.4), (1.0, 0.0), (-0.1, 0.1), ("x", 0.1)])
def test_invalid_shares_are_refused(shares):
    with pytest.raises(TaskError, match="_share"):
        load_task(Dataset.from_list(tickets(60)), validation_share=shares[0], test_share=shares[1], **SHARES)


def test_rows_without_text_or_label_are_found_in_train():
    rows = tickets(60)
    rows[7]["queue"], rows[9]["Body"] = None, None
    with pytest.raises(TaskError, match="1 of .* rows with no label.*row-7"):
        load_task(Dataset.from_list(rows), **SHARES)
    task = load_task(Dataset.from_list(rows), drop_bad_rows=True, **SHARES)
    assert task.report["train"]["dropped"] == {"no label": 1, "null text": 1}


def test_blank_text_is_not_the_text_of_a_class_that_goes_to_train():
    """Otherwise a class could have no text in train once the blank one is left out."""
    for seed in range(20):
        rows = [*tickets(60, seed=seed), {"Body": " ", "queue": "rare"}, {"Body": f"rare {seed}", "queue": "rare"}]
        task = load_task(Dataset.from_list(rows), drop_bad_rows=True, **SHARES)
        assert task.report["train"]["classes"]["rare"] == 1


def test_task_arguments_are_applied(tmp_path):
    path = write(tmp_path / "t.csv", tickets(60))
    arguments = TaskArguments(path, text_column="Body", label_column="queue", validation_share=0.2, test_share=0.0)
    task = arguments.load()
    assert task.held_out == {"validation": 0.2} and task.test is None


def test_excel_sheet_with_texts_numbers_and_dates_is_read(tmp_path):
    pytest.importorskip("openpyxl")
    rows = [
        {"Body": f"Text {i}" if i % 2 else i, "queue": float(i % 2), "day": pd.Timestamp("2026-01-02")} for i in range(40)
    ]
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        pd.DataFrame(rows).to_excel(book, index=False, sheet_name="one")
        pd.DataFrame([{"a": 1}]).to_excel(book, index=False, sheet_name="two")
    task = load_task(str(tmp_path / "t.xlsx"), **SHARES)
    assert task.label_names == ("0", "1") and task.train["text"][0] == "0"


def test_escaped_characters_of_a_sheet_are_read(tmp_path):
    pytest.importorskip("openpyxl")
    write(tmp_path / "t.xlsx", [{"text": "one_x000D_\ntwo", "n": None}, {"text": "2_x4", "n": 1}, {"text": None, "n": 2}])
    table = reading.read_file(tmp_path / "t.xlsx", {})
    assert table["text"][:] == ["one\r\ntwo", "2_x4", None] and table["n"][:] == [None, 1, 2]


def test_repeated_column_name_of_a_sheet_is_warned_about(tmp_path, caplog, monkeypatch):
    openpyxl = pytest.importorskip("openpyxl")
    monkeypatch.setattr(tables, "_warned_headers", set())
    book = openpyxl.Workbook()
    for row in (["text", "label", "label", None, None], *([f"text {i}", i % 2, i % 3, None, "x"] for i in range(40))):
        book.active.append(row)
    book.save(tmp_path / "two.xlsx")
    assert load_task(str(tmp_path / "two.xlsx")).num_labels == 2
    assert "two.xlsx names columns more than once (label): the first of each keeps the name" in caplog.text
    assert load_task(str(tmp_path / "two.xlsx"), label_column="label.1").num_labels == 3


def test_missing_openpyxl_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(TaskError, match=r"pip install 'hf-tlm\[excel\]'"):
        load_task(str(tmp_path / "t.xlsx"))


def test_error_on_a_missing_column_lists_the_columns():
    with pytest.raises(TaskError, match="no column 'label'; the columns are Body, queue, nr[.]"):
        load_task(Dataset.from_list(tickets(30)), text_columns="Body")
    with pytest.raises(TaskError, match="the columns are 0, 1, .*, 29 and 10 more[.]"):
        load_task(Dataset.from_list([{str(column): "a" for column in range(40)}]))


def test_minus_one_counts_as_no_label():
    rows = Dataset.from_list([{"text": f"text {i}", "label": i % 3 - 1} for i in range(60)])
    with pytest.raises(
        TaskError, match="rows with no label; the first is row 0 .counted from 0; id 'row-0', null, blank or -1"
    ):
        load_task(rows)
    with pytest.raises(TaskError, match=r"at least two classes; .* has \['1'\]; null, blank and -1 count as no label"):
        load_task(Dataset.from_list([{"text": f"text {i}", "label": i % 2 * 2 - 1} for i in range(60)]))


def test_bad_row_is_named_by_its_number_in_the_table():
    rows = tickets(60)
    rows[41]["Body"] = None
    for options in ({}, {"id_column": "nr"}):
        with pytest.raises(TaskError, match=r"train: 1 of \d+ rows with null text; the first is row 41 "):
            load_task(Dataset.from_list(rows), **SHARES, **options)
    # Also if validation texts are held out of a train split.
    splits = DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(tickets(9, seed=1)))
    with pytest.raises(TaskError, match=r"train: 1 of \d+ rows with null text; the first is row 41 "):
        load_task(splits, **SHARES, validation_share=0.2)


def test_frame_is_a_table():
    frame = pd.DataFrame(tickets(60))
    dataset = Dataset.from_list(tickets(60))
    assert load_task(frame, **SHARES).fingerprint == load_task(dataset, **SHARES).fingerprint
    parts = {"train": frame[frame.index % 2 == 0], "validation": frame[frame.index % 2 == 1]}
    halves = {"train": dataset.select(range(0, 60, 2)), "validation": dataset.select(range(1, 60, 2))}
    assert load_task(parts, **SHARES).fingerprint == load_task(halves, **SHARES).fingerprint
    with pytest.raises(
        TaskError, match="The DataFrame is no table: .*column mixed.* Give every column its own name and one"
    ):
        load_task(frame.assign(mixed=[1, "a"] * 30), **SHARES)


def test_lists_are_refused_with_the_way_to_a_dataset():
    frame = pd.DataFrame(tickets(60))
    with pytest.raises(TaskError, match=r"received a list. Create a dataset with Dataset.from_list\(rows\)\.$"):
        load_task(tickets(60), **SHARES)
    with pytest.raises(TaskError, match=r"received a dict. Create a dataset with Dataset.from_dict\(columns\)\.$"):
        load_task(frame.to_dict(orient="list"), **SHARES)
    with pytest.raises(
        TaskError, match=r"received a IterableDataset. Create a dataset with Dataset.from_list\(list\(rows\)\)\.$"
    ):
        load_task(Dataset.from_pandas(frame).to_iterable_dataset(), **SHARES)
    with pytest.raises(TaskError, match="received none.$"):
        load_task(None, **SHARES)
    same = load_task(Dataset.from_list(tickets(60)), **SHARES)
    assert load_task(Dataset.from_pandas(frame), **SHARES).fingerprint == same.fingerprint


@pytest.mark.parametrize("more", [{}, {"more": 1}], ids=["alike", "other_keys"])
def test_nested_field_is_a_column_with_a_dotted_name(tmp_path, more):
    rows = tickets(60)
    path = tmp_path / "nested.jsonl"
    nested = [
        {"ticket": {"body": row["Body"], "of": {"queue": row["queue"]}, "nr": row["nr"], **(more if i % 2 else {})}}
        for i, row in enumerate(rows)
    ]
    write(path, nested)
    columns = {"text_columns": "ticket.body", "label_column": "ticket.of.queue", "id_column": "ticket.nr"}
    task = load_task(str(path), **columns)
    assert task.fingerprint == load_task(Dataset.from_list(rows), **SHARES, id_column="nr").fingerprint
    assert task.fingerprint == load_task(Dataset.from_list(nested, on_mixed_types="use_json"), **columns).fingerprint
    (some,) = unlabelled(str(path), task.spec)
    assert some["text"][:] == [row["Body"] for row in rows] and some["id"][:2] == ["0", "1"]
    with pytest.raises(TaskError, match="no column 'ticket.boddy'; the columns are ticket"):
        load_task(str(path), **columns | {"text_columns": "ticket.boddy"})
    # A chunk without any value of the field still has the column.
    write(path, [*nested, *({"ticket": {"body": None, "nr": i}} for i in range(60)), *nested])
    chunks = list(unlabelled_chunks(str(path), task.spec, drop_bad_rows=True, chunk=len(rows)))
    assert [len(chunk.rows) for chunk in chunks] == [len(rows)] * 2


@pytest.mark.parametrize(
    "kind, way", [(list, r"Join each list into one text first, .*join"), (dict, "--text_column ticket.body")]
)
def test_texts_in_lists_or_objects_are_refused_with_a_remedy(tmp_path, kind, way):
    cells = [[f"one {i}", "two"] if kind is list else {"body": f"one {i}"} for i in range(40)]
    path = write(tmp_path / "cells.jsonl", [{"text": cell, "label": "ab"[i % 2]} for i, cell in enumerate(cells)])
    message = rf"of [0-9]+ rows with text that is a {kind.__name__}(.|\n)*--drop_bad_rows\. .*{way}"
    with pytest.raises(TaskError, match=message):
        load_task(path)
    with pytest.raises(TaskError, match=message):
        list(unlabelled(path, TaskSpec(name="cells", path="")))


@pytest.mark.parametrize("separator", [";", ",", "\t", "^"])
def test_excel_sep_line_declares_the_separator(tmp_path, separator):
    rows = tickets(60)
    lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
    path = tmp_path / "excel.csv"
    path.write_text("\r\n".join([f"\ufeffsep={separator}", *lines]), encoding="utf-8", newline="")
    task = load_task(str(path), **SHARES)
    assert task.fingerprint == load_task(Dataset.from_list(rows), **SHARES).fingerprint
    (some,) = unlabelled(str(path), task.spec)
    assert some["text"][:] == [row["Body"] for row in rows]
    path.write_text("\n".join([f"sep={separator}", *lines[:3], separator.join("abcd")]), encoding="utf-8")
    with pytest.raises(TaskError, match="line 5 has 4 fields, but the header has 3"):
        load_task(str(path), **SHARES)


@pytest.mark.parametrize("packed", [".gz", ".zst"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_compressed_table_gives_the_same_task(tmp_path, suffix, packed):
    path, rows = tmp_path / f"tickets{suffix}{packed}", tickets(60)
    plain = tmp_path / f"tickets{suffix}"
    write(plain, rows)
    with fsspec.open(str(path), "wb", compression="infer") as file:
        file.write(plain.read_bytes())
    plain.unlink()
    task = load_task(str(path), **SHARES)
    assert (task.name, task.fingerprint) == ("tickets", load_task(Dataset.from_list(rows), **SHARES).fingerprint)
    assert load_task(str(tmp_path), **SHARES).fingerprint == task.fingerprint
    (some,) = unlabelled(str(path), task.spec)
    assert some["text"][:] == [row["Body"] for row in rows]
    path.rename(tmp_path / f"train{suffix}{packed}")
    task = load_task(str(tmp_path), validation_share=0.5, **SHARES)
    assert sum(map(len, task.splits.values())) == 60


@pytest.mark.parametrize("name", ["a.csv.zip", "a.csv.bz2", "a.jsonl.xz", "a.parquet.gz", "a.conll.gz"])
def test_other_compressed_files_are_refused_with_a_remedy(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(TaskError, match=r"as \.gz and \.zst\. Unpack the file first \(gunzip, unzip"):
        load_task(str(tmp_path / name))
    with pytest.raises(TaskError, match=r"as \.gz and \.zst\. Unpack the file first \(gunzip, unzip"):
        list(unlabelled(str(tmp_path / name), TaskSpec(name="a", path="")))


@pytest.mark.parametrize(
    ("suffix", "label", "said"),
    [
        (".xlsx", pd.Timestamp("2026-01-02"), "1 of 2 labels in 'label' are dates or times, such as 2026-01-02T00:00:00:"),
        (".xlsx", datetime.time(9, 30), "such as 09:30:00:"),
        (".parquet", datetime.date(2026, 1, 2), "such as 2026-01-02:"),
        (".csv", "2026-01-02", "such as 2026-01-02:"),
        (".csv", "1-2", None),
        (".csv", "2026", None),
    ],
)
def test_dates_as_classes_are_warned_about(tmp_path, caplog, suffix, label, said):
    """A spreadsheet turns 1-2 and MAR1 into dates."""
    labels = ["a", label] * 20 if suffix != ".parquet" else [label, label + datetime.timedelta(1)] * 20
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(40)], "label": labels})
    file = tmp_path / f"t{suffix}"
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
        frame.to_excel(file, index=False)
    else:
        frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    assert load_task(str(file)).num_labels == 2
    warnings = [message for message in caplog.messages if "dates or times" in message]
    assert (len(warnings) == 1 and said in warnings[0]) if said else not warnings


def test_warnings_about_labels_are_given_once(caplog):
    rows = [{"text": f"text {i}", "label": f"['{'aA'[i % 2]}{i // 4}']"} for i in range(80)]
    load_task(Dataset.from_list(rows))
    for warning in ("look like lists", "differ only in case", "of them have only one or two"):
        assert sum(warning in message for message in caplog.messages) == 1, caplog.messages
