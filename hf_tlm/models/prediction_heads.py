"""What the main model of a `GeneratorDiscriminator` learns from a corrupted text: which tokens were replaced, or by what.

Shapes: T real tokens, B texts, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import gelu
from transformers import PreTrainedConfig
from transformers.activations import get_activation

from hf_tlm.models.tlm import TlmOutput

# (hidden, weight, bias, copy_logits, labels, input_ids, masked, max_logits) -> (loss, right), see `CorrectiveLm.lm_loss`.
LmLoss = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass
class CorruptionOutput(TlmOutput):
    """What `GeneratorDiscriminator` returns.

    Attributes:
        logits, mlm_loss: as in `TlmOutput`, of the main transformer and of the auxiliary one.
        replaced: bool [T], of each of the batch's T real tokens, row by row: it differs from the original.
        guesses: int64 scalar, masked positions at which the auxiliary model's most likely token is the original.
        rtd_logits: float [T], how much each token looks replaced; None without a head for that.
        copy_logits, lm_loss, lm_right: float [T], scalar, bool [T], of corrective language modelling, see
            `hf_tlm.objectives.CorrectiveLm`; None without its heads.
        corrupted_vectors, cropped_vectors: float [B, H], of each text, corrupted and cropped, the first token's hidden
            state, or what a `ContrastHead` makes of it; None for a batch without crops.
    """

    replaced: torch.Tensor | None = None
    guesses: torch.Tensor | None = None
    rtd_logits: torch.Tensor | None = None
    copy_logits: torch.Tensor | None = None
    lm_loss: torch.Tensor | None = None
    lm_right: torch.Tensor | None = None
    corrupted_vectors: torch.Tensor | None = None
    cropped_vectors: torch.Tensor | None = None


class RtdHead(nn.Module):
    """ELECTRA's head for replaced tokens, with the names of stock `ElectraForPreTraining.discriminator_predictions`.

    Args:
        dense: False leaves its first layer out: a linear layer alone, as COCO-LM's ablations have it (Meng et al., NeurIPS
            2021, section 3.1).
    """

    def __init__(self, config: PreTrainedConfig, dense: bool = True):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size) if dense else None
        self.activation = get_activation(getattr(config, "hidden_act", "gelu"))  # ModernBERT's has another name.
        self.dense_prediction = nn.Linear(config.hidden_size, 1)
        for linear in filter(None, (self.dense, self.dense_prediction)):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float [T] of hidden states float [T, H]."""
        if self.dense is not None:
            hidden = self.activation(self.dense(hidden))
        return self.dense_prediction(hidden).squeeze(-1)


class ClmHeads(nn.Module):
    """The two heads of corrective language modelling, with the names of `CocoLmForMaskedLM`'s, on any body."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.copy_head = nn.Linear(config.hidden_size, 1, bias=getattr(config, "copy_bias", False))
        for linear in (self.lm_head, self.copy_head):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        hidden: torch.Tensor,
        labels: torch.LongTensor,
        input_ids: torch.LongTensor,
        masked: torch.BoolTensor,
        lm_loss: LmLoss,
        max_logits: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copy logits float [T], and what `lm_loss` gives.

        Args:
            hidden: float [T, H]; labels, input_ids: int64 [T], the original tokens and those that were read; masked: bool
                [T].
        """
        copy_logits = self.copy_head(hidden).squeeze(-1)
        weights = (self.lm_head.weight, self.lm_head.bias)
        return copy_logits, *lm_loss(hidden, *weights, copy_logits, labels, input_ids, masked, max_logits)


class ContrastHead(nn.Module):
    """The head between [CLS] and the cosine of sequence contrastive learning.

    It is what the published COCO-LM model has there and the paper has not. It is as wide as the body (the published one 768
    in every size).
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)
        nn.init.normal_(self.dense.weight, std=config.initializer_range)
        nn.init.zeros_(self.dense.bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Float [B, H] of hidden states float [B, H]."""
        return self.LayerNorm(gelu(self.dense(vectors)))
