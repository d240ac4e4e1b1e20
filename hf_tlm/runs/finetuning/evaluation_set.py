"""Rows that a model is evaluated on, or predicts for: in the order of their length for the model, in their own for us."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Value
from torch import nn
from transformers import PreTrainedTokenizerBase, Trainer

from hf_tlm.data import text_lengths
from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.tasks import Task


def feature_lengths(features: Dataset) -> np.ndarray:
    """int32 [N]: tokens of every feature; of one with several texts, as the options of a question, of all of them."""
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
    """1, or the number of options of a question."""
    return 1 if isinstance(features.features["input_ids"].feature, Value) else len(features[0]["input_ids"])


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Batches one after the other, those that are narrower filled up with -100, as the Trainer does."""
    shape = (sum(map(len, parts)), *np.max([part.shape[1:] for part in parts], axis=0))
    whole, row = np.full(shape, -100, dtype=parts[0].dtype), 0
    for part in parts:
        whole[(slice(row, row + len(part)), *map(slice, part.shape[1:]))] = part
        row += len(part)
    return whole


class EvaluationSet:
    """Some rows, encoded for a model.

    Texts of similar length share a batch, so that little padding is computed.

    Args:
        kind: see `hf_tlm.runs.finetuning.kinds`.
        rows: with the canonical columns of the kind; labels may be missing.
    """

    def __init__(
        self,
        kind: ModuleType,
        rows: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        args: FinetuneArguments,
        label_names: tuple[str, ...],
    ):
        self.kind, self.rows = kind, rows
        self.features = kind.encode(rows, tokenizer, args, label_names)
        self.order = np.argsort(-feature_lengths(self.features), kind="stable")
        self.by_length = self.features.select(self.order)

    def outputs(self, trainer: Trainer) -> Any:
        """What the model says of every feature, in the order of `features`. All processes must call this.

        Raises:
            HfTlmError: a number is not finite.
        """
        return self.in_order(trainer.predict(self.by_length).predictions)

    def outputs_of(self, logits_of: Callable, collate: Callable, batch_size: int) -> Any:
        """As `outputs`, of any function in this process: a batch -> arrays of logits.

        Raises:
            HfTlmError: a number is not finite.
        """
        parts = [
            logits_of(collate([self.by_length[row] for row in range(start, min(start + batch_size, len(self.by_length)))]))
            for start in range(0, len(self.by_length), batch_size)
        ]
        whole = tuple(map(_joined, zip(*parts, strict=True)))
        return self.in_order(whole if len(whole) > 1 else whole[0])

    def in_order(self, outputs: Any) -> Any:
        """Arrays in the order of `by_length`, in that of `features`; see `outputs`."""
        if isinstance(outputs, (tuple, list)):
            return tuple(self.in_order(part) for part in outputs)
        if not np.isfinite(outputs).all():
            raise HfTlmError(
                "The model's logits are not finite: its training has diverged (lower the learning rate or lengthen the "
                "warm-up), or its weights are damaged."
            )
        ordered = np.empty_like(outputs)
        ordered[self.order] = outputs
        return ordered

    def decode(self, outputs: Any, model: nn.Module, args: FinetuneArguments) -> list[dict[str, Any]]:
        """One prediction a row."""
        return self.kind.decode(outputs, self.features, self.rows, model, args)

    def with_validation_choices(
        self, task: Task, outputs: Any, model: nn.Module, args: FinetuneArguments
    ) -> FinetuneArguments:
        """`args`, and what these labelled rows decide of them."""
        validation_choices = getattr(self.kind, "validation_choices", None)
        if validation_choices is None:
            return args
        args = copy.copy(args)
        for name, value in validation_choices(task, outputs, self.features, self.rows, model, args).items():
            setattr(args, name, value)
        return args

    def score(self, task: Task, outputs: Any, model: nn.Module, args: FinetuneArguments) -> dict[str, float]:
        """The task's metrics on these rows, which decide what `args` leave open."""
        args = self.with_validation_choices(task, outputs, model, args)
        return self.kind.score(task, self.decode(outputs, model, args), self.rows)
