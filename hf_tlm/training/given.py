"""Checks of the arguments of `TlmTrainer`, with advice for users of `transformers.Trainer`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from torch import nn
from transformers import PreTrainedConfig

from hf_tlm.data.collator import class_labels
from hf_tlm.data.streaming import StreamedBlocks
from hf_tlm.errors import ArgumentsError
from hf_tlm.models.base import TrainedModel
from hf_tlm.models.families import longest_input
from hf_tlm.tasks.spec import NO_LABEL
from hf_tlm.training.run_arguments import RunArguments

# Names that a column of labels may have.
LABELS = ("label", "labels")
# Arguments of the Trainer that `TlmTrainer` does not support, and what to use instead.
_UNSUPPORTED = {
    "data_collator": "TlmTrainer creates its own (TlmCollator), which masks by seed and visit. Remove data_collator, and "
    "set what it does in args (mlm_probability, packing, ...).",
    "tokenizer": "the Trainer calls it processing_class. Pass processing_class=tokenizer.",
    "compute_loss_func": "TlmTrainer has one objective per stream instead. Pass objectives={'task': ..., 'corpus': ...} "
    "(examples/own_model_and_loss.py).",
}


def check_given(model: Any, args: Any, tokenizer: Any, datasets: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Check the arguments of a `TlmTrainer`, or raise an error that explains how it differs from the Trainer.

    Args:
        datasets: `train` and `corpus`; None for a missing one.
        others: the Trainer's own arguments.

    Raises:
        ArgumentsError: an argument is missing, has the wrong type or is not supported; the message says what to pass.
    """
    if not isinstance(args, RunArguments):
        raise ArgumentsError(
            f"args: expected a TlmArguments; received {type(args).__name__}. TlmArguments has the options of "
            "TrainingArguments, and rho1, rho2 and more: TlmArguments(output_dir=..., rho1=3)."
        )
    texts = args.per_device_train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)
    if args.total_batch_size not in (None, texts):
        raise ArgumentsError(
            f"args: total_batch_size {args.total_batch_size} has no effect, as a step has {texts} texts by "
            "per_device_train_batch_size and gradient_accumulation_steps. Pass args.for_trainer(output_dir, seed), which "
            "sets them by total_batch_size."
        )
    if others.get("model_init") is not None or model is None:
        raise ArgumentsError(
            "model: expected a model; received none. model_init is not used: create the model, after set_seed, and pass it."
        )
    if not (isinstance(model, nn.Module) and any(isinstance(module, TrainedModel) for module in model.modules())):
        received = f"{model!r:.60}" if isinstance(model, str) else type(model).__name__
        raise ArgumentsError(
            "model: expected a TlmModel, GeneratorDiscriminator, or a TrainedModel of your own "
            f"(examples/own_model_and_loss.py); received {received}. TlmModel.from_config(config) creates one from scratch, "
            "TlmModel.from_checkpoint(folder, id2label=task.id2label) from a stock checkpoint."
        )
    for name, instead in _UNSUPPORTED.items():
        if others.get(name) is not None:
            raise ArgumentsError(f"{name}: {instead}")
    if tokenizer is None:
        raise ArgumentsError(
            "processing_class: expected the tokenizer of the texts; received none. hf_tlm.data.load_tokenizer(folder) loads "
            "one."
        )
    vocabulary = getattr(model.config, "vocab_size", None)
    if vocabulary is not None and len(tokenizer) > vocabulary:
        raise ArgumentsError(
            f"processing_class: the tokenizer has {len(tokenizer):,} tokens, and the model has embeddings for "
            f"{vocabulary:,}. Pass the model's own tokenizer, or create the model with vocab_size=len(tokenizer)."
        )
    for name, rows in datasets.items():
        if not (rows is None or isinstance(rows, StreamedBlocks)):
            _check_tokenized(name, rows)


def _check_tokenized(name: str, rows: Any) -> None:
    columns = getattr(rows, "column_names", None)
    if "input_ids" not in (columns or ()) or not hasattr(rows, "__len__"):
        lacks_input_ids = columns is not None and "input_ids" not in columns
        received = f"one with the columns {', '.join(columns or ())}" if lacks_input_ids else type(rows).__name__
        raise ArgumentsError(
            f"{name}_dataset: expected a datasets.Dataset with the column input_ids; received {received}. "
            "hf_tlm.data.tokenize(rows, tokenizer, max_length) creates it from texts, Dataset.from_list from a list."
        )


def check_data(train: Any, corpus: Any, rho1: float) -> None:
    """Check that the data for `rho1` corpus batches per task batch is given, or raise an ArgumentsError."""
    advice = "hf_tlm.data.tokenize(rows, tokenizer, max_length) creates it"
    if train is None and math.isfinite(rho1):
        raise ArgumentsError(
            f"train_dataset: expected the task's tokenised texts; received none. {advice}; rho1=inf trains on the corpus "
            "alone."
        )
    if corpus is None and rho1 > 0:
        raise ArgumentsError(
            f"corpus_dataset: expected tokenised passages, as rho1 is {rho1:g}; received none. {advice}; rho1=0 trains on "
            "the task alone."
        )


def check_objectives(objectives: Any, trained: Mapping[str, bool]) -> None:
    """Check that there is one valid objective for each stream that is trained on, or raise an ArgumentsError.

    Args:
        objectives: stream -> objective; None or empty for the default ones.
        trained: stream -> whether it is trained on.
    """
    if objectives is None or objectives == {}:
        return
    needed = [stream for stream, is_trained in trained.items() if is_trained]
    received = f"a {type(objectives).__name__}"
    if isinstance(objectives, Mapping):
        received = ", ".join(f"{stream}: {type(objective).__name__}" for stream, objective in objectives.items()) or "none"
        usable = all(callable(objective) and hasattr(objective, "count") for objective in objectives.values())
        if usable and {*needed} <= {*objectives} <= {*trained}:
            return
    raise ArgumentsError(
        f"objectives: expected one for each stream that is trained on ({' and '.join(needed)}), with a method count; "
        f"received {received}. Pass {{'task': TaskLoss(), 'corpus': Mlm()}}, or your own (examples/own_model_and_loss.py)."
    )


def check_classes(train: Dataset | None, evaluated: Any, config: PreTrainedConfig) -> str | None:
    """Check the labels of a task's texts and return the name of their column; None without texts.

    Args:
        train: the task's training texts.
        evaluated: evaluation data: one data set, or several by name.
        config: the model's; its `num_labels` is None without a classifier.

    Raises:
        ArgumentsError: there is no column of labels, so that only the masked LM would learn; there are two; or a label is
            not a class of the model.
    """
    names = getattr(train, "column_names", None)
    if train is None or names is None:
        return None
    label_column = _find_label_column(names, "train")
    if label_column is None:
        raise ArgumentsError(
            f"train_dataset has the columns {', '.join(names)}: expected label (or labels), an index of a class. Pass texts "
            "without labels as corpus_dataset."
        )
    if config.num_labels is not None:
        _check_labels(train, label_column, config.num_labels, "train")
        _check_eval_data(evaluated, config.num_labels)
    return label_column


def _find_label_column(names: Sequence[str], split: str) -> str | None:
    """Return the column of labels of `split`_dataset, None if it has none, or raise an ArgumentsError if it has two."""
    matches = [name for name in LABELS if name in names]
    if len(matches) > 1:
        raise ArgumentsError(
            f"{split}_dataset has the columns {' and '.join(matches)}: expected one of them, with the classes. Remove the "
            "other."
        )
    return matches[0] if matches else None


def _check_labels(rows: Dataset, column: str, classes: int, name: str) -> None:
    """Check that every label of `name`_dataset is a class of the model or -100 (none), or raise an ArgumentsError."""
    # Checking all rows of the table is fast. Reading only the selected rows is slow, so it is done if the table has a bad
    # label, which may be in a row that was not selected.
    if _label_problem(rows.data.column(column), classes) is not None:
        selected = rows.select_columns(column).with_format("arrow")[:].column(0)
        if (problem := _label_problem(selected, classes)) is not None:
            raise ArgumentsError(f"{name}_dataset, {column}: {problem}")


def _check_eval_data(eval_data: Any, classes: int) -> None:
    for rows in eval_data.values() if isinstance(eval_data, Mapping) else [eval_data]:
        if isinstance(rows, Dataset) and "input_ids" not in rows.column_names:
            raise ArgumentsError(
                f"eval_dataset has the columns {', '.join(rows.column_names)}: expected input_ids. "
                "hf_tlm.data.tokenize(rows, tokenizer, max_length) creates it from texts."
            )
        if isinstance(rows, Dataset) and (column := _find_label_column(rows.column_names, "eval")) is not None:
            _check_labels(rows, column, classes, "eval")


def _label_problem(labels: pa.ChunkedArray, classes: int) -> str | None:
    # Arrow cannot compute the unique values of lists, and one list is enough for the error.
    values = labels[:1].to_pylist() if pa.types.is_nested(labels.type) else pc.unique(labels).to_pylist()
    try:
        invalid = [label for label in class_labels(values).tolist() if label != NO_LABEL and not 0 <= label < classes]
    except ValueError as error:
        return (
            f"{error} ClassLabel or class_encode_column of datasets converts names to indices; several labels per text are "
            "not supported."
        )
    if not invalid:
        return None
    return (
        f"expected 0 to {classes - 1}, the classes of the model, or -100 for none; received {invalid[0]}. Create the model "
        "with the num_labels of the data."
    )


def check_lengths(name: str, lengths: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """Return `lengths`, int [N], the tokens of each text of `name`_dataset, if the model has enough positions.

    Raises:
        ArgumentsError: the longest text is longer than the model's maximum.
    """
    longest, limit = int(lengths.max(initial=0)), longest_input(config)
    if limit is not None and longest > limit:
        raise ArgumentsError(
            f"{name}_dataset has a text of {longest:,} tokens, and the model has positions for {limit:,}. Tokenise with "
            f"max_length {limit} at most, or create the model with more max_position_embeddings."
        )
    return lengths
