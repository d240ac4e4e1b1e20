"""Finished models that are ready to be exported, single or averaged, and the checks of their exported graphs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.data.text_checks import spread_texts
from hf_tlm.errors import ArgumentsError
from hf_tlm.models import ModelError
from hf_tlm.models.loading import check_positions
from hf_tlm.models.onnx_graph import MIN_PROB
from hf_tlm.models.onnx_session import OnnxModel
from hf_tlm.runs.arguments import check_exportable
from hf_tlm.runs.averaging import shown_member
from hf_tlm.runs.baselines import to_beat
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import EvaluationSet, feature_lengths, kind_module, pad
from hf_tlm.runs.finetuning.models import load_finished, set_token_types
from hf_tlm.runs.prediction_source import Source, with_text_columns
from hf_tlm.runs.records import to_beat_line
from hf_tlm.tasks import Task, unlabelled_chunks

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4  # Allowed difference of float32 logits.
# Kinds of tasks with one answer per text.
_SINGLE_ANSWER_KINDS = ("classification", "multiple_choice", "question_answering")
_ROUNDING = 1e-9  # Allowed rounding error in a difference of scores, in points.
RELATIVE_TOLERANCE = 1e-5  # For values of regression, which may be large, used if it allows more than TOLERANCE.
CHECKED_ROWS = 10_000  # Rows of a file without labels that are checked.
AGREEMENT = "agreement"
MASK_EVERY = 7  # Every seventh token is masked, 14%.
# Properties that must be equal for models that share a graph.
_SHARED_PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "tokenizer": lambda model: model.tokenizer.backend_tokenizer.to_str(),
    "order of classes": lambda model: model.stock.config.id2label,
    "inputs": lambda model: model.inputs,
    "max_length": lambda model: model.args.max_length,
}


@dataclass
class Exportable:
    """A finished model that is ready to be exported, with all that is needed to decode its outputs.

    others: more stock models, whose answers are averaged with those of `stock`.
    """

    source: Source
    kind: ModuleType | type[FillMask]
    stock: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    args: FinetuneArguments
    decoder: Any
    others: Sequence[PreTrainedModel] = ()
    inputs: list[str] = field(init=False)
    outputs: tuple[str, ...] = field(init=False)

    def __post_init__(self):
        config = self.stock.config
        self.inputs = ["input_ids", "attention_mask"]
        if "token_type_ids" in self.tokenizer.model_input_names and getattr(config, "type_vocab_size", 0) > 1:
            self.inputs.append("token_type_ids")
        has_spans = self.source.spec.kind == "question_answering"
        self.outputs = ("start_logits", "end_logits") if has_spans else ("logits",)

    @property
    def kind_name(self) -> str:
        return "fill_mask" if self.kind is FillMask else self.source.spec.kind

    def mask_padding(self, outputs: Any, lengths: np.ndarray) -> Any:
        """Replace logits of padding by -100, because they are meaningless and differ.

        Args:
            outputs: float [N, S, ...], or a tuple of such; those of classifiers have no S and are returned unchanged.
            lengths: int [N], number of tokens of each row.
        """
        if self.kind is not FillMask and self.source.spec.kind not in ("tagging", "question_answering"):
            return outputs
        if isinstance(outputs, tuple):
            return tuple(self.mask_padding(output, lengths) for output in outputs)
        padding = np.arange(outputs.shape[1]) >= lengths[:, None]
        return np.where(padding.reshape(*padding.shape, *[1] * (outputs.ndim - 2)), np.float32(-100), outputs)

    @property
    def members(self) -> list[PreTrainedModel]:
        return [self.stock, *self.others]

    @property
    def averages_probs(self) -> bool:
        return self.source.spec.kind == "classification"

    @torch.inference_mode()
    def __call__(self, batch: Mapping[str, torch.Tensor]) -> tuple[np.ndarray, ...]:
        """Compute the logits of a batch with torch; for several models the average, as in the exported graph."""
        outputs = [member(**{name: batch[name] for name in self.inputs}) for member in self.members]
        if not self.others:
            return tuple(outputs[0][name].numpy() for name in self.outputs)
        logits = torch.stack([output["logits"] for output in outputs])
        return ((logits.softmax(-1).mean(0).clamp_min(MIN_PROB).log() if self.averages_probs else logits.mean(0)).numpy(),)


def load_exportable(source: Source, scratch: str, trust_remote_code: bool) -> Exportable:
    """Load a finished network for export.

    Raises:
        ModelError: it is a linear model, an export itself, or has no fast tokenizer.
    """
    check_exportable(source.folder)
    kind: ModuleType | type[FillMask] = FillMask if source.fills_masks else kind_module(source.spec.kind)
    tokenizer = load_tokenizer(str(source.folder), trust_remote_code=trust_remote_code, masking=source.fills_masks)
    if not tokenizer.is_fast:
        raise ModelError(
            f"{source.folder} has a tokenizer in pure Python ({type(tokenizer).__name__}) and no tokenizer.json, which is "
            "needed to use an export. Only models with a fast tokenizer can be exported."
        )
    stock = load_finished(source.folder, kind.AUTO_CLASS, trust_remote_code).float().eval()
    if (max_length := source.arguments.get("max_length")) is not None:
        check_positions(stock.config, str(source.folder), max_length)
    if stock.config.model_type == "cocolm":
        stock.set_attn_implementation("eager")  # Torch cannot export fused attention with a bias for dynamic lengths.
    if source.stock:
        set_token_types(tokenizer, stock.config)
    if source.spec.kind == "regression":
        stock.config.problem_type = "regression"
    args = source.finetune_arguments(scratch, use_cpu=True)
    restore = getattr(kind, "restore", None)
    decoder = stock if restore is None else restore(stock, source.folder, args)
    return Exportable(source, kind, stock, tokenizer, args, decoder)


def combine_models(names: Sequence[str], models: Sequence[Exportable]) -> Exportable:
    """Combine several models into one that averages their answers.

    Raises:
        ModelError: their tokenizers, classes, inputs or maximum lengths differ.
    """
    first = models[0]
    for name, model in zip(names, models, strict=True):
        differences = [
            property_name
            for property_name, get_property in _SHARED_PROPERTIES.items()
            if get_property(model) != get_property(first)
        ]
        if differences:
            raise ModelError(
                f"One graph of several models needs the same {' and '.join(differences)}; those of {shown_member(name)} and "
                f"{shown_member(names[0])} differ. Export them one by one; predict averages exports too."
            )
    return replace(first, others=[model.stock for model in models[1:]])


def masked_rows(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Tokenize texts and mask every seventh token: rows with `input_ids`, and `labels`, the original tokens or -100.

    Raises:
        ArgumentsError: all texts are too short for a masked token.
    """
    ids = tokenizer(list(texts), truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
    special = np.array(tokenizer.all_special_ids)
    columns: dict[str, list] = {"input_ids": [], "labels": []}
    for row in map(np.array, ids):
        positions = np.flatnonzero(~np.isin(row, special))[MASK_EVERY // 2 :: MASK_EVERY]
        labels = np.full(len(row), -100)
        labels[positions] = row[positions]
        columns["labels"].append(labels)
        columns["input_ids"].append(np.where(labels == -100, row, tokenizer.mask_token_id))
    if all((labels == -100).all() for labels in columns["labels"]):
        raise ArgumentsError(
            f"A masked LM cannot be measured on these texts: none has the {MASK_EVERY // 2 + 1} tokens of which one is "
            "masked. Pass longer texts, or --dtypes fp32 without texts."
        )
    return Dataset.from_dict(columns)


class FillMask:
    """Masked language modelling as a kind of task to check exports with, with the interface of `finetuning.kinds`."""

    AUTO_CLASS = "AutoModelForMaskedLM"
    METRIC = "masked_accuracy"

    @staticmethod
    def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: Any) -> Dataset:
        """Return rows of `masked_rows`, with token types if the tokenizer has any."""
        if "token_type_ids" in tokenizer.model_input_names:
            return rows.add_column("token_type_ids", [[0] * len(ids) for ids in rows["input_ids"]])
        return rows

    @staticmethod
    def collate(tokenizer: PreTrainedTokenizerBase, features: list[dict]) -> dict[str, torch.Tensor]:
        """Pad features to a batch of int64 tensors [B, S]."""
        return pad(features, tokenizer)

    @staticmethod
    def decode(outputs: np.ndarray, features: Dataset, rows: Dataset, model: Any, args: Any) -> list[dict[str, Any]]:
        """Return {"prediction": the most probable tokens at the masks} for every row.

        Args:
            outputs: logits, float [rows, S, V].
        """
        best = outputs.argmax(axis=-1)
        return [
            {"prediction": best[row, : len(labels)][np.array(labels) != -100].tolist()}
            for row, labels in enumerate(rows["labels"])
        ]

    @staticmethod
    def score(task: Any, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, float]:
        """Return the share of masked tokens that are predicted correctly."""
        targets = [[token for token in labels if token != -100] for labels in rows["labels"]]
        num_correct = sum(
            int(a == b)
            for prediction, row in zip(predictions, targets, strict=True)
            for a, b in zip(prediction["prediction"], row, strict=True)
        )
        return {FillMask.METRIC: num_correct / max(1, sum(map(len, targets)))}


class RandomCheck:
    """A check of an exported file that compares only logits, on random tokens."""

    description = {"texts": 0, "what": "random tokens"}
    task = None

    def __init__(self, model: Exportable):
        self.model = model
        generator = torch.Generator().manual_seed(0)
        longest = model.args.max_length
        self.batches = []
        for count, length in ((1, 1), (3, min(7, longest)), (2, min(32, longest)), (1, longest)):
            shape = (count, 3, length) if model.source.spec.kind == "multiple_choice" else (count, length)
            mask = torch.ones(shape, dtype=torch.int64)
            mask[0, ..., length - length // 3 :] = 0
            ids = torch.randint(min(member.config.vocab_size for member in model.members), shape, generator=generator)
            types = torch.zeros(shape, dtype=torch.int64)
            self.batches.append({"input_ids": ids, "attention_mask": mask, "token_type_ids": types})

    def measure(self, exported: OnnxModel, dtype: str, max_drop: float, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the largest difference of the logits from torch's.

        Raises:
            ModelError: it is more than rounding.
        """
        difference = 0.0
        for batch in self.batches:
            lengths = batch["attention_mask"].sum(-1).numpy()
            outputs, expected = (self.model.mask_padding(model(batch), lengths) for model in (exported, self.model))
            difference = max(difference, _check_agreement(outputs, expected, self.model.kind_name))
        return {"max_difference": difference}


class TextCheck:
    """A check of an exported file on texts, which compares logits, and the score or the predictions.

    Args:
        rows: the texts.
        task: the task that has labels for them; None: exported predictions are compared with those of torch.
        texts_name: description of the texts, for the record.
    """

    def __init__(self, model: Exportable, rows: Dataset, task: Task | None, texts_name: str, batch_size: int):
        self.model, self.rows, self.task = model, rows, task
        self.batch_size = batch_size
        kind = model.kind
        self.evaluation_set = EvaluationSet(kind, rows, model.tokenizer, model.args)
        self.collate = partial(kind.collate, model.tokenizer)
        self.reference = self.outputs(model)
        self.predictions = self.decode(self.reference)
        self.metric = FillMask.METRIC if kind is FillMask else AGREEMENT if task is None else task.metric
        self.score = self.compute_score(self.predictions)
        self.description: dict[str, Any] = {"texts": len(rows), "what": texts_name, "metric": self.metric}
        if task is not None and kind is not FillMask:
            scores = {texts_name.partition(" ")[0]: {self.metric: {"mean": self.score}}}
            if line := to_beat_line(to_beat(task), self.metric, scores):
                self.description["to_beat"] = line

    def outputs(self, model: Callable) -> Any:
        limits = (model.most_tokens, model.num_threads) if isinstance(model, OnnxModel) else ()
        outputs = self.evaluation_set.outputs_of(model, self.collate, self.batch_size, *limits)
        return self.model.mask_padding(outputs, feature_lengths(self.evaluation_set.features))

    def decode(self, outputs: Any) -> list[dict[str, Any]]:
        return self.evaluation_set.decode(outputs, self.model.decoder, self.model.args)

    def compute_score(self, predictions: list[dict[str, Any]]) -> float:
        if self.metric == AGREEMENT:
            return float(np.mean(self.matches_reference(predictions)))
        return float(self.model.kind.score(self.task, predictions, self.rows)[self.metric])

    def matches_reference(self, predictions: list[dict[str, Any]]) -> list[bool]:
        return [a["prediction"] == b["prediction"] for a, b in zip(predictions, self.predictions, strict=True)]

    def measure(self, exported: OnnxModel, dtype: str, max_drop: float, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the largest difference of the logits from torch's, the score, its drop in points, and changed predictions.

        Raises:
            ModelError: float32 logits differ by more than rounding; or another dtype loses more than `max_drop`, and more
                than one answer.
        """
        outputs = self.outputs(exported)
        if dtype == "fp32":
            difference = _check_agreement(outputs, self.reference, self.model.kind_name)
        else:
            difference = _max_difference(outputs, self.reference)
        predictions = self.decode(outputs)
        score = self.compute_score(predictions)
        drop, changed = 100 * (self.score - score), len(predictions) - sum(self.matches_reference(predictions))
        is_regression = self.model.kind_name == "regression"  # Not counted as changed: all differ in their last digits.
        # A single answer does not prove a loss: with 65 texts it is worth a point and a half.
        limit = max(max_drop, 100 / len(predictions)) if self.model.kind_name in _SINGLE_ANSWER_KINDS else max_drop
        excused = limit > max_drop and changed <= 1 and math.isfinite(drop)
        if dtype != "fp32" and not drop <= limit + _ROUNDING and not excused:
            answer_limit = f" and {limit:.2f} (one answer of {len(predictions):,})" if limit > max_drop else ""
            change_note = "" if is_regression else f" ({changed} of {len(predictions):,} predictions change)"
            raise ModelError(
                f"{dtype} loses {drop:.2f} points of {self.metric}, from {100 * self.score:.2f} to {100 * score:.2f}"
                f"{change_note}, more than --max_drop {max_drop:g}{answer_limit}. "
                f"{_format_advice(dtype, settings)}"
            )
        if dtype != "fp32" and drop > max_drop + _ROUNDING:
            logger.warning(
                "%s loses %.2f points of %s, more than --max_drop %g, but is kept: one answer of %s is worth as much (%d "
                "of the predictions change). More texts would measure the loss more precisely.",
                *(dtype, drop, self.metric, max_drop, f"{len(predictions):,}", changed),
            )
        return {"max_difference": difference, "score": score, "drop": drop} | ({} if is_regression else {"changed": changed})


def create_check(
    model: Exportable,
    task: Task | None,
    data: str | None,
    text_columns: str | Sequence[str] | None,
    separator: str | None,
    batch_size: int,
) -> RandomCheck | TextCheck:
    """Return the check of a model's graphs: on texts of a task or of a file, or on random tokens without either.

    Raises:
        ModelError: the task has other classes than the model.
        ArgumentsError: data without labels are given for regression, or all texts are too short for a masked LM.
        TaskError: the task is of another kind than the model; or see `unlabelled_chunks`.
    """
    spec = model.source.spec
    if task is None and data is None:
        return RandomCheck(model)
    if task is not None:
        split = "validation" if "validation" in task.splits else "test"
        rows, texts_name = task.splits[split], f"{split} of {task.name}"
        if model.kind is not FillMask:
            task.check_kind(f"a model for {spec.kind.replace('_', ' ')}", spec.kind)
            if model.source.label_names and set(task.label_names) != set(model.source.label_names):
                raise ModelError(
                    f"The model has the classes {', '.join(model.source.label_names):.200}; the classes of {task.name} are "
                    f"{', '.join(task.label_names):.200}. Pass the task on which the model was trained."
                )
    else:
        assert data is not None
        if spec.kind == "regression":
            raise ArgumentsError("What int8 changes in a regression is measured with labels. Pass --task instead of --data.")
        spec = spec if text_columns is None else with_text_columns(spec, text_columns)
        chunks = unlabelled_chunks(data, spec, chunk=CHECKED_ROWS, separator=separator)
        rows, texts_name = next(chunks).rows, Path(data).name
    if model.kind is FillMask:
        rows = masked_rows(spread_texts(rows), model.tokenizer, model.args.max_length)
    return TextCheck(model, rows, task, texts_name, batch_size)


def _max_difference(outputs: Any, expected: Any) -> float:
    """Return the largest absolute difference of two outputs, which are arrays or tuples of arrays."""
    if isinstance(outputs, tuple):
        return float(np.max([*map(_max_difference, outputs, expected)]))  # Unlike `max`, this propagates NaN.
    return float(np.abs(outputs - expected).max())


def _check_agreement(outputs: Any, expected: Any, kind: str) -> float:
    """Return the largest absolute difference of float32 outputs, or raise a ModelError if it is more than rounding."""
    difference, tolerance = _max_difference(outputs, expected), TOLERANCE
    if kind == "regression":
        tolerance = max(tolerance, RELATIVE_TOLERANCE * float(np.abs(expected).max()))
    if not difference <= tolerance:
        raise ModelError(
            f"The exported graph is not equivalent to the model: its logits differ from torch's by {difference:.2g}, more "
            f"than {tolerance:.2g}. Nothing was written."
        )
    return difference


def _format_advice(dtype: str, settings: Mapping[str, Any]) -> str:
    if dtype != "int8":
        return f"Remove {dtype} from --dtypes."
    float_parts, suggestions = set(settings["keep_float"]), []
    for part in ("head", "embeddings"):  # The cheapest first. The option is not additive, so each try lists all parts.
        if part not in float_parts:
            float_parts.add(part)
            suggestions.append(f"--keep_float {' '.join(sorted(float_parts, reverse=True))}")
    suggestions += [] if settings["per_channel"] else ["--per_channel true"]
    return f"Try {' or '.join([*suggestions, '--dtypes fp32'])}; a larger --max_drop accepts the loss."
