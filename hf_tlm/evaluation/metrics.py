"""The metrics of the tasks as `evaluate.Metric` modules that need no network, unlike `evaluate.load`."""

from __future__ import annotations

from collections.abc import Callable

import datasets
import evaluate
import numpy as np
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import EvalPrediction

from hf_tlm.files import HfTlmError

_CITATION = """@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12},
  pages = {2825--2830},
  year = {2011}
}"""


class _ClassificationMetric(evaluate.Metric):
    """Single-label classification: integer predictions [N] against integer references [N], a value of at most 1."""

    name: str
    description: str

    def __init__(self):
        # In memory: processes that evaluate side by side would otherwise share one cache file.
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        integers = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=self.description,
            citation=_CITATION,
            inputs_description="predictions: class indices [N]. references: class indices [N].",
            features=datasets.Features({"predictions": integers, "references": integers}),
            reference_urls=["https://scikit-learn.org/stable/modules/model_evaluation.html"],
        )


class MicroF1(_ClassificationMetric):
    """Micro-averaged F1; for single-label classification it equals accuracy."""

    name = "micro_f1"
    description = "F1 of true positives, false positives and false negatives counted over all classes together."

    def _compute(self, predictions, references):
        return {self.name: float(f1_score(references, predictions, average="micro"))}


class MacroF1(_ClassificationMetric):
    """The mean of the classes' F1; classes neither referred to nor predicted do not count."""

    name = "macro_f1"
    description = "Unweighted mean of the F1 of every class that occurs in references or predictions."

    def _compute(self, predictions, references):
        return {self.name: float(f1_score(references, predictions, average="macro", zero_division=0.0))}


class Accuracy(_ClassificationMetric):
    """The share of right predictions."""

    name = "accuracy"
    description = "Share of predictions that equal their reference."

    def _compute(self, predictions, references):
        return {self.name: float(accuracy_score(references, predictions))}


class Matthews(_ClassificationMetric):
    """The correlation of predictions with references (Matthews 1975), GLUE's metric for CoLA; 0 where one never varies."""

    name = "matthews"
    description = "Matthews correlation coefficient, from -1 to 1."

    def _compute(self, predictions, references):
        return {self.name: float(matthews_corrcoef(references, predictions))}


METRICS: dict[str, type[_ClassificationMetric]] = {metric.name: metric for metric in (MicroF1, MacroF1, Accuracy, Matthews)}


def load_metric(name: str) -> evaluate.Metric:
    """A metric by name.

    Raises:
        HfTlmError: there is none of this name.
    """
    if name not in METRICS:
        raise HfTlmError(f"The metrics are {', '.join(METRICS)}; received {name!r}.")
    return METRICS[name]()


def compute_metrics_for(name: str) -> Callable[[EvalPrediction], dict[str, float]]:
    """For `Trainer(compute_metrics=...)`: the metric and the accuracy of argmax predictions.

    Raises:
        HfTlmError: there is no metric of this name; when computing: a logit is not finite.
    """
    metrics = [load_metric(metric) for metric in dict.fromkeys((name, "accuracy"))]

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        if not np.isfinite(prediction.predictions).all():
            raise HfTlmError(
                "The model's logits are not finite: training has diverged. Lower the learning rate or lengthen the warm-up."
            )
        predicted = prediction.predictions.argmax(axis=-1)
        scores: dict[str, float] = {}
        for metric in metrics:
            scores |= metric.compute(predictions=predicted, references=prediction.label_ids)
        return scores

    return compute
