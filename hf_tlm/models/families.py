"""The encoder families TLM trains: what each does between its body's hidden states and its logits.

The stock classes compute body and head in one `forward`; TLM needs two heads on one pass of the body, so the part after
the body is spelled out here, once per family. A test compares both functions with the stock `forward` of every family.

Shapes: B texts, S positions, H hidden size, M masked positions, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedConfig

from hf_tlm.files import HfTlmError


class ModelError(HfTlmError):
    """A model, config or tokenizer that cannot be used as asked."""


@dataclass(frozen=True)
class Family:
    """Two functions on a `TlmModel`.

    classify: (model, body outputs, attention_mask [B, S]) -> class logits [B, C], as the family's
        `ForSequenceClassification`.
    predict: (mlm_head, hidden states [M, H]) -> vocabulary logits [M, V], as the family's `ForMaskedLM`.
    """

    classify: Callable[[nn.Module, object, torch.Tensor], torch.Tensor]
    predict: Callable[[nn.ModuleDict, torch.Tensor], torch.Tensor]


def _classify_pooled(model, outputs, attention_mask):
    return model.classifier(model.dropout(outputs.pooler_output))


def _classify_sequence(model, outputs, attention_mask):
    return model.classifier(outputs.last_hidden_state)


def _classify_distilbert(model, outputs, attention_mask):
    hidden = torch.relu(model.pre_classifier(outputs.last_hidden_state[:, 0]))
    return model.classifier(model.dropout(hidden))


def _classify_modernbert(model, outputs, attention_mask):
    hidden = outputs.last_hidden_state
    if model.config.classifier_pooling == "cls":
        pooled = hidden[:, 0]
    else:
        weights = attention_mask.unsqueeze(-1)
        pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
    return model.classifier(model.drop(model.head(pooled)))


def _predict_distilbert(head, hidden):
    hidden = head["vocab_layer_norm"](head["activation"](head["vocab_transform"](hidden)))
    return head["vocab_projector"](hidden)


FAMILIES: dict[str, Family] = {
    "bert": Family(_classify_pooled, lambda head, hidden: head["cls"](hidden)),
    "roberta": Family(_classify_sequence, lambda head, hidden: head["lm_head"](hidden)),
    "electra": Family(
        _classify_sequence, lambda head, hidden: head["generator_lm_head"](head["generator_predictions"](hidden))
    ),
    "albert": Family(_classify_pooled, lambda head, hidden: head["predictions"](hidden)),
    "distilbert": Family(_classify_distilbert, _predict_distilbert),
    "modernbert": Family(_classify_modernbert, lambda head, hidden: head["decoder"](head["head"](hidden))),
}


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a config.

    Raises:
        ModelError: no family has this `model_type`.
    """
    if config.model_type not in FAMILIES:
        raise ModelError(
            f"TLM trains encoders of the types {', '.join(FAMILIES)}; received the type {config.model_type!r}. "
            "Choose another config or checkpoint."
        )
    return FAMILIES[config.model_type]
