"""Predictions as files: JSON lines, GLUE's and SQuAD's formats."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from datasets import Dataset

from hf_tlm.tasks import TASKS, TaskSpec
from hf_tlm.training import ArgumentsError
from hf_tlm.utils.files import atomic_file

FORMATS = ("jsonl", "glue", "squad")
# What the leaderboard calls a registered task's file.
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


def glue_value(task: str, prediction: Any) -> Any:
    """Convert a prediction to what the leaderboard takes.

    That is class names for MNLI, QNLI and RTE, numbers for the others, for STS-B within 0 to 5.

    Args:
        task: from `glue_task`.
        prediction: the name of a class; where the data only number them, its number in GLUE's order.
    """
    if task == "stsb":
        return f"{min(max(float(prediction), 0.0), 5.0):.3f}"
    names = TASKS[task].classes
    if task in ("mnli", "mnli_mm", "qnli", "rte"):
        return names[int(prediction)] if str(prediction).isdecimal() else prediction
    return prediction if str(prediction).isdecimal() else names.index(prediction)


def check_format(predict_format: str, spec: TaskSpec, label_names: Sequence[str]) -> None:
    """Whether predictions of a task can be written in a format.

    Raises:
        ArgumentsError: it is unknown, or for other tasks or classes.
    """
    if predict_format not in FORMATS:
        raise ArgumentsError(f"predict_format must be one of {', '.join(FORMATS)}; received {predict_format!r}.")
    if predict_format == "squad" and spec.kind != "question_answering":
        raise ArgumentsError(f"predict_format squad is for question answering; {spec.name} is a {spec.kind} task.")
    if predict_format == "glue":
        task = glue_task(spec.name)
        if spec.kind != TASKS[task].kind:
            raise ArgumentsError(f"predict_format glue: {task} is a {TASKS[task].kind} task, and this one {spec.kind}.")
        classes = TASKS[task].classes or ()
        known = {*classes, *map(str, range(len(classes)))}
        if spec.kind == "classification" and (other := [name for name in label_names if name not in known]):
            raise ArgumentsError(
                f"predict_format glue: the classes of {task} are {', '.join(classes)}, or their numbers from 0; this task "
                f"has {', '.join(other):.200}."
            )


class PredictionFile(contextlib.ExitStack):
    """Predictions, written a chunk at a time to a file that appears whole, at the end of the context, or not at all.

    Args:
        path: the file; a folder for `glue`.
        predict_format: see `hf_tlm.runs.finetuning.predict`.

    Raises:
        ArgumentsError: see `check_format`; the file is a folder.
    """

    def __init__(self, path: Path, predict_format: str, spec: TaskSpec, label_names: Sequence[str] = ()):
        super().__init__()
        check_format(predict_format, spec, label_names)
        self.task = glue_task(spec.name) if predict_format == "glue" else None
        self.path = path / GLUE_FILES[self.task] if self.task else path
        if self.path.is_dir():
            raise ArgumentsError(f"Predictions are a file, and {self.path} is a folder. Give another --predict_output.")
        self.spec, self.format, self.written = spec, predict_format, 0

    def __enter__(self) -> PredictionFile:
        super().__enter__()
        self._stream = self.enter_context(atomic_file(self.path))
        if self.task:
            self._write("index\tprediction\n")
        if self.format == "squad":
            odds = self.path.with_name(f"{self.path.stem}_null_odds.json")
            self._objects = [
                self.enter_context(_json_object(stream)) for stream in (self._stream, self.enter_context(atomic_file(odds)))
            ]
        return self

    def add(self, rows: Dataset, predictions: Sequence[Mapping[str, Any]]) -> None:
        """The next rows."""
        if self.task:
            lines = (f"{self.written + i}\t{glue_value(self.task, p['prediction'])}\n" for i, p in enumerate(predictions))
            self._write("".join(lines))
        elif self.format == "squad":
            answers, odds = self._objects
            for identifier, found in zip(rows["id"], predictions, strict=True):
                answers(identifier, found["prediction"])
                odds(identifier, found.get("null_odds", 0.0))
        else:
            self._write(predictions_jsonl(self.spec.kind, (), rows, predictions))
        self.written += len(predictions)

    def _write(self, text: str) -> None:
        self._stream.write(text.encode("utf-8"))


@contextlib.contextmanager
def _json_object(stream: BinaryIO) -> Iterator[Callable[[str, Any], None]]:
    """What writes the next entry of a JSON object."""
    before = "{"

    def add(name: str, value: Any) -> None:
        nonlocal before
        stream.write(f"{before}{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}".encode())
        before = ",\n"

    yield add
    stream.write(b"}\n" if before != "{" else b"{}\n")
