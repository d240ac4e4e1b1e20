"""What a run leaves behind: predictions and a summary for people, and `finetuned.json`, by which a folder predicts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.special import softmax

from hf_tlm.hub.commit import Push
from hf_tlm.models import ModelError
from hf_tlm.tasks import Task, TaskSpec
from hf_tlm.utils.json_files import listed, mapped, maybe, read_fields, real, record, truth, whole, words
from hf_tlm.utils.shown import shown_argument, shown_values

SAVED_FILE = "finetuned.json"
# A stranger may have written the file: of the task what reading a file of its kind takes, and no place of data.
_NAME = words(1000)
_NAMES = listed(_NAME, 1000)
_TASK = {
    **{"name": _NAME, "kind": _NAME, "text_columns": _NAMES, "other_text_columns": listed(_NAMES, 100)},
    **{"label_column": _NAME, "id_column": maybe(_NAME), "metric": _NAME, "further_metrics": _NAMES},
    **{"classes": listed(_NAME, 100_000), "columns": mapped(_NAME, 100)},
}
# Of the arguments, what predicting depends on.
_ARGUMENTS = {
    **{"max_length": whole(1, 1 << 15), "doc_stride": whole(0, 1 << 15), "max_query_length": whole(1, 1 << 15)},
    **{"max_answer_length": whole(1, 1 << 15), "n_best": whole(1, 1000), "null_threshold": maybe(real(-math.inf, math.inf))},
    **{"option_apart": truth, "crf": truth},
}
PREDICTING = tuple(_ARGUMENTS)
_SAVED = {
    "task": record(_TASK, optional=sorted({*_TASK} - {"name"})),
    "label_names": listed(_NAME, 100_000),
    "arguments": record(_ARGUMENTS, optional=PREDICTING),
}
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers")
# Options whose values are secrets.
TOKENS = ("--hub_token", "--hub-token")


def saved_settings(task: Task, arguments: Mapping[str, Any]) -> str:
    """The text of the file: the task's columns and classes, and those of the arguments that are of `PREDICTING`."""
    spec = {name: value for name, value in asdict(task.spec).items() if name not in ("path", "data_files")}
    predicting = {name: arguments[name] for name in PREDICTING if name in arguments}
    saved = {"task": spec, "label_names": list(task.label_names), "arguments": predicting}
    return json.dumps(saved, indent=2) + "\n"


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


def environment(*, use_cpu: bool = False) -> dict[str, str | int]:
    """Versions and hardware, but for a GPU that `use_cpu` leaves alone, as cards state them. No host names, no paths."""
    import torch

    from hf_tlm.version import __version__

    info: dict[str, str | int] = {"hf_tlm": __version__, **{name: version(name) for name in PACKAGES}}
    info["python"] = platform.python_version()
    info["processor"] = _processor()
    info["cpu_cores"] = os.cpu_count() or 0
    info["torch_threads"] = torch.get_num_threads()
    if torch.cuda.is_available() and not use_cpu:
        info["accelerator"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    info["processes"] = int(os.environ.get("WORLD_SIZE", "1"))
    return info


def _processor() -> str:
    """The CPU's model name; the architecture where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def started(details: Mapping[str, Any]) -> dict[str, Any]:
    """What results say of how a run was started and where it ran; paths without the folders of this machine."""
    sections = {name: shown_values(details[name]) for name in ("arguments", "model")}
    machine = environment(use_cpu=details["arguments"].get("use_cpu", False))
    return {**sections, "command": command_line(), "environment": machine}


def command_line() -> str:
    """The command of this process as a record of it shows it: without the folders of this machine, and without a token."""
    shown = Path(sys.argv[0]).name.split()  # `train_tlm.py`, or `hf-tlm train`.
    if shown and shown[0].endswith("kernel_launcher.py"):
        return shown[0]  # A notebook's, whose arguments are of its kernel: a file of its connection, another one each time.
    for before, argument in zip(sys.argv, sys.argv[1:], strict=False):
        name, equals, _ = argument.partition("=")
        if name in TOKENS and equals:
            argument = f"{name}=<hidden>"
        elif before in TOKENS:
            argument = "<hidden>"
        shown.append(shown_argument(argument))
    return shlex.join(shown)


def classified(logits: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """{"prediction": name of the class, "probabilities": {name: share}} of each row.

    Args:
        logits: float [N, C].
        names: of the classes.
    """
    return [
        {
            "prediction": names[int(row.argmax())],
            "probabilities": {name: round(float(share), 6) for name, share in zip(names, row, strict=True)},
        }
        for row in softmax(logits, axis=-1)
    ]


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
        lines.append(json.dumps({"id": row["id"], **known, **prediction}, ensure_ascii=False) + "\n")
    return "".join(lines)


def logged_scores(entry: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Losses and scores of a line of the log, without their prefix and what was measured by a clock."""
    names = [name for name in entry if name.startswith(prefix) and not name.endswith(("runtime", "per_second", "_time"))]
    return {name.removeprefix(prefix): entry[name] for name in names}


def cost_lines(cost: Mapping[str, float], each: str = "") -> list[str]:
    """What a run cost, for a person, from `Cost.to_dict`. each: what it is the cost of, such as " a seed"."""
    measured = f", {cost['measured_flops']:.3g} measured" if cost.get("measured_flops") else ""
    lines = [
        f"{'cost' + each:<13}{cost['steps']:,} steps, {cost['tokens']:,} tokens ({cost['real_tokens']:,} not padding), "
        f"{cost['flops']:.3g} FLOPs ({cost['flops_ratio']:.2g} of RoBERTa-Large){measured}, {cost['seconds']:.0f} s"
    ]
    if "energy_kwh" in cost:
        co2 = f", {cost['co2_kg']:.3g} kg of CO2" if "co2_kg" in cost else ""
        share = 100 * cost["estimated_kwh"] / (cost["energy_kwh"] or 1.0)
        lines.append(f"energy       {cost['energy_kwh']:.3g} kWh{each} ({share:.0f}% of it estimated){co2}")
    return lines


def published_lines(push: Push | None) -> list[str]:
    """Where a result was published, for a person; nothing if it was not."""
    if push is None:
        return []
    return [f"published    {push.url} " + (f"(commit {push.commit[:12]})" if push.commit else "(has this content already)")]
