"""The predictions of a run for the splits of its task, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset


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
