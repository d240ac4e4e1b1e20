"""All metrics by name, and how the Trainer takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics.base import TaskMetric
from hf_tlm.metrics.classification import Accuracy, BinaryF1, MacroF1, Matthews, MicroF1
from hf_tlm.metrics.regression import Pearson, Spearman
from hf_tlm.metrics.squad import SquadF1
from hf_tlm.metrics.tagging import SpanF1, TagAccuracy
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
