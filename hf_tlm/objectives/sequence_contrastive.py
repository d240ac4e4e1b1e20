"""Sequence contrastive learning: COCO-LM's loss, and the cosines that it logs."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from hf_tlm.errors import HfTlmError
from hf_tlm.objectives.terms import Batch, accumulation_dtype, mean, share


class _Gather(torch.autograd.Function):
    """All-gather of equal shapes, stacked by rank; backward, each rank gets the summed gradients of its own part."""

    @staticmethod
    def forward(ctx, own: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own.contiguous())
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]


def gather_rows(own: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the rows of all processes, float [N, ...], in order of rank, and the index of this process's first row.

    Gradients flow back to the rows of every process: all processes must call this function, and `backward`. Their numbers
    of rows may differ.

    Args:
        own: float [n, ...]; n may be 0.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return own, 0
    count = torch.tensor([len(own)], device=own.device)
    counts = [torch.empty_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    sizes = [int(size) for size in counts]
    padded = torch.cat([own, own.new_zeros(max(sizes) - len(own), *own.shape[1:])])
    gathered = _Gather.apply(padded)
    rows = torch.cat([rows_of_rank[:size] for rows_of_rank, size in zip(gathered, sizes, strict=True)])
    return rows, sum(sizes[: dist.get_rank()])


def contrastive_loss(
    corrupted: torch.Tensor, cropped: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss of equation 3, summed over this process's 2 n sequences, and the cosines of their pairs.

    The loss is a scalar. The cosines of the positive and of the negative pairs are a (sum, count) each,
    `accumulation_dtype` [2], without gradient.

    The positive of a sequence is the other view of its text; its negatives are the other 2 N - 2 sequences of all
    processes, both views. Summed over the processes, the loss equals that of one process with the joined batch, gradients
    included.

    Args:
        corrupted, cropped: float [n, H], the two views of this process's n texts, in the same order.
    """
    views = torch.stack([corrupted, cropped], dim=1)
    views = F.normalize(views.to(torch.promote_types(views.dtype, torch.float32)), dim=-1)
    all_views, first_row = gather_rows(views)
    num_own, num_all = len(views), len(all_views)
    # Rows: own corrupted views, then own cropped ones; columns: all N corrupted ones, then all N cropped ones.
    with torch.autocast(views.device.type, enabled=False):
        cosines = views.transpose(0, 1).flatten(0, 1) @ all_views.transpose(0, 1).flatten(0, 1).T
    rows = torch.arange(first_row, first_row + num_own, device=views.device)
    self_columns, positive_columns = torch.cat([rows, rows + num_all]), torch.cat([rows + num_all, rows])
    scores = (cosines / temperature).scatter(1, self_columns[:, None], -math.inf)
    loss = F.cross_entropy(scores, positive_columns, reduction="sum")
    cosines = cosines.detach().to(accumulation_dtype(cosines.device))
    positive = cosines.gather(1, positive_columns[:, None]).sum()
    negative = cosines.scatter(1, self_columns[:, None], 0.0).sum() - positive
    return loss, share(positive, 2 * num_own), share(negative, 2 * num_own * (2 * num_all - 2))


class SequenceContrastive:
    r"""COCO-LM's sequence-level loss (Meng et al., NeurIPS 2021, section 3.3, equation 3).

    .. math::
        L_{SCL} = -\frac{1}{2N} \sum_{s} \left[ \cos(s, s^+) / \tau - \log \sum_{s' \ne s} \exp(\cos(s, s') / \tau) \right]

    over the vectors s of both views, corrupted and cropped, of all N texts; s+ is the other view of the same text, and s'
    runs over all other 2N - 1 sequences of all processes, gathered with gradients.

    N is the number of texts in one micro-batch of all processes: unlike every other loss here, this one changes when a step
    is split into more micro-batches (gradient accumulation), and only its mean is over the complete step.

    Reads `outputs.corrupted_vectors` and `outputs.cropped_vectors`, float [B, H], one row per text, in the same order. All
    processes must compute it together.

    Raises:
        HfTlmError: the temperature is not a positive number.
    """

    name, terms = "scl", ("scl_loss", "cosine_positive", "cosine_negative")

    def __init__(self, temperature: float = 1.0):
        if not 0 < temperature < math.inf:
            raise HfTlmError(f"The temperature of SequenceContrastive must be positive; received {temperature}.")
        self.temperature = temperature

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of sequences, two per text, `{"scl": int64 scalar}`."""
        texts = batch["first_tokens"] if batch.get("first_tokens") is not None else batch["input_ids"]
        return {self.name: torch.full((), 2 * len(texts), device=texts.device)}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return `{"loss", "scl_loss"}` and, as (sum, count), `cosine_positive` and `cosine_negative` (Figure 7).

        `counts` replaces the batch's own number of sequences as the divisor.
        """
        count = (counts or self.count(batch))[self.name]
        total, positive, negative = contrastive_loss(outputs.corrupted_vectors, outputs.cropped_vectors, self.temperature)
        loss = mean(total, count)
        return {"loss": loss, "scl_loss": loss.detach(), "cosine_positive": positive, "cosine_negative": negative}


class SequenceCosines:
    """The cosines that `SequenceContrastive` logs, without its loss, for trainings without SCL (COCO-LM, Figure 7a).

    Reads the same outputs as `SequenceContrastive`. All processes must compute it together.
    """

    terms = ("cosine_positive", "cosine_negative")

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return `{}`, as nothing is averaged."""
        return {}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, Any]:
        """Return `{"loss": 0.0}` and, as (sum, count), `cosine_positive` and `cosine_negative`."""
        with torch.no_grad():
            _, positive, negative = contrastive_loss(outputs.corrupted_vectors, outputs.cropped_vectors)
        return {"loss": 0.0, "cosine_positive": positive, "cosine_negative": negative}
