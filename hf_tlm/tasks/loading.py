"""Load a task by its registered name, Hub id or local path, or from datasets in memory."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset

from hf_tlm.corpora.tables import TABLE_BUILDERS, strip_compression, suffix_of
from hf_tlm.tasks.reading import TABLE, may_be_hub_task, named_splits, read_splits
from hf_tlm.tasks.rows import (
    UsableRows,
    add_field_columns,
    advice,
    collect_usable_rows,
    format_dropped,
    kind_module,
    read_ids,
    store_in_cache,
    unusable_rows_error,
)
from hf_tlm.tasks.sampling import DEFAULT_SHARE, content_hash, hold_out, sample, strata
from hf_tlm.tasks.spec import ROLES, SPLITS, TASKS, Task, TaskError, TaskSpec, registered_task
from hf_tlm.utils.arrow_files import frame_to_dataset
from hf_tlm.utils.options import check_given, check_numbers
from hf_tlm.utils.shown import dataset_of, kind_of, suggested_path, suggestion

logger = logging.getLogger(__name__)


def load_task(
    task: str | os.PathLike | Dataset | pd.DataFrame | Mapping[str, Dataset | pd.DataFrame],
    *,
    name: str | None = None,
    kind: str | None = None,
    text_columns: str | Sequence[str] | None = None,
    label_column: str | None = None,
    label_names: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    id_column: str | None = None,
    metric: str | Mapping[str, str] | None = None,
    config_name: str | None = None,
    revision: str | None = None,
    separator: str | None = None,
    validation_share: float | None = None,
    test_share: float | None = None,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    drop_bad_rows: bool = False,
) -> Task:
    """Load a task with its data.

    Args:
        task: a table without splits, of which validation and test texts are held out (`validation_share`, `test_share`): a
            file (csv, tsv, jsonl, json, these also with .gz or .zst; xlsx, parquet), a folder with one such file, a
            `Dataset` or a pandas `DataFrame`. Or a source with splits: a name in `hf_tlm.tasks.TASKS` or the name of its
            release (sciie); a Hub dataset id, with `@revision` if wanted; a folder with one file each for `train`,
            `validation` (or `valid`, `dev`) and optionally `test`, as such a table, as SQuAD's json, or in columns of words
            and tags (.conll, .conllu, .iob, .iob2, .pos, .txt); or a mapping with these splits, such as a `DatasetDict`. A
            folder or file that is named like a registered task (cola, glue_cola) uses that task's kind, metrics and
            columns.
        name: name of the task. Default: that of its file, folder or dataset.
        kind: one of `hf_tlm.tasks.KINDS`. By default that of the registered task, or else inferred from the columns: `text`
            is classification; otherwise context, question and options are multiple choice; context, question and answers
            are question answering; tokens and tags are tagging.
        text_columns, label_column: for classification and regression (default `text`, `label`); one text column, or two
            for pairs of texts. A field of an object has a dotted name, such as `ticket.body`; this holds for all columns.
        label_names: names for classes that are only numbers in the data, in the order of these numbers; or the names in
            the data, in the order of their indices.
        columns: for the other kinds: role -> column of the source; see `hf_tlm.tasks.spec.ROLES`.
        id_column, metric: override the spec (default `id` if it exists, and the kind's default metric). A mapping gives
            the metrics of registered tasks by their names; it has no effect on other tasks.
        config_name: configuration of a Hub dataset.
        revision: branch, tag or commit of a Hub dataset.
        separator: field separator of csv and tsv files (default: see `hf_tlm.tasks.reading.read_file`).
        validation_share, test_share: share of the texts that is held out for the split, from a table, or from the training
            split of a source without it (default for a table: 0.1; 0: none); see `hf_tlm.tasks.sampling.hold_out`.
        max_train_samples: maximum number of examples of the training split to keep, stratified by class; see
            `hf_tlm.tasks.sampling.sample`. Texts are held out before.
        max_eval_samples: the same for the validation split, which chooses checkpoints and settings.
        drop_bad_rows: leave out, and count in `Task.report`, rows with null or blank text, without a label, an option, or
            an answer at its offset, with wrong lengths, with a repeated id, or (classification, outside train) with a label
            that train lacks. By default they are an error.

    Raises:
        TaskError: the task is not found, a column or split is missing, or there are unusable rows: the message lists all
            reasons, with the number of rows and the first one.
        HfTlmError: the cache of `datasets`, to which the splits are written, cannot be written.
    """
    shares = {"validation": validation_share, "test": test_share}
    if isinstance(task, (str, os.PathLike)):
        task = os.fspath(task)
        spec, registered = _find_spec(task, config_name)
        _check_hub_options(spec, task, config_name, revision)
        spec = _replace_given(spec, name=name, config_name=config_name, revision=revision, label_column=label_column)
        splits = read_splits(spec, columns or spec.columns, separator)
    else:
        if isinstance(task, Mapping):
            task = {split: frame_to_dataset(rows, TaskError) for split, rows in task.items()}
        task = frame_to_dataset(task, TaskError)
        spec, registered = TaskSpec(name=name or _dataset_name(task), path="memory"), False
        splits = _without_formats(spec, task)
        splits = splits if isinstance(task, Dataset) else named_splits(spec, splits)
    if isinstance(text_columns, str):
        text_columns = (text_columns,)
    sample_rows = splits.get("train", splits.get(TABLE))
    if kind is None and not registered and text_columns is None and label_column is None and sample_rows is not None:
        kind = _infer_kind(sample_rows.column_names, columns or {})
    if kind not in (None, spec.kind):
        spec = dataclasses.replace(spec, kind=kind, metric="", further_metrics=(), classes=(), columns={})
    spec = _set_metric(spec, metric, registered)
    if ROLES[spec.kind] and (text_columns is not None or label_column is not None):
        raise TaskError(
            f"Task {spec.name}: --text_column and --label_column are for classification and regression. Name the columns "
            f"of a {spec.kind} task with --columns; the roles are {', '.join(ROLES[spec.kind])}."
        )
    if text_columns is not None:
        spec = dataclasses.replace(spec, text_columns=tuple(text_columns), other_text_columns=())
    spec = _replace_given(spec, label_column=label_column, columns=columns, id_column=id_column)
    splits = {name: add_field_columns(spec, rows) for name, rows in splits.items()}
    splits, held_out, row_numbers = _hold_out_splits(spec, splits, shares)
    loaded = task_from_datasets(
        *(spec, splits),
        label_names=label_names,
        max_train_samples=max_train_samples,
        max_eval_samples=max_eval_samples,
        drop_bad_rows=drop_bad_rows,
        numbers=row_numbers,
    )
    return dataclasses.replace(loaded, held_out=held_out)


def _set_metric(spec: TaskSpec, metric: str | Mapping[str, str] | None, registered: bool) -> TaskSpec:
    """Return the spec with the given metric; if that is one of its own, its other metrics are reported in addition."""
    if isinstance(metric, Mapping):
        if unknown := [name for name in metric if name not in TASKS]:
            raise TaskError(
                f"metric: expected names of registered tasks ({', '.join(TASKS)}); received {', '.join(unknown)}."
            )
        metric = metric.get(spec.name.removeprefix("glue_")) if registered else None
    if metric is None:
        return spec
    scores = (spec.metric, *spec.further_metrics)
    further = tuple(name for name in scores if name != metric) if metric in scores else ()
    return dataclasses.replace(spec, metric=metric, further_metrics=further)


def _check_hub_options(spec: TaskSpec, task: str, config_name: str | None, revision: str | None) -> None:
    if Path(spec.path).exists() and (config_name is not None or revision is not None):
        options = ", ".join(name for name, value in (("config", config_name), ("revision", revision)) if value is not None)
        kind = "folder" if Path(spec.path).is_dir() else "file"
        raise TaskError(f"{options} of the task: only for a dataset on the Hub; {task} is a {kind}. Remove {options}.")
    if "@" in task and None not in (spec.revision, revision) and spec.revision != revision:
        raise TaskError(f"{task} names the revision {spec.revision}, but the option names {revision}. Pass only one.")


def _without_formats(spec: TaskSpec, data: Dataset | Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return datasets by split with their formats removed; a single dataset gets the key `TABLE`.

    Raises:
        TaskError: `data` are no datasets, or have a transform.
    """
    splits = {TABLE: data} if isinstance(data, Dataset) else data
    if not isinstance(splits, Mapping) or (
        not_datasets := [value for value in splits.values() if not isinstance(value, Dataset)]
    ):
        # A mapping of lists contains columns, or splits if the lists contain rows.
        columns = isinstance(data, Mapping) and all(
            isinstance(value, (list, tuple)) and not any(isinstance(row, Mapping) for row in value)
            for value in data.values()
        )
        value = data if columns or not isinstance(splits, Mapping) else not_datasets[0]
        hint = f" Create a dataset with {dataset_of(value)}." if isinstance(value, Iterable) else ""
        raise TaskError(
            "task: expected a name, a path, a datasets.Dataset, a pandas.DataFrame, or a mapping of splits to these; "
            f"received {kind_of(value)}.{hint}"
        )
    if lazy := [name for name, rows in splits.items() if rows.format["type"] == "custom"]:
        raise TaskError(
            f"Task {spec.name}: {'the data' if lazy == [TABLE] else lazy[0]} has a transform (with_transform), which is not "
            "supported. Apply the transform with map."
        )
    # In a tensor format, two labels of the same class would not be equal.
    return {name: rows.with_format(None) for name, rows in splits.items()}


def _dataset_name(data: Any) -> str:
    rows = next(iter(data.values()), None) if isinstance(data, Mapping) else data
    return getattr(getattr(rows, "info", None), "dataset_name", None) or "dataset"


def _hold_out_splits(
    spec: TaskSpec, splits: Mapping[str, Dataset], shares: Mapping[str, float | None]
) -> tuple[dict[str, Dataset], dict[str, float], dict[str, list[int]]]:
    """Hold out splits of a table or of train.

    Returns:
        All splits, the shares of those held out, and for each split the indices of its rows in the table or in train.
    """
    for split, share in shares.items():
        if share and split in splits:
            raise TaskError(f"{split}_share {share:g}: {spec.name} already has a {split} split. Remove the option.")
    if TABLE in splits:
        split_shares = {split: DEFAULT_SHARE if share is None else share for split, share in shares.items()}
        new_splits, row_numbers = hold_out(spec, splits[TABLE], split_shares)
    elif (split_shares := {split: share for split, share in shares.items() if share}) and "train" in splits:
        new_splits, row_numbers = hold_out(spec, splits["train"], split_shares)
        new_splits = {**splits, **new_splits}
    else:
        return dict(splits), {}, {}
    return new_splits, {split: float(share) for split, share in split_shares.items() if share}, row_numbers


def _replace_given(spec: TaskSpec, **changes: Any) -> TaskSpec:
    return dataclasses.replace(spec, **{name: value for name, value in changes.items() if value is not None})


def _find_spec(task: str, config_name: str | None) -> tuple[TaskSpec, bool]:
    """Find the spec for a registered name, a local path or a Hub id, in this order; and whether the task is registered.

    Raises:
        TaskError: the name is none of these.
    """
    if task in TASKS and (TASKS[task].path or not Path(task).is_dir()):
        if Path(task).exists():
            logger.warning(
                "%s is a registered task, so its data set on the Hub is used. For your own %s, pass ./%s.", task, task, task
            )
        return TASKS[task], True
    if Path(task).is_dir() or Path(task).is_file():
        name = Path(task).resolve().name if Path(task).is_dir() else strip_compression(Path(task)).stem
        registered = TASKS.get(name.removeprefix("glue_"))
        if registered is not None:
            logger.info(
                "%s has the name of the registered task %s, so its metric is %s.", task, registered.name, registered.metric
            )
            overrides: dict[str, Any] = {"path": task, "config_name": None, "data_files": None, "split_sizes": None}
            return dataclasses.replace(registered, name=name, **overrides), True
        return TaskSpec(name=name, path=task), False
    path, _, revision = task.partition("@")
    if spec := registered_task(path, config_name):
        return dataclasses.replace(spec, revision=revision or None), True
    if may_be_hub_task(path):
        return TaskSpec(name=path.split("/")[1], path=path, revision=revision or None), False
    if "/" in path or suffix_of(Path(path)) in TABLE_BUILDERS:
        raise TaskError(f"No task {task!r}: there is no such file or folder.{suggested_path(task)}")
    raise TaskError(
        f"No task {task!r}: it is neither a registered task ({', '.join(TASKS)}), nor an existing folder or file, nor a Hub "
        f"id (owner/name).{suggestion(task, TASKS)}{suggested_path(task)}"
    )


def _infer_kind(column_names: Sequence[str], columns: Mapping[str, str]) -> str | None:
    """Infer the kind of a task from its columns; None if there is a column text, or no kind fits.

    A kind fits if every role has a column, given or with a default name; labels and offsets may be missing.
    """
    for kind in ("multiple_choice", "question_answering", "tagging"):
        needed = {role: names for role, names in ROLES[kind].items() if role not in ("label", "starts")}
        if "text" not in column_names and all(
            role in columns or set(names) & set(column_names) for role, names in needed.items()
        ):
            return kind
    return None


def task_from_datasets(
    spec: TaskSpec,
    splits: Mapping[str, Dataset],
    *,
    label_names: Sequence[str] | None = None,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
    drop_bad_rows: bool = False,
    numbers: Mapping[str, Sequence[int]] | None = None,
) -> Task:
    """Build a task from datasets with the spec's columns, with the same checks as `load_task`.

    String labels become indices into their sorted names, or into the spec's classes if these are the same names.
    `ClassLabel` features keep their names and order. Integers (also those that a null turned into floats) are named by
    their digits, in ascending order; `label_names` renames them. Labels of other splits are matched to those of train by
    name. A test split without any label (as in GLUE on the Hub) is left out, with a warning.

    Args:
        numbers: split -> numbers of its rows in the source, for messages, if it is only a part of the source.

    Raises:
        TaskError, HfTlmError: see `load_task`.
    """
    check_given(TaskError, spec=(spec, TaskSpec))
    check_numbers(TaskError, max_train_samples=max_train_samples, max_eval_samples=max_eval_samples)
    if isinstance(splits, Dataset):
        raise TaskError(
            "splits: expected train and validation; received a Dataset. Use load_task(dataset), which holds out texts."
        )
    splits = _without_formats(spec, splits)
    label_names = None if label_names is None else _check_label_names(label_names)
    for name in ("train", "validation"):
        if name not in splits or len(splits[name]) == 0:
            raise TaskError(
                f"Task {spec.name} has no {name} examples (splits found: {', '.join(splits) or 'none'} in {spec.path}). "
                "TLM needs labelled training and validation examples; without a validation set, --validation_share 0.1 "
                "holds out a tenth of the training texts."
            )
    reader = kind_module(spec.kind)
    if not ROLES[spec.kind]:
        spec = reader.choose_text_columns(spec, splits["train"])
    if spec.text_columns == ("text",) and "text_pair" in splits["train"].column_names:
        logger.warning(
            "Task %s: the column text_pair is ignored. Pass --text_pair_column text_pair to use pairs of texts.", spec.name
        )
    names = reader.label_names(spec, splits["train"])
    if label_names is not None and sorted(label_names) == sorted(names):
        names = tuple(label_names)
    elif label_names is not None and all(name.isdecimal() for name in names):
        names = tuple(sorted(names, key=int))  # Numbers that are strings in the data: as names, 10 is before 2.
    checked, dropped = _select_usable(spec, splits, names, numbers or {}, drop_bad_rows)
    sampled_of = {}
    for split, option, size in (
        ("train", "max_train_samples", max_train_samples),
        ("validation", "max_eval_samples", max_eval_samples),
    ):
        if size is not None and size < len(checked[split]):
            sampled_of[split] = len(checked[split])
            checked[split] = _sample_split(spec, checked[split], option, size)
    report = _build_report(spec, checked, names, dropped)
    task = Task(spec, {split: store_in_cache(rows) for split, rows in checked.items()}, names, report, sampled_of=sampled_of)
    if label_names is not None:
        task.label_names = _rename_labels(names, label_names)
    if spec.classes and len(spec.classes) != task.num_labels:
        logger.warning(
            "Task %s has %d classes in these data; the papers report %d.", spec.name, task.num_labels, len(spec.classes)
        )
    return task


def _select_usable(
    spec: TaskSpec,
    splits: Mapping[str, Dataset],
    names: tuple[str, ...],
    row_numbers: Mapping[str, Sequence[int]],
    drop_bad_rows: bool,
) -> tuple[dict[str, Dataset], dict[str, dict[str, int]]]:
    """Return the usable rows of each split; and for each split the number of rows that were left out, by reason.

    Raises:
        TaskError: there are unusable rows, and `drop_bad_rows` is false, or a split has no others.
    """
    problems: list[str] = []
    reasons: set[str] = set()
    checked, dropped = {}, {}
    for split in SPLITS:
        if split == "test" and split in splits and kind_module(spec.kind).unlabelled(spec, splits[split]):
            logger.warning("Task %s: the test split has no labels and is left out.", spec.name)
        elif split in splits:
            usable = _read_split(spec, split, splits[split], names, row_numbers.get(split))
            reasons.update(usable.bad)
            if usable.bad and not drop_bad_rows:
                problems += usable.problems
            elif not len(usable.rows):
                raise TaskError(f"Task {spec.name}, {split}: every row is unusable ({', '.join(usable.bad)}).")
            else:
                checked[split], dropped[split] = usable.rows, usable.bad
    if problems:
        raise unusable_rows_error(spec, f"Task {spec.name} has unusable rows", problems, reasons)
    for split, bad in dropped.items():
        if bad:
            logger.warning("Task %s, %s: rows left out: %s.%s", spec.name, split, format_dropped(bad), advice(spec, bad))
    return checked, dropped


def _build_report(
    spec: TaskSpec, splits: Mapping[str, Dataset], names: tuple[str, ...], dropped: Mapping[str, dict[str, int]]
) -> dict[str, dict[str, Any]]:
    """Return `Task.report`, and warn about texts with more than one label."""
    reader, report = kind_module(spec.kind), {}
    seen_in_training = set(reader.content(splits["train"]))
    ambiguous = {}
    for split, rows in splits.items():
        contents = reader.content(rows)
        if spec.kind == "classification":
            label_counts = Counter(content for content, _ in {*zip(contents, rows["label"][:], strict=True)})
            ambiguous[split] = sum(count > 1 for count in label_counts.values())
        report[split] = {
            "examples": len(rows),
            "dropped": dropped[split],
            **reader.report(spec, rows, names),
            "repeated_texts": len(contents) - len(set(contents)),
        }
        if split != "train":
            report[split]["texts_also_in_train"] = sum(content in seen_in_training for content in contents)
    if counts := ", ".join(f"{split} {count:,}" for split, count in ambiguous.items() if count):
        logger.warning(
            "Task %s: texts with more than one label, of which a model can predict only one: %s.", spec.name, counts
        )
    return report


def _sample_split(spec: TaskSpec, rows: Dataset, option: str, size: int) -> Dataset:
    """Return a stratified sample of a split.

    Args:
        option: name of the option that gives the size, for messages.

    Raises:
        TaskError: there are more classes than `size`.
    """
    hashes = np.array([content_hash(content) for content in kind_module(spec.kind).content(rows)])
    groups = strata(rows, spec.kind, hashes)
    if spec.kind == "classification" and size < (classes := len(np.unique(groups))):
        raise TaskError(
            f"Task {spec.name}: {option} {size} is less than one example for each of {classes} classes. Increase it, "
            "or use hf-tlm few-shot for a few examples per class."
        )
    chosen = rows.select(sample(groups, hashes, size))
    return Dataset.from_dict(chosen.to_dict(), features=rows.features)  # Copied, as `store_in_cache` ignores selections.


def _check_label_names(label_names: Any) -> list[str]:
    """Return the given class names as a list.

    Raises:
        TaskError: they are anything else than strings in an order.
    """
    if isinstance(label_names, (str, Mapping)) or not hasattr(label_names, "__iter__"):
        hint = " Pass list(id2label.values()), in the order of the indices." if isinstance(label_names, Mapping) else ""
        raise TaskError(f"label_names: expected a list of strings; received a {type(label_names).__name__}.{hint}")
    names = list(label_names)
    if not_strings := [name for name in names if not isinstance(name, str)]:
        raise TaskError(
            f"label_names: expected strings; received {not_strings[0]!r:.60}, of type {type(not_strings[0]).__name__}."
        )
    return names


def _rename_labels(names: tuple[str, ...], new_names: Sequence[str]) -> tuple[str, ...]:
    """Return the given names of the classes.

    Raises:
        TaskError: they are not as many different names as there are classes; or the classes have names in the data, and
            these are others.
    """
    numbered = all(name.isdecimal() for name in names)
    if not (len(set(new_names)) == len(new_names) == len(names) and (numbered or set(new_names) == set(names))):
        hint = "" if numbered else " Classes that are not numbers keep their names: label_names can only reorder them."
        raise TaskError(
            f"label_names: expected {len(names)} different names, for the classes {', '.join(names):.200} in this order; "
            f"received {', '.join(new_names):.200}.{hint}"
        )
    return tuple(new_names)


def _read_split(
    spec: TaskSpec, split: str, rows: Dataset, names: tuple[str, ...], row_numbers: Sequence[int] | None = None
) -> UsableRows:
    reader = kind_module(spec.kind)
    ids = read_ids(spec, split, rows, (f"{split}-{row}" for row in range(len(rows))))
    if spec.kind == "multiple_choice":
        ids = reader.number_questions(spec, rows, ids)
    values = reader.read(spec, split, rows, names, labelled=True)
    return collect_usable_rows(split, ids, values, reader.features(spec, labelled=True), row_numbers=row_numbers)
