"""Metrics of classification: class indices against class indices."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics.base import TaskMetric, undefined
from hf_tlm.utils.options import of_python


class _ClassificationMetric(TaskMetric):
    """Single-label classification: integer predictions [N] against integer references [N], a value of at most 1."""

    feature = datasets.Value("int64")
    inputs = "predictions: class indices [N]. references: class indices [N]."
    reference_url = "https://scikit-learn.org/stable/modules/model_evaluation.html"
    citation = """@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12},
  pages = {2825--2830},
  year = {2011}
}"""

    def add_batch(self, *, predictions=None, references=None, **options):
        """See `evaluate.Metric`, which would cut numbers short, and count what is no class as one.

        Raises:
            HfTlmError: one is no index of a class.
        """
        for what, values in (("predictions", predictions), ("references", references)):
            if values is None or _are_classes(values):
                continue
            raise HfTlmError(
                f"{self.name}: expected {what} to be indices of classes, [N]; received {of_python(values)!r:.60}. Take the "
                "argmax of logits, number names of classes, and leave texts without a label out."
            )
        super().add_batch(predictions=predictions, references=references, **options)


def _are_classes(values: Any) -> bool:
    """Whether values are whole numbers, 0 or more, one after the other."""
    try:
        given = np.asarray(of_python(values))
        # Whole numbers of pandas may be objects.
        given = np.asarray(given.tolist()) if given.dtype.kind == "O" else given
    except ValueError:  # Lists of several lengths.
        return False
    if not given.size:
        return True
    numbers = given.dtype.kind in "biuf" and given.ndim == 1
    return bool(numbers and (given >= 0).all() and (given == np.floor(given)).all())


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


class BinaryF1(_ClassificationMetric):
    """F1 of class 1 of two, GLUE's for MRPC and QQP; 0 where class 1 is neither referred to nor predicted.

    Raises:
        HfTlmError: a class index other than 0 and 1.
    """

    name = "f1"
    description = "F1 of the class with index 1 in binary classification."

    def _compute(self, predictions, references):
        classes = {*predictions, *references}
        if more := classes - {0, 1}:
            raise HfTlmError(f"f1 is of class 1 against class 0; received class {max(more)}. Use macro_f1 or micro_f1.")
        if 1 not in classes:
            return {self.name: undefined(self.name, "class 1 is neither referred to nor predicted")}
        return {self.name: float(f1_score(references, predictions))}


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
        for what, values in (("predictions", predictions), ("references", references)):
            if len(set(values)) == 1:
                return {self.name: undefined(self.name, f"the {what} are all of one class")}
        return {self.name: float(matthews_corrcoef(references, predictions))}
