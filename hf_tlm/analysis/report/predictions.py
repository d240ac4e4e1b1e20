"""The predictions of a run on each row of a split, their scores, and the rows themselves.

Rows have texts to show, and groups by class, by length and by rare words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.report.run_folder import BASELINE, RunFolder
from hf_tlm.errors import AnalysisError
from hf_tlm.metrics import KIND_METRICS, scorer
from hf_tlm.metrics.scores import METRICS_OF_ROWS, Scorer
from hf_tlm.metrics.squad import answer_f1, exact_match
from hf_tlm.retrieval.filters import words
from hf_tlm.utils.run_files import RESULTS_FILE, predictions_file, read_prediction_records

if TYPE_CHECKING:
    from hf_tlm.tasks import Task

SHOWN_TAGS = 8
NO_ANSWER = "(no answer)"
# Kind of task -> name of `Judged.score`.
SCORES = {
    "classification": "accuracy",
    "multiple_choice": "accuracy",
    "question_answering": "F1",
    "tagging": "tag accuracy",
    "regression": "absolute error",
}

# Kind of task -> columns of a row's text, in the order they are shown.
TEXTS = {
    "classification": ("text", "text_pair"),
    "regression": ("text", "text_pair"),
    "question_answering": ("question", "context"),
    "multiple_choice": ("question", "options", "context"),
    "tagging": ("tokens",),
}
QUESTION_WORDS = ("who", "whom", "whose", "what", "when", "where", "which", "why", "how")


@dataclass(frozen=True)
class Judged:
    """A model's prediction for a row, with its score.

    score: see `SCORES`; larger is better, except for regression.
    right: whether the prediction is entirely correct; None for regression.
    probability: of the prediction; for tagging, the highest of a wrong tag.
    of_gold: probability of the correct answer.
    wrong: tagging: (position, gold tag, predicted tag) of wrong words, at most SHOWN_TAGS.
    numbers: regression: (gold, predicted) as in the file.
    """

    id: str
    gold: str
    predicted: str
    score: float
    right: bool | None
    probability: float | None = None
    of_gold: float | None = None
    wrong: tuple[tuple[int, str, str], ...] = ()
    numbers: tuple[float, float] = (0.0, 0.0)


# Scores a line of a predictions file.
Judge = Callable[[Mapping[str, Any]], Judged]


@dataclass(frozen=True)
class Predictions:
    """The predictions of all seeds of a run on one split.

    by_seed: seed -> a `Judged` for each row, in the same order.
    names: class names in the model's order.
    seedless: whether the model is deterministic, so that its single seed is compared with every seed of another run.
    part: what its seeds are, see `RunFolder.part`.
    """

    kind: str
    split: str
    by_seed: Mapping[int, Sequence[Judged]]
    names: Sequence[str] = ()
    seedless: bool = False
    part: str = "seed"

    @property
    def seeds(self) -> list[int]:
        return list(self.by_seed)

    @cached_property
    def ids(self) -> list[str]:
        return [row.id for row in next(iter(self.by_seed.values()))]

    @cached_property
    def scores(self) -> np.ndarray:
        """The scores of all rows, float [seeds, rows]."""
        return np.array([[row.score for row in rows] for rows in self.by_seed.values()])

    @cached_property
    def right(self) -> np.ndarray:
        """Whether predictions are right, bool [seeds, rows]; all False for regression."""
        return np.array([[bool(row.right) for row in rows] for rows in self.by_seed.values()])

    @property
    def larger_is_better(self) -> bool:
        return self.kind != "regression"

    def scorers(self, metric: str, names: Sequence[str], order: Sequence[int] | None = None) -> list[Scorer]:
        """Return a scorer for each seed, which computes the metric on chosen rows; empty if rows do not determine it."""
        rows = range(len(self.ids)) if order is None else order
        if self.kind == "question_answering":
            return [partial(_mean_score, scores) for scores in self.scores[:, list(rows)]]
        if metric not in METRICS_OF_ROWS or metric not in KIND_METRICS.get(self.kind, ()):
            return []
        if self.kind == "regression":
            numbers = np.array(
                [[judged[row].numbers for row in rows] for judged in self.by_seed.values()]
            )  # [seeds, rows, 2]
            return [scorer(metric, *item.T) for item in numbers] if np.isfinite(numbers).all() else []
        used_names = (name for judged in self.by_seed.values() for item in judged for name in (item.gold, item.predicted))
        class_index = {name: index for index, name in enumerate(dict.fromkeys([*names, *used_names]))}
        if metric == "f1" and not len(names) == len(class_index) == 2:
            return []
        return [
            scorer(
                metric, [class_index[judged[row].gold] for row in rows], [class_index[judged[row].predicted] for row in rows]
            )
            for judged in self.by_seed.values()
        ]


def _mean_score(scores: np.ndarray, rows: np.ndarray) -> float:
    return float(scores[rows].mean())


def read_predictions(run: RunFolder, split: str) -> tuple[Predictions | None, list[str]]:
    """Read the predictions of all finished seeds on a split.

    Returns (predictions, None if there are none; sentences about what is missing).
    """
    missing: list[str] = []
    by_seed: dict[int, list[Judged]] = {}
    names: tuple[str, ...] = ()
    for seed in (record["seed"] for record in run.seeds):
        path = predictions_file(run.seed_folder(seed), split)
        lines = read_prediction_records(run.seed_folder(seed), split, AnalysisError, _rerun_advice(run))
        if lines is None:
            missing.append(f"No {split} predictions of {run.part} {seed} ({path.relative_to(run.path)}).")
            continue
        judge = JUDGES.get(run.task_kind, _judge_classification)
        rows = [_judge_line(judge, line, path, line_number, run) for line_number, line in enumerate(lines, 1)]
        if by_seed and [row.id for row in rows] != [row.id for row in next(iter(by_seed.values()))]:
            missing.append(
                f"The {split} predictions of {run.part} {seed} are for other rows than those of earlier {run.part}s and "
                "are left out."
            )
            continue
        by_seed[seed] = rows
        probabilities = lines[0].get("probabilities")
        names = names or tuple(probabilities if isinstance(probabilities, Mapping) else ())
    predictions = Predictions(run.task_kind, split, by_seed, names, run.kind == BASELINE, run.part) if by_seed else None
    return predictions, missing


def _rerun_advice(run: RunFolder) -> str:
    """Return advice for a damaged file: to rerun the command, and what to delete if it would consider the run finished."""
    deletion = ""
    if run.kind == "grid":
        deletion = f" after deleting {run.home / RESULTS_FILE}"
    elif "reproduce" in str(run.record.get("command", "")).partition(" --")[0]:
        deletion = " after deleting its record in the folder runs of the table"
    return f"Copy the file again, or repeat the command that created the run{deletion}, to create the {run.part} again."


def _judge_line(judge: Judge, line: Mapping[str, Any], path: Path, line_number: int, run: RunFolder) -> Judged:
    try:
        return judge(line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AnalysisError(
            f"{path}, line {line_number}, is not a prediction that hf_tlm wrote ({type(error).__name__}: {error}): expected "
            f"`id`, `label` and `prediction`. {_rerun_advice(run)}"
        ) from error


def _judge_classification(line: Mapping[str, Any]) -> Judged:
    probabilities = line.get("probabilities") or {}
    gold, predicted = str(line["label"]), str(line["prediction"])
    right = gold == predicted
    return Judged(
        str(line["id"]), gold, predicted, float(right), right, probabilities.get(predicted), probabilities.get(gold)
    )


def _judge_regression(line: Mapping[str, Any]) -> Judged:
    gold, predicted = float(line["label"]), float(line["prediction"])
    return Judged(
        str(line["id"]),
        _format_number(gold, 6),
        _format_number(predicted, 4),
        abs(gold - predicted),
        None,
        numbers=(gold, predicted),
    )


def _format_number(number: float, digits: int) -> str:
    """Format a number with so many significant digits, or more if its integer part has more: 12499, not 1.25e+04."""
    return f"{number:.0f}" if 10**digits <= abs(number) < 1e15 else f"{number:.{digits}g}"


def _judge_answer(line: Mapping[str, Any]) -> Judged:
    references, predicted = list(line["label"]), str(line["prediction"])
    score, right = answer_f1(predicted, references), bool(exact_match(predicted, references))
    gold = " | ".join(dict.fromkeys(map(str, references))) or NO_ANSWER
    return Judged(str(line["id"]), gold, predicted or NO_ANSWER, score, right, line.get("probability"))


def _judge_tags(line: Mapping[str, Any]) -> Judged:
    gold, predicted = list(line["label"]), list(line["prediction"])
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} labels, {len(predicted)} predicted tags")
    # A missing tag counts as an error, as does the tag of a word whose gold tag is not in training.
    wrong = [
        position for position, (truth, tag) in enumerate(zip(gold, predicted, strict=True)) if tag is None or tag != truth
    ]
    probabilities = line.get("probabilities") or []
    wrong_probabilities = [
        probabilities[position]
        for position in wrong
        if position < len(probabilities) and probabilities[position] is not None
    ]
    shown = tuple((position, str(gold[position]), str(predicted[position])) for position in wrong[:SHOWN_TAGS])
    return Judged(
        str(line["id"]),
        tags_of(shown, 1),
        tags_of(shown, 2),
        1 - len(wrong) / max(1, len(gold)),
        not wrong,
        max(wrong_probabilities, default=None),
        wrong=shown,
    )


def tags_of(wrong: Sequence[tuple[int, str, str]], which: int, words: Sequence[str] | None = None) -> str:
    """Format each wrong word as `word: tag`, or with its number from 1; which: 1 for gold tags, 2 for predicted ones."""
    listed = ", ".join(f"{words[entry[0]] if words else entry[0] + 1}: {entry[which]}" for entry in wrong)
    return listed + (", …" if len(wrong) == SHOWN_TAGS else "")


JUDGES: dict[str, Judge] = {
    "regression": _judge_regression,
    "question_answering": _judge_answer,
    "tagging": _judge_tags,
}


@dataclass(frozen=True)
class TrainingWords:
    """The number of training texts of a task that contain each word, counted once, when first used.

    ids: of the training texts if the model was trained on some of them only, as in few-shot learning.
    """

    task: Task
    ids: frozenset[str] | None = None

    @cached_property
    def frequency(self) -> Counter[str]:
        train = self.task.train
        if self.ids is not None:
            train = train.select([row for row, identifier in enumerate(train["id"][:]) if identifier in self.ids])
        columns = [name for name in TEXTS[self.task.kind] if name in train.column_names]
        # Many questions share a context, which counts once.
        return document_frequency(text for name in columns for text in dict.fromkeys(_join_values(name, train[name][:])))


@dataclass(frozen=True)
class Rows:
    """Rows of a split in the order of predictions; columns: name -> values."""

    kind: str
    columns: Mapping[str, Sequence[Any]]
    training: TrainingWords
    rare_below: int

    @cached_property
    def texts(self) -> list[str]:
        """The text of each row, with its columns joined."""
        return [" / ".join(parts) for parts in zip(*map(_join_values, self.columns, self.columns.values()), strict=True)]

    def rare_share(self, below: int) -> float:
        """Return the share of the rows' words that occur in fewer than `below` training texts; 0 if there are no words."""
        lengths, rare = lengths_and_rare_shares(self.texts, self.training.frequency, below)
        return float((lengths * rare).sum() / max(1, lengths.sum()))

    @cached_property
    def groups(self) -> dict[str, list[Group]]:
        """Criterion -> groups of rows by length, by share of rare words and, for questions, by question word."""
        lengths, rare = lengths_and_rare_shares(self.texts, self.training.frequency, self.rare_below)
        groups = {
            "Length of the text, in words": by_quantile(lengths),
            f"Share of rare words (in fewer than {self.rare_below} training texts)": by_quantile(100 * rare, "{:.1f}%"),
        }
        if self.kind == "question_answering":
            groups["Question word"] = by_value([question_word(question) for question in self.columns["question"]])
        return groups


def rows_of(training: TrainingWords, split: str, ids: Sequence[str], rare_below: int) -> Rows:
    """Return the rows with these ids.

    Raises:
        AnalysisError: the task has no such split, or the split lacks an id.
    """
    task = training.task
    if split not in task.splits:
        raise AnalysisError(
            f"{task.name} has no {split} split, but the run has predictions of one. Pass the run's own --task."
        )
    data = task.splits[split]
    row_of_id = {identifier: index for index, identifier in enumerate(data["id"][:])}
    if missing := [identifier for identifier in ids if identifier not in row_of_id]:
        raise AnalysisError(f"The {split} split of {task.name} has no row {missing[0]!r}. Pass the run's own --task.")
    names = [name for name in TEXTS[task.kind] if name in data.column_names]
    chosen = data.select([row_of_id[identifier] for identifier in ids])
    return Rows(task.kind, {name: chosen[name][:] for name in names}, training, rare_below)


def _join_values(column: str, values: Sequence[Any]) -> list[str]:
    """Join lists of words, or of options, into texts."""
    separator = " | " if column == "options" else " "
    return [value if isinstance(value, str) else separator.join(map(str, value)) for value in values]


@dataclass(frozen=True)
class Group:
    """A named group of rows; rows: int64 [n], indices in the order of predictions."""

    name: str
    rows: np.ndarray


def document_frequency(texts: Iterable[str]) -> Counter[str]:
    """Return the number of texts that contain each word."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(words(text)))
    return counts


def lengths_and_rare_shares(
    texts: Sequence[str], frequency: Mapping[str, int], rare_below: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of words of each text, int64 [N], and its share of rare words, float [N].

    A word is rare if fewer than `rare_below` training texts contain it.
    """
    frequent_words = {word for word, count in frequency.items() if count >= rare_below}
    lengths, rare = np.zeros(len(texts), np.int64), np.zeros(len(texts))
    for index, text in enumerate(texts):
        text_words = words(text)
        lengths[index] = len(text_words)
        rare[index] = (len(text_words) - sum(map(frequent_words.__contains__, text_words))) / max(1, len(text_words))
    return lengths, rare


def by_value(values: Sequence[str], order: Sequence[str] = ()) -> list[Group]:
    """Group rows by value: values of `order` first, others by decreasing frequency."""
    counts = Counter(values)
    array = np.array(values, dtype=object)
    names = [name for name in order if name in counts]
    names += sorted(set(counts) - set(names), key=lambda name: (-counts[name], name))
    return [Group(name, np.flatnonzero(array == name)) for name in names]


def by_quantile(values: np.ndarray, format: str = "{:,.0f}") -> list[Group]:
    """Group rows by quartile, named by its least and largest value; equal values share a group, so there may be fewer."""
    if not len(values):
        return []
    edges = np.unique(np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf"))
    quartiles = np.searchsorted(edges, values, side="left")
    groups = []
    for quartile in np.unique(quartiles):
        rows = np.flatnonzero(quartiles == quartile)
        low, high = (format.format(edge) for edge in (values[rows].min(), values[rows].max()))
        groups.append(Group(low if low == high else f"{low} to {high}", rows))
    return groups


def question_word(question: str) -> str:
    """Return the first of who, what, when, ... in a question; "other" if there is none."""
    return next((word for word in words(question) if word in QUESTION_WORDS), "other")


def heading(by: str) -> str:
    """Return a criterion's short name, without what is in brackets or after a comma."""
    return re.split(r" \(|,", by, maxsplit=1)[0]


def mean_and_std(scores: np.ndarray) -> tuple[float, float | None]:
    """Return the mean of the seeds' means of scores, float [seeds, n], and their deviation (n - 1; None for one seed)."""
    means = scores.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1)) if len(means) > 1 else None


def difference(
    first: np.ndarray, second: np.ndarray, paired: Sequence[tuple[int, int]]
) -> tuple[float, float, float, float | None]:
    """Compare two runs' scores on the same rows, float [seeds, n].

    Returns (first mean over seeds, second mean, second minus first, its deviation). The deviation is the sample standard
    deviation over the `paired` seeds, None for fewer than two.
    """
    means = first.mean(axis=1), second.mean(axis=1)
    differences = np.array([means[1][b] - means[0][a] for a, b in paired])
    a, b = float(means[0].mean()), float(means[1].mean())
    return a, b, b - a, float(differences.std(ddof=1)) if len(differences) > 1 else None
