"""The encoder families that TLM trains: what each computes between the hidden states of its body and its logits.

The stock classes compute body and head in one `forward`; TLM needs two heads on one pass of the body, so the part after
the body is written out here, once per family. A test compares it with the stock `forward` of every family. The heads read
`EncodedTexts`, which knows where the texts of a batch are: padded, one per row, or packed, several per row (see
`hf_tlm.data.collator`).

Shapes: R rows, S positions in a row, B texts (R = B when padded), H hidden size, M masked positions, E size of the output
embedding, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu
from transformers import PreTrainedConfig

import hf_tlm.models.coco_lm  # noqa: F401  the Auto classes know its type from here on
from hf_tlm.errors import ModelError


@dataclass
class EncodedTexts:
    """The hidden states of a batch, from which those of each text can be read.

    Attributes:
        hidden: float [R, S, H].
        attention_mask: int64 [R, S].
        text_ids, first_tokens: int64 [R, S] and [B] for a packed batch, else None.
    """

    hidden: torch.Tensor
    attention_mask: torch.Tensor
    text_ids: torch.Tensor | None = None
    first_tokens: torch.Tensor | None = None

    def first(self) -> torch.Tensor:
        """Return the hidden state of each text's first token, [B, 1, H]: a sequence of one, as heads expect it."""
        if self.first_tokens is None:
            return self.hidden[:, :1]
        return self.hidden.flatten(0, 1)[self.first_tokens].unsqueeze(1)

    def mean(self) -> torch.Tensor:
        """Return the mean of each text's hidden states, [B, H]."""
        if self.text_ids is None or self.first_tokens is None:
            weights = self.attention_mask.unsqueeze(-1)
            return (self.hidden * weights).sum(dim=1) / weights.sum(dim=1)
        count = len(self.first_tokens)
        # Row 0 collects the padding.
        sums = self.hidden.new_zeros(count + 1, self.hidden.shape[-1])
        sums = sums.index_add(0, self.text_ids.flatten(), self.hidden.flatten(0, 1))
        sizes = torch.bincount(self.text_ids.flatten(), minlength=count + 1)
        return sums[1:] / sizes[1:, None]


# The type of stock modules, whose attributes torch types as any tensor or module.
Stock = Any


@dataclass(frozen=True)
class Family:
    """How the heads of an encoder family are computed, and how it counts positions.

    Attributes:
        classify: (model, texts) -> class logits [B, C], as the family's `ForSequenceClassification`.
        transform: (mlm_head, hidden states [M, H]) -> [M, E], what its `ForMaskedLM` does before the output embedding.
        decoder: mlm_head -> the output embedding, a `Linear` from E to V.
        first_position: (config) -> the position id of a text's first token.
        rotary: positions are angles and not weights, so that a model from scratch can have any number of them.
    """

    classify: Callable[[Stock, EncodedTexts], torch.Tensor]
    transform: Callable[[Stock, torch.Tensor], torch.Tensor]
    decoder: Callable[[Stock], nn.Linear]
    first_position: Callable[[PreTrainedConfig], int] = lambda config: 0
    rotary: bool = False


def _classify_bert(model, texts):
    return model.classifier(model.dropout(model.base_model.pooler(texts.first())))


def _classify_first(model, texts):
    return model.classifier(texts.first())


def _classify_albert(model, texts):
    body = model.base_model
    return model.classifier(model.dropout(body.pooler_activation(body.pooler(texts.first()[:, 0]))))


def _classify_distilbert(model, texts):
    hidden = torch.relu(model.pre_classifier(texts.first()[:, 0]))
    return model.classifier(model.dropout(hidden))


def _classify_modernbert(model, texts):
    pooled = texts.first()[:, 0] if model.config.classifier_pooling == "cls" else texts.mean()
    return model.classifier(model.drop(model.head(pooled)))


def _transform_roberta(head, hidden):
    return head["lm_head"].layer_norm(gelu(head["lm_head"].dense(hidden)))


def _transform_albert(head, hidden):
    head = head["predictions"]
    return head.LayerNorm(head.activation(head.dense(hidden)))


def _transform_cocolm(head, hidden):
    return head["transform"](hidden) if "transform" in head else hidden


def _transform_distilbert(head, hidden):
    return head["vocab_layer_norm"](head["activation"](head["vocab_transform"](hidden)))


FAMILIES: dict[str, Family] = {
    "bert": Family(
        _classify_bert,
        lambda head, hidden: head["cls"].predictions.transform(hidden),
        lambda head: head["cls"].predictions.decoder,
    ),
    # RoBERTa counts positions from pad_token_id + 1.
    "roberta": Family(
        _classify_first, _transform_roberta, lambda head: head["lm_head"].decoder, lambda config: config.pad_token_id + 1
    ),
    "electra": Family(
        _classify_first,
        lambda head, hidden: head["generator_predictions"](hidden),
        lambda head: head["generator_lm_head"],
    ),
    "albert": Family(_classify_albert, _transform_albert, lambda head: head["predictions"].decoder),
    "distilbert": Family(_classify_distilbert, _transform_distilbert, lambda head: head["vocab_projector"]),
    "modernbert": Family(
        _classify_modernbert, lambda head, hidden: head["head"](hidden), lambda head: head["decoder"], rotary=True
    ),
    "cocolm": Family(_classify_bert, _transform_cocolm, lambda head: head["lm_head"]),
}


def family_of(config: PreTrainedConfig) -> Family:
    """Return the family of a config, or raise a ModelError as `check_family` does."""
    check_family(config.model_type)
    return FAMILIES[config.model_type]


def check_family(model_type: str) -> None:
    """Raise a ModelError unless encoders of this `model_type` are supported."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(
            f"model_type: expected one of {', '.join(FAMILIES)}; received {model_type!r:.80}. Choose another config or "
            "checkpoint."
        )


def longest_input(config: PreTrainedConfig) -> int | None:
    """Return the longest input of an encoder in tokens, by its positions; None if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < 1:
        return None
    if config.model_type in FAMILIES:
        return positions - FAMILIES[config.model_type].first_position(config)
    # Like RoBERTa these count positions from pad_token_id + 1.
    return positions - config.pad_token_id - 1 if config.model_type in ("camembert", "xlm-roberta", "mpnet") else positions
