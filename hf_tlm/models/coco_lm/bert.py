"""Conversion of a COCO-LM model without relative positions to the equivalent stock BERT."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_tlm.errors import ModelError
from hf_tlm.models.coco_lm.modeling_coco_lm import (
    CocoLmForMultipleChoice,
    CocoLmForQuestionAnswering,
    CocoLmForSequenceClassification,
    CocoLmForTokenClassification,
    CocoLmModel,
    CocoLmPreTrainedModel,
)
from hf_tlm.utils.files import atomic_directory

STOCK = {
    CocoLmModel: BertModel,
    CocoLmForSequenceClassification: BertForSequenceClassification,
    CocoLmForTokenClassification: BertForTokenClassification,
    CocoLmForQuestionAnswering: BertForQuestionAnswering,
    CocoLmForMultipleChoice: BertForMultipleChoice,
}


def as_bert(model: CocoLmPreTrainedModel) -> PreTrainedModel:
    """Return a stock BERT with the outputs of `model` at all tokens but padding, in the model's precision and mode.

    Weights that BERT has and the model lacks, of token types and perhaps of positions, are zero.

    Raises:
        ModelError: the model has relative positions, or is a masked LM: stock BERT's has a transform before the output
            embedding, which this one does not have.
    """
    own = model.config
    if own.relative_attention_mode is not None:
        raise ModelError(
            "Stock BERT has no relative positions, but this model does (relative_attention_mode "
            f"{own.relative_attention_mode!r}). Save it with save_pretrained, which also saves its code."
        )
    if type(model) not in STOCK:
        raise ModelError(
            f"No stock BERT class corresponds to {type(model).__name__}; expected {', '.join(c.__name__ for c in STOCK)}. "
            "Pass the body of a masked LM, its `base_model`."
        )
    names = set(BertConfig().to_dict()) - {"model_type", "transformers_version", "architectures", "id2label", "label2id"}
    values = {name: value for name, value in own.to_dict().items() if name in names}
    values |= {"attn_implementation": own._attn_implementation}
    if type(model) is not CocoLmForQuestionAnswering:  # Stock BERT's has two outputs only if there are two labels.
        values |= {"id2label": own.id2label, "label2id": own.label2id}
    stock = STOCK[type(model)](BertConfig(**values | {"type_vocab_size": max(2, own.type_vocab_size)}))
    if type(model) is CocoLmModel and model.pooler is None:
        stock.pooler = None
    state = {name: torch.zeros_like(tensor) for name, tensor in stock.state_dict().items()}
    for name, tensor in model.state_dict().items():
        name = name.replace(f"{model.base_model_prefix}.", f"{stock.base_model_prefix}.", 1)
        state[name][: len(tensor)] = tensor.to(state[name])
    stock.load_state_dict(state)
    return stock.to(dtype=model.dtype, device=model.device).train(model.training)


def export_bert(model: CocoLmPreTrainedModel, tokenizer: PreTrainedTokenizerBase, output_dir: str | os.PathLike) -> Path:
    """Write `as_bert(model)` and the tokenizer to a folder, which appears atomically.

    Raises:
        HfTlmError: see `as_bert`; or the disk cannot be written, and an existing folder stays intact.
    """
    output_dir, stock = Path(output_dir), as_bert(model)
    with atomic_directory(output_dir) as folder:
        stock.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return output_dir
