"""Whether a lead could be chance of the texts that were scored: the paired bootstrap.

N texts, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics.regression import Pearson, Spearman

RESAMPLES = 1000
COVERED = 0.95
# Rows of a resample, int64 [N] with repetitions -> the score on them.
Scorer = Callable[[np.ndarray], float]
_CORRELATIONS = {"pearson": Pearson, "spearman": Spearman}


@dataclass(frozen=True)
class Lead:
    """By how much one score is above another, and how much of that the choice of texts may be.

    difference: on the texts themselves. low, high: between these it is in 95% of the resamples.
    """

    difference: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    @property
    def reversed(self) -> Lead:
        """The other side's."""
        return Lead(-self.difference, -self.high, -self.low)

    def to_dict(self) -> dict[str, float]:
        """JSON values."""
        return asdict(self)

    @property
    def interval(self) -> str:
        """In percent, as a sentence has it."""
        low, high = (round(100 * end, 2) + 0.0 for end in (self.low, self.high))  # Else -0.00 is said of the other side.
        return f"95% interval {low:.2f} to {high:.2f}"


def paired_bootstrap(
    first: Sequence[Scorer], second: Sequence[Scorer], size: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> Lead:
    """How far the first's mean score is above the second's on resampled texts.

    As many texts as there are are drawn with replacement, the same for both sides, and the interval is of the differences'
    percentiles (Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation", section 5; Efron 1979). It
    is about other texts, for these very models: how much seeds differ is another question.

    Args:
        first, second: what scores each of a side's models, such as its seeds'; see `scorer`.
        size: N.
        resamples: how many.
        seed: of the draws; equal arguments give equal intervals.

    Raises:
        HfTlmError: a side has no model or is no list of scorers, or there are no texts or no resamples.
    """
    for name, side in (("first", first), ("second", second)):
        if callable(side) or not all(map(callable, side)):
            raise HfTlmError(
                f"{name}: expected a list of what scores each model; received a {type(side).__name__}. Give "
                "[scorer(metric, references, predictions)]."
            )
    if not (first and second and size > 0 and resamples > 0):
        raise HfTlmError(
            f"A lead is of one model or more on each side, texts and resamples; received {len(first)} and {len(second)} "
            f"models, {size} texts and {resamples} resamples."
        )

    def lead(rows: np.ndarray) -> float:
        return float(np.mean([score(rows) for score in first]) - np.mean([score(rows) for score in second]))

    random = np.random.default_rng(seed)
    leads = [lead(random.integers(size, size=size)) for _ in range(resamples)]
    low, high = np.quantile(leads, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return Lead(lead(np.arange(size)), float(low), float(high))


def scorer(metric: str, references: Sequence[int | float], predictions: Sequence[int | float]) -> Scorer:
    """A metric of some of the rows, as `load_metric` has it, in the time that a thousand resamples leave.

    Args:
        metric: of classification or regression.
        references, predictions: [N], indices of classes, or numbers.

    Raises:
        HfTlmError: the metric is of another kind of task; there are not as many predictions as references.
    """
    if len(references) != len(predictions):
        raise HfTlmError(
            f"A prediction for every reference was expected; received {len(predictions):,} and {len(references):,}."
        )
    if metric in _CORRELATIONS:
        truths, numbers = np.asarray(references, float), np.asarray(predictions, float)
        correlation = _CORRELATIONS[metric]()

        def correlated(rows: np.ndarray) -> float:
            truth, number = truths[rows], numbers[rows]
            if np.ptp(truth) == 0 or np.ptp(number) == 0:
                return 0.0  # As the metric has it, which would warn of every such resample.
            return correlation._compute(number, truth)[metric]

        return correlated
    if metric not in _OF_COUNTS:
        raise HfTlmError(f"A metric of rows is one of {', '.join(METRICS_OF_ROWS)}; received {metric!r:.60}.")
    for name, values in (("references", references), ("predictions", predictions)):
        if wrong := [one for one in np.asarray(values).tolist() if not isinstance(one, int) or one < 0]:
            raise HfTlmError(
                f"{name}: expected indices of classes, whole numbers from 0; received {wrong[0]!r:.60}. label2id of a task "
                "has those of names."
            )
    labels, guesses = np.asarray(references, np.int64), np.asarray(predictions, np.int64)
    classes = int(max(labels.max(initial=0), guesses.max(initial=0))) + 1
    hits, of_counts = labels == guesses, _OF_COUNTS[metric]
    if metric == "f1" and classes > 2:
        raise HfTlmError(f"f1 is of class 1 against class 0; received class {classes - 1}. Use macro_f1 or micro_f1.")

    def counted(rows: np.ndarray) -> float:
        label, guess = labels[rows], guesses[rows]
        right, true, said = (np.bincount(of, minlength=max(2, classes)) for of in (label[hits[rows]], label, guess))
        return of_counts(right, true, said)

    return counted


def _accuracy(right: np.ndarray, true: np.ndarray, said: np.ndarray) -> float:
    """Of the counts of each class, [C]: those that are right, of the references, of the predictions."""
    return float(right.sum() / true.sum())


def _macro_f1(right: np.ndarray, true: np.ndarray, said: np.ndarray) -> float:
    there = true + said > 0
    return float((2 * right[there] / (true + said)[there]).mean())


def _binary_f1(right: np.ndarray, true: np.ndarray, said: np.ndarray) -> float:
    return float(2 * right[1] / max(1, true[1] + said[1]))


def _matthews(right: np.ndarray, true: np.ndarray, said: np.ndarray) -> float:
    """By the sums of Gorodkin 2004, for any number of classes."""
    n = float(true.sum())
    spread = (n * n - float(said @ said)) * (n * n - float(true @ true))
    return 0.0 if spread == 0 else (n * float(right.sum()) - float(true @ said)) / spread**0.5


_OF_COUNTS = {
    "macro_f1": _macro_f1,
    "micro_f1": _accuracy,
    "accuracy": _accuracy,
    "f1": _binary_f1,
    "matthews": _matthews,
}
METRICS_OF_ROWS = (*_OF_COUNTS, *_CORRELATIONS)
