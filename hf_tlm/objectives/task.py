"""Losses of the labelled task: cross-entropy, squared error, R-Drop of two passes, and distillation from a teacher."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from hf_tlm.errors import HfTlmError
from hf_tlm.objectives.terms import Batch, mean, read
from hf_tlm.tasks.spec import NO_LABEL
from hf_tlm.utils.options import Range, check_number, to_python

# Probabilities are clamped to this before their logarithm.
_MIN_PROBABILITY = 1e-9


class TaskLoss:
    r"""Cross-entropy of single-label classification (TLM, section 3.1, L_task).

    .. math:: L_{task} = -\frac{1}{B} \sum_b \log p(y_b \mid x_b)

    Reads `outputs.logits` [B, C] and `batch["labels"]` [B]; texts with the label -100 have no label and are ignored.

    Args:
        label_smoothing: mixes the label with the uniform distribution, as in `torch.nn.CrossEntropyLoss`.
        class_weights: one for each of the C classes; the term of a text is multiplied by the weight of its label, and the
            divisor stays B, the number of texts with a label. None: all weights are 1.

    Raises:
        HfTlmError: `label_smoothing` or a weight is out of range; when computing: the numbers of weights and classes differ.
    """

    name = "task"

    def __init__(self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None):
        check_number(HfTlmError, "label_smoothing", label_smoothing, Range(0, 1, below=True))
        weights = None if class_weights is None else [to_python(weight) for weight in to_python(class_weights)]
        for weight in weights or ():
            check_number(HfTlmError, "class_weights", weight, Range(0, 1e6))
        self.label_smoothing = label_smoothing
        self.class_weights = None if weights is None else torch.tensor(weights, dtype=torch.float32)

    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of logits float [B, C] and labels int64 [B], summed over the texts, a scalar."""
        if self.class_weights is None:
            return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        if len(self.class_weights) != logits.shape[-1]:
            raise HfTlmError(
                f"class_weights: expected {logits.shape[-1]}, one per class of the model; received "
                f"{len(self.class_weights)}."
            )
        # torch's own weights would multiply the smoothing term of every class by the weight of that class.
        terms = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)
        self.class_weights = self.class_weights.to(logits.device)  # Once: every copy synchronises with the GPU.
        return (terms * self.class_weights.to(logits.dtype)[labels.clamp(min=0)]).sum()

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of texts with a label, `{"task": int64 scalar}`."""
        return {self.name: (read(batch, "labels", self) != NO_LABEL).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return `{"loss", "task_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        count = (counts or self.count(batch))[self.name]
        loss = mean(self.cross_entropy(outputs.logits, read(batch, "labels", self)), count)
        return {"loss": loss, "task_loss": loss.detach()}


class ValueLoss:
    r"""Mean squared error of regression, over the texts whose value is known.

    .. math:: L_{task} = \frac{1}{B} \sum_b (z_b - y_b)^2

    Reads `outputs.logits` [B, 1] and `batch["labels"]` float [B]; NaN is a missing value.
    """

    name = "task"

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of texts with a value, `{"task": int64 scalar}`."""
        return {self.name: read(batch, "labels", self).isfinite().sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return `{"loss", "task_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        values = read(batch, "labels", self)
        has_value = values.isfinite()
        total = F.mse_loss(outputs.logits[has_value, 0].float(), values[has_value].float(), reduction="sum")
        loss = mean(total, (counts or self.count(batch))[self.name])
        return {"loss": loss, "task_loss": loss.detach()}


class RDrop(TaskLoss):
    r"""Cross-entropy of two passes with different dropout, and their divergence (R-Drop, Liang et al., NeurIPS 2021).

    .. math:: L = \frac{1}{B} \sum_b \tfrac{1}{2} (CE(p_b) + CE(q_b)) + \alpha \tfrac{1}{2} (KL(p_b \| q_b) + KL(q_b \| p_b))

    This is equation 4 with the mean of the two cross-entropies instead of their sum, as in the released code, so that
    `alpha` is relative to a loss of the usual size. Reads `outputs.logits` [2 B, C], the B texts of the first pass before
    those of the second, and `batch["labels"]` [B]; texts with the label -100 have no label and are ignored. Evaluation
    uses one pass and `TaskLoss`.

    Raises:
        HfTlmError: `alpha` is out of range; or see `TaskLoss`.
    """

    def __init__(self, alpha: float, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None):
        super().__init__(label_smoothing, class_weights)
        check_number(HfTlmError, "alpha", alpha, Range(0, 1e6))
        self.alpha = alpha

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return `{"loss", "task_loss", "rdrop_loss"}`: the means of both cross-entropies and of both divergences."""
        count, labels = (counts or self.count(batch))[self.name], read(batch, "labels", self)
        logits = outputs.logits.float()
        cross_entropy_sum = self.cross_entropy(logits, labels.repeat(2))
        p, q = F.log_softmax(logits, dim=-1).chunk(2)
        # sum p (log p - log q) + sum q (log q - log p)
        divergence_sum = ((p.exp() - q.exp()) * (p - q) * (labels != NO_LABEL)[:, None]).sum() / 2
        task, divergence = mean(cross_entropy_sum / 2, count), mean(divergence_sum, count)
        return {"loss": task + self.alpha * divergence, "task_loss": task.detach(), "rdrop_loss": divergence.detach()}


class TeacherLoss:
    r"""Cross-entropy against a teacher's probabilities, at a temperature (Hinton et al. 2015, section 2).

    .. math:: L_{teacher} = -\frac{T^2}{B} \sum_b \sum_c \tilde q_{bc} \log \mathrm{softmax}(z_b / T)_c, \quad
        \tilde q_{bc} = \frac{q_{bc}^{1/T}}{\sum_k q_{bk}^{1/T}}

    The factor T squared keeps the size of the gradients, as in the paper. Reads `outputs.logits` [B, C] and
    `batch["teacher_probs"]` float [B, C], whose rows add up to 1, for texts with and without a label. A row of zeros is a
    text without an answer of the teacher; it does not count in B. With one output (C = 1, regression) the answer is a
    value, NaN where it is missing, and the loss is the mean squared difference, without a temperature.

    Raises:
        HfTlmError: `temperature` is out of range.
    """

    name = "teacher"

    def __init__(self, temperature: float = 1.0):
        check_number(HfTlmError, "temperature", temperature, Range(0, 1e6, above=True))
        self.temperature = temperature

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of texts that the teacher answered, `{"teacher": int64 scalar}`."""
        return {self.name: _has_answer(read(batch, "teacher_probs", self)).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return `{"loss", "teacher_loss"}`; `counts` replaces the batch's own number of texts as the divisor."""
        probs, logits = read(batch, "teacher_probs", self).float(), outputs.logits.float()
        if probs.shape[-1] == 1:
            is_answered = _has_answer(probs)
            total = F.mse_loss(logits[is_answered], probs[is_answered], reduction="sum")
        elif self.temperature == 1:
            total = F.cross_entropy(logits, probs, reduction="sum")
        else:
            targets = (probs.clamp(min=_MIN_PROBABILITY).log() / self.temperature).softmax(-1) * _has_answer(probs)[:, None]
            total = self.temperature**2 * F.cross_entropy(logits / self.temperature, targets, reduction="sum")
        loss = mean(total, (counts or self.count(batch))[self.name])
        return {"loss": loss, "teacher_loss": loss.detach()}


def class_weights(labels: Sequence[int], num_classes: int, balance: float) -> list[float]:
    """Return class weights proportional to frequency to the power of -balance, 1 on average over the texts.

    Args:
        labels: of the training texts; -100 is a missing label.
        balance: 0 leaves the influence of classes at their frequencies, 1 makes all classes count alike.

    Returns:
        One weight per class; 0 for a class without a text.
    """
    array = np.asarray(labels)
    counts = np.bincount(array[array != NO_LABEL], minlength=num_classes).astype(np.float64)
    weights = np.where(counts > 0, np.maximum(counts, 1.0) ** -balance, 0.0)
    return (weights * counts.sum() / (weights * counts).sum()).tolist()


def _has_answer(probs: torch.Tensor) -> torch.Tensor:
    """Return which rows of the teacher's answers, float [B, C], are not missing, bool [B]."""
    return probs.isfinite().all(-1) if probs.shape[-1] == 1 else probs.sum(-1) > 0
