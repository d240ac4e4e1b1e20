"""Metrics of regression: correlations, GLUE's for STS-B."""

from __future__ import annotations

import datasets
import numpy as np
from scipy.stats import rankdata

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics.base import TaskMetric, undefined


class _Correlation(TaskMetric):
    """Numbers [N] against numbers [N], a value from -1 to 1; 0 where one side never varies.

    Raises:
        HfTlmError: a number is not finite.
    """

    feature = datasets.Value("float64")
    inputs = "predictions: numbers [N]. references: numbers [N]."
    reference_url = "https://docs.scipy.org/doc/scipy/reference/stats.html#correlation-and-association-tests"
    citation = """@inproceedings{wang2019glue,
  title = {{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
  author = {Wang, Alex and others},
  booktitle = {International Conference on Learning Representations},
  year = {2019}
}"""

    def _compute(self, predictions, references):
        sides = {"predictions": np.array(predictions, float), "references": np.array(references, float)}
        for what, values in sides.items():
            if not np.isfinite(values).all():
                raise HfTlmError(
                    f"{self.name}: {(~np.isfinite(values)).sum()} of {len(values)} {what} are not finite. If they are a "
                    "model's, training has diverged: lower the learning rate or lengthen the warm-up."
                )
            if np.ptp(values) == 0:
                return {self.name: undefined(self.name, f"the {what} are all {values[0]:g}")}
        deviations = [values - values.mean() for values in map(self._values, sides.values())]
        # Of unit length first: products of very small or very large deviations would leave the range of floats.
        one, other = (values / np.linalg.norm(values) for values in (v / np.abs(v).max() for v in deviations))
        return {self.name: float(np.clip(one @ other, -1, 1))}

    def _values(self, numbers: np.ndarray) -> np.ndarray:
        """What is correlated, [N]."""
        return numbers


class Pearson(_Correlation):
    """The linear correlation of predictions with references."""

    name = "pearson"
    description = "Pearson correlation coefficient, from -1 to 1."


class Spearman(_Correlation):
    """The correlation of their ranks; equal numbers share the mean of their ranks."""

    name = "spearman"
    description = "Spearman rank correlation coefficient, from -1 to 1."

    def _values(self, numbers):
        return rankdata(numbers)
