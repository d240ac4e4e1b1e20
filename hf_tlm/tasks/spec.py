"""What a labelled task is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hf_tlm.files import HfTlmError

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "validation", "test")
METRICS = ("micro_f1", "macro_f1", "accuracy", "matthews")


class TaskError(HfTlmError):
    """A task that cannot be found or whose data cannot be used."""


@dataclass(frozen=True)
class TaskSpec:
    """Facts about a task; everything that is known of it before its data are read.

    path: Hub dataset id, or local folder.
    data_files: split -> file, for Hub repositories without a loading configuration.
    text_columns: one, or two for pairs of texts.
    id_column: None takes the column `id` where there is one, and `<split>-<row>` otherwise.
    classes: class names in alphabetical order, empty where unknown.
    split_sizes: examples in train, validation and test as the papers report them.
    """

    name: str
    path: str
    config_name: str | None = None
    revision: str | None = None
    data_files: Mapping[str, str] | None = None
    text_columns: tuple[str, ...] = ("text",)
    label_column: str = "label"
    id_column: str | None = None
    metric: str = "macro_f1"
    classes: tuple[str, ...] = ()
    split_sizes: tuple[int, int, int] | None = None

    def __post_init__(self):
        if self.metric not in METRICS:
            raise TaskError(f"Task {self.name}: metric must be one of {', '.join(METRICS)}; received {self.metric!r}.")
        if not 1 <= len(self.text_columns) <= 2:
            raise TaskError(f"Task {self.name}: one or two text columns are possible; received {self.text_columns}.")


@dataclass
class Task:
    """A task with its data.

    splits: `train`, `validation` and, where there is one, `test`, each with the columns `id` (string), `text`
        (string), `text_pair` (string, for pairs) and `label` (int64).
    label_names: class names; a label is an index into them.
    report: per split, what was found in the data: examples, dropped rows by reason, repeated texts.
    """

    spec: TaskSpec
    splits: dict[str, Dataset]
    label_names: tuple[str, ...]
    report: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def metric(self) -> str:
        return self.spec.metric

    @property
    def train(self) -> Dataset:
        return self.splits["train"]

    @property
    def validation(self) -> Dataset:
        return self.splits["validation"]

    @property
    def test(self) -> Dataset | None:
        return self.splits.get("test")

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.label_names))

    @property
    def label2id(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.label_names)}

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of a digest over all ids, texts and label names: equal data, equal fingerprint, anywhere."""
        digest = hashlib.sha256()
        for split in SPLITS:
            if split in self.splits:
                rows = self.splits[split]
                digest.update(f"{split}\0{rows.column_names}\0".encode())
                for batch in rows.iter(1000):
                    for row in zip(*batch.values(), strict=True):
                        digest.update(repr(row).encode())
        digest.update(repr(self.label_names).encode())
        return digest.hexdigest()[:16]
