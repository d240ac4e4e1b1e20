"""Multiple choice (RACE): choose the option that answers a question about a context.

Each option is encoded in an input of its own, [CLS] context [SEP] question and option [SEP], and the model chooses by the
logits of a question's options. The blank of a cloze question is filled with the option, as in XLNet's code (Yang et al.,
NeurIPS 2019); otherwise the option follows the question. With `option_apart` a separator is between them, and blanks are
kept (ALE, section IV.A.1, for BERT).
"""

from __future__ import annotations

import re
from functools import partial
from string import ascii_uppercase as LETTERS
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scipy.special import softmax
from transformers import PreTrainedTokenizerBase

from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import compute_scores, make_features, pad
from hf_tlm.tasks import Task

AUTO_CLASS = "AutoModelForMultipleChoice"


def fill_in(question: str, option: str) -> str:
    """Insert the option in every blank of the question, or append it to a question without a blank."""
    if "_" in question:
        return re.sub("_+", lambda blank: option, question)
    return f"{question} {option}"


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: FinetuneArguments) -> Dataset:
    """Encode each row as one feature.

    It has `input_ids` and [`token_type_ids`] as lists with an entry for each option, `example`, and `labels` where the rows
    have a `label`.

    The context is truncated; where question and option alone fill `max_length`, the longer of context and question with
    option is truncated.

    Raises:
        HfTlmError: `max_length` leaves no room for a token of both; or with `option_apart`, the tokenizer has no separator.
    """
    if args.option_apart and tokenizer.sep_token is None:
        raise HfTlmError(
            "option_apart puts the tokenizer's sep_token between question and option; this tokenizer has none. Remove "
            "option_apart, or pass a --tokenizer_name that has one."
        )
    special = tokenizer.num_special_tokens_to_add(pair=True)
    join = partial("{1} {0} {2}".format, tokenizer.sep_token) if args.option_apart else fill_in
    if args.max_length < special + 2:
        raise HfTlmError(
            f"max_length must leave room for context and option beside {special} special tokens; received "
            f"{args.max_length}. Raise it: 384 is usual."
        )
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}

    def encode_batch(batch: dict[str, list], indices: list[int]) -> dict[str, list]:
        counts = [len(each) for each in batch["options"]]
        contexts = [context for context, count in zip(batch["context"], counts, strict=True) for _ in range(count)]
        texts = [
            join(question, option)
            for question, each in zip(batch["question"], batch["options"], strict=True)
            for option in each
        ]
        lengths = [len(ids) for ids in tokenizer(texts, verbose=False, **options)["input_ids"]]
        tokens: dict[str, list] = {}
        for truncation, is_long in (("only_first", False), ("longest_first", True)):
            selected = [index for index, length in enumerate(lengths) if (length >= args.max_length - special) == is_long]
            if not selected:
                continue
            encoded = tokenizer(
                [contexts[index] for index in selected],
                [texts[index] for index in selected],
                truncation=truncation,
                max_length=args.max_length,
                return_attention_mask=False,
                return_token_type_ids="token_type_ids" in tokenizer.model_input_names,
            )
            for name, rows_of_name in encoded.items():
                column = tokens.setdefault(name, [None] * len(texts))
                for index, values in zip(selected, rows_of_name, strict=True):
                    column[index] = values
        bounds = np.cumsum([0, *counts])
        grouped = {
            name: [values[low:high] for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
            for name, values in tokens.items()
        }
        return grouped | {"example": indices} | ({"labels": batch["label"]} if "label" in batch else {})

    # Without `option_apart` the settings are those of earlier versions, so that cached features are found again.
    settings = [args.max_length, tokenizer.truncation_side, *["apart"] * args.option_apart]
    return make_features(rows, tokenizer, encode_batch, settings, "Tokenising options")


def collate(tokenizer: PreTrainedTokenizerBase, features: list[dict]) -> dict[str, torch.Tensor]:
    """Pad features to a batch, on the tokenizer's side (XLNet classifies by the last token).

    The batch has `input_ids`, `attention_mask`, [`token_type_ids`] int64 [B, options, S] and [`labels`] int64 [B].
    """
    names = [name for name in ("input_ids", "token_type_ids") if name in features[0]]
    flat = [
        dict(zip(names, option, strict=True))
        for feature in features
        for option in zip(*(feature[name] for name in names), strict=True)
    ]
    padded = pad(flat, tokenizer, side=tokenizer.padding_side)
    batch = {name: values.view(len(features), -1, values.shape[-1]) for name, values in padded.items()}
    if "labels" in features[0]:
        batch["labels"] = torch.tensor([feature["labels"] for feature in features])
    return batch


def decode(outputs, features: Dataset, rows: Dataset, model, args: FinetuneArguments) -> list[dict[str, Any]]:
    """Convert logits to the letter of the chosen option as `prediction`, and `probabilities` by letter.

    Args:
        outputs: logits, float [rows, options].
    """
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    probabilities = softmax(logits.astype(np.float64), axis=-1).round(6).tolist()
    return [
        {"prediction": LETTERS[best], "probabilities": dict(zip(LETTERS, row, strict=False))}
        for best, row in zip(logits.argmax(axis=-1), probabilities, strict=True)
    ]


def score(task: Task, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, float]:
    """Compute the task's metrics on the indices of the chosen options, such as the accuracy."""
    chosen = [LETTERS.index(prediction["prediction"]) for prediction in predictions]
    return compute_scores(task, chosen, list(rows["label"]))
