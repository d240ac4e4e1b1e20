"""What a finished folder says of its task, so that predictions need nothing else: `finetuned.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_tlm.models import ModelError
from hf_tlm.tasks import Task, TaskSpec
from hf_tlm.utils.checked import listed, mapped, maybe, read_fields, real, record, truth, whole, words

SAVED_FILE = "finetuned.json"
# Of the arguments, what predicting depends on.
PREDICTING = tuple("max_length doc_stride max_query_length max_answer_length n_best null_threshold option_apart crf".split())


def saved_settings(task: Task, arguments: Mapping[str, Any]) -> str:
    """The text of the file: the task's columns and classes, and the options of predicting.

    Args:
        arguments: those of `PREDICTING` that the model was trained with, and others, which are left out.
    """
    spec = {name: value for name, value in asdict(task.spec).items() if name not in ("path", "data_files")}
    predicting = {name: arguments[name] for name in PREDICTING if name in arguments}
    saved = {"task": spec, "label_names": list(task.label_names), "arguments": predicting}
    return json.dumps(saved, indent=2) + "\n"


# A stranger may have written the file: of the task what reading a file of its kind takes, and no place of data.
_NAME = words(1000)
_NAMES = listed(_NAME, 1000)
_TASK = {
    **{"name": _NAME, "kind": _NAME, "text_columns": _NAMES, "other_text_columns": listed(_NAMES, 100)},
    **{"label_column": _NAME, "id_column": maybe(_NAME), "metric": _NAME, "further_metrics": _NAMES},
    **{"classes": listed(_NAME, 100_000), "columns": mapped(_NAME, 100)},
}
_ARGUMENTS = {
    **{"max_length": whole(1, 1 << 15), "doc_stride": whole(0, 1 << 15), "max_query_length": whole(1, 1 << 15)},
    **{"max_answer_length": whole(1, 1 << 15), "n_best": whole(1, 1000), "crf": truth},
    "option_apart": truth,
    "null_threshold": maybe(real(-math.inf, math.inf)),
}
_SAVED = {
    "task": record(_TASK, optional=sorted({*_TASK} - {"name"})),
    "label_names": listed(_NAME, 100_000),
    "arguments": record(_ARGUMENTS, optional=PREDICTING),
}


def read_saved(folder: Path) -> tuple[TaskSpec, tuple[str, ...], dict[str, Any]]:
    """(spec of the task, names of its labels, arguments of predicting) of a finished folder.

    Raises:
        ModelError: it is none, or its file is not what `saved_settings` gives.
        TaskError: see `TaskSpec`.
    """
    try:
        saved = read_fields(folder / SAVED_FILE, _SAVED, ModelError)
    except OSError as error:
        raise ModelError(f"{folder} does not say what was learned: cannot read {SAVED_FILE} ({error.strerror}).") from error
    return TaskSpec(path="", **saved["task"]), saved["label_names"], saved["arguments"]
