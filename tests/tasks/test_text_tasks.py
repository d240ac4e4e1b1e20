"""Regression, the names and columns of GLUE, and how the kind of a task is detected."""

import json
import math

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from hf_tlm.config import parse
from hf_tlm.tasks import TASKS, TaskArguments, TaskError, TaskSpec, load_task, reading, task_from_datasets

REGRESSION = TaskSpec(name="t", path="memory", kind="regression")
SCORES = Dataset.from_dict({"text": ["a", "b", "c"], "label": [0.5, 5.0, -1.0]})


def write(folder, records, splits=("train", "validation")):
    folder.mkdir(exist_ok=True)
    for split in splits:
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def regression(rows, **options):
    return task_from_datasets(REGRESSION, {"train": SCORES, "validation": rows}, **options)


def test_numbers_are_labels_of_regression():
    task = regression(SCORES)
    assert (task.kind, task.metric, task.spec.further_metrics, task.label_names) == (
        "regression",
        "pearson",
        ("spearman",),
        (),
    )
    assert task.train[:] == {"id": ["train-0", "train-1", "train-2"], "text": ["a", "b", "c"], "label": [0.5, 5.0, -1.0]}
    assert task.train.features["label"] == Value("float64")
    assert task.report["train"]["labels"] == {"least": -1.0, "mean": 1.5, "most": 5.0}


def test_number_may_be_a_string():
    rows = Dataset.from_dict({"text": ["a", "b"], "label": ["2.5", "3"]})
    assert regression(rows).validation["label"][:] == [2.5, 3.0]


def test_labels_that_are_no_finite_numbers_are_bad_rows():
    rows = Dataset.from_dict({"text": list("abcd"), "label": ["1", "high", "nan", None]})
    with pytest.raises(TaskError, match="2 of 4 rows with a label that is no number; the first is row 1 .*'high'"):
        regression(rows)
    task = regression(rows, drop_bad_rows=True)
    assert task.report["validation"]["dropped"] == {"a label that is no number": 2, "no label": 1}
    assert task.validation["text"][:] == ["a"]
    with pytest.raises(TaskError, match="1 of 1 rows with a label that is no number"):
        regression(Dataset.from_dict({"text": ["a"], "label": [math.inf]}))
    with pytest.raises(TaskError, match="label '1.000,50'; use a decimal point"):
        regression(Dataset.from_dict({"text": ["a"], "label": ["1.000,50"]}))


def test_numbers_as_classes_are_refused_with_the_option_for_regression(tmp_path):
    folder = write(tmp_path / "scores", [{"text": "a", "label": 0.5}, {"text": "b", "label": 1.0}])
    with pytest.raises(TaskError, match="numbers such as 0.5(?s:.*)--task_kind regression"):
        load_task(folder)
    assert load_task(folder, kind="regression").train["label"][:] == [0.5, 1.0]


# GLUE.


def glue_dataset(texts, labels, names):
    features = Features(
        {**{name: Value("string") for name in texts}, "label": ClassLabel(names=names), "idx": Value("int32")}
    )
    return Dataset.from_dict({**texts, "label": labels, "idx": list(range(len(labels)))}, features=features)


def test_mnli_from_the_hub_has_matched_and_mismatched_splits(monkeypatch):
    requests = []

    def hub(path, name=None, **options):
        requests.append((path, name))
        names = list(TASKS["mnli"].classes)
        texts = {"premise": ["a", "b", "c"], "hypothesis": ["x", "y", "z"]}
        parts = {"validation_matched": [0, 1, 2], "validation_mismatched": [2, 1, 0], "test_matched": [-1, -1, -1]}
        return DatasetDict(
            {name: glue_dataset(texts, labels, names) for name, labels in {"train": [0, 1, 2], **parts}.items()}
        )

    monkeypatch.setattr(reading, "load_dataset", hub)
    matched, mismatched = load_task("mnli"), load_task("mnli_mm")
    assert requests == [("nyu-mll/glue", "mnli")] * 2
    assert matched.validation["label"][:] == [0, 1, 2] and mismatched.validation["label"][:] == [2, 1, 0]
    assert matched.train[0] == {"id": "train-0", "text": "a", "text_pair": "x", "label": 0}
    assert matched.label_names == ("entailment", "neutral", "contradiction")
    assert matched.test is None
    assert load_task("nyu-mll/glue@main", config_name="mnli").spec.split_names == matched.spec.split_names


@pytest.mark.parametrize("name", [name for name, spec in TASKS.items() if spec.path == "nyu-mll/glue"])
def test_local_copy_of_a_glue_task_is_read(tmp_path, name):
    """Every GLUE task accepts the columns sentence1 and sentence2; sentence2 is null for single sentences."""
    spec = TASKS[name]
    pair = len(spec.text_columns) == 2
    labels = spec.classes or (0.0, 5.0)
    records = [
        {"sentence1": f"one {i}", "sentence2": f"two {i}" if pair else None, "label": x} for i, x in enumerate(labels)
    ]
    task = load_task(write(tmp_path / f"glue_{name}", records))
    assert (task.name, task.kind, task.metric) == (f"glue_{name}", spec.kind, spec.metric)
    assert task.label_names == spec.classes
    assert task.train["label"][:] == (list(range(len(labels))) if spec.classes else [0.0, 5.0])
    assert task.train.column_names == ["id", "text", *(["text_pair"] if pair else []), "label"]
    official = [dict.fromkeys(spec.text_columns, f"text {i}") | {"label": x} for i, x in enumerate(labels)]
    assert load_task(write(tmp_path / name, official)).train["text"][:] == [f"text {i}" for i in range(len(labels))]


def test_glue_tasks_have_their_metrics():
    assert {name: (spec.metric, *spec.further_metrics) for name, spec in TASKS.items() if spec.path == "nyu-mll/glue"} == {
        "cola": ("matthews",),
        "sst2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "qqp": ("f1", "accuracy"),
        "stsb": ("pearson", "spearman"),
        "mnli": ("accuracy",),
        "mnli_mm": ("accuracy",),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
    }


def test_chosen_metric_of_a_task_keeps_its_other_metrics(tmp_path):
    records = [{"sentence1": "a", "sentence2": "b", "label": name} for name in TASKS["mrpc"].classes]
    folder = write(tmp_path / "mrpc", records)
    spec = load_task(folder, metric="accuracy").spec
    assert (spec.metric, spec.further_metrics) == ("accuracy", ("f1",))
    spec = load_task(folder, metric="macro_f1").spec
    assert (spec.metric, spec.further_metrics) == ("macro_f1", ())


def test_f1_needs_two_classes():
    spec = TaskSpec(name="t", path="memory", metric="f1")
    rows = Dataset.from_dict({"text": list("abc"), "label": list("xyz")})
    with pytest.raises(TaskError, match="f1 is for two classes; received 3"):
        task_from_datasets(spec, {"train": rows, "validation": rows})


def test_classes_that_differ_in_spaces_or_are_blank_are_refused(tmp_path):
    def write(split, *labels):
        rows = ({"text": f"the gene {label}", "label": label} for label in labels)
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("validation", "up", "down")
    write("train", "up", "down", "up ")
    with pytest.raises(TaskError, match="the classes 'up' and 'up ' differ only in spaces"):
        load_task(str(tmp_path))
    write("train", "going up", "down", "going\xa0 up")
    with pytest.raises(TaskError, match="differ only in spaces"):
        load_task(str(tmp_path))
    write("train", "caf\u00e9", "down", "cafe\u0301")
    with pytest.raises(TaskError, match="differ only in the encoding of accents"):
        load_task(str(tmp_path))
    write("train", "up", "down", " ")
    with pytest.raises(TaskError, match="no label"):
        load_task(str(tmp_path))
    write("train", "up", 0.5)
    with pytest.raises(TaskError, match="numbers such as 0.5"):
        load_task(str(tmp_path))


def test_given_kind_wins_over_the_registered_one(tmp_path):
    records = [{"sentence1": "a", "sentence2": "b", "label": label} for label in ("0.5", "1.5")]
    assert load_task(write(tmp_path / "mrpc", records), kind="regression").metric == "pearson"


def test_task_that_is_not_on_the_hub_needs_a_local_folder(tmp_path, monkeypatch):
    with pytest.raises(TaskError, match="pos_ptb are not on the Hub: pass the path of a folder of that name"):
        load_task("pos_ptb")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pos_ptb", [{"tokens": ["a", "b"], "tags": ["X", "Y"]}])
    assert load_task("pos_ptb").label_names == ("X", "Y")


# The kind of a task.

KINDS = {
    "classification": {"text": "t", "context": "c", "question": "q", "options": ["x", "y"]},
    "multiple_choice": {"article": "c", "question": "q", "options": ["x", "y"], "answer": "A"},
    "question_answering": {"context": "an x", "question": "q", "answer_text": "x", "answer_start": 3},
    "tagging": {"tokens": ["a", "b"], "tags": ["X", "Y"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_detected_from_the_columns(tmp_path, kind):
    records = [{**KINDS[kind], **({"label": label} if kind == "classification" else {})} for label in ("no", "yes")]
    assert load_task(write(tmp_path / "folder", records)).kind == kind


def test_kind_is_detected_from_columns_given_by_role(tmp_path):
    records = [{"passage": "p", "ask": "q", "choices": ["x", "y"], "right": 1}]
    pairs = ["context=passage", "question=ask", "options=choices", "label=right"]
    task = TaskArguments(task=write(tmp_path / "folder", records), columns=pairs).load()
    assert task.kind == "multiple_choice"
    assert task.train[0] == {"id": "train-0", "context": "p", "question": "q", "options": ["x", "y"], "label": 1}


def test_command_line_accepts_kinds_and_columns(capsys):
    command = ["--task", "t", "--task_kind", "tagging", "--columns", "tokens=0", "tags=-1"]
    (args,) = parse(TaskArguments, recipe="finetune", description="", args=command)
    assert (args.task_kind, args.columns) == ("tagging", ["tokens=0", "tags=-1"])
    with pytest.raises(SystemExit):
        parse(TaskArguments, recipe="finetune", description="", args=["--task", "t", "--task_kind", "parsing"])
    assert "invalid choice: 'parsing'" in capsys.readouterr().err


def test_malformed_columns_option_is_refused():
    with pytest.raises(TaskError, match="role=column pairs.*received options, =x"):
        TaskArguments(task="squad", columns=["context=c", "options", "=x"]).load()


def test_column_options_of_another_kind_are_refused(tmp_path):
    folder = write(tmp_path / "folder", [{"tokens": ["a", "b"], "tags": ["X", "Y"]}])
    with pytest.raises(TaskError, match="--text_column and --label_column are for classification"):
        load_task(folder, kind="tagging", label_column="tags")
    with pytest.raises(TaskError, match="options of their own .*received parse. Choose another kind with --task_kind"):
        load_task(folder, kind="classification", columns={"parse": "tokens"})
    with pytest.raises(TaskError, match=r"are tokens, tags; received tag\. Did you mean tags\?$"):
        load_task(folder, kind="tagging", columns={"tag": "tags"})
    with pytest.raises(TaskError, match=r"a label in 'tags' is a list, not a class: 1 of 1, such as \['X', 'Y'\]\. Several"):
        load_task(folder, label_column="tags")


def test_error_on_a_missing_column_names_the_option(tmp_path):
    folder = write(tmp_path / "folder", [{"tokens": ["a", "b"], "labels": ["X", "Y"]}])
    with pytest.raises(TaskError, match="train: no column 'tags'; the columns are tokens, labels. .*--columns tags=name"):
        load_task(folder, kind="tagging")


@pytest.mark.parametrize("kind", ["regression", "tagging"])
def test_fingerprint_of_regression_and_tagging_depends_on_labels(kind):
    spec = TaskSpec(name="t", path="memory", kind=kind)
    columns = {
        "regression": {"text": ["a", "b"], "label": [1.0, 2.0]},
        "tagging": {"tokens": [["a", "b"]], "tags": [["X", "Y"]]},
    }
    rows = Dataset.from_dict(columns[kind])
    other = {
        "regression": {"text": ["a", "b"], "label": [1.0, 2.5]},
        "tagging": {"tokens": [["a", "b"]], "tags": [["Y", "X"]]},
    }
    tasks = [
        task_from_datasets(spec, {"train": train, "validation": rows})
        for train in (rows, Dataset.from_dict(columns[kind]), Dataset.from_dict(other[kind]))
    ]
    assert tasks[0].fingerprint == tasks[1].fingerprint != tasks[2].fingerprint


@pytest.mark.parametrize("named", [False, True])
def test_label_column_of_ids_is_warned_about(named, caplog):
    """Also if it is a `ClassLabel`. Classes of three texts are accepted; a class with one text gets a warning."""

    def loaded(ids):
        rows = Dataset.from_dict({"text": [f"text {i}" for i in range(len(ids))], "customer": ids})
        rows = rows.class_encode_column("customer") if named else rows
        return load_task(DatasetDict(train=rows, validation=rows), label_column="customer")

    assert loaded([i // 3 for i in range(90)] + [30]).num_labels == 31
    assert "customer" not in caplog.text
    assert "classes with a single training text can hardly be learnt: '30'. Label more" in caplog.text
    assert loaded([i // 2 for i in range(3000)]).num_labels == 1500
    assert "'customer' has 1,500 classes for 3,000 texts, and 1,500 of them have only one or two." in caplog.text
    assert "choose another --label_column; to learn numbers, pass --task_kind regression" in caplog.text


def test_classes_that_differ_only_in_case_are_warned_about(tmp_path, caplog):
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"text {i},{label}\n" for i, label in enumerate(["up", "Up", "down"] * 20)))
    assert load_task(str(table)).num_labels == 3
    assert "only in case are treated as different classes: 'Up' and 'up'." in caplog.text


def test_texts_with_several_labels_are_warned_about(caplog):
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(10)]
    data = {"train": rows + [{"text": "text 0", "label": "b"}, {"text": "text 2", "label": "a"}], "validation": rows}
    splits = {split: Dataset.from_list(split_rows) for split, split_rows in data.items()}
    load_task(splits)
    assert "texts with more than one label, of which a model can predict only one: train 1.\n" in caplog.text
    caplog.clear()
    load_task({split: Dataset.from_list(rows) for split in splits})
    assert "more than one label" not in caplog.text
