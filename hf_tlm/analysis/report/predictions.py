"""What the models of a run said of each row of a split, and how right that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from hf_tlm.analysis.report.run_folder import BASELINE, RunFolder
from hf_tlm.errors import AnalysisError
from hf_tlm.metrics import KIND_METRICS, scorer
from hf_tlm.metrics.scores import METRICS_OF_ROWS, Scorer
from hf_tlm.metrics.squad import answer_f1, exact_match
from hf_tlm.utils.run_files import RESULTS_FILE, predictions_file, read_answers

SHOWN_TAGS = 8
NO_ANSWER = "(no answer)"
# Kind of task -> what `Judged.score` is.
SCORES = {
    "classification": "accuracy",
    "multiple_choice": "accuracy",
    "question_answering": "F1",
    "tagging": "tag accuracy",
    "regression": "absolute error",
}


@dataclass(frozen=True)
class Judged:
    """A model's answer to a row.

    score: see `SCORES`; larger is better, for regression smaller.
    right: whether all of it is; None for regression.
    probability: of what was predicted; of several words' tags that of the surest wrong one. of_gold: of the right answer.
    wrong: tagging: position, gold and predicted tag of the words that are wrong, SHOWN_TAGS of them at most.
    numbers: regression: the gold value and the predicted one, as the file has them.
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


# Of a line of a file.
Judge = Callable[[Mapping[str, Any]], Judged]


@dataclass(frozen=True)
class Predictions:
    """Of one split.

    by_seed: seed -> a `Judged` for each row, in one order. names: of the classes, in the model's order.
    seedless: nothing of the model is random, so that its one seed goes with every seed of another's.
    part: what the seeds are of, as of `RunFolder`.
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
        """What scores each seed's answers to some of the rows by a metric; empty where rows do not make one up."""
        rows = range(len(self.ids)) if order is None else order
        if self.kind == "question_answering":
            return [partial(_mean_of, scores) for scores in self.scores[:, list(rows)]]
        if metric not in METRICS_OF_ROWS or metric not in KIND_METRICS.get(self.kind, ()):
            return []
        if self.kind == "regression":
            numbers = np.array([[of[row].numbers for row in rows] for of in self.by_seed.values()])  # [seeds, rows, 2]
            return [scorer(metric, *one.T) for one in numbers] if np.isfinite(numbers).all() else []
        said = (name for of in self.by_seed.values() for one in of for name in (one.gold, one.predicted))
        place = {name: at for at, name in enumerate(dict.fromkeys([*names, *said]))}
        if metric == "f1" and not len(names) == len(place) == 2:
            return []
        return [
            scorer(metric, [place[of[row].gold] for row in rows], [place[of[row].predicted] for row in rows])
            for of in self.by_seed.values()
        ]


def _mean_of(scores: np.ndarray, rows: np.ndarray) -> float:
    return float(scores[rows].mean())


def read_predictions(run: RunFolder, split: str) -> tuple[Predictions | None, list[str]]:
    """The predictions of all finished seeds on a split, None where there are none; and sentences about what is missing."""
    missing: list[str] = []
    found: dict[int, list[Judged]] = {}
    names: tuple[str, ...] = ()
    for seed in (record["seed"] for record in run.seeds):
        path = predictions_file(run.seed_folder(seed), split)
        lines = read_answers(run.seed_folder(seed), split, AnalysisError, _again(run))
        if lines is None:
            missing.append(f"No {split} predictions of {run.part} {seed} ({path.relative_to(run.path)}).")
            continue
        judge = JUDGES.get(run.task_kind, _classified)
        rows = [_judged(judge, line, path, at, run) for at, line in enumerate(lines, 1)]
        if found and [row.id for row in rows] != [row.id for row in next(iter(found.values()))]:
            missing.append(f"The {split} predictions of {run.part} {seed} are of other rows than those before: left out.")
            continue
        found[seed] = rows
        probabilities = lines[0].get("probabilities")
        names = names or tuple(probabilities if isinstance(probabilities, Mapping) else ())
    read = Predictions(run.task_kind, split, found, names, run.kind == BASELINE, run.part) if found else None
    return read, missing


def _again(run: RunFolder) -> str:
    """What to do about a damaged file: what a record calls finished, a grid and `hf-tlm reproduce` do not make again."""
    first = ""
    if run.kind == "grid":
        first = f" after deleting {run.home / RESULTS_FILE}"
    elif "reproduce" in str(run.record.get("command", "")).partition(" --")[0]:
        first = " after deleting its record in the folder runs of the table"
    return f"Copy the file again, or run the command again that made the run{first}: it makes the {run.part} again."


def _judged(judge: Judge, line: Mapping[str, Any], path: Path, at: int, run: RunFolder) -> Judged:
    try:
        return judge(line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AnalysisError(
            f"{path}, line {at}, is not a prediction that hf_tlm wrote ({type(error).__name__}: {error}): expected `id`, "
            f"`label` and `prediction`. {_again(run)}"
        ) from error


def _classified(line: Mapping[str, Any]) -> Judged:
    probabilities = line.get("probabilities") or {}
    gold, predicted = str(line["label"]), str(line["prediction"])
    right = gold == predicted
    return Judged(
        str(line["id"]), gold, predicted, float(right), right, probabilities.get(predicted), probabilities.get(gold)
    )


def _rated(line: Mapping[str, Any]) -> Judged:
    gold, predicted = float(line["label"]), float(line["prediction"])
    return Judged(str(line["id"]), f"{gold:g}", f"{predicted:.4g}", abs(gold - predicted), None, numbers=(gold, predicted))


def _answered(line: Mapping[str, Any]) -> Judged:
    references, predicted = list(line["label"]), str(line["prediction"])
    score, right = answer_f1(predicted, references), bool(exact_match(predicted, references))
    gold = " | ".join(dict.fromkeys(map(str, references))) or NO_ANSWER
    return Judged(str(line["id"]), gold, predicted or NO_ANSWER, score, right, line.get("probability"))


def _tagged(line: Mapping[str, Any]) -> Judged:
    gold, predicted = list(line["label"]), list(line["prediction"])
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} labels, {len(predicted)} predicted tags")
    # A word without a tag is an error, as is one whose tag training lacks.
    wrong = [at for at, (truth, tag) in enumerate(zip(gold, predicted, strict=True)) if tag is None or tag != truth]
    probabilities = line.get("probabilities") or []
    sure = [probabilities[at] for at in wrong if at < len(probabilities) and probabilities[at] is not None]
    shown = tuple((at, str(gold[at]), str(predicted[at])) for at in wrong[:SHOWN_TAGS])
    return Judged(
        str(line["id"]),
        tags_of(shown, 1),
        tags_of(shown, 2),
        1 - len(wrong) / max(1, len(gold)),
        not wrong,
        max(sure, default=None),
        wrong=shown,
    )


def tags_of(wrong: Sequence[tuple[int, str, str]], which: int, words: Sequence[str] | None = None) -> str:
    """`word: tag` of each wrong word, or its number from 1; which: 1 for gold tags, 2 for predicted ones."""
    listed = ", ".join(f"{words[one[0]] if words else one[0] + 1}: {one[which]}" for one in wrong)
    return listed + (", …" if len(wrong) == SHOWN_TAGS else "")


JUDGES: dict[str, Judge] = {
    "regression": _rated,
    "question_answering": _answered,
    "tagging": _tagged,
}
