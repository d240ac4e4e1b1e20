"""What kinds of tasks share: cached features, the characters of tokens, padding, columns of lists, scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from datasets import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from hf_tlm.data.tokenization import TokenizerError, backend_settings, without_limits
from hf_tlm.metrics import load_metric
from hf_tlm.tasks import Task
from hf_tlm.utils.arrow_files import map_rows

# Changes when equal settings would give other features.
_FORMAT = 1
BATCH = 200  # Rows that are tokenised together: one may have thousands of tokens.
SPACES = np.array([chr(code).isspace() for code in range(0x3001)] + [False])  # No space has a larger code.


def check_offsets(tokenizer: PreTrainedTokenizerBase, kind: str) -> None:
    """Check that a tokenizer tells which characters a token stands for.

    Raises:
        TokenizerError: the tokenizer is in pure Python, which knows no offsets.
    """
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"{kind} needs to know which characters a token stands for, and {type(tokenizer).__name__} (a tokenizer in pure "
            "Python) does not. Use a checkpoint with a fast tokenizer (tokenizer.json), or --tokenizer_name with one."
        )


def make_features(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    encode: Callable[[dict[str, list], list[int]], dict[str, list]],
    settings: Sequence[Any],
    description: str,
) -> Dataset:
    """Return what `encode` makes of the rows, in their order.

    It is stored in the cache of `datasets` where the rows are on disk, as a task's are, and found again by every run with
    equal rows, tokenizer and settings.

    Args:
        encode: columns of a batch of rows and their indices -> columns of its features.
        settings: all that the features depend on besides rows and tokenizer, as JSON values.
    """
    backend, fingerprint = backend_settings(tokenizer), None
    if backend is not None:
        # `datasets` would hash the whole tokenizer, which changes with use, and find nothing again.
        parts = [_FORMAT, rows._fingerprint, backend, tokenizer.model_input_names, description, list(settings)]
        fingerprint = xxhash.xxh3_64_hexdigest(json.dumps(parts, sort_keys=True).encode())
    features = map_rows(
        rows,
        encode,
        batched=True,
        with_indices=True,
        remove_columns=rows.column_names,
        desc=description,
        new_fingerprint=fingerprint,
        batch_size=BATCH,
    )
    without_limits(tokenizer)
    return features


def tokenize_with_offsets(tokenizer: PreTrainedTokenizerBase, *texts: list[str]) -> BatchEncoding:
    """Tokenise whole texts, or pairs of them, with special tokens.

    Returns `input_ids`, `token_type_ids` where the tokenizer makes them, and `offset_mapping`.
    """
    return tokenizer(
        *texts,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids="token_type_ids" in tokenizer.model_input_names,
        verbose=False,  # It would warn of texts longer than the model takes, which are cut later.
    )


def token_spans(offsets: Sequence[tuple[int, int]], text: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the tokens of a text begin and end, int64 [N] each: characters, without white space at either end.

    Byte-level tokenizers count the space before a word as its own. A token of nothing but white space is empty.
    """
    begins, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    solid = np.flatnonzero(~SPACES[np.minimum(codes, len(SPACES) - 1)])
    following = np.append(solid, len(text))[np.searchsorted(solid, begins)]
    preceding = np.append(0, solid + 1)[np.searchsorted(solid, ends)]
    return np.minimum(following, ends), np.maximum(np.minimum(following, ends), preceding)


def pad(
    features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, names: Sequence[str] = (), side: str = "right"
) -> dict[str, torch.Tensor]:
    """The batch int64 [B, S] of `input_ids`, `attention_mask`, and `token_type_ids` where the features have them.

    Args:
        names: further columns with a value for every token; they are padded with -100.
        side: where the padding goes. Predictions for tokens keep their places with "right".
    """
    fill = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "token_type_ids": tokenizer.pad_token_type_id}
    fill |= dict.fromkeys(names, -100)
    width = max(len(feature["input_ids"]) for feature in features)
    batch = {
        name: np.full((len(features), width), value)
        for name, value in fill.items()
        if name in features[0] or name == "attention_mask"
    }
    for row, feature in enumerate(features):
        length = len(feature["input_ids"])
        place = slice(0, length) if side == "right" else slice(width - length, width)
        for name, values in batch.items():
            values[row, place] = feature.get(name, 1)
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def ragged(features: Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of lists as one array, and where each row begins in it, int64 [N + 1]."""
    column = features.select_columns(name).with_format("arrow")[:][name].combine_chunks()
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return column.flatten().to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def compute_scores(task: Task, predictions: list, references: list) -> dict[str, float]:
    """The task's metric and its further ones, with what they bring along."""
    scores: dict[str, float] = {}
    for name in (task.metric, *task.spec.further_metrics):
        scores |= load_metric(name).compute(predictions=predictions, references=references)
    return scores
