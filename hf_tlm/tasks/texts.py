"""Read tasks of classification and regression: a text, or a pair of texts, with a class or a number."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from datasets import ClassLabel, Dataset, Features, Value

from hf_tlm.tasks.rows import DECODE, Bad, check_text, class_names, missing_columns_error
from hf_tlm.tasks.spec import TaskError, TaskSpec

logger = logging.getLogger(__name__)

# A list of names as a csv contains it.
_LIST_OF_NAMES = re.compile(r"""\s*\[\s*(["']).*\1\s*\]\s*""", re.DOTALL)
_LIST_SEPARATORS = ";,|"
# Dates and times as types of a table reader, and as text.
_TIME_TYPES = (datetime.date, datetime.time, datetime.timedelta)
_DATE = re.compile(r"\s*([0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?|[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?)\s*")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9.]*,[0-9]+\s*")
ADVICE = "Choose columns with --text_column, --label_column or --id_column."


def choose_text_columns(spec: TaskSpec, rows: Dataset) -> TaskSpec:
    """Return the spec with those of its possible text columns that the rows have; unchanged if they have none."""
    for columns in (spec.text_columns, *spec.other_text_columns):
        if all(column in rows.column_names for column in columns):
            return dataclasses.replace(spec, text_columns=columns)
    return spec


def label_names(spec: TaskSpec, train: Dataset) -> tuple[str, ...]:
    """Return the class names in the order of their indices, from the training split; warn if labels look wrong."""
    names = check_class_names(spec, train)
    if spec.kind != "regression":
        _warn_about_labels(spec, labels(spec, train))
    return names


def check_class_names(spec: TaskSpec, train: Dataset) -> tuple[str, ...]:
    """Return the class names in the order of their indices, from the training split; an empty tuple for regression.

    Raises:
        TaskError: the column is missing, or the labels are not usable as classes.
    """
    if spec.label_column not in train.column_names:
        raise missing_columns_error(spec, "train", [spec.label_column], train, ADVICE)
    if spec.kind == "regression":
        return ()
    feature = train.features[spec.label_column]
    feature_names = feature.names if isinstance(feature, ClassLabel) else None
    observed = feature_names or labels(spec, train)
    classes = {str(label) for label in observed if label is not None}  # 1 and "1" are one class, 1 and true are two.
    _check_classes(spec, observed, classes)
    if feature_names:
        return tuple(feature_names)
    distinct = set(observed) - {None}
    if distinct == set(spec.classes):
        return spec.classes
    if all(isinstance(value, int) and not isinstance(value, bool) for value in observed if value is not None):
        if spec.classes and sorted(distinct) != list(range(len(distinct))):
            raise TaskError(
                f"Task {spec.name}: integer labels must be 0 .. n-1 without gaps in train; found {sorted(distinct)[:20]}."
            )
        return tuple(map(str, sorted(distinct)))
    return tuple(sorted(classes))


def _check_classes(spec: TaskSpec, observed: Sequence[Any], classes: set[str]) -> None:
    """Raise a TaskError unless the labels (those of rows, or a feature's names) are usable as `classes`, their strings.

    These must be names or integers, at least two, exactly two for f1, and differ in more than spaces or encoded accents.
    """
    if nested := [label for label in observed if isinstance(label, (list, dict))]:
        raise TaskError(
            f"Task {spec.name}: a label in {spec.label_column!r} is a {type(nested[0]).__name__}, not a class: "
            f"{len(nested):,} of {len(observed):,}, such as {nested[0]!r:.60}. Several classes per text (multi-label) are "
            "not supported. For one tag per word pass --task_kind tagging; for classes choose another --label_column."
        )
    if encoded := [label for label in observed if isinstance(label, bytes)]:
        raise TaskError(
            f"Task {spec.name}: a label in {spec.label_column!r} is bytes, such as {encoded[0]!r:.50}, not a class. {DECODE}"
        )
    if floats := [label for label in observed if isinstance(label, float)]:
        example = min(floats, key=lambda value: (value.is_integer(), value))
        raise TaskError(
            f"Task {spec.name}: the labels in {spec.label_column!r} are numbers such as {example}, not classes. "
            "Choose a column of class names or indices with --label_column, or learn the numbers with --task_kind "
            "regression (`hf-tlm finetune`)."
        )
    spellings: dict[str, str] = {}
    for name in sorted(classes):
        if (other := spellings.setdefault(unicodedata.normalize("NFC", " ".join(name.split())), name)) != name:
            difference = "spaces" if other.split() == name.split() else "the encoding of accents (one character or two)"
            raise TaskError(
                f"Task {spec.name}: the classes {other!r} and {name!r} differ only in {difference}. Give them the same name."
            )
    if len(classes) < 2:
        unlabelled = "" if None not in observed else "; null, blank and -1 count as no label (if -1 is a class, use names)"
        raise TaskError(
            f"Task {spec.name}: a classification task needs at least two classes; the training column "
            f"{spec.label_column!r} has {sorted(classes)}{unlabelled}."
        )
    if "f1" in (spec.metric, *spec.further_metrics) and len(classes) > 2:
        raise TaskError(
            f"Task {spec.name}: the metric f1 is for two classes; received {len(classes)}. Use macro_f1 or micro_f1."
        )


def _warn_about_labels(spec: TaskSpec, train_labels: Sequence[Any]) -> None:
    """Warn about labels that look like lists or dates, differ only in case, or have only one or two texts."""
    counts = Counter(label for label in train_labels if label is not None)
    if list_like := sorted(label for label in counts if isinstance(label, str) and _is_list(label, counts)):
        logger.warning(
            "Task %s: the labels in %r look like lists, such as %.60s. Several classes per text (multi-label) are not "
            "supported: each list is treated as a separate class.",
            spec.name,
            spec.label_column,
            list_like[0],
        )
    if dates := [label for label in counts if isinstance(label, _TIME_TYPES) or _DATE.fullmatch(str(label))]:
        logger.warning(
            "Task %s: %s of %s labels in %r are dates or times, such as %s: each is treated as a separate class. If "
            "they are not classes, choose another --label_column. Spreadsheets convert names such as 1-2 and MAR1 to dates, "
            "unless the cells are formatted as text.",
            *(spec.name, f"{len(dates):,}", f"{len(counts):,}", spec.label_column, min(map(str, dates))),
        )
    spellings: dict[str, list[str]] = {}
    for name in sorted(set(map(str, counts))):
        spellings.setdefault(name.strip().casefold(), []).append(name)
    if case_variants := [" and ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]:
        logger.warning(
            "Task %s: classes that differ only in case are treated as different classes: %s.",
            spec.name,
            "; ".join(case_variants[:5]),
        )
    rare = sum(count <= 2 for count in counts.values())
    if 2 * rare > len(counts) > 2:
        logger.warning(
            "Task %s: the training column %r has %s classes for %s texts, and %s of them have only one or two. If they are "
            "not classes, choose another --label_column; to learn numbers, pass --task_kind regression.",
            spec.name,
            spec.label_column,
            f"{len(counts):,}",
            f"{counts.total():,}",
            f"{rare:,}",
        )
    elif single := sorted(str(label) for label, count in counts.items() if count == 1):
        logger.warning(
            "Task %s: classes with a single training text can hardly be learnt: %s. Label more texts, or merge or "
            "remove the classes.",
            spec.name,
            ", ".join(map(repr, single[:5])),
        )


def _is_list(label: str, names: Container[Any]) -> bool:
    """Return whether a label looks like a list of classes: `['a', 'b']`, or `a;b` beside `a` and `b`."""
    parts = (label.split(separator) for separator in _LIST_SEPARATORS if separator in label)
    return bool(_LIST_OF_NAMES.fullmatch(label)) or any(all(part.strip() in names for part in split) for split in parts)


def labels(spec: TaskSpec, rows: Dataset) -> list[Any]:
    """Return the class of every row by its name or number; floats become integers if the whole column is integral.

    None stands for a null, for NaN (the null of pandas), for a blank name, and for -1, with which datasets on the Hub mark
    rows without a label.
    """
    feature, values = rows.features[spec.label_column], rows[spec.label_column][:]
    if isinstance(feature, ClassLabel):
        return class_names(values, feature.names)
    values = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
    if all(value is None or isinstance(value, float) and value.is_integer() for value in values):
        # Pandas converts integers to floats if one is missing, in this split or when the file was written.
        values = [None if value is None else int(value) for value in values]
    return [None if value == -1 or isinstance(value, str) and not value.strip() else value for value in values]


def unlabelled(spec: TaskSpec, rows: Dataset) -> bool:
    """Return whether no row has a label, as in GLUE's test splits."""
    return spec.label_column in rows.column_names and not any(label is not None for label in labels(spec, rows))


def features(spec: TaskSpec, labelled: bool) -> Features:
    texts = ("id", "text", "text_pair")[: 1 + len(spec.text_columns)]
    label = {"label": Value("float64" if spec.kind == "regression" else "int64")} if labelled else {}
    return Features({name: Value("string") for name in texts} | label)


def read(spec: TaskSpec, split: str, rows: Dataset, names: tuple[str, ...], labelled: bool) -> Iterator[tuple | Bad]:
    """Yield the texts of each row, and its label if `labelled`; or a `Bad` that says what is wrong with the row."""
    needed = [*spec.text_columns, *([spec.label_column] if labelled else [])]
    if absent := [column for column in needed if column not in rows.column_names]:
        raise missing_columns_error(spec, split, absent, rows, ADVICE)
    name_to_index = {name: index for index, name in enumerate(names)}
    targets: Iterable[tuple | Bad] = [()] * len(rows)
    if labelled and spec.kind == "regression":
        targets = map(_parse_number, rows[spec.label_column][:])
    elif labelled:
        targets = (_parse_class(label, name_to_index) for label in labels(spec, rows))
    for label, *texts in zip(targets, *(rows[column][:] for column in spec.text_columns), strict=True):
        problem = check_text("text", *texts)
        yield problem or (label if isinstance(label, Bad) else (*map(str, texts), *label))


def _parse_class(label: Any, name_to_index: dict[str, int]) -> tuple[int] | Bad:
    if label is None:
        return Bad("no label", "null, blank or -1")
    index = name_to_index.get(str(label))
    return Bad("a label that train lacks", f"label {str(label)!r:.40}") if index is None else (index,)


def _parse_number(label: Any) -> tuple[float] | Bad:
    if label is None:
        return Bad("no label")
    try:
        number = float(label)
    except (TypeError, ValueError):
        number = math.nan
    if math.isfinite(number):
        return (number,)
    comma_advice = "; use a decimal point" if isinstance(label, str) and _DECIMAL_COMMA.fullmatch(label) else ""
    return Bad("a label that is no number", f"label {label!r:.40}{comma_advice}")


def report(spec: TaskSpec, rows: Dataset, names: tuple[str, ...]) -> dict[str, Any]:
    values = rows["label"][:]
    if spec.kind == "regression":
        return {"labels": {"least": min(values), "mean": math.fsum(values) / len(values), "most": max(values)}}
    return {"classes": dict(sorted(Counter(names[label] for label in values).items()))}


def content(rows: Dataset) -> list[str] | list[tuple[str, str]]:
    """Return the text, or pair of texts, of each row, by which rows are compared."""
    texts = rows["text"][:]
    return list(zip(texts, rows["text_pair"][:], strict=True)) if "text_pair" in rows.column_names else texts
