"""The rows of a task that predictions are of: texts to show, and groups by class, by length and by rare words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.errors import AnalysisError
from hf_tlm.retrieval.filters import words

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
QUESTION_WORDS = ("who", "whom", "whose", "what", "when", "where", "which", "why", "how")


@dataclass(frozen=True)
class TrainingWords:
    """In how many training texts of a task each word is: counted once, when it is asked for.

    ids: of the training texts, where a model learned from some of them alone, as in few-shot learning.
    """

    task: Task
    ids: frozenset[str] | None = None

    @cached_property
    def frequency(self) -> Counter[str]:
        train = self.task.train
        if self.ids is not None:
            train = train.select([row for row, identifier in enumerate(train["id"][:]) if identifier in self.ids])
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


def rows_of(training: TrainingWords, split: str, ids: Sequence[str], rare_below: int) -> Rows:
    """The rows with these ids, or an AnalysisError where the split is not there or lacks one of them."""
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


@dataclass(frozen=True)
class Group:
    """rows: int64 [n], places in the split."""

    name: str
    rows: np.ndarray


def document_frequency(texts: Iterable[str]) -> Counter[str]:
    """In how many of the texts each word is."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(words(text)))
    return counts


def lengths_and_rare_shares(
    texts: Sequence[str], frequency: Mapping[str, int], rare_below: int
) -> tuple[np.ndarray, np.ndarray]:
    """int64 [N], words of each text, and float [N], the share of them that fewer than `rare_below` training texts have."""
    known = {word for word, count in frequency.items() if count >= rare_below}
    lengths, rare = np.zeros(len(texts), np.int64), np.zeros(len(texts))
    for at, text in enumerate(texts):
        found = words(text)
        lengths[at] = len(found)
        rare[at] = (len(found) - sum(map(known.__contains__, found))) / max(1, len(found))
    return lengths, rare


def by_value(values: Sequence[str], order: Sequence[str] = ()) -> list[Group]:
    """A group for each value: those of `order` first, others by how frequent they are."""
    counts = Counter(values)
    array = np.array(values, dtype=object)
    names = [name for name in order if name in counts]
    names += sorted(set(counts) - set(names), key=lambda name: (-counts[name], name))
    return [Group(name, np.flatnonzero(array == name)) for name in names]


def by_quantile(values: np.ndarray, format: str = "{:,.0f}") -> list[Group]:
    """Quarters by growing value, named by their least and largest. Equal values share a group, so there may be fewer."""
    if not len(values):
        return []
    edges = np.unique(np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf"))
    place = np.searchsorted(edges, values, side="left")
    groups = []
    for part in np.unique(place):
        rows = np.flatnonzero(place == part)
        low, high = (format.format(edge) for edge in (values[rows].min(), values[rows].max()))
        groups.append(Group(low if low == high else f"{low} to {high}", rows))
    return groups


def question_word(question: str) -> str:
    """The first of who, what, when, ... in a question; "other" without one."""
    return next((word for word in words(question) if word in QUESTION_WORDS), "other")


def heading(by: str) -> str:
    """What groups are told apart by, in a few words: without what is in brackets or after a comma."""
    return re.split(r" \(|,", by, maxsplit=1)[0]


def mean_and_std(scores: np.ndarray) -> tuple[float, float | None]:
    """Of scores, float [seeds, n]: mean of the seeds' means, and sample standard deviation (None for one seed)."""
    means = scores.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1)) if len(means) > 1 else None


def difference(
    first: np.ndarray, second: np.ndarray, paired: Sequence[tuple[int, int]]
) -> tuple[float, float, float, float | None]:
    """Of scores on the same rows, float [seeds, n], each run's mean over its seeds, second minus first, and its deviation.

    The last is the sample standard deviation over the `paired` seeds, which both have, None for fewer than two.
    """
    means = first.mean(axis=1), second.mean(axis=1)
    apart = np.array([means[1][b] - means[0][a] for a, b in paired])
    a, b = float(means[0].mean()), float(means[1].mean())
    return a, b, b - a, float(apart.std(ddof=1)) if len(apart) > 1 else None
