"""Classification and regression of texts and pairs of texts; `hf_tlm.runs.finetuning.kinds` describes the functions.

The module also computes logits and scores of finished classifiers: a converted checkpoint, an export, or any stock
classifier on the Hub.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_tlm.data import in_first_order, load_tokenizer, longest_first, tokenize
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.models import ModelError
from hf_tlm.models.loading import class_names, reading
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import compute_scores, pad
from hf_tlm.runs.records import logits_to_predictions
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task, released_length

AUTO_CLASS = "AutoModelForSequenceClassification"


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: FinetuneArguments) -> Dataset:
    """Encode each row as one feature.

    It has `input_ids`, `token_type_ids` where the tokenizer returns them, `label` (an index or a number) and `example`.
    """
    features = tokenize(rows, tokenizer, args.max_length, description="Tokenising", all_types=True)
    return features.add_column("example", np.arange(len(rows)))


def collate(tokenizer: PreTrainedTokenizerBase, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad features to a batch.

    Returns:
        {"input_ids", "token_type_ids", "attention_mask": int64 [B, S], "labels": int64 or float32 [B]}, the mask only where
        the tokenizer names it as an input of its model; with a teacher also "teacher_probs", float32 [B, C].
    """
    batch = pad(features, tokenizer, side=tokenizer.padding_side)
    if "attention_mask" not in tokenizer.model_input_names:  # FNet has none.
        del batch["attention_mask"]
    values = {"label": "labels", "teacher_probs": "teacher_probs"}
    return batch | {
        key: torch.tensor([feature[name] for feature in features]) for name, key in values.items() if name in features[0]
    }


def decode(
    outputs: np.ndarray, features: Dataset, rows: Dataset, model: PreTrainedModel, args: FinetuneArguments
) -> list[dict[str, Any]]:
    """Convert logits to predictions, one per row.

    Args:
        outputs: logits, float [N, C], or [N, 1] for regression.

    Returns:
        {"prediction": name of the class, "probabilities": {name: probability}}, or {"prediction": number} for regression.
    """
    if model.config.problem_type == "regression":
        return [{"prediction": float(value)} for value in outputs.reshape(-1)]
    return logits_to_predictions(outputs.astype(np.float64), class_names(model.config))


def score(task: Task, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, float]:
    """Compute the task's metrics, and for classification the accuracy."""
    predicted = [prediction["prediction"] for prediction in predictions]
    if task.spec.kind == "regression":
        return compute_scores(task, predicted, rows["label"][:])
    return compute_scores(task, [task.label2id[name] for name in predicted], rows["label"][:], "accuracy")


def evaluate_checkpoint(model_name_or_path: str, task: Task, **options) -> dict[str, dict[str, float]]:
    """Compute the task's metric and the accuracy of a classifier on validation and, where there is one, test.

    Arguments and errors are those of `checkpoint_logits`.

    Returns:
        split -> name -> value of at most 1.
    """
    logits_by_split = checkpoint_logits(model_name_or_path, task, **options)
    metrics = compute_metrics_for(task.metric)
    return {
        split: metrics(EvalPrediction(logits, np.asarray(task.splits[split]["label"][:])))
        for split, logits in logits_by_split.items()
    }


@torch.inference_mode()
def checkpoint_logits(
    model_name_or_path: str,
    task: Task,
    *,
    max_length: int | None = None,
    batch_size: int = 32,
    device: str | torch.device | None = None,
) -> dict[str, np.ndarray]:
    """Compute a classifier's logits on validation and, where there is one, test.

    Classes are matched by name; where the model or the data only number them, by number.

    Args:
        model_name_or_path: folder, or Hub id with `@revision` if wanted.
        max_length: number of tokens to which texts are truncated; None: as in TLM's released code, 512 for IMDB and 128 for
            others.
        device: default: a GPU if there is one.

    Returns:
        split -> logits, float [N, C], in the order of the rows and of the task's classes.

    Raises:
        ModelError: the model cannot be loaded, or its classes are not the task's.
        HubError, TokenizerError: see `checkpoint_folder`, `load_tokenizer`.
        TaskError: the task is of another kind than classification.
    """
    check_task(task, "evaluate_checkpoint", "classification")
    folder = checkpoint_folder(model_name_or_path)
    tokenizer = load_tokenizer(model_name_or_path)
    with reading("a classifier from", model_name_or_path):
        model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{model_name_or_path} lacks weights of a classifier ({', '.join(missing[:3])}) and cannot be evaluated. Pass "
            "a model that was trained on the task."
        )
    max_length = max_length or released_length(task.name)
    class_indices = _match_classes(model_name_or_path, class_names(model.config), task)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model.eval().to(device)
    logits_by_split: dict[str, np.ndarray] = {}
    for split, texts in task.splits.items():
        if split != "train":
            tokenized = tokenize(texts, tokenizer, max_length, description=f"Tokenising {split}")
            rows, by_length = longest_first(tokenized)
            batches = DataLoader(
                rows.remove_columns("label"), batch_size=batch_size, collate_fn=DataCollatorWithPadding(tokenizer)
            )
            logits = [model(**batch.to(device)).logits.float().cpu().numpy() for batch in batches]
            logits_by_split[split] = in_first_order(np.concatenate(logits), by_length)[:, class_indices]
    return logits_by_split


def _match_classes(name: str, classes: list[str], task: Task) -> list[int]:
    """Return the model's index of each class of the task, or raise a ModelError where the classes do not match."""
    labels = list(task.label_names)
    numbers = [str(index) for index in range(len(labels))]
    if sorted(classes) == sorted(labels):
        return [classes.index(label) for label in labels]
    is_numbered = labels == numbers or classes in (numbers, [f"LABEL_{number}" for number in numbers])
    if len(classes) == len(labels) and is_numbered:
        return list(range(len(labels)))
    raise ModelError(
        f"{name} has the classes {', '.join(classes)}; the classes of {task.name} are {', '.join(labels)}. Pass a model of "
        "this task."
    )
