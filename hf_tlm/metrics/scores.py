"""The registry of metrics, `compute_metrics` functions for the Trainer, and the paired bootstrap of two scores.

Shapes: N texts, C classes.
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
CONFIDENCE = 0.95
# Maps the row indices of a resample, int64 [N] with repetitions, to the score on these rows.
Scorer = Callable[[np.ndarray], float]


def load_metric(name: str) -> TaskMetric:
    """Return the metric with this name.

    Raises:
        HfTlmError: no metric has this name.
    """
    if not isinstance(name, str) or name not in METRICS:
        raise HfTlmError(f"metric: expected one of {', '.join(METRICS)}; received {name!r}.")
    return METRICS[name]()


def compute_metrics_for(name: str, *further: str) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return a function for `Trainer(compute_metrics=...)` that computes metrics of classification or of regression.

    Classification metrics are computed from argmax predictions, and accuracy is added to them; regression metrics are
    computed from the outputs themselves. In classification, texts with the label -100 have no label and are left out, as
    they are in the loss. If a model has several outputs, such as hidden states, the first are the logits.

    Raises:
        HfTlmError: no metric has this name, or it needs more than logits; when computing: the outputs are not
            logits [N, C] (regression: numbers [N] or [N, 1]) of N texts with a label or -100 each, or are not finite, or no
            text has a label.
    """
    loaded = [load_metric(metric) for metric in (name, *further)]
    regression = name in KIND_METRICS["regression"]
    usable = KIND_METRICS["regression" if regression else "classification"]
    loaded += [] if regression else [load_metric("accuracy")]
    metrics = {metric.name: metric for metric in loaded}.values()
    if any(metric.name not in usable for metric in metrics):
        raise HfTlmError(
            "Expected metrics of classification only, or of regression only, which logits suffice for; received "
            f"{', '.join((name, *further))}."
        )

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        raw_outputs: Any = prediction.predictions
        outputs: Any = np.asarray(raw_outputs[0] if isinstance(raw_outputs, tuple) else raw_outputs)
        labels: Any = np.asarray(prediction.label_ids)
        fits = outputs.size == len(outputs) if regression else outputs.ndim == 2
        if not fits or labels.size != len(outputs):
            shape = "numbers [N] or [N, 1]" if regression else "logits [N, classes]"
            raise HfTlmError(
                f"Expected {shape}, of N texts with a label each; received {list(outputs.shape)} and {list(labels.shape)} "
                "labels. The output of preprocess_logits_for_metrics must have this shape, too."
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
                raise HfTlmError("None of the evaluated texts has a label: all are -100. Add labels.")
        scores: dict[str, float] = {}
        for metric in metrics:
            scores |= metric.compute(predictions=predicted, references=labels)
        return scores

    return compute


@dataclass(frozen=True)
class Lead:
    """The difference of two scores and its 95% bootstrap interval.

    Attributes:
        difference: of the scores on the original texts.
        low, high: bounds of the difference in 95% of the resamples.
    """

    difference: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    @property
    def reversed(self) -> Lead:
        """The lead of the second side over the first."""
        return Lead(-self.difference, -self.high, -self.low)

    def to_dict(self) -> dict[str, float]:
        """Return the fields as a dictionary of JSON values."""
        return asdict(self)

    @property
    def interval(self) -> str:
        """The interval in percent, as text for a sentence."""
        low, high = (round(100 * end, 2) + 0.0 for end in (self.low, self.high))  # + 0.0: else -0.0 is shown as -0.00.
        return f"95% interval {low:.2f} to {high:.2f}"


def paired_bootstrap(
    first: Sequence[Scorer], second: Sequence[Scorer], size: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> Lead:
    """Return by how much the mean score of the first side exceeds that of the second, with a bootstrap interval.

    For each resample N texts are drawn with replacement, the same for both sides; the bounds of the interval are
    percentiles of the differences (Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation",
    section 5; Efron 1979). The interval covers the choice of texts for these trained models, not the variation of seeds.

    Args:
        first, second: the scorers of each side's models, for instance one per seed; see `scorer`.
        size: N.
        resamples: number of resamples.
        seed: of the random draws; equal arguments give equal intervals.

    Raises:
        HfTlmError: a side has no model or is not a list of scorers, or there are no texts or no resamples.
    """
    for name, side in (("first", first), ("second", second)):
        if callable(side) or not all(map(callable, side)):
            raise HfTlmError(
                f"{name}: expected a list with a scorer per model; received a {type(side).__name__}. Pass [scorer(metric, "
                "references, predictions)]."
            )
    if not (first and second and size > 0 and resamples > 0):
        raise HfTlmError(
            f"A lead needs at least one model on each side, one text and one resample; received {len(first)} and "
            f"{len(second)} models, {size} texts and {resamples} resamples."
        )

    def lead(rows: np.ndarray) -> float:
        return float(np.mean([score(rows) for score in first]) - np.mean([score(rows) for score in second]))

    random = np.random.default_rng(seed)
    leads = [lead(random.integers(size, size=size)) for _ in range(resamples)]
    low, high = np.quantile(leads, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Lead(lead(np.arange(size)), float(low), float(high))


def scorer(metric: str, references: Sequence[int | float], predictions: Sequence[int | float]) -> Scorer:
    """Return a function that computes a metric on a selection of rows, fast enough for a thousand resamples.

    Its values are those of the metric that `load_metric` returns.

    Args:
        metric: name of a metric of classification or regression.
        references, predictions: [N], class indices, or numbers for regression.

    Raises:
        HfTlmError: the metric is of another kind of task; the numbers of predictions and references differ; or a value is
            not an index of one of the metric's classes.
    """
    if len(references) != len(predictions):
        raise HfTlmError(
            f"Expected a prediction for every reference; received {len(predictions):,} predictions and {len(references):,} "
            "references."
        )
    if metric in KIND_METRICS["regression"]:
        truths, numbers = np.asarray(references, float), np.asarray(predictions, float)
        correlation = METRICS[metric]()

        def score_correlation(rows: np.ndarray) -> float:
            truth, number = truths[rows], numbers[rows]
            if np.ptp(truth) == 0 or np.ptp(number) == 0:
                return 0.0  # The metric's value; the metric itself would log a warning for every such resample.
            return correlation._compute(number, truth)[metric]

        return score_correlation
    if metric not in _SCORES_FROM_COUNTS:
        raise HfTlmError(f"metric: expected one of {', '.join(METRICS_OF_ROWS)}; received {metric!r:.60}.")
    for name, values in (("references", references), ("predictions", predictions)):
        if wrong := [value for value in np.asarray(values).tolist() if not isinstance(value, int) or value < 0]:
            raise HfTlmError(
                f"{name}: expected indices of classes, whole numbers from 0; received {wrong[0]!r:.60}. The label2id of a "
                "task maps names to indices."
            )
    labels, guesses = np.asarray(references, np.int64), np.asarray(predictions, np.int64)
    classes = int(max(labels.max(initial=0), guesses.max(initial=0))) + 1
    hits, score_from_counts = labels == guesses, _SCORES_FROM_COUNTS[metric]
    if metric == "f1" and classes > 2:
        raise HfTlmError(f"f1 is for the classes 0 and 1; received class {classes - 1}. Use macro_f1 or micro_f1.")

    def score_classes(rows: np.ndarray) -> float:
        label, guess = labels[rows], guesses[rows]
        correct, actual, predicted = (
            np.bincount(indices, minlength=max(2, classes)) for indices in (label[hits[rows]], label, guess)
        )
        return score_from_counts(correct, actual, predicted)

    return score_classes


def _accuracy(correct: np.ndarray, actual: np.ndarray, predicted: np.ndarray) -> float:
    """Return the accuracy from counts for each class, [C]: correct predictions, references, predictions."""
    return float(correct.sum() / actual.sum())


def _macro_f1(correct: np.ndarray, actual: np.ndarray, predicted: np.ndarray) -> float:
    present = actual + predicted > 0
    return float((2 * correct[present] / (actual + predicted)[present]).mean())


def _binary_f1(correct: np.ndarray, actual: np.ndarray, predicted: np.ndarray) -> float:
    return float(2 * correct[1] / max(1, actual[1] + predicted[1]))


def _matthews(correct: np.ndarray, actual: np.ndarray, predicted: np.ndarray) -> float:
    """Return the Matthews correlation of any number of classes, by the sums of Gorodkin 2004."""
    n = float(actual.sum())
    spread = (n * n - float(predicted @ predicted)) * (n * n - float(actual @ actual))
    return 0.0 if spread == 0 else (n * float(correct.sum()) - float(actual @ predicted)) / spread**0.5


_SCORES_FROM_COUNTS = {
    "macro_f1": _macro_f1,
    "micro_f1": _accuracy,
    "accuracy": _accuracy,
    "f1": _binary_f1,
    "matthews": _matthews,
}
METRICS_OF_ROWS = (*_SCORES_FROM_COUNTS, *KIND_METRICS["regression"])
