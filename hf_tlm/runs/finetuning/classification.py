"""Classification and regression of texts and pairs of texts; see `hf_tlm.runs.finetuning.kinds` for the names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data import tokenize
from hf_tlm.models.loading import class_names
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import compute_scores
from hf_tlm.runs.records import classified
from hf_tlm.tasks import Task

AUTO_CLASS = "AutoModelForSequenceClassification"


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: FinetuneArguments) -> Dataset:
    """One feature a row: `input_ids`, `token_type_ids` where there are any, `label` (an index or a number), `example`."""
    features = tokenize(rows, tokenizer, args.max_length, description="Tokenising", all_types=True)
    return features.add_column("example", np.arange(len(rows)))


def collator(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
    """Return a function that pads features to batches.

    A batch is {"input_ids", "attention_mask": int64 [B, S], "token_type_ids", "labels": int64 or float32 [B]}, and with a
    teacher "teacher_probs": float32 [B, C].
    """
    pad = DataCollatorWithPadding(tokenizer)
    names = ("input_ids", "token_type_ids", "label", "teacher_probs")

    def collate(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return dict(pad([{name: feature[name] for name in names if name in feature} for feature in features]))

    return collate


def decode(
    outputs: np.ndarray, features: Dataset, rows: Dataset, model: PreTrainedModel, args: FinetuneArguments
) -> list[dict[str, Any]]:
    """{"prediction": name of the class, "probabilities": {name: share}}, or {"prediction": number}.

    Args:
        outputs: logits, float [N, C], or [N, 1] for regression.
    """
    if model.config.problem_type == "regression":
        return [{"prediction": float(value)} for value in outputs.reshape(-1)]
    return classified(outputs.astype(np.float64), class_names(model.config))


def score(task: Task, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, float]:
    """The task's metrics, and the accuracy of a classifier."""
    predicted = [prediction["prediction"] for prediction in predictions]
    if task.spec.kind == "regression":
        return compute_scores(task, predicted, rows["label"][:])
    return compute_scores(task, [task.label2id[name] for name in predicted], rows["label"][:], "accuracy")
