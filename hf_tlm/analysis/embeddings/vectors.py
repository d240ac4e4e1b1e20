"""A model's vectors of texts.

    model, tokenizer = load_encoder("runs/scierc")
    vectors = embed_texts(model, tokenizer, ["a text", "another"])

Shapes: N texts, B texts of a batch, S tokens, H hidden size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.analysis.arguments import POOLINGS
from hf_tlm.analysis.errors import AnalysisError

# Batches whose texts are tokenised, and sorted by length, together.
CHUNK_BATCHES = 32


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
    for row, parts in enumerate(zip(*both, strict=True)):
        if not all(isinstance(text, str) and text.strip() for text in parts):
            raise AnalysisError(f"Text {row} is null or blank: {parts!r:.80}. Leave such rows out (--drop_bad_rows).")
    collate = DataCollatorWithPadding(tokenizer)
    chunks: list[np.ndarray] = []
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
                batch = {name: values.to(model.device) for name, values in batch.items()}
                found.append(_pooled(model, batch, tokenizer.cls_token_id, pooling, layer))
                bar.update(len(rows))
            chunks.append(np.concatenate(found)[np.argsort(order)])
    vectors = np.concatenate(chunks) if chunks else np.zeros((0, 0), np.float32)
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
