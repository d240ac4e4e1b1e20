"""The two losses whose gradients meet: masked language modelling of passages, and the task's.

Shapes: B texts, M masked tokens, E width of the output embedding, K tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from hf_tlm.models import TlmModel
from hf_tlm.models.linear_cross_entropy import linear_cross_entropy
from hf_tlm.models.tail import encode_masked_positions, places


@dataclass
class Decoded:
    """What the output embedding's gradient is made of.

    Row k of a text's is the sum over its masked tokens m of errors[m, k] hidden[m].

    vocabulary: int64 [K], ascending. text: int64 [M], ascending. hidden: float [M, E]. errors: float [M, K], of the
    vocabulary's tokens softmax minus one-hot, divided by the masked tokens of the text. Floats are float32 or wider.
    """

    vocabulary: torch.Tensor
    text: torch.Tensor
    hidden: torch.Tensor
    errors: torch.Tensor


def mlm_loss(
    model: TlmModel, batch: dict[str, torch.Tensor], vocabulary: torch.Tensor | None = None
) -> tuple[torch.Tensor, Decoded | None]:
    """The masked-LM loss of a padded batch: the mean over each text's masked tokens, summed over the texts.

    Args:
        vocabulary: int64 [K], ascending: the tokens of which the output embedding's gradient is wanted as well.
    """
    masked = batch["mlm_labels"] != -100
    labels, text = batch["mlm_labels"][masked], masked.nonzero()[:, 0]
    inputs = (batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
    body: Any = model.base_model
    hidden = model.family.transform(model.mlm_head, encode_masked_positions(body, places(masked), *inputs))
    wide = torch.promote_types(hidden.dtype, torch.float32)
    weights = (1 / masked.sum(dim=1).to(wide))[text]
    errors = None if vocabulary is None else torch.empty(len(labels), len(vocabulary), dtype=wide, device=hidden.device)

    def visit(rows: slice, logits: torch.Tensor) -> None:
        # Called only where there are errors.
        errors[rows] = (logits[:, vocabulary] - logits.logsumexp(dim=1, keepdim=True)).exp_()  # type: ignore[index]

    decoder = model.family.decoder(model.mlm_head)
    loss = linear_cross_entropy(
        hidden,
        decoder.weight,
        decoder.bias,
        labels,
        max_logits=model.max_logits,
        visit=None if errors is None else visit,
        outer=lambda rows, log_p: (-weights[rows] * log_p, -weights[rows]),
    )
    if errors is None or vocabulary is None:
        return loss, None
    column = torch.searchsorted(vocabulary, labels).clamp_(max=len(vocabulary) - 1)
    there = vocabulary[column] == labels
    errors[there.nonzero()[:, 0], column[there]] -= 1
    return loss, Decoded(vocabulary, text, hidden.detach().to(wide), errors.mul_(weights[:, None]))


def task_loss(model: TlmModel, batch: dict[str, torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """The classification loss of a batch, each text's times its weight, float [B], summed."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    logits = model(**inputs).logits
    wide = torch.promote_types(logits.dtype, torch.float32)
    return (F.cross_entropy(logits.to(wide), batch["labels"], reduction="none") * weights.to(wide)).sum()
