"""What a fine-tuned folder says of itself, so that predictions need nothing else: `finetuned.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hf_tlm.evaluation.finetuning.arguments import FinetuneArguments
from hf_tlm.models import ModelError
from hf_tlm.tasks import Task, TaskSpec

SAVED_FILE = "finetuned.json"
# Of the arguments, what predicting depends on.
PREDICTING = ("max_length", "doc_stride", "max_query_length", "max_answer_length", "n_best", "null_threshold", "crf")


def saved_settings(task: Task, args: FinetuneArguments) -> dict[str, Any]:
    """The task's columns and classes, and the options of predicting, as JSON values."""
    spec = {name: value for name, value in asdict(task.spec).items() if name not in ("path", "data_files")}
    return {
        "task": spec,
        "label_names": list(task.label_names),
        "arguments": {name: getattr(args, name) for name in PREDICTING},
    }


def read_saved(folder: Path) -> tuple[TaskSpec, tuple[str, ...], dict[str, Any]]:
    """(spec of the task, names of its labels, arguments of predicting) of a fine-tuned folder.

    Raises:
        ModelError: it is none.
    """
    try:
        saved = json.loads((folder / SAVED_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"{folder} holds no fine-tuned model: cannot read {SAVED_FILE} ({error.strerror}). Give the --output_dir of a "
            "finished run of recipes/finetune.py, or what it pushed to the Hub."
        ) from error
    spec, known = saved["task"], {field.name for field in fields(TaskSpec)}
    values = {name: _tuples(value) for name, value in spec.items() if name in known}
    return TaskSpec(path="", **values), tuple(saved["label_names"]), saved["arguments"]


def _tuples(value: Any) -> Any:
    """JSON has lists for tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
