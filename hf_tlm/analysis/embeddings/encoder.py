"""Any encoder that transformers loads, and its vectors of texts.

    model, tokenizer = load_encoder("runs/scierc")
    vectors = embed_texts(model, tokenizer, ["a text", "another"])

Shapes: N texts, B texts of a batch, S tokens, H hidden size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import PeftConfig, PeftModel
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModel, DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from hf_tlm.analysis.embeddings.options import POOLINGS
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.data import load_tokenizer
from hf_tlm.evaluation.finetuning.loading import set_token_types
from hf_tlm.hub.checkpoint import checkpoint_folder
from hf_tlm.models.adapters import POOLER
from hf_tlm.models.families import longest_input
from hf_tlm.models.loading import reading
from hf_tlm.training.stages import ADAPTER_FILE

# Batches whose texts are tokenised, and sorted by length, together.
CHUNK_BATCHES = 32
# What peft calls the head of an adapter.
ADAPTED = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


def load_encoder(
    name_or_path: str, *, max_length: int = 128, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(body, tokenizer): of a checkpoint with whatever head, of an adapter with its base, the encoder alone of both
    encoder and decoder. On a GPU if there is one, in evaluation mode.

    Args:
        name_or_path: folder, or Hub id with `@revision` if wanted.
        max_length: tokens that it is to read.

    Raises:
        AnalysisError: it lacks weights of its body, or has fewer positions.
        ModelError, HubError, TokenizerError: it cannot be loaded.
    """
    options = {"trust_remote_code": trust_remote_code}
    folder = checkpoint_folder(name_or_path, **options)
    tokenizer = load_tokenizer(name_or_path, masking=False, **options)
    shown = logging.get_verbosity()
    logging.set_verbosity_error()  # A head that is left out is no news here.
    try:
        with reading(f"an encoder from {name_or_path!r}"):
            if (Path(folder) / ADAPTER_FILE).is_file():
                model, missing = _adapted(folder, options), []
            else:
                model, info = AutoModel.from_pretrained(folder, output_loading_info=True, dtype=torch.float32, **options)
                missing = [key for key in info["missing_keys"] if POOLER not in key.split(".")]
    finally:
        logging.set_verbosity(shown)
    if missing:
        raise AnalysisError(
            f"{name_or_path} lacks weights of its body ({', '.join(sorted(missing)[:3])}): they would be random. Give a "
            "checkpoint of a trained encoder."
        )
    positions = longest_input(model.config)
    if positions is not None and max_length > positions:
        raise AnalysisError(
            f"{name_or_path} has {positions} positions, fewer than {max_length}. Give --analysis_max_length {positions} or "
            "less."
        )
    set_token_types(tokenizer, model.config)
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


@torch.inference_mode()
def embed_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    text_pairs: Sequence[str] | None = None,
    *,
    pooling: str = "cls",
    layer: int = -1,
    max_length: int = 128,
    batch_size: int = 32,
    description: str = "Embedding",
) -> np.ndarray:
    """float32 [N, H]: a vector for each text, not of length 1. Batches and padding do not change them.

    Args:
        model: one whose output has `last_hidden_state` or `hidden_states`; see `load_encoder`.
        text_pairs: as many second texts, each read with the first in one input.
        pooling: cls: of the tokenizer's [CLS], or of the first token if it sets none. mean: over all tokens but padding.
        layer: -1 is the last one, 0 the embedding layer, 1 the first layer after it.
        max_length: tokens after which a text is cut.
        description: of the bar.

    Raises:
        AnalysisError: a text is null or blank, there is no such pooling or layer, or vectors are not finite, or all [CLS]
            vectors are the same, as in decoders, where a first token sees itself alone.
    """
    if pooling not in POOLINGS:
        raise AnalysisError(f"pooling must be one of {', '.join(POOLINGS)}; received {pooling!r}.")
    both = [texts] if text_pairs is None else [texts, text_pairs]
    for row, found in enumerate(zip(*both, strict=True)):
        if not all(isinstance(text, str) and text.strip() for text in found):
            raise AnalysisError(f"Text {row} is null or blank: {found!r:.80}. Leave such rows out (--drop_bad_rows).")
    collate, vectors = DataCollatorWithPadding(tokenizer), []
    size = batch_size * CHUNK_BATCHES
    main = os.environ.get("RANK", "0") == "0"
    with tqdm(total=len(texts), desc=description, unit=" texts", disable=not main) as bar:
        for start in range(0, len(texts), size):
            chunk = [list(part[start : start + size]) for part in both]
            inputs = tokenizer(*chunk, truncation=True, max_length=max_length)
            order = np.argsort([len(ids) for ids in inputs["input_ids"]], kind="stable")
            found = []
            for at in range(0, len(order), batch_size):
                rows = order[at : at + batch_size]
                batch = collate([{name: values[row] for name, values in inputs.items()} for row in rows])
                found.append(_pooled(model, batch.to(model.device), tokenizer.cls_token_id, pooling, layer))
                bar.update(len(rows))
            vectors.append(np.concatenate(found)[np.argsort(order)])
    vectors = np.concatenate(vectors) if vectors else np.zeros((0, 0), np.float32)
    _check(vectors, texts, pooling)
    return vectors


def _pooled(model: PreTrainedModel, batch: dict, cls_token_id: int | None, pooling: str, layer: int) -> np.ndarray:
    """float32 [B, H]."""
    if layer == -1:
        hidden = model(**batch).last_hidden_state
    else:
        layers = model(**batch, output_hidden_states=True).hidden_states
        if not -len(layers) <= layer < len(layers):
            raise AnalysisError(f"layer must be from 0 to {len(layers) - 1}, or -1 for the last; received {layer}.")
        hidden = layers[layer]
    hidden, mask = hidden.float(), batch["attention_mask"]
    if pooling == "mean":
        return ((hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)).cpu().numpy()
    marked = (batch["input_ids"] == cls_token_id) & (mask == 1) if cls_token_id is not None else mask == 0
    # XLNet has its [CLS] at the end, and pads on the left.
    marked = torch.where(marked.any(dim=1, keepdim=True), marked, mask == 1)
    first = marked.int().argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), first].cpu().numpy()


def _check(vectors: np.ndarray, texts: Sequence[str], pooling: str) -> None:
    if not np.isfinite(vectors).all():
        raise AnalysisError("The model's vectors are not finite numbers: its weights are damaged, or its training diverged.")
    if pooling == "cls" and len(set(texts)) > 1 and np.ptp(vectors, axis=0).max() <= 1e-6 * np.abs(vectors).max():
        raise AnalysisError(
            "All texts have the same [CLS] vector: the model is a decoder, where the first token sees no other, or has "
            "collapsed. Try --pooling mean."
        )


def _adapted(folder: str, options: dict) -> PreTrainedModel:
    """The body of a base model with an adapter merged into it."""
    peft = PeftConfig.from_pretrained(folder)
    bare = "AutoModelForMultipleChoice" if peft.modules_to_save else "AutoModelForMaskedLM"
    base = getattr(transformers, ADAPTED.get(peft.task_type, bare)).from_pretrained(
        checkpoint_folder(peft.base_model_name_or_path, peft.revision, **options),
        config=AutoConfig.from_pretrained(folder, **options),
        ignore_mismatched_sizes=True,
        **options,
    )
    return PeftModel.from_pretrained(base, folder).merge_and_unload().base_model
