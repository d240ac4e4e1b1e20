"""The loss against a teacher's answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from hf_tlm.objectives.reductions import mean


class TeacherLoss:
    r"""Cross-entropy against a teacher's probabilities (Hinton et al. 2015, section 2, at temperature 1).

    .. math:: L_{teacher} = -\frac{1}{B} \sum_b \sum_c q_{bc} \log p(c \mid x_b)

    Reads `outputs.logits` [B, C] and `batch["teacher_probs"]` float [B, C], whose rows add up to 1. Every text of a batch
    has them, those without a label too.
    """

    name = "teacher"

    def count(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Number of texts: `{"teacher": int64 scalar}`."""
        answers = batch["teacher_probs"]
        return {self.name: torch.tensor(len(answers), device=answers.device)}

    def __call__(
        self, outputs, batch: Mapping[str, torch.Tensor], counts: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """`{"loss", "teacher_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        answers = batch["teacher_probs"]
        total = F.cross_entropy(outputs.logits.float(), answers.float(), reduction="sum")
        loss = mean(total, (counts or self.count(batch))[self.name])
        return {"loss": loss, "teacher_loss": loss.detach()}
