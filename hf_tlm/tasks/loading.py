"""A task by registry name, Hub id, or local folder, or from data sets in memory."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from datasets import Dataset

from hf_tlm.tasks.reading import read_splits
from hf_tlm.tasks.registry import TASKS, registered_task
from hf_tlm.tasks.rows import Canonical, canonical, ids_of, stored
from hf_tlm.tasks.spec import ROLES, SPLITS, Task, TaskError, TaskSpec

logger = logging.getLogger(__name__)


def load_task(
    task: str,
    *,
    kind: str | None = None,
    text_columns: tuple[str, ...] | None = None,
    label_column: str | None = None,
    columns: Mapping[str, str] | None = None,
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
            parquet, jsonl, json or csv, as SQuAD's json, or in columns of words and tags (.conll, .conllu, .iob, .iob2,
            .pos, .txt). A folder called like a registered task (cola, glue_cola) takes that task's kind, metrics and
            columns.
        kind: one of `hf_tlm.tasks.KINDS`. By default the registered task's, or the one that the columns tell: a `text` is
            classified; else context, question and options are multiple choice, context, question and answers are question
            answering, tokens and tags are tagging.
        text_columns, label_column: of classification and regression (default `text`, `label`).
        columns: of the other kinds: role -> column of the source; see `hf_tlm.tasks.spec.ROLES`.
        id_column, metric: override the spec (default `id` where there is one, the kind's usual metric).
        drop_bad_rows: leave out rows with null or blank text, without a label, an option, or an answer at its offset, of
            wrong lengths, with a repeated id, or (classification, outside train) with a label that train lacks, and count
            them in `Task.report`. By default they are an error.

    Raises:
        TaskError: the task is not found, a column or split is missing, or there are bad rows: all kinds are listed,
            with their counts and the first row of each.
        HfTlmError: the cache of `datasets`, in which the splits are kept, cannot be written.
    """
    spec, registered = _find(task, config_name)
    if Path(spec.path).is_dir() and (config_name is not None or revision is not None):
        given = ", ".join(name for name, value in (("config", config_name), ("revision", revision)) if value is not None)
        raise TaskError(f"{given} of the task: for a dataset of the Hub, and {task} is a folder. Leave it out.")
    if "@" in task and None not in (spec.revision, revision) and spec.revision != revision:
        raise TaskError(f"{task} names the revision {spec.revision}, and the option another, {revision}. Give one of them.")
    spec = _replace(spec, config_name=config_name, revision=revision)
    splits = read_splits(spec, columns or spec.columns)
    if kind is None and not registered and text_columns is None and label_column is None and "train" in splits:
        kind = _kind_of_columns(splits["train"].column_names, columns or {})
    if kind not in (None, spec.kind):
        spec = dataclasses.replace(spec, kind=kind, metric="", further_metrics=(), classes=(), columns={})
    if metric is not None:
        scores = (spec.metric, *spec.further_metrics)
        further = tuple(name for name in scores if name != metric) if metric in scores else ()
        spec = dataclasses.replace(spec, metric=metric, further_metrics=further)
    if ROLES[spec.kind] and (text_columns is not None or label_column is not None):
        raise TaskError(
            f"Task {spec.name}: --text_column and --label_column are of classification and regression. Say which column of "
            f"a {spec.kind} task is which with --columns; the roles are {', '.join(ROLES[spec.kind])}."
        )
    if text_columns is not None:
        spec = dataclasses.replace(spec, text_columns=text_columns, other_text_columns=())
    spec = _replace(spec, label_column=label_column, columns=columns, id_column=id_column)
    return task_from_datasets(spec, splits, drop_bad_rows=drop_bad_rows)


def _replace(spec: TaskSpec, **changes: Any) -> TaskSpec:
    return dataclasses.replace(spec, **{name: value for name, value in changes.items() if value is not None})


def _find(task: str, config_name: str | None) -> tuple[TaskSpec, bool]:
    """The spec of a registry name, a folder or a Hub id, in this order; and whether it is a registered task's."""
    if task in TASKS and (TASKS[task].path or not Path(task).is_dir()):
        return TASKS[task], True
    if Path(task).is_dir():
        name = Path(task).resolve().name
        known = TASKS.get(name.removeprefix("glue_"))
        if known is not None:
            logger.info("%s is named like the registered task %s: its metric is %s.", task, known.name, known.metric)
            local: dict[str, Any] = {"path": task, "config_name": None, "data_files": None, "split_sizes": None}
            return dataclasses.replace(known, name=name, **local), True
        return TaskSpec(name=name, path=task), False
    path, _, revision = task.partition("@")
    if spec := registered_task(path, config_name):
        return dataclasses.replace(spec, revision=revision or None), True
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        return TaskSpec(name=path.split("/")[1], path=path, revision=revision or None), False
    raise TaskError(
        f"No task {task!r}: it is neither a registered task ({', '.join(TASKS)}), nor a folder here, nor a Hub id "
        "(owner/name)."
    )


def _kind_of_columns(found: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The kind whose roles all have columns, given or with a usual name; None without one, or where there is a text."""
    for kind in ("multiple_choice", "question_answering", "tagging"):
        needed = {role: names for role, names in ROLES[kind].items() if role not in ("label", "starts")}
        if "text" not in found and all(role in given or set(names) & set(found) for role, names in needed.items()):
            return kind
    return None


def kind_module(kind: str) -> ModuleType:
    """The module that reads tasks of a kind: label_names, unlabelled, features, read, report and content."""
    name = "texts" if kind in ("classification", "regression") else kind
    return importlib.import_module(f"hf_tlm.tasks.{name}")


def task_from_datasets(spec: TaskSpec, splits: Mapping[str, Dataset], *, drop_bad_rows: bool = False) -> Task:
    """A task from data sets with the spec's columns, checked as `load_task` checks.

    String labels become indices into their sorted names, or into the spec's classes if they are these; `ClassLabel`
    features keep their names and order; integers 0 .. n-1 are named "0" .. "n-1". Labels of other splits are matched to
    train's by name. A test split without any label (as of GLUE on the Hub) is left out, with a warning.

    Raises:
        TaskError, HfTlmError: see `load_task`.
    """
    for name in ("train", "validation"):
        if name not in splits or len(splits[name]) == 0:
            raise TaskError(
                f"Task {spec.name} has no {name} examples (splits found: {', '.join(splits) or 'none'} in {spec.path}). "
                "TLM needs labelled training and validation examples; split off some of the training examples if there "
                "is no validation set."
            )
    reader = kind_module(spec.kind)
    if not ROLES[spec.kind]:
        spec = reader.with_columns_of(spec, splits["train"])
    names = reader.label_names(spec, splits["train"])
    problems: list[str] = []
    checked: dict[str, Dataset] = {}
    report: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        if split == "test" and split in splits and reader.unlabelled(spec, splits[split]):
            logger.warning("Task %s: the test split has no labels and is left out.", spec.name)
        elif split in splits:
            found = _read(spec, split, splits[split], names)
            if found.bad and not drop_bad_rows:
                problems += found.problems
            elif not len(found.rows):
                raise TaskError(f"Task {spec.name}, {split}: every row is unusable ({', '.join(found.bad)}).")
            else:
                checked[split] = found.rows
                report[split] = {"examples": len(found.rows), "dropped": found.bad, **reader.report(spec, found.rows, names)}
    if problems:
        raise TaskError(
            f"Task {spec.name} has unusable rows:\n- " + "\n- ".join(problems) + "\nMend them, or leave them out with "
            "--drop_bad_rows."
        )
    for split, counts in report.items():
        if counts["dropped"]:
            logger.warning("Task %s, %s: left out %s.", spec.name, split, counts["dropped"])
    seen_in_training = set(reader.content(checked["train"]))
    for split in checked:
        contents = reader.content(checked[split])
        report[split]["repeated_texts"] = len(contents) - len(set(contents))
        if split != "train":
            report[split]["texts_also_in_train"] = sum(content in seen_in_training for content in contents)
    task = Task(spec, {split: stored(rows) for split, rows in checked.items()}, names, report)
    if spec.classes and len(spec.classes) != task.num_labels:
        logger.warning("Task %s has %d classes here; the papers report %d.", spec.name, task.num_labels, len(spec.classes))
    return task


def _read(spec: TaskSpec, split: str, rows: Dataset, names: tuple[str, ...]) -> Canonical:
    reader = kind_module(spec.kind)
    ids = ids_of(spec, split, rows, (f"{split}-{row}" for row in range(len(rows))))
    if spec.kind == "multiple_choice":
        ids = reader.numbered(spec, rows, ids)
    values = reader.read(spec, split, rows, names, labelled=True)
    return canonical(split, ids, values, reader.features(spec, labelled=True))
