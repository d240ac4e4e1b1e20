"""The definition of a labelled task, and the registered tasks: the TLM paper's eight, GLUE, SQuAD, RACE, and POS tagging."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.shown import describe_received, few, suggestion

if TYPE_CHECKING:
    from datasets import Dataset


SPLITS = ("train", "validation", "test")
NO_LABEL = -100  # torch's cross-entropy ignores texts with this label.
# Kind of task -> the metrics that can score it, the default first.
KIND_METRICS = {
    "classification": ("macro_f1", "micro_f1", "accuracy", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "question_answering": ("squad_f1",),
    "multiple_choice": ("accuracy",),
    "tagging": ("tag_accuracy", "span_f1"),
}
KINDS = tuple(KIND_METRICS)
METRICS = tuple(dict.fromkeys(metric for metrics in KIND_METRICS.values() for metric in metrics))
# Kind of task -> role -> names of its column; the first one in the source is used. For classification and regression see
# `TaskSpec.text_columns` and `TaskSpec.label_column`.
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "classification": {},
    "regression": {},
    "question_answering": {
        "context": ("context",),
        "question": ("question",),
        "answers": ("answers", "answer_text"),
        "starts": ("answer_start", "starts"),
    },
    "multiple_choice": {
        "context": ("context", "article"),
        "question": ("question",),
        "options": ("options",),
        "label": ("label", "answer"),
    },
    "tagging": {"tokens": ("tokens",), "tags": ("tags",)},
}


class TaskError(HfTlmError):
    """Raised when a task cannot be found, or its data cannot be used."""


@dataclass(frozen=True)
class TaskSpec:
    """The specification of a task: everything that is known about it before its data are read.

    path: Hub dataset id, or local folder or file; empty for a registered task that is not on the Hub.
    data_files: split -> file, for Hub repositories without a loading configuration.
    split_names: split -> its name in the source, if it differs from ours.
    text_columns: for classification and regression: one column, or two for pairs of texts.
    other_text_columns: names of these columns in other copies of the data; the first names that all exist are used.
    id_column: None uses the column `id` if it exists, and `<split>-<row>` otherwise.
    metric: chooses checkpoints; empty for the default of the kind. Larger is better for all metrics.
    further_metrics: reported in addition.
    classes: class names in the order of their indices; empty if unknown.
    split_sizes: examples in train, validation and test as the papers report them.
    kind: one of `KINDS`.
    columns: for the other kinds: role -> column of the source, for roles of `ROLES` whose columns have other names.
    """

    name: str
    path: str
    config_name: str | None = None
    revision: str | None = None
    data_files: Mapping[str, str] | None = None
    split_names: Mapping[str, str] = field(default_factory=dict)
    text_columns: tuple[str, ...] = ("text",)
    other_text_columns: tuple[tuple[str, ...], ...] = ()
    label_column: str = "label"
    id_column: str | None = None
    metric: str = ""
    further_metrics: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    split_sizes: tuple[int, int, int] | None = None
    kind: str = "classification"
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise TaskError(f"Task {self.name}: the kinds of tasks are {', '.join(KINDS)}; received {self.kind!r}.")
        if not self.metric:
            object.__setattr__(self, "metric", KIND_METRICS[self.kind][0])
            if self.kind == "regression" and not self.further_metrics:
                object.__setattr__(self, "further_metrics", ("spearman",))
        for metric in (self.metric, *self.further_metrics):
            if metric not in KIND_METRICS[self.kind]:
                raise TaskError(
                    f"Task {self.name}: the metric of a {self.kind} task must be one of "
                    f"{', '.join(KIND_METRICS[self.kind])}; received {metric!r}."
                )
        if not 1 <= len(self.text_columns) <= 2:
            raise TaskError(f"Task {self.name}: expected one or two text columns; received {self.text_columns}.")
        roles = ROLES[self.kind]
        if unknown := sorted(set(self.columns) - set(roles)):
            allowed = f"are {', '.join(roles)}" if roles else "have options of their own (--text_column, --label_column)"
            advice = suggestion(unknown[0], roles, 1) or " Choose another kind with --task_kind."
            raise TaskError(
                f"Task {self.name}: the columns of a {self.kind} task {allowed}; received {', '.join(unknown)}.{advice}"
            )


@dataclass
class Task:
    """A task with its data.

    splits: `train`, `validation` and, if there is one, `test`, memory-mapped from the cache of `datasets`. The columns
        depend on the kind:

        - classification: `id`, `text`, `text_pair` (only for pairs; all three strings), `label` (int64, index into
          `label_names`)
        - regression: `id`, `text`, `text_pair`, `label` (float64)
        - question_answering: `id`, `context`, `question`, `answers` (list of strings), `starts` (list of int64, the
          answers' character offsets in the context); both are empty for an unanswerable question, and have more than one
          item if several annotators answered
        - multiple_choice: `id`, `context`, `question`, `options` (list of strings, the same number in every row),
          `label` (int64, index of the correct one; `label_names` are A, B, ...)
        - tagging: `id`, `tokens` (list of strings), `tags` (list of int64, indices into `label_names`; -1 is a tag that
          does not occur in train, so that every prediction for it counts as wrong)

    label_names: names of classes, options or tags; a label is an index into them. Empty for the other kinds.
    report: split -> counts of its examples, of dropped rows by reason, and of repeated texts, among others.
    held_out: split -> its share of the texts, for splits that were held out of a table or of train.
    sampled_of: split -> number of examples that it was sampled from; without splits that were not sampled.
    """

    spec: TaskSpec
    splits: dict[str, Dataset]
    label_names: tuple[str, ...]
    report: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    sampled_of: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in self.splits.items())
        labels = f"; {self.num_labels} labels: {few(self.label_names)}" if self.label_names else ""
        return f"Task({self.name!r}, {self.kind}: {sizes}{labels}; {self.metric})"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kind(self) -> str:
        return self.spec.kind

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
    def has_pairs(self) -> bool:
        """Whether an example is a pair of texts."""
        return "text_pair" in self.train.column_names

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.label_names))

    @property
    def label2id(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.label_names)}

    @property
    def texts_also_in_train(self) -> dict[str, int]:
        """Split -> number of its texts that are also in the training split; empty if the data were not inspected."""
        key = "texts_also_in_train"
        return {split: counts[key] for split, counts in self.report.items() if key in counts}

    def about_splits(self) -> dict[str, Any]:
        """Return the facts about the splits for records, cards and reports, as JSON values.

        These are the shares that were held out, the numbers of examples that train and validation were sampled from, and
        for each split the counts of texts that are also in train, of repeated texts, and of dropped rows by reason.
        """
        held_out: dict[str, Any] = {"held_out": dict(self.held_out)} if self.held_out else {}
        for split, size in self.sampled_of.items():
            held_out[f"{split}_sampled"] = {"examples": len(self.splits[split]), "of": size}
        facts = {"texts_also_in_train": self.texts_also_in_train}
        for key in ("repeated_texts", "dropped"):
            facts[key] = {split: counts[key] for split, counts in self.report.items() if counts.get(key)}
        return {**held_out, **facts}

    def to_text(self) -> str:
        """Return one line about the splits: sizes, and counts of rows that were dropped, repeated, or are in train too."""
        sampled_from = {split: f" of {size:,}" for split, size in self.sampled_of.items()}
        sizes = ", ".join(f"{split} {len(rows):,}{sampled_from.get(split, '')}" for split, rows in self.splits.items())
        classes = f", {self.num_labels} classes" if self.kind == "classification" else ""
        notes = []
        for split, counts in self.report.items():
            counts_by_reason = {**counts.get("dropped", {}), "repeated": counts.get("repeated_texts", 0)}
            counts_by_reason["in train too"] = counts.get("texts_also_in_train", 0)
            if listed := ", ".join(f"{count:,} {reason}" for reason, count in counts_by_reason.items() if count):
                notes.append(f"{split}: {listed}")
        return f"task         {self.name} ({sizes}{classes})" + (f"; {'; '.join(notes)}" if notes else "")

    def check_kind(self, user: str, *kinds: str) -> None:
        """Raise a TaskError unless the task is of one of these kinds, which `user` (such as "TLM") supports."""
        check_kind(self.name, self.kind, user, *kinds)

    @cached_property
    def fingerprint(self) -> str:
        """A fingerprint of the data, equal for equal data on every machine.

        It is the first 16 hex digits of a SHA-256 over all columns of all rows and the label names.
        """
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


def columns_of_texts(rows: Dataset) -> list[str]:
    """Return the text columns of classification and regression: `text`, and for pairs `text_pair` too."""
    return [name for name in ("text", "text_pair") if name in rows.column_names]


def check_kind(name: str, kind: str, user: str, *kinds: str) -> None:
    """Raise a TaskError if `kind`, the kind of task `name`, is none of `kinds`, which `user` (such as "TLM") supports."""
    if kind not in kinds:
        raise TaskError(
            f"{user} supports {' and '.join(kinds)} tasks; {name} is a {kind} task. Use `hf-tlm finetune` for this "
            "task, or choose another kind with --task_kind."
        )


def check_task(task: Any, user: str = "", *kinds: str) -> None:
    """Raise a TaskError that says what to pass if `task` is not a Task, or not of one of `kinds` if these are given."""
    if not isinstance(task, Task):
        raise TaskError(f"task: expected a Task; {describe_received(task, 'load_task')}")
    if kinds:
        task.check_kind(user, *kinds)


def _released_task(
    name: str, hub_name: str, sizes: tuple[int, int, int], classes: tuple[str, ...], metric: str = "macro_f1"
) -> TaskSpec:
    """Return the spec of a task of the TLM paper (section 4.1), after Gururangan et al. 2020, Table 2.

    The data are those the authors released: `yxchar/<task>-tlm` on the Hub, with `train.csv`, `dev.csv` and `test.csv`.
    Their labels are integers whose names the release does not contain; data with label names keep these names.
    """
    return TaskSpec(
        name=name,
        path=f"yxchar/{hub_name}-tlm",
        data_files={"train": "train.csv", "validation": "dev.csv", "test": "test.csv"},
        metric=metric,
        classes=classes,
        split_sizes=sizes,
    )


def _glue_task(
    name: str, sizes: tuple[int, int, int], classes: tuple[str, ...], columns: tuple[str, ...], **more
) -> TaskSpec:
    """Return the spec of a GLUE task (Wang et al. 2019, Table 1), with the benchmark's metrics and order of classes.

    The text columns may also be named sentence1 and sentence2, or text and text_pair, as in other copies of the data.
    """
    alternatives = [("sentence1", "sentence2")[: len(columns)], ("text", "text_pair")[: len(columns)]]
    return TaskSpec(
        name=name,
        path="nyu-mll/glue",
        text_columns=columns,
        other_text_columns=tuple(alternative for alternative in alternatives if alternative != columns),
        classes=classes,
        split_sizes=sizes,
        **{"config_name": name, "metric": "accuracy", **more},
    )


def _mnli_task(name: str, variant: str, sizes: tuple[int, int, int]) -> TaskSpec:
    return _glue_task(
        name,
        sizes,
        ("entailment", "neutral", "contradiction"),
        ("premise", "hypothesis"),
        config_name="mnli",
        split_names={"validation": f"validation_{variant}", "test": f"test_{variant}"},
    )


_CHEMPROT = (
    "ACTIVATOR",
    "AGONIST",
    "AGONIST-ACTIVATOR",
    "AGONIST-INHIBITOR",
    "ANTAGONIST",
    "DOWNREGULATOR",
    "INDIRECT-DOWNREGULATOR",
    "INDIRECT-UPREGULATOR",
    "INHIBITOR",
    "PRODUCT-OF",
    "SUBSTRATE",
    "SUBSTRATE_PRODUCT-OF",
    "UPREGULATOR",
)
_ACL_ARC = ("Background", "CompareOrContrast", "Extends", "Future", "Motivation", "Uses")
_SCIERC = ("COMPARE", "CONJUNCTION", "EVALUATE-FOR", "FEATURE-OF", "HYPONYM-OF", "PART-OF", "USED-FOR")
_RCT = ("BACKGROUND", "CONCLUSIONS", "METHODS", "OBJECTIVE", "RESULTS")
_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_ENTAILMENT = ("entailment", "not_entailment")
_F1: dict[str, Any] = {"metric": "f1", "further_metrics": ("accuracy",)}
_CORRELATION: dict[str, Any] = {"kind": "regression", "metric": "pearson", "further_metrics": ("spearman",)}
_RACE: dict[str, Any] = {"path": "ehovy/race", "kind": "multiple_choice"}

TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        _released_task("chemprot", "chemprot", (4169, 2427, 3469), _CHEMPROT, "micro_f1"),
        _released_task("rct", "rct-20k", (180040, 30212, 30135), _RCT, "micro_f1"),
        _released_task("acl_arc", "citation_intent", (1688, 114, 139), _ACL_ARC),
        _released_task("scierc", "sciie", (3219, 455, 974), _SCIERC),
        _released_task("hyperpartisan", "hyp", (515, 65, 65), ("false", "true")),
        _released_task("agnews", "ag", (115000, 5000, 7600), ("Business", "Sci/Tech", "Sports", "World")),
        _released_task("helpfulness", "amazon", (115251, 5000, 25000), ("helpful", "unhelpful")),
        _released_task("imdb", "imdb", (20000, 5000, 25000), ("neg", "pos")),
        _glue_task("cola", (8551, 1043, 1063), ("unacceptable", "acceptable"), ("sentence",), metric="matthews"),
        _glue_task("sst2", (67349, 872, 1821), ("negative", "positive"), ("sentence",)),
        _glue_task("mrpc", (3668, 408, 1725), ("not_equivalent", "equivalent"), _PAIR, **_F1),
        _glue_task("qqp", (363846, 40430, 390965), ("not_duplicate", "duplicate"), _QUESTIONS, **_F1),
        _glue_task("stsb", (5749, 1500, 1379), (), _PAIR, **_CORRELATION),
        _mnli_task("mnli", "matched", (392702, 9815, 9796)),
        _mnli_task("mnli_mm", "mismatched", (392702, 9832, 9847)),
        _glue_task("qnli", (104743, 5463, 5463), _ENTAILMENT, ("question", "sentence")),
        _glue_task("rte", (2490, 277, 3000), _ENTAILMENT, _PAIR),
        TaskSpec(name="squad", path="rajpurkar/squad", kind="question_answering", split_sizes=(87599, 10570, 0)),
        TaskSpec(name="squad_v2", path="rajpurkar/squad_v2", kind="question_answering", split_sizes=(130319, 11873, 0)),
        TaskSpec(name="race_middle", config_name="middle", split_sizes=(25421, 1436, 1436), **_RACE),
        TaskSpec(name="race_high", config_name="high", split_sizes=(62445, 3451, 3498), **_RACE),
        # Universal Dependencies' English Web Treebank, and the Wall Street Journal part of the Penn Treebank.
        TaskSpec(name="pos_ewt", path="", kind="tagging", split_sizes=(12544, 2001, 2077)),
        TaskSpec(name="pos_ptb", path="", kind="tagging"),
    )
}


# Task -> length in tokens to which TLM's scripts truncate its texts (evaluate.sh), if not 128.
LONG_TEXTS = {"imdb": 512}


def released_length(name: str) -> int:
    """Return the maximum length in tokens of the texts that TLM's released models of a task were trained on.

    Args:
        name: any name of the task, see `registered_task`.
    """
    spec = registered_task(name)
    return LONG_TEXTS.get(spec.name if spec else name, 128)


def registered_task(name: str, config_name: str | None = None) -> TaskSpec | None:
    """Return the spec of a registered task; None if there is no such task.

    Args:
        name: our name, the name of its release (scierc: sciie, yxchar/sciie-tlm), or its Hub id (nyu-mll/glue).
        config_name: configuration, which tells tasks with the same Hub id apart.
    """
    if name in TASKS:
        return TASKS[name]
    releases = ((name, config_name), (f"yxchar/{name}-tlm", None))
    return next((spec for spec in TASKS.values() if spec.path and (spec.path, spec.config_name) in releases), None)
