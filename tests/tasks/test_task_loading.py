import gzip
import json
import logging
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from hf_tlm.tasks import TaskArguments, TaskError, TaskSpec, load_task, reading, task_from_datasets

SPEC = TaskSpec(name="t", path="memory")


def rows(labels, **columns):
    return Dataset.from_dict({"text": [f"text {i}" for i in range(len(labels))], "label": labels, **columns})


def class_label(labels, names):
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"text": [f"text {i}" for i in range(len(labels))], "label": labels}, features=features)


def from_splits(train, validation=None, test=None, spec=SPEC, **options):
    splits = {"train": train, "validation": train if validation is None else validation}
    return task_from_datasets(spec, splits | ({} if test is None else {"test": test}), **options)


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".csv":
        lines = [",".join(records[0])] + [",".join(str(value) for value in record.values()) for record in records]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


RECORDS = [{"text": "good film", "label": "pos"}, {"text": "bad film", "label": "neg"}]


# Reading.


@pytest.mark.parametrize("option", ["config", "revision"])
def test_hub_options_are_refused_for_a_folder(tmp_path, option):
    for split in ("train", "validation"):
        write(tmp_path / "film" / f"{split}.jsonl", RECORDS)
    with pytest.raises(
        TaskError, match=f"{option} of the task: only for a dataset on the Hub; .*film is a folder. Remove {option}"
    ):
        load_task(str(tmp_path / "film"), **{"config_name" if option == "config" else option: "x"})


def test_two_different_revisions_are_refused():
    with pytest.raises(TaskError, match="owner/name@v1 names the revision v1, but the option names v2"):
        load_task("owner/name@v1", revision="v2")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json", ".csv"])
@pytest.mark.parametrize("validation", ["validation", "valid", "dev"])
def test_folder_of_every_file_type_is_read(tmp_path, suffix, validation):
    for split in ("train", validation, "test"):
        write(tmp_path / "films" / f"{split}{suffix}", RECORDS)
    task = load_task(str(tmp_path / "films"))
    assert (task.name, task.metric, task.label_names) == ("films", "macro_f1", ("neg", "pos"))
    assert task.train[:] == {
        "id": ["train-0", "train-1"],
        "text": ["good film", "bad film"],
        "label": [1, 0],
    }
    assert task.validation["id"][:] == ["validation-0", "validation-1"]
    assert task.test["id"][:] == ["test-0", "test-1"]


def test_suffixes_of_files_in_a_folder_may_have_capitals(tmp_path):
    for split in ("train", "dev"):
        write(tmp_path / "lower" / f"{split}.csv", RECORDS)
        write(tmp_path / "upper" / f"{split}.csv", RECORDS)
        (tmp_path / "upper" / f"{split}.csv").rename(tmp_path / "upper" / f"{split}.CSV")
    assert load_task(str(tmp_path / "upper")).fingerprint == load_task(str(tmp_path / "lower")).fingerprint


def test_file_types_may_differ_between_splits_and_give_the_same_task(tmp_path):
    write(tmp_path / "a" / "train.csv", RECORDS)
    write(tmp_path / "a" / "dev.parquet", RECORDS)
    write(tmp_path / "b" / "train.jsonl", RECORDS)
    write(tmp_path / "b" / "validation.json", RECORDS)
    assert load_task(str(tmp_path / "a")).fingerprint == load_task(str(tmp_path / "b")).fingerprint


def test_two_files_for_a_split_are_refused(tmp_path):
    for name in ("train.csv", "validation.csv", "dev.csv"):
        write(tmp_path / name, RECORDS)
    with pytest.raises(TaskError, match="several files for validation: validation.csv, dev.csv. Keep one"):
        load_task(str(tmp_path))


@pytest.mark.parametrize("name, split", [("val.csv", "validation"), ("Test.csv", "test"), ("testing.tsv", "test")])
def test_file_with_a_name_similar_to_a_split_is_warned_about(tmp_path, caplog, name, split):
    """Otherwise it would be ignored silently, and validation texts held out of the training texts."""
    for other in ("train.csv", "test.csv" if split == "validation" else "dev.csv", "notes.md", "latest.csv", name):
        write(tmp_path / other, RECORDS)
    with nullcontext() if split == "test" else pytest.raises(TaskError, match="no validation examples"):
        assert "test" not in load_task(str(tmp_path)).splits
    expected_name = {"test": "test", "validation": "validation or valid or dev"}[split]
    (warning,) = [record.message for record in caplog.records if "is ignored" in record.message]
    assert warning.endswith(
        f": {name} in {tmp_path} is ignored. To use it as the {split} split, rename it to {expected_name}."
    )


def test_file_and_its_compressed_copy_are_refused(tmp_path):
    for name in ("train.csv", "dev.csv"):
        write(tmp_path / name, RECORDS)
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress((tmp_path / "train.csv").read_bytes()))
    with pytest.raises(TaskError, match=r"train.csv.gz\. Keep one\. If they have the same content, remove train.csv.gz"):
        load_task(str(tmp_path))


def test_corrupt_file_is_named(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(TaskError, match="Cannot read .*train.parquet"):
        load_task(str(tmp_path))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json", ".csv", ".conll"])
def test_empty_file_is_named(tmp_path, suffix):
    (tmp_path / f"train{suffix}").touch()
    with pytest.raises(TaskError, match=f"train{suffix} is empty"):
        load_task(str(tmp_path))


def test_folder_with_glob_characters_is_read(tmp_path):
    for split in ("train", "validation"):
        write(tmp_path / "run[1]" / f"{split}.csv", RECORDS)
    assert len(load_task(str(tmp_path / "run[1]")).train) == 2


def test_words_that_pandas_reads_as_null_are_kept(tmp_path):
    records = [{"text": "null", "label": "None"}, {"text": "NA", "label": "A"}]
    write(tmp_path / "train.csv", records)
    write(tmp_path / "validation.csv", records)
    task = load_task(str(tmp_path))
    assert task.label_names == ("A", "None")
    assert task.train["text"][:] == ["null", "NA"]


def test_missing_integer_label_in_csv_is_a_bad_row(tmp_path):
    write(tmp_path / "train.csv", [{"text": f"t{i}", "label": label} for i, label in enumerate([0, 1, ""])])
    write(tmp_path / "validation.csv", [{"text": f"t{i}", "label": i} for i in range(2)])
    with pytest.raises(TaskError, match="train: 1 of 3 rows with no label; the first is row 2"):
        load_task(str(tmp_path))
    assert load_task(str(tmp_path), drop_bad_rows=True).label_names == ("0", "1")


def test_folder_named_like_a_registered_task_has_its_metric(tmp_path, caplog):
    for split in ("train", "validation"):
        write(tmp_path / "chemprot" / f"{split}.jsonl", RECORDS)
    with caplog.at_level(logging.INFO, logger="hf_tlm"):
        task = load_task(str(tmp_path / "chemprot"))
    assert task.metric == "micro_f1"
    assert "metric is micro_f1" in caplog.text
    assert "2 classes in these data; the papers report 13" in caplog.text
    assert load_task(str(tmp_path / "chemprot"), metric="accuracy").metric == "accuracy"


def test_registered_task_loads_the_released_files_from_the_hub(tmp_path, monkeypatch, caplog):
    request = {}

    def hub(path, name=None, **options):
        request.update(options, path=path, name=name)
        return DatasetDict({split: rows([0, 1], id=["3", "4"]) for split in ("train", "validation", "test")})

    monkeypatch.setattr(reading, "load_dataset", hub)
    task = load_task("acl_arc", revision="v1")
    assert request["path"] == "yxchar/citation_intent-tlm"
    assert request["revision"] == "v1"
    assert request["data_files"] == {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"}
    assert task.name == "acl_arc"
    assert task.train["id"][:] == ["3", "4"]
    assert "is a registered task" not in caplog.text
    for split in ("train", "validation"):
        write(tmp_path / "acl_arc" / f"{split}.jsonl", RECORDS)
    monkeypatch.chdir(tmp_path)
    assert load_task("acl_arc").train["id"][:] == ["3", "4"]
    assert "acl_arc is a registered task, so its data set on the Hub is used. For your own acl_arc, pass ./" in caplog.text
    assert load_task("./acl_arc").train["id"][:] == ["train-0", "train-1"]


def test_hub_id_with_revision_and_config_is_loaded(monkeypatch):
    request = {}

    def hub(path, name=None, **options):
        request.update(options, path=path, name=name)
        return DatasetDict({"train": rows([0, 1]), "dev": rows([1, 0])})

    monkeypatch.setattr(reading, "load_dataset", hub)
    task = load_task("someone/films@abc", config_name="small")
    assert (request["path"], request["name"], request["revision"]) == ("someone/films", "small", "abc")
    assert (task.name, len(task.validation)) == ("films", 2)


def test_unreachable_hub_points_to_local_files():
    with pytest.raises(TaskError, match="Cannot load task films from the Hub.*(?s:.*)folder with train, validation"):
        load_task("someone/films")


def test_unknown_task_names_the_known_ones():
    with pytest.raises(TaskError, match="No task 'chemport'.*chemprot.*acl_arc.* Did you mean chemprot"):
        load_task("chemport")


def test_missing_file_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data" / "tickets.csv", [{"text": "a", "label": "x"}])
    message = "No task 'data/ticket.csv': there is no such file or folder. Did you mean data/tickets.csv?"
    with pytest.raises(TaskError) as error:
        load_task("data/ticket.csv")
    assert str(error.value) == message


def test_task_arguments_are_applied(tmp_path):
    records = [{"q1": "a", "q2": "b", "key": "k1", "y": "no"}, {"q1": "c", "q2": "d", "key": "k2", "y": "yes"}]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.jsonl", records)
    task = TaskArguments(
        task=str(tmp_path),
        text_column="q1",
        text_pair_column="q2",
        label_column="y",
        id_column="key",
        metric="accuracy",
    ).load()
    assert task.metric == "accuracy"
    assert task.train[:] == {"id": ["k1", "k2"], "text": ["a", "c"], "text_pair": ["b", "d"], "label": [0, 1]}


# Labels.


def test_integer_labels_keep_their_numbers():
    task = from_splits(rows(list(range(11))), rows([10, 2]))
    assert task.label_names == tuple(str(i) for i in range(11))
    assert task.validation["label"][:] == [10, 2]


def test_digits_as_strings_are_class_names():
    task = from_splits(rows(["1", "2", "10"]), rows(["10", "1"]))
    assert task.label_names == ("1", "10", "2")
    assert task.train["label"][:] == [0, 2, 1]
    assert task.validation["label"][:] == [1, 0]


def test_booleans_are_class_names():
    assert from_splits(rows([True, False])).label_names == ("False", "True")


def test_class_labels_keep_their_order():
    task = from_splits(class_label([0, 1], ["pos", "neg"]))
    assert task.label_names == ("pos", "neg")
    assert task.train["label"][:] == [0, 1]


@pytest.mark.parametrize("train", [class_label([0, 1], ["neg", "pos"]), rows(["neg", "pos"])])
def test_labels_are_matched_by_name_between_splits(train):
    assert from_splits(train, class_label([0, 1], ["pos", "neg"])).validation["label"][:] == [1, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "a"], "at least two classes.*has \\['a'\\]"),
        ([0.5, 1.0], "numbers such as 0.5"),
        ([0.0, 1.0, 2.5], "numbers such as 2.5"),  # 0.0 alone would be a class.
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises(TaskError, match=message):
        from_splits(rows(labels))


@pytest.mark.parametrize(
    "given, message",
    [
        ({0: "no", 1: "yes"}, r"received a dict. Pass list\(id2label.values\(\)\)"),
        ("no", "expected a list of strings; received a str"),
        ([0, 1], "expected strings; received 0, of type int"),
    ],
)
def test_label_names_must_be_a_list_of_strings(given, message):
    with pytest.raises(TaskError, match=f"^label_names: .*{message}"):
        load_task(rows([0, 1] * 20), label_names=given)


def test_single_named_class_is_refused():
    with pytest.raises(TaskError, match="at least two classes"):
        from_splits(class_label([0, 0], ["only"]))


def test_unlabelled_test_split_is_left_out_with_a_warning(caplog):
    """GLUE's test labels on the Hub are all -1."""
    assert from_splits(rows([0, 1]), test=rows([-1, -1])).test is None
    assert "test split has no labels" in caplog.text


# Bad rows.

BAD = Dataset.from_dict(
    {
        "id": ["a", "b", "c", "d", "e", "a", None, "g"],
        "text": ["one", None, " \n", "four", "five", "six", "seven", "eight"],
        "label": ["x", "x", "y", None, "z", "y", "x", "y"],
    }
)
GOOD = Dataset.from_dict({"id": ["p", "q"], "text": ["one", "two"], "label": ["x", "y"]})


def test_bad_rows_are_all_listed_with_count_and_first():
    with pytest.raises(TaskError) as raised:
        from_splits(GOOD, BAD)
    message = str(raised.value)
    for line in (
        "validation: 1 of 8 rows with null text; the first is row 1 (counted from 0; id 'b')",
        "validation: 1 of 8 rows with blank text; the first is row 2 (counted from 0; id 'c')",
        "validation: 1 of 8 rows with no label; the first is row 3 (counted from 0; id 'd', null, blank or -1)",
        "validation: 1 of 8 rows with a label that train lacks; the first is row 4 (counted from 0; id 'e', label 'z')",
        "validation: 1 of 8 rows with a repeated id; the first is row 5 (counted from 0; id 'a')",
        "--drop_bad_rows",
    ):
        assert line in message


def test_repeated_ids_suggest_another_id_column(caplog):
    """For example a customer's number: the rows are not bad, and dropping them would lose texts."""
    rows = [{"text": f"text {i}", "label": "ab"[i % 2], "id": i // 2, "nr": i // 3} for i in range(60)]
    by_default = "If id does not identify rows, choose another --id_column, or rename it: a column id is used by default."
    given = "If nr does not identify rows, choose another --id_column, or remove the option."
    for column, words in ((None, by_default), ("nr", given)):
        with pytest.raises(TaskError) as raised:
            load_task(Dataset.from_list(rows), id_column=column)
        assert str(raised.value).endswith(f"leave them out with --drop_bad_rows. {words}")
    load_task(Dataset.from_list(rows), id_column="nr", drop_bad_rows=True)
    assert given in caplog.text
    caplog.clear()
    load_task(Dataset.from_list([{"text": " ", "label": "a"}, *rows]), id_column="text", drop_bad_rows=True)
    assert "rows left out: 1 with blank text.\n" in caplog.text and "--id_column" not in caplog.text


def test_null_ids_are_bad_rows():
    with pytest.raises(TaskError, match="1 of 8 rows with no id; the first is row 6"):
        from_splits(GOOD, BAD)
    empty = Dataset.from_list([{"text": f"text {i}", "label": "ab"[i % 2], "id": None} for i in range(60)])
    with pytest.raises(TaskError, match="If id does not identify rows, choose another --id_column, or rename it"):
        load_task(empty)


def test_dropped_rows_stay_aligned_with_their_labels_and_are_counted(caplog):
    task = from_splits(GOOD, BAD.select([0, 1, 2, 3, 4, 5, 7]), drop_bad_rows=True)
    assert task.validation[:] == {"id": ["a", "g"], "text": ["one", "eight"], "label": [0, 1]}
    assert task.report["validation"]["dropped"] == {
        "null text": 1,
        "blank text": 1,
        "no label": 1,
        "a label that train lacks": 1,
        "a repeated id": 1,
    }
    assert task.report["validation"]["examples"] == 2
    assert "left out" in caplog.text


def test_split_with_only_bad_rows_is_refused():
    with pytest.raises(TaskError, match="validation: every row is unusable"):
        from_splits(GOOD, BAD.select([1, 2]), drop_bad_rows=True)


def test_blank_second_text_is_a_bad_row():
    pairs = Dataset.from_dict({"a": ["x", "y"], "b": ["z", ""], "label": ["0", "1"]})
    with pytest.raises(TaskError, match="train: 1 of 2 rows with blank text"):
        from_splits(pairs, spec=TaskSpec(name="t", path="memory", text_columns=("a", "b")))


@pytest.mark.parametrize("columns, told", [(("text",), True), (("text", "text_pair"), False)])
def test_unused_second_text_column_is_reported(caplog, columns, told):
    pairs = Dataset.from_dict({"text": ["x", "y"], "text_pair": ["z", "w"], "label": ["0", "1"]})
    from_splits(pairs, spec=TaskSpec(name="t", path="memory", text_columns=columns))
    assert ("Pass --text_pair_column text_pair to use pairs" in caplog.text) == told


def test_repeated_texts_are_counted_not_dropped():
    train = Dataset.from_dict({"text": ["a", "a", "b"], "label": ["x", "y", "y"]})
    test = Dataset.from_dict({"text": ["a", "c"], "label": ["x", "y"]})
    report = from_splits(train, GOOD, test).report
    assert report["train"] == {"examples": 3, "dropped": {}, "classes": {"x": 1, "y": 2}, "repeated_texts": 1}
    assert report["test"]["texts_also_in_train"] == 1


def test_repeated_pair_repeats_both_texts():
    """Many pairs of a task share the first text, such as a premise with several hypotheses."""
    train = Dataset.from_dict({"a": ["x", "x", "x"], "b": ["1", "2", "2"], "label": ["0", "1", "0"]})
    test = Dataset.from_dict({"a": ["x", "x"], "b": ["1", "3"], "label": ["0", "1"]})
    task = from_splits(train, train, test, spec=TaskSpec(name="t", path="memory", text_columns=("a", "b")))
    assert task.report["train"]["repeated_texts"] == 1
    assert task.texts_also_in_train == {"validation": 3, "test": 1}


# Columns and splits.


@pytest.mark.parametrize("options", [{"text_columns": ("body",)}, {"label_column": "body"}, {"id_column": "body"}])
def test_error_on_a_missing_column_lists_the_columns(options):
    with pytest.raises(TaskError, match="no column 'body'; the columns are id, text, label"):
        from_splits(GOOD, spec=TaskSpec(name="t", path="memory", **options))


@pytest.mark.parametrize(("have", "lack"), [("train", "validation"), ("validation", "train")])
def test_train_and_validation_are_required(have, lack):
    with pytest.raises(TaskError, match=f"no {lack} examples.*splits found: {have}"):
        task_from_datasets(SPEC, {have: GOOD})


def test_empty_training_split_is_refused():
    with pytest.raises(TaskError, match="no train examples"):
        from_splits(GOOD.select([]), GOOD)


def test_metrics_can_be_given_by_task_name(tmp_path):
    """Pairs apply to the registered tasks that they name, in any folder, and to no other task."""
    rows = [
        {"sentence1": f"a {n}", "sentence2": f"b {n}", "label": ("not_equivalent", "equivalent")[n % 2]} for n in range(4)
    ]
    for folder in ("glue_mrpc", "mine"):
        for split in ("train", "validation"):
            write(tmp_path / folder / f"{split}.jsonl", rows)

    def metrics(folder, metric, **options):
        task = TaskArguments(task=str(tmp_path / folder), metric=metric, **options).load()
        return task.metric, task.spec.further_metrics

    assert metrics("glue_mrpc", None) == metrics("glue_mrpc", "stsb=spearman") == ("f1", ("accuracy",))
    assert metrics("glue_mrpc", "mrpc=accuracy stsb=spearman") == ("accuracy", ("f1",))
    columns = {"text_column": "sentence1", "text_pair_column": "sentence2"}
    assert metrics("mine", "mrpc=accuracy", **columns) == metrics("mine", None, **columns)
    for wrong, message in (
        ("mrpc=nothing", "received mrpc=nothing"),
        ("none=accuracy", r"registered tasks \(.*\); received none"),
    ):
        with pytest.raises(TaskError, match=message):
            metrics("glue_mrpc", wrong)


def test_task_is_summarized_in_one_line(tmp_path):
    rows = [{"text": text, "label": label} for text, label in (("a", "x"), ("a", "x"), ("b", "y"), ("", "y"), ("c", None))]
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "validation.jsonl", [{"text": "b", "label": "y"}, {"text": "d", "label": "x"}])
    text = load_task(str(tmp_path), drop_bad_rows=True).to_text()
    assert text.startswith(f"task         {tmp_path.name} (train 3, validation 2, 2 classes); train: ")
    assert "1 repeated; validation: 1 in train too" in text and text.count("1 ") >= 4
