"""The settings of a run with DeepSpeed, which is no dependency: nothing here imports it before a run uses it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainingArguments

from hf_tlm.training.errors import ArgumentsError

# Those that treat every number alike. Others look at whole tensors, and ZeRO hands them flat pieces of many.
ELEMENTWISE = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")


def is_launched() -> bool:
    """Whether `accelerate launch` started this process for DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def backend() -> str | None:
    """Name the backend that joins DeepSpeed's processes on a machine without accelerator, else None.

    Left to itself accelerate joins them on accelerators only, and every process would think that it is alone.
    """
    return "gloo" if "LOCAL_RANK" in os.environ and not torch.accelerator.is_available() else None


def check_deepspeed(args: TrainingArguments) -> None:
    """Check that a run with these options would use DeepSpeed, and compute with it what DDP computes.

    Raises:
        ArgumentsError: options of a run with which DeepSpeed would not be used, or would not compute what DDP computes.
    """
    if args.deepspeed:
        raise ArgumentsError(
            f"DeepSpeed's settings are accelerate's; received deepspeed {args.deepspeed!r}. Leave it out, and start with "
            "accelerate launch --config_file recipes/configs/accelerate/zero2.yaml."
        )
    if not is_launched():
        return
    if args.use_cpu:
        raise ArgumentsError(
            "With use_cpu accelerate would train with DDP instead of DeepSpeed. Leave use_cpu out: where there is no "
            "accelerator DeepSpeed uses the CPU by itself."
        )
    if args.optim not in ELEMENTWISE:
        raise ArgumentsError(
            f"DeepSpeed gives an optimizer flat pieces of many tensors, with which optim {args.optim} would not compute "
            f"what it computes with the tensors. Use one of {', '.join(ELEMENTWISE)}, or DDP."
        )


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check that DeepSpeed's settings leave to the run what is the run's.

    Args:
        settings: DeepSpeed's, as accelerate made them of its config.

    Raises:
        ArgumentsError: they shard weights, move the optimizer, or decide what the run's options decide.
    """
    zero = settings["zero_optimization"]
    wrong = [f"no section {name}: it is the run's to make" for name in ("optimizer", "scheduler") if name in settings]
    wrong += [
        f"{name} auto, not {settings.get(name)}: the run's options say it"
        for name in ("gradient_accumulation_steps", "gradient_clipping")
        if settings.get(name) != "auto"
    ]
    if zero["stage"] not in (1, 2):
        wrong.append(f"zero_stage 1 or 2, not {zero['stage']}: to shard the weights too, use fsdp.yaml")
    for name in ("offload_optimizer", "offload_param"):
        device = zero.get(name, {}).get("device", "none")
        if device != "none":
            wrong.append(f"{name}_device none, not {device}")
    if wrong:
        raise ArgumentsError(
            f"A run with DeepSpeed needs {'; '.join(wrong)}. Change accelerate's config, or take "
            "recipes/configs/accelerate/zero2.yaml."
        )


def renew_deepspeed(args: TrainingArguments) -> None:
    """Make DeepSpeed's settings anew from `args`.

    The first trainer of a process fills its batch size and accumulation into the settings, for all trainers of the process,
    and accelerate refuses to take others. Stages differ in them.
    """
    from accelerate.state import AcceleratorState
    from accelerate.utils import DeepSpeedPlugin

    AcceleratorState._reset_state()
    args.deepspeed_plugin = DeepSpeedPlugin()
    args.deepspeed_plugin.set_mixed_precision(args.mixed_precision)
    args.deepspeed_plugin.set_deepspeed_weakref()
