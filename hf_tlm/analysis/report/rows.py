"""The rows of a task that predictions are of: texts to show, to measure, and to group by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.report.groups import (
    Group,
    by_quantile,
    by_value,
    document_frequency,
    question_word,
    rare_shares,
    words_of,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_tlm.tasks import Task

# Kind of task -> columns that make up a row's text, in the order they are shown.
TEXTS = {
    "classification": ("text", "text_pair"),
    "regression": ("text", "text_pair"),
    "question_answering": ("question", "context"),
    "multiple_choice": ("question", "options", "context"),
    "tagging": ("tokens",),
}


@dataclass(frozen=True)
class Rows:
    """Rows of a split in the order of predictions. columns: name -> values."""

    kind: str
    columns: Mapping[str, Sequence[Any]]
    train: Dataset
    rare_below: int

    @cached_property
    def texts(self) -> list[str]:
        """All of a row's texts as one."""
        return [" / ".join(parts) for parts in zip(*map(_as_text, self.columns, self.columns.values()), strict=True)]

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 [N]: words."""
        return np.array([len(words_of(text)) for text in self.texts])

    @cached_property
    def rare(self) -> np.ndarray:
        """float [N]: see `rare_shares`; the training texts are those of the same columns."""
        # A context is shared by many questions.
        parts = (text for name in self.columns for text in dict.fromkeys(_as_text(name, self.train[name][:])))
        return rare_shares(self.texts, document_frequency(parts), self.rare_below)

    def groups(self) -> dict[str, list[Group]]:
        """By what rows are told apart -> the groups."""
        found = {
            "Length of the text, in words": by_quantile(self.lengths),
            f"Share of rare words (in fewer than {self.rare_below} training texts)": by_quantile(100 * self.rare, "{:.1f}%"),
        }
        if self.kind == "question_answering":
            found["Question word"] = by_value([question_word(question) for question in self.columns["question"]])
        return found

    def at(self, row: int) -> str:
        return self.texts[row]


def rows_of(task: Task, split: str, ids: Sequence[str], rare_below: int) -> Rows:
    """The rows with these ids.

    Raises:
        AnalysisError: the split is not there, or lacks one of them.
    """
    if split not in task.splits:
        raise AnalysisError(
            f"{task.name} has no {split} split, and there are predictions of one. Give the run's own --task."
        )
    data = task.splits[split]
    place = {identifier: at for at, identifier in enumerate(data["id"][:])}
    if missing := [identifier for identifier in ids if identifier not in place]:
        raise AnalysisError(f"The {split} split of {task.name} has no row {missing[0]!r}. Give the run's own --task.")
    names = [name for name in TEXTS[task.kind] if name in data.column_names]
    chosen = data.select([place[identifier] for identifier in ids])
    return Rows(task.kind, {name: chosen[name][:] for name in names}, task.train, rare_below)


def _as_text(column: str, values: Sequence[Any]) -> list[str]:
    """Lists of words, or of options, as texts."""
    between = " | " if column == "options" else " "
    return [value if isinstance(value, str) else between.join(map(str, value)) for value in values]
