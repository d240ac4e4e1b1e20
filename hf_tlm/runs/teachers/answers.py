"""What teachers of every kind give, how it becomes the task's, which passages they are trusted on; a file as a teacher."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from hf_tlm.corpora.tables import suffix_of
from hf_tlm.errors import ArgumentsError
from hf_tlm.tasks import Task
from hf_tlm.tasks.reading import BUILDERS, read_file
from hf_tlm.tasks.spec import columns_of_texts
from hf_tlm.utils.locks import place_in_job
from hf_tlm.utils.seals import checksum
from hf_tlm.utils.shown import few
from hf_tlm.utils.texts import count_words, end_of_words

# The least probability of a class: a model that has not seen a class would say 0.
LEAST = 1e-6
# Of a file of answers: what columns begin with, and how far a row may be from adding up to 1, as it may be rounded.
PREFIX, ROUNDING = "probability_", 0.02
T = TypeVar("T")


@dataclass
class Answers:
    """A teacher's answers.

    train: float [N, C], probabilities of the training texts; a row of zeros is none. For regression values [N, 1], or NaN.
    passages: float [M, C], the same of the passages of the subset; [0, C] where it was asked of none.
    report: JSON values: how good it is, and what it cost.
    disagreement: float [M], how far the answers of several teachers for a passage are from their average, which `passages`
        has: the mean Kullback-Leibler divergence, in nats (McCallum and Nigam 1998, section 3). Of one teacher 0.
    """

    train: np.ndarray
    passages: np.ndarray
    report: dict[str, Any] = field(default_factory=dict)
    disagreement: np.ndarray = field(default_factory=lambda: np.zeros(0))


def held_out(what: str, probabilities: np.ndarray, labels: np.ndarray, **further: float) -> dict[str, Any]:
    """What a report says of a classifier's answers, float [N, C], for texts of known classes that it has not learned."""
    right, largest = (probabilities.argmax(1) == labels).mean(), np.bincount(labels).max() / len(labels)
    of_all = {"largest_class": round(float(largest), 4)}
    return {"held_out": what, "held_out_accuracy": round(float(right), 4), **further, **of_all}


def progress(items: Iterable[T], description: str, unit: str) -> Iterable[T]:
    """The items with a bar, on the first process."""
    return tqdm(items, desc=description, unit=unit, disable=place_in_job()[0] > 0)


def read_mapping(pairs: Sequence[str] | None) -> dict[str, str]:
    """teacher=task pairs of names of classes; an ArgumentsError where one is no pair, or a name is there twice."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        own, equals, name = pair.partition("=")
        if not equals or not own or not name or own in found:
            raise ArgumentsError(
                f"teacher_labels: expected the teacher's name=the task's, once for each class of it; received {pair!r:.60}."
            )
        found[own] = name
    return found


def class_matrix(own: Sequence[str], classes: Sequence[str], mapping: Mapping[str, str], who: str) -> np.ndarray:
    """Which class of the task each of the teacher's is, float64 [own, classes] of 0 and 1.

    Args:
        mapping: the teacher's name -> the task's; empty: they have the same names, in any order.

    Raises:
        ArgumentsError: a name that the other side lacks.
    """
    if unknown := sorted(set(mapping) - set(own)):
        raise ArgumentsError(f"teacher_labels: {who} has no class {unknown[0]!r:.60}; it has {_some(own)}.")
    named = [mapping.get(name, None if mapping else name) for name in own]
    if None in named or set(named) != set(classes):
        example = " ".join(f"{name}={classes[place % len(classes)]}" for place, name in enumerate(own[:3]))
        raise ArgumentsError(
            f"The classes of {who} are {_some(own)}, and the task's are {_some(classes)}: expected the same names. Give "
            f"--teacher_labels, for every one of them its name=the task's (such as {example:.100})."
        )
    return np.array([[float(name == label) for label in classes] for name in named])


def _some(names: Sequence[str]) -> str:
    return few([f"{name:.40}" for name in names], 10)


def most_certain(probabilities: np.ndarray, shares: np.ndarray, count: int, trust: str = "confidence") -> np.ndarray:
    """Rows, ascending: of each class at most its share of `count`, those where it is likeliest and the teacher most certain.

    Args:
        probabilities: float [N, C]; rows of zeros, which have no answer, are not chosen.
        shares: float [C], adding up to 1.
        trust: "confidence", by the class's probability; "entropy", by how little the distribution is spread.
    """
    certain, answered = certainty(probabilities, trust), probabilities.sum(1) > 0
    likeliest, chosen = np.where(answered, probabilities.argmax(1), -1), []
    for label, share in enumerate(shares):
        rows = np.flatnonzero(likeliest == label)
        order = np.argsort(-certain[rows], kind="stable")
        chosen.append(rows[order[: round(share * count)]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def certainty(probabilities: np.ndarray, trust: str) -> np.ndarray:
    """How certain answers are, float64 [N]: the largest probability, or minus the entropy in nats."""
    return probabilities.max(1) if trust == "confidence" else -entropy(probabilities)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Entropies in nats, float64 [N], of float [N, C]."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return -(probabilities * logs).sum(1)


def task_lengths(texts: Sequence[str], passages: Sequence[str]) -> np.ndarray:
    """After how many characters each passage ends, int64 [M], so that passages are as long as texts of the task.

    The lengths are quantiles of the texts' numbers of words, spread over the passages in an order that depends on their
    number alone. A passage that is shorter stays whole; one that is cut ends with a word, its beginning is kept.
    """
    words = np.sort([count_words(text) for text in texts])
    places = (np.random.default_rng(0).permutation(len(passages)) + 0.5) / max(1, len(passages))
    wanted = np.quantile(words, places, method="inverted_cdf").astype(int)
    ends = [end_of_words(text, max(1, count)) for text, count in zip(passages, wanted, strict=True)]
    return np.array(ends, dtype=np.int64)


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
                raise ArgumentsError(
                    f"teacher {path}: row {blank[0]} (counted from 0) has no {name} ({len(blank):,} such). Leave them out."
                )
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
                f"teacher {self.path}: row {bad[0]} (counted from 0) has no number where one is expected ({len(bad):,} "
                "such)."
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
                f"teacher {self.path}: expected probabilities, none below 0, that add up to 1; row {bad[0]} (counted "
                f"from 0) has {', '.join(f'{share:g}' for share in shares[bad[0]]):.100} ({len(bad):,} such)."
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
                    f"teacher {self.path}: expected the same classes in every row of probabilities; row {other[0]} (counted "
                    f"from 0) has {', '.join(objects[other[0]]):.100}, and row 0 {', '.join(objects[0]):.100}."
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
