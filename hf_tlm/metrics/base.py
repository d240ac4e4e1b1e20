"""What the metrics share: `evaluate.Metric` modules that need no network, unlike `evaluate.load`."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import datasets
import evaluate

logger = logging.getLogger(__name__)


class TaskMetric(evaluate.Metric):
    """A metric of N examples; `compute(predictions=, references=)` gives at least {name: value}, and larger is better.

    What it takes is `feature`, for predictions and, unless `reference_feature` says otherwise, for references.
    """

    name: str
    description: str
    citation: str
    reference_url: str
    inputs: str
    feature: ClassVar[Any]
    reference_feature: ClassVar[Any] = None

    def __init__(self):
        # In memory: processes that evaluate side by side would otherwise share one cache file.
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": self.feature, "references": self.reference_feature or self.feature}
        return evaluate.MetricInfo(
            description=self.description,
            citation=self.citation,
            inputs_description=self.inputs,
            features=datasets.Features(features),
            reference_urls=[self.reference_url],
        )


def undefined(metric: str, why: str) -> float:
    """0, which is what a score counts for where it is not defined; a warning says why it is not."""
    logger.warning("%s is not defined and counts as 0: %s.", metric, why)
    return 0.0
