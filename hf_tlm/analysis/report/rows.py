"""The rows of a task that predictions are of: texts to show, to measure, and to group by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.report.groups import (
    Group,
    by_quantile,
    by_value,
    document_frequency,
    lengths_and_rare_shares,
    question_word,
)

if TYPE_CHECKING:
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
class TrainingWords:
    """In how many training texts of a task each word is: counted once, when it is asked for."""

    task: Task

    @cached_property
    def frequency(self) -> Counter[str]:
        train = self.task.train
        columns = [name for name in TEXTS[self.task.kind] if name in train.column_names]
        # A context is shared by many questions, and counts once.
        return document_frequency(text for name in columns for text in dict.fromkeys(_as_text(name, train[name][:])))


@dataclass(frozen=True)
class Rows:
    """Rows of a split in the order of predictions. columns: name -> values."""

    kind: str
    columns: Mapping[str, Sequence[Any]]
    training: TrainingWords
    rare_below: int

    @cached_property
    def texts(self) -> list[str]:
        """All of a row's texts as one."""
        return [" / ".join(parts) for parts in zip(*map(_as_text, self.columns, self.columns.values()), strict=True)]

    def rare_share(self, below: int) -> float:
        """Of all words of the rows the share that fewer than `below` training texts have; 0 without words."""
        lengths, rare = lengths_and_rare_shares(self.texts, self.training.frequency, below)
        return float((lengths * rare).sum() / max(1, lengths.sum()))

    @cached_property
    def groups(self) -> dict[str, list[Group]]:
        """By what rows are told apart -> the groups."""
        lengths, rare = lengths_and_rare_shares(self.texts, self.training.frequency, self.rare_below)
        found = {
            "Length of the text, in words": by_quantile(lengths),
            f"Share of rare words (in fewer than {self.rare_below} training texts)": by_quantile(100 * rare, "{:.1f}%"),
        }
        if self.kind == "question_answering":
            found["Question word"] = by_value([question_word(question) for question in self.columns["question"]])
        return found

    def at(self, row: int) -> str:
        return self.texts[row]


def rows_of(training: TrainingWords, split: str, ids: Sequence[str], rare_below: int) -> Rows:
    """The rows with these ids.

    Raises:
        AnalysisError: the split is not there, or lacks one of them.
    """
    task = training.task
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
    return Rows(task.kind, {name: chosen[name][:] for name in names}, training, rare_below)


def _as_text(column: str, values: Sequence[Any]) -> list[str]:
    """Lists of words, or of options, as texts."""
    between = " | " if column == "options" else " "
    return [value if isinstance(value, str) else between.join(map(str, value)) for value in values]
