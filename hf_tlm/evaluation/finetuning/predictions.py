"""Predictions as files: JSON lines, GLUE's and SQuAD's formats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset

from hf_tlm.training import ArgumentsError

FORMATS = ("jsonl", "glue", "squad")
# What the leaderboard calls a registered task's file, and, where it has classes of its own, theirs.
GLUE_FILES = {
    "cola": "CoLA.tsv",
    "sst2": "SST-2.tsv",
    "mrpc": "MRPC.tsv",
    "stsb": "STS-B.tsv",
    "qqp": "QQP.tsv",
    "mnli": "MNLI-m.tsv",
    "mnli_mm": "MNLI-mm.tsv",
    "qnli": "QNLI.tsv",
    "rte": "RTE.tsv",
}
GLUE_NAMED = {
    "mnli": ("entailment", "neutral", "contradiction"),
    "mnli_mm": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
}


def gold(kind: str, label_names: Sequence[str], row: Mapping[str, Any]) -> Any:
    """The right answer of a row, as a prediction would be; None where it has none."""
    if kind == "question_answering":
        return row.get("answers")
    if kind == "tagging":
        tags = row.get("tags")
        return None if tags is None else [label_names[tag] if tag >= 0 else None for tag in tags]
    label = row.get("label")
    return label if label is None or kind == "regression" else label_names[label]


def predictions_jsonl(kind: str, label_names: Sequence[str], rows: Dataset, predictions: Sequence[Mapping[str, Any]]) -> str:
    """One JSON line a row: `id`, `label` where it is known, and what was predicted."""
    lines = []
    for row, prediction in zip(rows, predictions, strict=True):
        label = gold(kind, label_names, row)
        known = {} if label is None else {"label": label}
        lines.append(json.dumps({"id": row["id"], **known, **prediction}, ensure_ascii=False))
    return "\n".join(lines) + "\n" if lines else ""


def glue_task(name: str) -> str:
    """The GLUE task of a task's name: `cola` of cola, glue_cola, glue/cola.

    Raises:
        ArgumentsError: it is none.
    """
    short = name.removeprefix("glue").strip("_-/").replace("-", "_")
    if short not in GLUE_FILES:
        raise ArgumentsError(f"predict_format glue is for GLUE's tasks ({', '.join(GLUE_FILES)}); this one is {name}.")
    return short


def glue_rows(task: str, predictions: Iterable[Mapping[str, Any]], first: int = 0) -> str:
    """Lines `index<TAB>prediction` as the leaderboard takes them: class names for MNLI, QNLI, RTE, numbers for the others,
    for STS-B within 0 to 5.

    Args:
        task: from `glue_task`.
        first: the index of the first prediction.
    """
    out = io.StringIO()
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    for index, found in enumerate(predictions, first):
        value = found["prediction"]
        if task == "stsb":
            value = f"{min(max(float(value), 0.0), 5.0):.3f}"
        elif task in GLUE_NAMED and str(value).isdecimal():
            # Without names at its source a class is its number, in GLUE's order.
            value = GLUE_NAMED[task][int(value)]
        elif task not in GLUE_NAMED and not str(value).isdecimal():
            value = _GLUE_NUMBERS[task][value]
        writer.writerow([index, value])
    return out.getvalue()


# GLUE's own names of the classes whose numbers the leaderboard takes.
_GLUE_NUMBERS = {
    "cola": {"unacceptable": 0, "acceptable": 1},
    "sst2": {"negative": 0, "positive": 1},
    "mrpc": {"not_equivalent": 0, "equivalent": 1},
    "qqp": {"not_duplicate": 0, "duplicate": 1},
}
