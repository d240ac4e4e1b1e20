"""Reading a task: by registry name, Hub id, or local folder, or from data sets in memory."""

from __future__ import annotations

import dataclasses
import glob
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, Value, load_dataset

from hf_tlm.hub.errors import explaining
from hf_tlm.hub.repo import Repo
from hf_tlm.tasks.registry import TASKS, registered_task
from hf_tlm.tasks.spec import SPLITS, Task, TaskError, TaskSpec

logger = logging.getLogger(__name__)

BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
# Only an empty field is null: pandas would also take the words "null", "None" and "NA" for one.
_CSV = {"keep_default_na": False, "na_values": [""]}
SPLIT_FILES = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}


def load_task(
    task: str,
    *,
    text_columns: tuple[str, ...] | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    metric: str | None = None,
    config_name: str | None = None,
    revision: str | None = None,
    drop_bad_rows: bool = False,
) -> Task:
    """A task with its data.

    Args:
        task: a name of `hf_tlm.tasks.TASKS`, or that of its release (sciie), or a Hub dataset id, with `@revision` if
            wanted; or a folder with one file `train`, `validation` (or `valid`, `dev`) and optionally `test` each, as
            parquet, jsonl, json or csv. A folder called like a registered task takes that task's metric.
        text_columns, label_column, id_column, metric: override the spec (default `text`, `label`, `id`, macro-F1).
        drop_bad_rows: leave out rows with null or blank text, a null label, a repeated id, or (outside train) a label
            that train lacks, and count them in `Task.report`. By default they are an error.

    Raises:
        TaskError: the task is not found, a column or split is missing, or there are bad rows: all kinds are listed,
            with their counts and the first row of each.
    """
    spec = _find(task)
    changes = {
        "text_columns": text_columns,
        "label_column": label_column,
        "id_column": id_column,
        "metric": metric,
        "config_name": config_name,
        "revision": revision,
    }
    spec = dataclasses.replace(spec, **{name: value for name, value in changes.items() if value is not None})
    return task_from_datasets(spec, _read(spec), drop_bad_rows=drop_bad_rows)


def _find(task: str) -> TaskSpec:
    """The spec of a registry name, a folder or a Hub id, in this order."""
    if task in TASKS:
        return TASKS[task]
    if Path(task).is_dir():
        name = Path(task).resolve().name
        known = TASKS.get(name)
        if known is not None:
            logger.info("%s is named like the registered task %s: its metric is %s.", task, name, known.metric)
            return TaskSpec(name=name, path=task, metric=known.metric, classes=known.classes)
        return TaskSpec(name=name, path=task)
    path, _, revision = task.partition("@")
    if spec := registered_task(path):
        return dataclasses.replace(spec, revision=revision or None)
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        return TaskSpec(name=path.split("/")[1], path=path, revision=revision or None)
    raise TaskError(
        f"No task {task!r}: it is neither a registered task ({', '.join(TASKS)}), nor a folder here, nor a Hub id "
        "(owner/name)."
    )


def _read(spec: TaskSpec) -> dict[str, Dataset]:
    """The raw splits, with the columns of the source."""
    if not Path(spec.path).is_dir():
        csv = spec.data_files is not None and all(name.endswith(".csv") for name in spec.data_files.values())
        try:
            with explaining(Repo(spec.path, spec.revision, "dataset")):
                found = load_dataset(
                    spec.path,
                    spec.config_name,
                    revision=spec.revision,
                    data_files=None if spec.data_files is None else dict(spec.data_files),
                    **(_CSV if csv else {}),
                )
        except Exception as error:  # The readers raise their own types; none is a bug of ours.
            raise TaskError(
                f"Cannot load task {spec.name} from the Hub dataset {spec.path!r}: {error}\nWithout a network, give the "
                "path of a folder with train, validation and test files."
            ) from error
        return {name: found[key] for name in SPLITS for key in SPLIT_FILES[name] if key in found}
    splits = {}
    for name in SPLITS:
        files = [
            path
            for stem in SPLIT_FILES[name]
            for suffix in BUILDERS
            if (path := Path(spec.path) / f"{stem}{suffix}").is_file()
        ]
        if len(files) > 1:
            raise TaskError(f"{spec.path} holds several files for {name}: {', '.join(p.name for p in files)}. Keep one.")
        if files:
            try:
                builder = BUILDERS[files[0].suffix]
                options = _CSV if builder == "csv" else {}
                splits[name] = load_dataset(builder, data_files=glob.escape(str(files[0])), split="train", **options)
            except Exception as error:  # The readers raise their own types for a corrupt file; none is a bug of ours.
                raise TaskError(f"Cannot read {files[0]}: {error.__cause__ or error}") from error
    return splits


def task_from_datasets(spec: TaskSpec, splits: Mapping[str, Dataset], *, drop_bad_rows: bool = False) -> Task:
    """A task from data sets with the spec's columns, checked as `load_task` checks.

    String labels become indices into their sorted names; `ClassLabel` features keep their names and order; integers
    0 .. n-1 are named "0" .. "n-1". Labels of other splits are matched to train's by name. A test split without any
    label (as of GLUE on the Hub) is left out, with a warning.

    Raises:
        TaskError: see `load_task`.
    """
    for name in ("train", "validation"):
        if name not in splits or len(splits[name]) == 0:
            raise TaskError(
                f"Task {spec.name} has no {name} examples (splits found: {', '.join(splits) or 'none'} in {spec.path}). "
                "TLM needs labelled training and validation examples; split off some of the training examples if there "
                "is no validation set."
            )
    names = _label_names(spec, splits["train"])
    problems: list[str] = []
    checked, report = {}, {}
    for split in SPLITS:
        if split == "test" and split in splits and _unlabelled(spec, splits[split]):
            logger.warning("Task %s: the test split has no labels and is left out.", spec.name)
        elif split in splits:
            checked[split], report[split] = _check(spec, split, splits[split], names, problems, drop_bad_rows)
    if problems:
        raise TaskError(
            f"Task {spec.name} has unusable rows:\n- " + "\n- ".join(problems) + "\nMend them, or leave them out with "
            "--drop_bad_rows."
        )
    for split, counts in report.items():
        if counts["dropped"]:
            logger.warning("Task %s, %s: left out %s.", spec.name, split, counts["dropped"])
    train_texts = set(checked["train"]["text"])
    for split in checked:
        texts = checked[split]["text"]
        report[split]["repeated_texts"] = len(texts) - len(set(texts))
        if split != "train":
            report[split]["texts_also_in_train"] = sum(text in train_texts for text in texts)
    task = Task(spec, checked, names, report)
    if spec.classes and len(spec.classes) != task.num_labels:
        logger.warning("Task %s has %d classes here; the papers report %d.", spec.name, task.num_labels, len(spec.classes))
    return task


def _label_names(spec: TaskSpec, train: Dataset) -> tuple[str, ...]:
    """Class names in the order of their indices, from the training split."""
    if spec.label_column not in train.column_names:
        raise TaskError(_missing(spec, "train", [spec.label_column], train))
    feature = train.features[spec.label_column]
    named = feature.names if isinstance(feature, ClassLabel) else None
    values = set(named or _labels(spec, train)) - {None}
    if any(isinstance(value, float) for value in values):
        raise TaskError(
            f"Task {spec.name}: the labels in {spec.label_column!r} are numbers such as {min(values)}; TLM classifies. "
            "Give a column of class names or class indices with --label_column."
        )
    if len(values) < 2:
        raise TaskError(
            f"Task {spec.name}: a classification task needs two classes or more; the training column "
            f"{spec.label_column!r} holds {sorted(map(str, values))}."
        )
    if named:
        return tuple(named)
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        if sorted(values) != list(range(len(values))):
            raise TaskError(
                f"Task {spec.name}: integer labels must be 0 .. n-1 without gaps in train; found {sorted(values)[:20]}."
            )
        return tuple(str(value) for value in range(len(values)))
    return tuple(sorted(str(value) for value in values))


def _labels(spec: TaskSpec, rows: Dataset) -> list[Any]:
    """Class names or numbers; None for a null and for the -1 by which the Hub marks rows without a label."""
    feature, values = rows.features[spec.label_column], rows[spec.label_column][:]
    if isinstance(feature, ClassLabel):
        return [None if value is None or value < 0 else feature.names[value] for value in values]
    if None in values and all(value is None or isinstance(value, float) and value.is_integer() for value in values):
        # Integers with a gap in a CSV file are read as floats.
        values = [None if value is None else int(value) for value in values]
    return [None if value == -1 else value for value in values]


def _unlabelled(spec: TaskSpec, rows: Dataset) -> bool:
    return spec.label_column in rows.column_names and not any(label is not None for label in _labels(spec, rows))


def _missing(spec: TaskSpec, split: str, columns: list[str], rows: Dataset) -> str:
    return (
        f"Task {spec.name}, {split}: no column {', '.join(map(repr, columns))}; the columns are "
        f"{', '.join(rows.column_names)}. Choose with --text_column, --label_column or --id_column."
    )


def _check(
    spec: TaskSpec, split: str, rows: Dataset, names: tuple[str, ...], problems: list[str], drop: bool
) -> tuple[Dataset, dict[str, Any]]:
    """The split in our columns, and its report; what is wrong and not to be dropped goes to `problems`."""
    id_column = spec.id_column or ("id" if "id" in rows.column_names else None)
    needed = [*spec.text_columns, spec.label_column, *([id_column] if id_column else [])]
    if absent := [column for column in needed if column not in rows.column_names]:
        raise TaskError(_missing(spec, split, absent, rows))
    labels = [None if label is None else str(label) for label in _labels(spec, rows)]
    index = {name: position for position, name in enumerate(names)}
    if id_column is None:
        ids = [f"{split}-{row}" for row in range(len(rows))]
    else:
        ids = [None if value is None else str(value) for value in rows[id_column][:]]
    texts = [rows[column][:] for column in spec.text_columns]
    seen: set[str] = set()
    bad: dict[str, list[int]] = {}
    for row, (identifier, label, *row_texts) in enumerate(zip(ids, labels, *texts, strict=True)):
        if any(text is None for text in row_texts):
            kind = "null text"
        elif any(not str(text).strip() for text in row_texts):
            kind = "blank text"
        elif label is None:
            kind = "no label"
        elif label not in index:
            kind = "a label that train lacks"
        elif identifier is None:
            kind = "no id"
        elif identifier in seen:
            kind = "a repeated id"
        else:
            seen.add(identifier)
            continue
        bad.setdefault(kind, []).append(row)
    for kind, found in bad.items():
        first = found[0]
        value = {"a label that train lacks": f", label {labels[first]!r}"}.get(kind, "")
        text = f"{split}: {len(found)} of {len(rows)} rows with {kind}; the first is row {first} (id {ids[first]!r}{value})"
        if not drop:
            problems.append(text)
    left_out = {row for found in bad.values() for row in found}
    keep = [row for row in range(len(rows)) if row not in left_out]
    if drop and not keep:
        raise TaskError(f"Task {spec.name}, {split}: every row is unusable ({', '.join(bad)}).")
    columns = dict(zip(("text", "text_pair"), texts, strict=False))
    data = {
        "id": [ids[row] for row in keep],
        **{name: [str(values[row]) for row in keep] for name, values in columns.items()},
        "label": [index.get(labels[row], -1) for row in keep],
    }
    features = Features({name: Value("int64" if name == "label" else "string") for name in data})
    dropped = {kind: len(found) for kind, found in bad.items()} if drop else {}
    by_class = Counter(names[label] for label in data["label"] if label >= 0)
    return Dataset.from_dict(data, features=features), {
        "examples": len(keep),
        "dropped": dropped,
        "classes": dict(sorted(by_class.items())),
    }
