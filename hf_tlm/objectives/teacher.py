"""The loss against a teacher's answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_tlm.errors import HfTlmError
from hf_tlm.objectives.reductions import Batch, mean, read
from hf_tlm.utils.options import Range, check_number

# The least probability whose logarithm is taken.
_LEAST = 1e-9


class TeacherLoss:
    r"""Cross-entropy against a teacher's probabilities, at a temperature (Hinton et al. 2015, section 2).

    .. math:: L_{teacher} = -\frac{T^2}{B} \sum_b \sum_c \tilde q_{bc} \log \mathrm{softmax}(z_b / T)_c, \quad
        \tilde q_{bc} = \frac{q_{bc}^{1/T}}{\sum_k q_{bk}^{1/T}}

    T squared keeps the size of the gradient, as there. Reads `outputs.logits` [B, C] and `batch["teacher_probs"]` float
    [B, C], whose rows add up to 1, for texts with and without a label. A row of zeros is a text that the teacher has not
    answered for: it is not counted among the B. Of one output (C = 1, regression) the answer is a value, NaN where there is
    none, and the loss the mean squared difference, without a temperature.

    Raises:
        HfTlmError: `temperature` is out of range.
    """

    name = "teacher"

    def __init__(self, temperature: float = 1.0):
        check_number(HfTlmError, "temperature", temperature, Range(0, 1e6, above=True))
        self.temperature = temperature

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of texts that have an answer: `{"teacher": int64 scalar}`."""
        return {self.name: _answered(read(batch, "teacher_probs", self)).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """`{"loss", "teacher_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        answers, logits = read(batch, "teacher_probs", self).float(), outputs.logits.float()
        if answers.shape[-1] == 1:
            known = _answered(answers)
            total = F.mse_loss(logits[known], answers[known], reduction="sum")
        elif self.temperature == 1:
            total = F.cross_entropy(logits, answers, reduction="sum")
        else:
            softened = (answers.clamp(min=_LEAST).log() / self.temperature).softmax(-1) * _answered(answers)[:, None]
            total = self.temperature**2 * F.cross_entropy(logits / self.temperature, softened, reduction="sum")
        loss = mean(total, (counts or self.count(batch))[self.name])
        return {"loss": loss, "teacher_loss": loss.detach()}


def _answered(answers: torch.Tensor) -> torch.Tensor:
    """Which rows of float [B, C] are answers, bool [B]."""
    return answers.isfinite().all(-1) if answers.shape[-1] == 1 else answers.sum(-1) > 0
