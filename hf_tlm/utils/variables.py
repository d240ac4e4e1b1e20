"""Environment variables that recipes and their libraries read, and would fail at odd values of late, each in its way."""

from __future__ import annotations

import os
from typing import Any

from hf_tlm.errors import HfTlmError

NUMBERS = {"RANK": 0, "LOCAL_RANK": -1, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "NUMBA_NUM_THREADS": 1}
FLAGS = ("ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE")
YES_OR_NO = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
CHOICES = {"ACCELERATE_MIXED_PRECISION": ("no", "fp16", "bf16", "fp8"), **dict.fromkeys(FLAGS, YES_OR_NO)}


def uses_fsdp(args: Any) -> bool:
    """Whether a run with these arguments of the Trainer shards its model: they say so, or accelerate's config does."""
    return bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true"


def check_variables() -> None:
    """Raise an HfTlmError for a number or a choice that is no value of its variable."""
    for name, least in NUMBERS.items():
        value = os.environ.get(name)
        if value is not None and not (value.removeprefix("-").isdecimal() and int(value) >= least):
            raise _refused(name, value, f"a whole number from {least}")
    for name, choices in CHOICES.items():
        value = os.environ.get(name)
        if value is not None and value.lower() not in choices:
            raise _refused(name, value, f"one of {', '.join(choices)}")
    name = "ACCELERATE_DYNAMO_BACKEND"
    if (value := os.environ.get(name)) is not None:
        from accelerate.utils import DynamoBackend  # Seconds to import; who sets the variable will need it anyway.

        if value.upper() not in DynamoBackend.list():
            raise _refused(name, value, f"one of {', '.join(DynamoBackend.list())}")


def _refused(name: str, value: str, expected: str) -> HfTlmError:
    return HfTlmError(f"The environment variable {name}: expected {expected}; received {value!r:.60}. Set another or none.")
