"""Two passes under other dropout, which are to agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from hf_tlm.errors import HfTlmError
from hf_tlm.objectives.reductions import Batch, mean, read
from hf_tlm.objectives.task import TaskLoss
from hf_tlm.tasks.spec import NO_LABEL
from hf_tlm.utils.options import Range, check_number


class RDrop(TaskLoss):
    r"""Cross-entropy of two passes under other dropout, and how far they are apart (R-Drop, Liang et al., NeurIPS 2021).

    .. math:: L = \frac{1}{B} \sum_b \tfrac{1}{2} (CE(p_b) + CE(q_b)) + \alpha \tfrac{1}{2} (KL(p_b \| q_b) + KL(q_b \| p_b))

    Equation 4 with the mean of the two cross-entropies in place of their sum, as in its released code, so that `alpha` is
    beside a loss of the usual size. Reads `outputs.logits` [2 B, C], the first pass's B texts before the second's, and
    `batch["labels"]` [B]; a text with the label -100, which is none, counts for nothing. Texts are scored with one pass, by
    `TaskLoss`.

    Raises:
        HfTlmError: `alpha` is out of range; or see `TaskLoss`.
    """

    def __init__(self, alpha: float, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None):
        super().__init__(label_smoothing, class_weights)
        check_number(HfTlmError, "alpha", alpha, Range(0, 1e6))
        self.alpha = alpha

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """`{"loss", "task_loss", "rdrop_loss"}`: means of both cross-entropies and of both divergences."""
        count, labels = (counts or self.count(batch))[self.name], read(batch, "labels", self)
        logits = outputs.logits.float()
        both = self.cross_entropy(logits, labels.repeat(2))
        p, q = F.log_softmax(logits, dim=-1).chunk(2)
        # sum p (log p - log q) + sum q (log q - log p)
        apart = ((p.exp() - q.exp()) * (p - q) * (labels != NO_LABEL)[:, None]).sum() / 2
        task, divergence = mean(both / 2, count), mean(apart, count)
        return {"loss": task + self.alpha * divergence, "task_loss": task.detach(), "rdrop_loss": divergence.detach()}
