"""A file of answers as a teacher: from a model behind an API, or from people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from hf_tlm.corpora.tables import suffix_of
from hf_tlm.errors import ArgumentsError
from hf_tlm.runs.teachers.answers import LEAST, Answers, class_matrix, held_out
from hf_tlm.tasks import Task
from hf_tlm.tasks.reading import BUILDERS, read_file
from hf_tlm.tasks.spec import columns_of_texts
from hf_tlm.utils.seals import checksum

PREFIX = "probability_"
# How far a row's probabilities may be from adding up to 1: they may have been rounded.
ROUNDING = 0.02


class TableTeacher:
    """Rows of a text or an id, and a probability a class: a table made by hand, or one of `hf-tlm predict`.

    Probabilities are in columns called like the classes, or `probability_<class>`, or in one column `probabilities` of
    objects; values, for regression, in `prediction`. Rows are known by their `text` (and `text_pair`), or where there is no
    text by `id`: that of the task's row, or of the passage.

    Raises:
        ArgumentsError: the file has no such columns, other classes, a number that is no probability, or two answers for one
            text.
        TaskError: it cannot be read.
    """

    def __init__(self, task: Task, path: Path, mapping: Mapping[str, str]):
        if suffix_of(path) not in BUILDERS:
            raise ArgumentsError(f"teacher {path}: the types of files are {', '.join(BUILDERS)}; received {path.suffix!r}.")
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
            numbers = self._numbers(rows["prediction"])[:, None]
        else:
            numbers = self._probabilities(task, rows, mapping)
        for name in self.keys:
            if blank := [row for row, cell in enumerate(rows[name]) if cell is None]:
                raise ArgumentsError(f"teacher {path}: row {blank[0]} has no {name} ({len(blank):,} such). Leave them out.")
        self.answers: dict[str, np.ndarray] = {}
        for key, answer in zip(self._keys(rows), numbers, strict=True):
            if not np.array_equal(self.answers.setdefault(key, answer), answer):
                raise ArgumentsError(f"teacher {path}: two answers for {key!r:.60}. Keep one of the rows.")
        self.rows = len(self.answers)
        if self.keys == ["id"] and BUILDERS[suffix_of(path)] == "csv":
            # A subset of before is of a csv that was read with 7 for 007.
            for key, answer in list(self.answers.items()):
                if key.isdecimal() and str(int(key)) not in self.answers:
                    self.answers[str(int(key))] = answer

    def __call__(self, task: Task, passages: Dataset | None) -> Answers:
        """Its answers; an ArgumentsError where they are of some training texts alone, of nothing, or of an id twice."""
        if self.keys == ["id"]:
            self._check_ids({"train": task.train, "validation": task.validation, "the passages": passages})
        train, found = self._of(task, task.train)
        if 0 < found < len(train):
            raise ArgumentsError(
                f"teacher {self.path} answers for {found:,} of the task's {len(train):,} training texts. Let it answer for "
                "all of them, or for none and for passages alone."
            )
        said, of_passages = self._of(task, passages) if passages is not None else (train[:0], 0)
        if not found and not of_passages:
            raise ArgumentsError(
                f"teacher {self.path} answers for no training text and no passage: its {self.rows:,} rows are of "
                f"other {self.keys[0]}s. Compare them with the task's and the subset's."
            )
        report: dict[str, Any] = {"rows": self.rows}
        validation, known = self._of(task, task.validation)
        if known and task.kind == "classification":
            rows = validation.sum(1) > 0
            labels = np.asarray(task.validation["label"][:])[rows]
            report |= held_out(f"{known:,} validation texts", validation[rows], labels)
        return Answers(train, said, report)

    def _keys(self, rows: Dataset) -> list[str]:
        columns = [[str(cell).strip() for cell in rows[name]] for name in self.keys]
        return columns[0] if len(columns) == 1 else [json.dumps(cells) for cells in zip(*columns, strict=True)]

    def _check_ids(self, parts: Mapping[str, Dataset | None]) -> None:
        """Parts may count their rows alike, and then an id does not say of which it is."""
        owner: dict[str, str] = {}
        for name, rows in parts.items():
            if rows is None or "id" not in rows.column_names:
                continue
            for key in self._keys(rows):
                if key in self.answers and owner.setdefault(key, name) != name:
                    raise ArgumentsError(
                        f"teacher {self.path}: the id {key!r:.60} is in {owner[key]} and in {name}. Give the file a column "
                        "text (and text_pair) instead, or the rows other ids."
                    )

    def _of(self, task: Task, rows: Dataset) -> tuple[np.ndarray, int]:
        """The answers for some rows, and for how many there is one."""
        regression = task.kind == "regression"
        nothing = np.full(1, np.nan) if regression else np.zeros(task.num_labels)
        if not set(self.keys) <= set(rows.column_names):
            return np.tile(nothing, (len(rows), 1)), 0
        keys = self._keys(rows)
        found = np.stack([self.answers.get(key, nothing) for key in keys]) if keys else np.zeros((0, len(nothing)))
        return found, sum(key in self.answers for key in keys)

    def _numbers(self, cells: Sequence[Any]) -> np.ndarray:
        try:
            numbers = np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ArgumentsError(f"teacher {self.path}: expected numbers; {str(error):.100}.") from error
        if len(bad := np.flatnonzero(~np.isfinite(numbers))):
            raise ArgumentsError(
                f"teacher {self.path}: row {bad[0]} has no number where one is expected ({len(bad):,} such)."
            )
        return numbers

    def _probabilities(self, task: Task, rows: Dataset, mapping: Mapping[str, str]) -> np.ndarray:
        """The answers of all rows in the task's classes, float64 [N, C]."""
        cells = self._cells(rows, set(mapping) or set(task.label_names))
        matrix = class_matrix(list(cells), task.label_names, mapping, f"the teacher {self.path}")
        shares = np.stack([self._numbers(column) for column in cells.values()], axis=1)
        sums = shares.sum(1)
        if len(bad := np.flatnonzero((shares < 0).any(1) | (abs(sums - 1) > ROUNDING))):
            raise ArgumentsError(
                f"teacher {self.path}: expected probabilities, of a row from 0 and adding up to 1; row {bad[0]} has "
                f"{', '.join(f'{share:g}' for share in shares[bad[0]]):.100} ({len(bad):,} such)."
            )
        said = np.maximum(shares @ matrix, LEAST)
        return said / said.sum(1, keepdims=True)

    def _cells(self, rows: Dataset, classes: set[str]) -> dict[str, list[Any]]:
        """Of each class that has a share what the rows have for it."""
        if "probabilities" in rows.column_names:
            objects = rows["probabilities"][:]
            if not objects or not all(isinstance(one, Mapping) for one in objects):
                raise ArgumentsError(f"teacher {self.path}: expected objects, class -> share, in the column probabilities.")
            if other := [row for row, one in enumerate(objects) if set(one) != set(objects[0])]:
                raise ArgumentsError(
                    f"teacher {self.path}: expected the same classes in every row of probabilities; row {other[0]} has "
                    f"{', '.join(objects[other[0]]):.100}, and row 0 {', '.join(objects[0]):.100}."
                )
            return {name: [one[name] for one in objects] for name in objects[0]}
        columns = {name.removeprefix(PREFIX): name for name in rows.column_names if name.startswith(PREFIX)}
        columns = columns or {name: name for name in rows.column_names if name in classes}
        if not columns:
            raise ArgumentsError(
                f"teacher {self.path}: expected a column for every class ({', '.join(sorted(classes)):.200}), called like "
                f"it or {PREFIX}<class>; it has {', '.join(rows.column_names):.200}."
            )
        return {name: rows[column][:] for name, column in columns.items()}
