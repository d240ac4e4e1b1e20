"""The labelled task's own loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from hf_tlm.errors import HfTlmError
from hf_tlm.objectives.reductions import Batch, mean, read
from hf_tlm.tasks.spec import NO_LABEL
from hf_tlm.utils.options import Range, check_number, of_python


class TaskLoss:
    r"""Cross-entropy of single-label classification (TLM, section 3.1, L_task).

    .. math:: L_{task} = -\frac{1}{B} \sum_b \log p(y_b \mid x_b)

    Reads `outputs.logits` [B, C] and `batch["labels"]` [B]; the label -100 is none, and such a text counts for nothing.

    Args:
        label_smoothing: mixes the label with the uniform distribution, as in `torch.nn.CrossEntropyLoss`.
        class_weights: of the C classes; each text's term is multiplied by that of its label, and the divisor stays B, the
            number of texts with a label. None: all are 1.

    Raises:
        HfTlmError: `label_smoothing` or a weight is out of range; when computing: there are not as many weights as classes.
    """

    name = "task"

    def __init__(self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None):
        check_number(HfTlmError, "label_smoothing", label_smoothing, Range(0, 1, below=True))
        weights = None if class_weights is None else [of_python(weight) for weight in of_python(class_weights)]
        for weight in weights or ():
            check_number(HfTlmError, "class_weights", weight, Range(0, 1e6))
        self.label_smoothing = label_smoothing
        self.class_weights = None if weights is None else torch.tensor(weights, dtype=torch.float32)

    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Summed over the texts, a scalar. logits: float [B, C]; labels: int64 [B]."""
        if self.class_weights is None:
            return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        if len(self.class_weights) != logits.shape[-1]:
            raise HfTlmError(
                f"class_weights: expected {logits.shape[-1]}, one a class of the model; received {len(self.class_weights)}."
            )
        # torch's own weights would multiply the smoothing's part of every class by that class's.
        terms = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)
        self.class_weights = self.class_weights.to(logits.device)  # Once: a GPU would be waited for with each copy.
        return (terms * self.class_weights.to(logits.dtype)[labels.clamp(min=0)]).sum()

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of texts with a label: `{"task": int64 scalar}`."""
        return {self.name: (read(batch, "labels", self) != NO_LABEL).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """`{"loss", "task_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        count = (counts or self.count(batch))[self.name]
        loss = mean(self.cross_entropy(outputs.logits, read(batch, "labels", self)), count)
        return {"loss": loss, "task_loss": loss.detach()}


class ValueLoss:
    r"""Mean squared error of regression, over the texts whose value is known.

    .. math:: L_{task} = \frac{1}{B} \sum_b (z_b - y_b)^2

    Reads `outputs.logits` [B, 1] and `batch["labels"]` float [B]; NaN is no value.
    """

    name = "task"

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of texts with a value: `{"task": int64 scalar}`."""
        return {self.name: read(batch, "labels", self).isfinite().sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """`{"loss", "task_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        values = read(batch, "labels", self)
        known = values.isfinite()
        total = F.mse_loss(outputs.logits[known, 0].float(), values[known].float(), reduction="sum")
        loss = mean(total, (counts or self.count(batch))[self.name])
        return {"loss": loss, "task_loss": loss.detach()}


def class_weights(labels: Sequence[int], num_classes: int, balance: float) -> list[float]:
    """Weights proportional to the classes' frequencies to the power of -balance, 1 on average over the texts.

    Args:
        labels: of the training texts; -100 is none.
        balance: 0 leaves classes as frequent as they are, 1 makes all count alike.

    Returns:
        One a class; 0 for one without a text.
    """
    array = np.asarray(labels)
    counts = np.bincount(array[array != NO_LABEL], minlength=num_classes).astype(np.float64)
    weights = np.where(counts > 0, np.maximum(counts, 1.0) ** -balance, 0.0)
    return (weights * counts.sum() / (weights * counts).sum()).tolist()
