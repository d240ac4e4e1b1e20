"""Masked language models, as one more kind of task to check exports on; see `hf_tlm.runs.finetuning.kinds` for the names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.errors import ArgumentsError
from hf_tlm.runs.finetuning.kinds import pad

AUTO_CLASS = "AutoModelForMaskedLM"
METRIC = "masked_accuracy"
EVERY = 7  # One token of so many is masked, 14%.


def masked_rows(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Rows `input_ids`, of which every seventh token is masked, and `labels`, the tokens that were there or -100."""
    ids = tokenizer(list(texts), truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
    special = np.array(tokenizer.all_special_ids)
    columns: dict[str, list] = {"input_ids": [], "labels": []}
    for row in map(np.array, ids):
        places = np.flatnonzero(~np.isin(row, special))[EVERY // 2 :: EVERY]
        labels = np.full(len(row), -100)
        labels[places] = row[places]
        columns["labels"].append(labels)
        columns["input_ids"].append(np.where(labels == -100, row, tokenizer.mask_token_id))
    if all((labels == -100).all() for labels in columns["labels"]):
        raise ArgumentsError(
            f"Nothing of a masked LM can be measured on these texts: none has {EVERY // 2 + 1} tokens, of which one is "
            "masked. Give longer ones, or --dtypes fp32 without texts."
        )
    return Dataset.from_dict(columns)


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: Any) -> Dataset:
    """The rows of `masked_rows`, with token types where there are any."""
    if "token_type_ids" in tokenizer.model_input_names:
        return rows.add_column("token_type_ids", [[0] * len(ids) for ids in rows["input_ids"]])
    return rows


def collator(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[dict]], dict[str, torch.Tensor]]:
    """Return a function that pads features to a batch, int64 [B, S] each."""
    return lambda features: pad(features, tokenizer)


def decode(outputs: np.ndarray, features: Dataset, rows: Dataset, model: Any, args: Any) -> list[dict[str, Any]]:
    """{"prediction": the tokens that are most probable at the masks} of every row.

    Args:
        outputs: logits, float [rows, S, V].
    """
    best = outputs.argmax(axis=-1)
    return [
        {"prediction": best[row, : len(labels)][np.array(labels) != -100].tolist()}
        for row, labels in enumerate(rows["labels"])
    ]


def score(task: Any, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, float]:
    """The share of masked tokens that are predicted."""
    truth = [[token for token in labels if token != -100] for labels in rows["labels"]]
    right = sum(
        int(a == b) for one, row in zip(predictions, truth, strict=True) for a, b in zip(one["prediction"], row, strict=True)
    )
    return {METRIC: right / max(1, sum(map(len, truth)))}
