"""COCO-LM's input embeddings.

This file travels with published models and imports nothing of hf_tlm.
"""

from __future__ import annotations

import torch
from torch import nn

from .configuration_coco_lm import CocoLmConfig


class CocoLmEmbeddings(nn.Module):
    """Tokens, learned positions and token types, as far as the config has them; LayerNorm; dropout."""

    def __init__(self, config: CocoLmConfig):
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = self.token_type_embeddings = None
        if config.absolute_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        if config.type_vocab_size > 0:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, embedded: torch.Tensor, position_ids: torch.LongTensor, token_type_ids: torch.LongTensor | None
    ) -> torch.Tensor:
        """Float [B, S, H] of embedded tokens float [B, S, H]; ids int64 [B or 1, S]."""
        if self.position_embeddings is not None:
            embedded = embedded + self.position_embeddings(position_ids)
        if self.token_type_embeddings is not None:
            types = torch.zeros_like(position_ids) if token_type_ids is None else token_type_ids
            embedded = embedded + self.token_type_embeddings(types)
        return self.dropout(self.LayerNorm(embedded))
