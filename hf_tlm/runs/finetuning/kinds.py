"""Kinds of tasks for fine-tuning, with one module for each, and their shared code: cached features, padding, evaluation.

Every module defines:

    AUTO_CLASS: str     the Auto class of transformers, such as "AutoModelForQuestionAnswering"

    encode(rows, tokenizer, args) -> Dataset
        Encode rows as features in the order of the rows; a long row may have several. Columns: `input_ids` (not padded),
        `token_type_ids` where the tokenizer returns them, `example` (int64, the index of the row), labels where the rows
        have them, and further columns for `decode`.
    collate(tokenizer, features: list[dict]) -> dict[str, Tensor]
        Pad features to a batch, without columns that the model does not accept.
    decode(outputs, features, rows, model, args) -> list[dict]
        Convert the Trainer's predictions for the features to one JSON-ready dict per row, in the order of the rows:
        `prediction`, and `probability` or `probabilities`. Rows need no labels.
    score(task, predictions, rows) -> dict[str, float]
        Compute the task's metric and its further metrics.

Optionally a module defines:

    wrap(model, args) -> Module
        Return the module that is trained instead of the stock model; it has the model's `config`, and its own
        `save_pretrained(folder)`.
    restore(model, folder, args) -> Module
        Wrap the stock model of a folder that the wrapper's `save_pretrained` wrote, and load the wrapper's weights.
    loss_terms(batch, args) -> Tensor
        int64 []: number of terms that the loss of a batch is the mean of, where that is not the number of rows.
    validation_choices(task, outputs, features, rows, args) -> dict[str, Any]
        Choose options by the labels of validation, such as `null_threshold`: option -> value for all later predictions.
    tables(task, predictions, rows) -> dict[str, list[dict]]
        Compute tables for `results.json`.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
import xxhash
from datasets import Dataset, Value
from torch import nn
from transformers import BatchEncoding, PreTrainedTokenizerBase, Trainer

from hf_tlm.data import in_first_order, longest_first, text_lengths
from hf_tlm.data.tokenization import TokenizerError, backend_settings, without_limits
from hf_tlm.errors import ArgumentsError, HfTlmError
from hf_tlm.metrics import load_metric
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.tasks import Task
from hf_tlm.utils.arrow_files import map_rows

# Label columns of a batch; for other kinds the column is `labels`.
LABEL_NAMES = {"question_answering": ["start_positions", "end_positions"]}
# Task types of peft, which has none for multiple choice.
PEFT_TASK_TYPES = {
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "question_answering": "QUESTION_ANS",
    "tagging": "TOKEN_CLS",
}
# Option -> kinds of tasks on which it has an effect.
OPTIONS = {
    **dict.fromkeys(
        ("doc_stride", "max_query_length", "max_answer_length", "n_best", "null_threshold"), ("question_answering",)
    ),
    "option_apart": ("multiple_choice",),
    "crf": ("tagging",),
    "label_smoothing_factor": ("classification", "multiple_choice", "tagging"),
}
# Version of the cached features: increase it when equal settings would give other features.
_FORMAT = 1
BATCH = 200  # Rows tokenised together; small, since a row may have thousands of tokens.
SPACES = np.array([chr(code).isspace() for code in range(0x3001)] + [False])  # No space has a larger code.


def kind_module(kind: str) -> ModuleType:
    """Return the module of a kind of task (`TaskSpec.kind`), which defines the functions above."""
    name = "classification" if kind == "regression" else kind
    return importlib.import_module(f"hf_tlm.runs.finetuning.{name}")


def label_names(kind: str) -> list[str]:
    """Return the label columns of a batch of a kind of task."""
    return LABEL_NAMES.get(kind, ["labels"])


def check_kind(args: Any, kind: str) -> None:
    """Check that every option given in `args` (`FinetuneArguments`) affects the kind of task, or raise an ArgumentsError."""
    for option in fields(args):
        kinds, value = OPTIONS.get(option.name), getattr(args, option.name)
        if kinds and kind not in kinds and value != option.default:
            raise ArgumentsError(
                f"{option.name} {value} has no effect on a {kind.replace('_', ' ')} task: it is for "
                f"{', '.join(kinds).replace('_', ' ')}. Leave it out."
            )


def check_offsets(tokenizer: PreTrainedTokenizerBase, kind: str) -> None:
    """Check that a tokenizer is fast, or raise a TokenizerError: tokenizers in pure Python have no character offsets."""
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"{kind} needs the characters that a token stands for, which {type(tokenizer).__name__} (a tokenizer in pure "
            "Python) does not provide. Use a checkpoint with a fast tokenizer (tokenizer.json), or --tokenizer_name with "
            "one."
        )


def make_features(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    encode: Callable[[dict[str, list], list[int]], dict[str, list]],
    settings: Sequence[Any],
    description: str,
    *,
    one_of_each: bool = True,
) -> Dataset:
    """Encode rows as features with `encode`, in the order of the rows.

    The features are cached by `datasets` where the rows are on disk, as those of a task are, and reused by every run with
    equal rows, tokenizer and settings.

    Args:
        encode: columns of a batch of rows, and the indices of the rows -> columns of their features.
        settings: everything that the features depend on besides rows and tokenizer, as JSON values.
        one_of_each: each row has one feature; else any number.
    """
    backend, fingerprint = backend_settings(tokenizer), None
    if backend is not None:
        # The default fingerprint of `datasets` hashes the tokenizer object, which changes with use: the cache would miss.
        key = [_FORMAT, rows._fingerprint, backend, tokenizer.model_input_names, description, list(settings)]
        fingerprint = xxhash.xxh3_64_hexdigest(json.dumps(key, sort_keys=True).encode())
    features = map_rows(
        rows,
        encode,
        one_of_each=one_of_each,
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
    """Tokenise texts, or pairs of texts, without truncation and with special tokens.

    Returns:
        `input_ids`, `token_type_ids` where the tokenizer returns them, and `offset_mapping`.
    """
    return tokenizer(
        *texts,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids="token_type_ids" in tokenizer.model_input_names,
        verbose=False,  # No warning about texts beyond the model's limit, which are truncated later.
    )


def token_spans(offsets: Sequence[tuple[int, int]], text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end character offsets of a text's tokens, int64 [N] each, without white space at either end.

    Byte-level tokenizers include the space before a word in its token. A token that consists of white space becomes empty.
    """
    starts, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    non_spaces = np.flatnonzero(~SPACES[np.minimum(codes, len(SPACES) - 1)])
    next_starts = np.append(non_spaces, len(text))[np.searchsorted(non_spaces, starts)]
    previous_ends = np.append(0, non_spaces + 1)[np.searchsorted(non_spaces, ends)]
    return np.minimum(next_starts, ends), np.maximum(np.minimum(next_starts, ends), previous_ends)


def pad(
    features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, names: Sequence[str] = (), side: str = "right"
) -> dict[str, torch.Tensor]:
    """Pad features to a batch, int64 [B, S], of `input_ids`, `attention_mask`, and `token_type_ids` where they have them.

    Args:
        names: further columns with a value for every token, where the features have them; they are padded with -100.
        side: the side of the padding. With "right" the indices of tokens do not change.
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
        columns = slice(0, length) if side == "right" else slice(width - length, width)
        for name, values in batch.items():
            values[row, columns] = feature.get(name, 1)
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def ragged(features: Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a column of lists as one flat array, and the offsets of the rows in it, int64 [N + 1]."""
    column = features.select_columns(name).with_format("arrow")[:][name].combine_chunks()
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return column.flatten().to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def compute_scores(task: Task, predictions: list, references: list, *more: str) -> dict[str, float]:
    """Compute the task's metric, its further metrics and `more`, with all scores that these return."""
    scores: dict[str, float] = {}
    for name in dict.fromkeys((task.metric, *task.spec.further_metrics, *more)):
        scores |= load_metric(name).compute(predictions=predictions, references=references)
    return scores


def feature_lengths(features: Dataset) -> np.ndarray:
    """Return the number of tokens of each feature, int32 [N]; for several texts, such as a question's options, their sum."""
    if isinstance(features.features["input_ids"].feature, Value):
        return text_lengths(features)
    tables = features.select_columns("input_ids").with_format("arrow").iter(1 << 12)
    sums = [
        # Every row has the same number of texts.
        pc.list_value_length(pc.list_flatten(table["input_ids"])).to_numpy().reshape(len(table), -1).sum(axis=1)
        for table in tables
    ]
    return np.concatenate(sums).astype(np.int32)


def texts_per_feature(features: Dataset) -> int:
    """Return the number of texts in a feature: the number of options for multiple choice, else 1."""
    return 1 if isinstance(features.features["input_ids"].feature, Value) else len(features[0]["input_ids"])


def _concatenate_padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate batches, and pad narrower ones with -100, as the Trainer does."""
    shape = (sum(map(len, arrays)), *np.max([array.shape[1:] for array in arrays], axis=0))
    joined, row = np.full(shape, -100, dtype=arrays[0].dtype), 0
    for array in arrays:
        joined[(slice(row, row + len(array)), *map(slice, array.shape[1:]))] = array
        row += len(array)
    return joined


class EvaluationSet:
    """Rows encoded for evaluation or prediction with a model.

    Texts of similar length share a batch, so that little padding is computed.

    Args:
        kind: a module from `kind_module`, or an object that defines the functions above.
        rows: the rows, with the canonical columns of the kind; labels may be missing.
    """

    def __init__(self, kind: Any, rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: FinetuneArguments):
        self.kind, self.rows = kind, rows
        self.features = kind.encode(rows, tokenizer, args)
        lengths = feature_lengths(self.features)
        self.by_length, self.order = longest_first(self.features, lengths)
        self.lengths = lengths[self.order]

    def outputs(self, trainer: Trainer) -> Any:
        """Return the model's outputs for every feature, in the order of `features`. All processes must call this."""
        return self.in_order(trainer.predict(self.by_length).predictions)

    def outputs_of(
        self,
        logits_of: Callable,
        collate: Callable,
        batch_size: int,
        most_tokens: int | None = None,
        num_threads: int = 1,
    ) -> Any:
        """Return outputs like `outputs`, computed by a function in this process.

        Args:
            logits_of: a batch -> arrays of logits.
            collate: features -> a batch.
            batch_size: maximal number of rows in a batch.
            most_tokens: maximal number of tokens in a batch of several rows, padding included.
            num_threads: number of batches that `logits_of` computes at the same time.
        """

        def compute(rows: slice) -> Any:
            columns = self.by_length[rows]
            features = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            return logits_of(collate(features))

        batches = self._batches(batch_size, most_tokens)
        if num_threads == 1:
            batch_outputs = list(map(compute, batches))
        else:
            pool = ThreadPoolExecutor(num_threads)
            try:
                batch_outputs = list(pool.map(compute, batches))
            finally:
                pool.shutdown(cancel_futures=True)  # After an error or Ctrl-C, at once.
        outputs = tuple(map(_concatenate_padded, zip(*batch_outputs, strict=True)))
        return self.in_order(outputs if len(outputs) > 1 else outputs[0])

    def _batches(self, batch_size: int, most_tokens: int | None) -> Iterator[slice]:
        """Yield the rows of `by_length` that are in each batch of `outputs_of`."""
        start = 0
        while start < len(self.lengths):
            # The first row of a batch is the longest.
            max_rows = batch_size if most_tokens is None else most_tokens // max(1, int(self.lengths[start]))
            end = min(start + max(1, min(batch_size, max_rows)), len(self.lengths))
            yield slice(start, end)
            start = end

    def in_order(self, outputs: Any) -> Any:
        """Reorder arrays from the order of `by_length` to that of `features`.

        Raises:
            HfTlmError: a number is not finite.
        """
        if isinstance(outputs, (tuple, list)):
            return tuple(self.in_order(array) for array in outputs)
        if not np.isfinite(outputs).all():
            raise HfTlmError(
                "The model's logits are not finite: its training has diverged (lower the learning rate or lengthen the "
                "warm-up), or its weights are damaged."
            )
        return in_first_order(outputs, self.order)

    def decode(self, outputs: Any, model: nn.Module, args: FinetuneArguments) -> list[dict[str, Any]]:
        """Convert outputs to one prediction per row."""
        return self.kind.decode(outputs, self.features, self.rows, model, args)

    def with_validation_choices(self, task: Task, outputs: Any, args: FinetuneArguments) -> FinetuneArguments:
        """Return `args` with the options that are chosen by the labels of these rows."""
        validation_choices = getattr(self.kind, "validation_choices", None)
        if validation_choices is None:
            return args
        args = copy.copy(args)
        for name, value in validation_choices(task, outputs, self.features, self.rows, args).items():
            setattr(args, name, value)
        return args

    def score(self, task: Task, outputs: Any, model: nn.Module, args: FinetuneArguments) -> dict[str, float]:
        """Compute the task's metrics on these rows, after the choice of options by their labels."""
        args = self.with_validation_choices(task, outputs, args)
        return self.kind.score(task, self.decode(outputs, model, args), self.rows)
