"""Answers of teachers, their conversion to the task's classes, the choice of passages, and files as teachers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from hf_tlm.corpora.tables import TABLE_BUILDERS, suffix_of
from hf_tlm.errors import ArgumentsError
from hf_tlm.tasks import Task
from hf_tlm.tasks.reading import read_file
from hf_tlm.tasks.spec import columns_of_texts
from hf_tlm.utils.locks import rank_and_size
from hf_tlm.utils.seals import checksum
from hf_tlm.utils.shown import few
from hf_tlm.utils.texts import count_words, end_of_words

# Minimum probability of a class, because a model that has not seen a class gives 0.
MIN_PROBABILITY = 1e-6
# For a file of answers: prefix of its columns, and how far the sum of a row may be from 1, as its values may be rounded.
PREFIX, ROUNDING = "probability_", 0.02
T = TypeVar("T")


@dataclass
class Answers:
    """A teacher's answers.

    train: float [N, C], class probabilities of the training texts; a row of zeros has no answer. For regression values
        [N, 1]; NaN is no answer.
    passages: float [M, C], the same for the passages of the subset; [0, C] if the teacher was asked about none.
    report: JSON values: the teacher's quality and cost.
    disagreement: float [M], mean Kullback-Leibler divergence of several teachers' answers for a passage from their average,
        which is in `passages`, in nats (McCallum and Nigam 1998, section 3); 0 for a single teacher.
    """

    train: np.ndarray
    passages: np.ndarray
    report: dict[str, Any] = field(default_factory=dict)
    disagreement: np.ndarray = field(default_factory=lambda: np.zeros(0))


def held_out_report(description: str, probabilities: np.ndarray, labels: np.ndarray, **further: float) -> dict[str, Any]:
    """Return the entries of a report about a classifier's quality on labelled texts that it was not trained on.

    Args:
        description: description of the texts.
        probabilities: float [N, C].
        labels: int [N].
        further: more entries.
    """
    accuracy, largest_share = (probabilities.argmax(1) == labels).mean(), np.bincount(labels).max() / len(labels)
    class_entry = {"largest_class": round(float(largest_share), 4)}
    return {"held_out": description, "held_out_accuracy": round(float(accuracy), 4), **further, **class_entry}


def held_out_correlation(description: str, values: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the entries of a report about a regression model's quality on labelled texts that it was not trained on.

    They have Pearson's correlation, which is 0 here if all values or all labels are equal.

    Args:
        description: description of the texts.
        values: float [N, 1].
        labels: float [N].
    """
    is_defined = np.ptp(values) > 0 and np.ptp(labels) > 0
    correlation = float(np.corrcoef(values[:, 0], labels)[0, 1]) if is_defined else 0.0
    return {"held_out": description, "held_out_correlation": round(correlation, 4)}


def progress(items: Iterable[T], description: str, unit: str) -> Iterable[T]:
    """Iterate over items with a progress bar, which only the first process shows."""
    return tqdm(items, desc=description, unit=unit, disable=rank_and_size()[0] > 0)


def read_mapping(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse "teacher=task" pairs of class names into a mapping.

    Raises:
        ArgumentsError: one is no such pair, or a name of the teacher occurs twice.
    """
    mapping: dict[str, str] = {}
    for pair in pairs or ():
        teacher_class, equals, task_class = pair.partition("=")
        if not equals or not teacher_class or not task_class or teacher_class in mapping:
            raise ArgumentsError(
                "teacher_labels: expected TEACHER_CLASS=TASK_CLASS, once for each class of the teacher; received "
                f"{pair!r:.60}."
            )
        mapping[teacher_class] = task_class
    return mapping


def class_matrix(
    teacher_classes: Sequence[str], classes: Sequence[str], mapping: Mapping[str, str], teacher: str
) -> np.ndarray:
    """Return the matrix that maps the teacher's classes to the task's, float64 [teacher_classes, classes] of 0 and 1.

    Args:
        teacher_classes: class names of the teacher.
        classes: class names of the task.
        mapping: the teacher's name -> the task's; empty: the names are the same, in any order.
        teacher: name of the teacher, for messages.

    Raises:
        ArgumentsError: a class has no counterpart.
    """
    if unknown := sorted(set(mapping) - set(teacher_classes)):
        raise ArgumentsError(
            f"teacher_labels: {teacher} has no class {unknown[0]!r:.60}; it has {_format_names(teacher_classes)}."
        )
    mapped = [mapping.get(name, None if mapping else name) for name in teacher_classes]
    if None in mapped or set(mapped) != set(classes):
        example = " ".join(f"{name}={classes[index % len(classes)]}" for index, name in enumerate(teacher_classes[:3]))
        raise ArgumentsError(
            f"The classes of {teacher} are {_format_names(teacher_classes)}, and the task's are "
            f"{_format_names(classes)}: expected the same names. Pass "
            f"--teacher_labels with TEACHER_CLASS=TASK_CLASS for every class of the teacher (such as {example:.100})."
        )
    return np.array([[float(name == label) for label in classes] for name in mapped])


def _format_names(names: Sequence[str]) -> str:
    return few([f"{name:.40}" for name in names], 10)


def most_certain(probabilities: np.ndarray, shares: np.ndarray, count: int, trust: str = "confidence") -> np.ndarray:
    """Choose for each class the rows on which the teacher is most certain, and return their indices in ascending order.

    A row belongs to its most probable class; each class gets at most its share of `count` rows.

    Args:
        probabilities: float [N, C]; rows of zeros, which have no answer, are not chosen.
        shares: float [C], with sum 1.
        trust: "confidence" ranks by the probability of the class; "entropy" by the entropy of the distribution, the lowest
            first.
    """
    certain, answered = certainty(probabilities, trust), probabilities.sum(1) > 0
    predictions, chosen = np.where(answered, probabilities.argmax(1), -1), []
    for label, share in enumerate(shares):
        rows = np.flatnonzero(predictions == label)
        order = np.argsort(-certain[rows], kind="stable")
        chosen.append(rows[order[: round(share * count)]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def certainty(probabilities: np.ndarray, trust: str) -> np.ndarray:
    """Return how certain answers are, float64 [N]: the largest probability, or minus the entropy in nats."""
    return probabilities.max(1) if trust == "confidence" else -entropy(probabilities)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Compute the entropies in nats, float64 [N], of distributions, float [N, C]."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return -(probabilities * logs).sum(1)


def task_lengths(texts: Sequence[str], passages: Sequence[str]) -> np.ndarray:
    """Return the number of characters to keep of each passage, int64 [M], so that passages are as long as the task's texts.

    The lengths are quantiles of the texts' numbers of words, assigned to the passages in an order that depends only on
    their number. Shorter passages are not truncated; others are truncated at the end of a word.
    """
    words = np.sort([count_words(text) for text in texts])
    quantiles = (np.random.default_rng(0).permutation(len(passages)) + 0.5) / max(1, len(passages))
    lengths = np.quantile(words, quantiles, method="inverted_cdf").astype(int)
    ends = [end_of_words(text, max(1, count)) for text, count in zip(passages, lengths, strict=True)]
    return np.array(ends, dtype=np.int64)


class TableTeacher:
    """A teacher whose answers are in a file: a table written by hand or by `hf-tlm predict`.

    A row has a text or an id, and a probability for each class. Probabilities are in columns named like the classes, or
    `probability_<class>`, or in a single column `probabilities` of objects; values for regression are in `prediction`. Rows
    are matched by their `text` (and `text_pair`), or without these by `id`: that of the task's row, or of the passage.

    Raises:
        ArgumentsError: the file lacks these columns, or has other classes, invalid probabilities, or two different answers
            for a text.
        TaskError: the file cannot be read.
    """

    def __init__(self, task: Task, path: Path, mapping: Mapping[str, str]):
        if suffix_of(path) not in TABLE_BUILDERS:
            raise ArgumentsError(
                f"teacher {path}: expected a file of type {', '.join(TABLE_BUILDERS)}; received {path.suffix!r}."
            )
        file = {"name": path.name, "xxh3": checksum(path)}
        self.path, self.digest = path, f"{file['xxh3']} {sorted(mapping.items())}"
        self.about = {"model": f"the answers in {path.name}", "file": file}
        rows = read_file(path, {})
        texts = columns_of_texts(task.train)
        self.keys = texts if set(texts) <= set(rows.column_names) else ["id"]
        if not set(self.keys) <= set(rows.column_names):
            raise ArgumentsError(
                f"teacher {path}: expected a column {' and '.join(texts)}, or id; it has "
                f"{', '.join(rows.column_names):.200}."
            )
        if task.kind == "regression":
            if "prediction" not in rows.column_names:
                raise ArgumentsError(f"teacher {path}: expected a column prediction; it has {', '.join(rows.column_names)}.")
            values = self._parse_numbers(rows["prediction"])[:, None]
        else:
            values = self._read_probabilities(task, rows, mapping)
        for name in self.keys:
            if blank := [row for row, cell in enumerate(rows[name]) if cell is None]:
                raise ArgumentsError(
                    f"teacher {path}: row {blank[0]} (counted from 0) has no {name} ({len(blank):,} such). Remove these "
                    "rows."
                )
        self.answers: dict[str, np.ndarray] = {}
        for key, answer in zip(self._keys(rows), values, strict=True):
            if not np.array_equal(self.answers.setdefault(key, answer), answer):
                raise ArgumentsError(f"teacher {path}: two answers for {key!r:.60}. Keep one of the rows.")
        self.rows = len(self.answers)
        if self.keys == ["id"] and TABLE_BUILDERS[suffix_of(path)] == "csv":
            # Earlier versions read 007 in a csv as 7, which is then the id in their subsets.
            for key, answer in list(self.answers.items()):
                if key.isdecimal() and str(int(key)) not in self.answers:
                    self.answers[str(int(key))] = answer

    def __call__(self, task: Task, passages: Dataset | None) -> Answers:
        """Return the teacher's answers.

        Raises:
            ArgumentsError: there are answers for only some of the training texts, or none at all; or an id is ambiguous.
        """
        if self.keys == ["id"]:
            self._check_ids({"train": task.train, "validation": task.validation, "the passages": passages})
        train, num_train = self._find_answers(task, task.train)
        if 0 < num_train < len(train):
            raise ArgumentsError(
                f"teacher {self.path} has answers for {num_train:,} of the task's {len(train):,} training texts. Add "
                "answers for all of them, or remove these and answer only for passages."
            )
        passage_answers, num_passages = self._find_answers(task, passages) if passages is not None else (train[:0], 0)
        if not num_train and not num_passages:
            raise ArgumentsError(
                f"teacher {self.path} has answers for no training text and no passage: its {self.rows:,} rows have other "
                f"{self.keys[0]}s. Compare them with those of the task and the subset."
            )
        report: dict[str, Any] = {"rows": self.rows}
        validation, num_validation = self._find_answers(task, task.validation)
        if num_validation:
            is_regression = task.kind == "regression"
            rows = np.isfinite(validation[:, 0]) if is_regression else validation.sum(1) > 0
            quality = held_out_correlation if is_regression else held_out_report
            labels = np.asarray(task.validation["label"][:])[rows]
            report |= quality(f"{num_validation:,} validation texts", validation[rows], labels)
        return Answers(train, passage_answers, report)

    def _keys(self, rows: Dataset) -> list[str]:
        columns = [[str(cell).strip() for cell in rows[name]] for name in self.keys]
        return columns[0] if len(columns) == 1 else [json.dumps(cells) for cells in zip(*columns, strict=True)]

    def _check_ids(self, splits: Mapping[str, Dataset | None]) -> None:
        """Raise an ArgumentsError if an id of the file occurs in two splits, as it may if ids are row numbers."""
        split_of_id: dict[str, str] = {}
        for name, rows in splits.items():
            if rows is None or "id" not in rows.column_names:
                continue
            for key in self._keys(rows):
                if key in self.answers and split_of_id.setdefault(key, name) != name:
                    raise ArgumentsError(
                        f"teacher {self.path}: the id {key!r:.60} is in {split_of_id[key]} and in {name}. Add a column text "
                        "(and text_pair) to the file, or change the ids."
                    )

    def _find_answers(self, task: Task, rows: Dataset) -> tuple[np.ndarray, int]:
        """Return the answers for rows, and the number of rows that have one."""
        regression = task.kind == "regression"
        no_answer = np.full(1, np.nan) if regression else np.zeros(task.num_labels)
        if not set(self.keys) <= set(rows.column_names):
            return np.tile(no_answer, (len(rows), 1)), 0
        keys = self._keys(rows)
        answers = np.stack([self.answers.get(key, no_answer) for key in keys]) if keys else np.zeros((0, len(no_answer)))
        return answers, sum(key in self.answers for key in keys)

    def _parse_numbers(self, cells: Sequence[Any]) -> np.ndarray:
        try:
            numbers = np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ArgumentsError(f"teacher {self.path}: expected numbers; {str(error):.100}.") from error
        if len(bad := np.flatnonzero(~np.isfinite(numbers))):
            raise ArgumentsError(
                f"teacher {self.path}: expected a number in every row; row {bad[0]} (counted from 0) has none "
                f"({len(bad):,} such)."
            )
        return numbers

    def _read_probabilities(self, task: Task, rows: Dataset, mapping: Mapping[str, str]) -> np.ndarray:
        """Return the answers of all rows of the file in the task's classes, float64 [N, C]."""
        cells = self._read_columns(rows, set(mapping) or set(task.label_names))
        matrix = class_matrix(list(cells), task.label_names, mapping, f"the teacher {self.path}")
        probabilities = np.stack([self._parse_numbers(column) for column in cells.values()], axis=1)
        sums = probabilities.sum(1)
        if len(bad := np.flatnonzero((probabilities < 0).any(1) | (abs(sums - 1) > ROUNDING))):
            raise ArgumentsError(
                f"teacher {self.path}: expected probabilities, none below 0, that add up to 1; row {bad[0]} (counted "
                f"from 0) has {', '.join(f'{probability:g}' for probability in probabilities[bad[0]]):.100} "
                f"({len(bad):,} such)."
            )
        mapped = np.maximum(probabilities @ matrix, MIN_PROBABILITY)
        return mapped / mapped.sum(1, keepdims=True)

    def _read_columns(self, rows: Dataset, classes: set[str]) -> dict[str, list[Any]]:
        """Return class of the teacher -> its probabilities in all rows of the file."""
        if "probabilities" in rows.column_names:
            objects = rows["probabilities"][:]
            if not objects or not all(isinstance(entry, Mapping) for entry in objects):
                raise ArgumentsError(
                    f"teacher {self.path}: expected objects of the form {{class: probability}} in the column probabilities."
                )
            if different := [row for row, entry in enumerate(objects) if set(entry) != set(objects[0])]:
                raise ArgumentsError(
                    f"teacher {self.path}: expected the same classes in every row of probabilities; row {different[0]} "
                    f"(counted from 0) has {', '.join(objects[different[0]]):.100}, and row 0 {', '.join(objects[0]):.100}."
                )
            return {name: [entry[name] for entry in objects] for name in objects[0]}
        columns = {name.removeprefix(PREFIX): name for name in rows.column_names if name.startswith(PREFIX)}
        columns = columns or {name: name for name in rows.column_names if name in classes}
        if not columns:
            raise ArgumentsError(
                f"teacher {self.path}: expected a column for every class ({', '.join(sorted(classes)):.200}), named "
                f"<class> or {PREFIX}<class>; it has {', '.join(rows.column_names):.200}."
            )
        return {name: rows[column][:] for name, column in columns.items()}
