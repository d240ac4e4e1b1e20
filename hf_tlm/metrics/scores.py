"""All metrics by name, how the Trainer takes them, and whether a lead could be chance: the paired bootstrap.

N texts, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics.labels import (
    Accuracy,
    BinaryF1,
    MacroF1,
    Matthews,
    MicroF1,
    Pearson,
    SpanF1,
    Spearman,
    TagAccuracy,
    TaskMetric,
)
from hf_tlm.metrics.squad import SquadF1
from hf_tlm.tasks.spec import KIND_METRICS, NO_LABEL

if TYPE_CHECKING:
    from transformers import EvalPrediction


METRICS: dict[str, type[TaskMetric]] = {
    metric.name: metric
    for metric in (
        *(MicroF1, MacroF1, Accuracy, Matthews, BinaryF1),
        *(Pearson, Spearman),
        *(SquadF1, TagAccuracy, SpanF1),
    )
}

RESAMPLES = 1000
COVERED = 0.95
# Rows of a resample, int64 [N] with repetitions -> the score on them.
Scorer = Callable[[np.ndarray], float]


def load_metric(name: str) -> TaskMetric:
    """A metric by name.

    Raises:
        HfTlmError: there is none of this name.
    """
    if not isinstance(name, str) or name not in METRICS:
        raise HfTlmError(f"The metrics are {', '.join(METRICS)}; received {name!r}.")
    return METRICS[name]()


def compute_metrics_for(name: str, *further: str) -> Callable[[EvalPrediction], dict[str, float]]:
    """For `Trainer(compute_metrics=...)`: metrics of argmax predictions and their accuracy, or of regression's numbers.

    Texts with the label -100 have none and are left out, as they are of the loss. Of a model's several outputs, as with
    hidden states, the first are the logits.

    Raises:
        HfTlmError: there is no metric of this name, or it needs more than logits; when computing: outputs are not those of
            single texts, or not finite, or no text has a label.
    """
    loaded = [load_metric(metric) for metric in (name, *further)]
    regression = name in KIND_METRICS["regression"]
    usable = KIND_METRICS["regression" if regression else "classification"]
    loaded += [] if regression else [load_metric("accuracy")]
    metrics = {metric.name: metric for metric in loaded}.values()
    if any(metric.name not in usable for metric in metrics):
        raise HfTlmError(
            "From logits come the metrics of classification together, or those of regression; received "
            f"{', '.join((name, *further))}."
        )

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        found: Any = prediction.predictions
        outputs: Any = np.asarray(found[0] if isinstance(found, tuple) else found)
        labels: Any = np.asarray(prediction.label_ids)
        fits = outputs.size == len(outputs) if regression else outputs.ndim == 2
        if not fits or labels.size != len(outputs):
            wanted = "numbers [N] or [N, 1]" if regression else "logits [N, classes]"
            raise HfTlmError(
                f"Expected {wanted}, of N texts with a label each; received {list(outputs.shape)} and {list(labels.shape)} "
                "labels. What preprocess_logits_for_metrics gives has to be such, too."
            )
        if not np.isfinite(outputs).all():
            raise HfTlmError(
                "The model's logits are not finite: training has diverged. Lower the learning rate or lengthen the warm-up."
            )
        predicted = outputs.reshape(len(outputs)) if regression else outputs.argmax(axis=-1)
        labels = labels.reshape(len(outputs))
        if not regression:
            predicted, labels = predicted[labels != NO_LABEL], labels[labels != NO_LABEL]
            if not len(labels):
                raise HfTlmError("None of the texts that are scored has a label: all are -100. Give labels to some.")
        scores: dict[str, float] = {}
        for metric in metrics:
            scores |= metric.compute(predictions=predicted, references=labels)
        return scores

    return compute


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
    if metric in KIND_METRICS["regression"]:
        truths, numbers = np.asarray(references, float), np.asarray(predictions, float)
        correlation = METRICS[metric]()

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
METRICS_OF_ROWS = (*_OF_COUNTS, *KIND_METRICS["regression"])
