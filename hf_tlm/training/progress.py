"""The progress bar of a training, with a name, and its logs as short lines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_callback import ProgressCallback

# What the summary and `trainer_state.json` say: a line of a log is for whoever looks on.
_SILENT = re.compile(
    r"epoch|total_flos|tokens|real_tokens|(measured_)?flops|flops_ratio|seconds|.*_runtime|.*_(samples|steps)_per_second"
)
_STAGE = re.compile(r"seed-(\d+)(?:/stage(\d))?$")


class ProgressLines(ProgressCallback):
    """The Trainer's bar; the only changes: it has a name, and logs are short lines above it.

    Args:
        name: before the bar; see `bar_name`.
    """

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(self.name)
            self.training_bar.write(f"{self.name}: {opening(kwargs.get('model'), args)}, {state.max_steps:,} steps")

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        first = self.prediction_bar is None
        super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)
        if first and self.prediction_bar is not None:
            self.prediction_bar.set_description("Evaluating" if self.training_bar is not None else "Predicting")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and self.training_bar is not None and (line := log_line(logs or {})):
            self.training_bar.write(f"step {state.global_step:,}  {line}")


def opening(model: Any, args: TrainingArguments) -> str:
    """What is trained, on what, in which precision."""
    config, count = getattr(model, "config", None), getattr(model, "num_parameters", None)
    name = getattr(config, "model_type", None) or type(model).__name__
    size = f" of {count():,} parameters" if callable(count) else ""
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    processes = f" x {args.world_size}" if args.world_size > 1 else ""
    return f"{name}{size} on {args.device.type}{processes} in {precision}"


def log_line(logs: Mapping[str, Any]) -> str:
    """The losses, scores and rates of a log, in four digits; empty where it has none."""
    shown = ((name, value) for name, value in logs.items() if not _SILENT.fullmatch(name))
    return "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown)


def bar_name(output_dir: str | os.PathLike) -> str:
    """What is trained in a folder: the seed and stage of a run that has them."""
    found = _STAGE.search(os.fspath(output_dir).replace(os.sep, "/").rstrip("/"))
    if found is None:
        return "Training"
    return f"Seed {found[1]}" + (f", stage {found[2]}" if found[2] else "")
