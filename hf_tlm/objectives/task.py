"""The labelled task's own loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F


class TaskLoss:
    r"""Cross-entropy of single-label classification (TLM, section 3.1, L_task).

    .. math:: L_{task} = -\frac{1}{B} \sum_b \log p(y_b \mid x_b)

    Reads `outputs.logits` [B, C] and `batch["labels"]` [B]. `label_smoothing` mixes the label with the uniform
    distribution, as in `torch.nn.CrossEntropyLoss`.
    """

    name = "task"

    def __init__(self, label_smoothing: float = 0.0):
        self.label_smoothing = label_smoothing

    def count(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Number of texts: `{"task": int64 scalar}`."""
        labels = batch["labels"]
        return {self.name: torch.tensor(labels.numel(), device=labels.device)}

    def __call__(
        self, outputs, batch: Mapping[str, torch.Tensor], counts: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """`{"loss", "task_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        count = (counts or self.count(batch))[self.name]
        total = F.cross_entropy(outputs.logits, batch["labels"], reduction="sum", label_smoothing=self.label_smoothing)
        loss = total / count
        return {"loss": loss, "task_loss": loss.detach()}
