"""Environment variables that recipes and their libraries read, and would fail at odd values of late, each in its way."""

from __future__ import annotations

import logging
import os
from typing import Any

from hf_tlm.errors import HfTlmError

logger = logging.getLogger(__name__)

NUMBERS = {"RANK": 0, "LOCAL_RANK": -1, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "NUMBA_NUM_THREADS": 1}
FLAGS = ("ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE")
# Those from which accelerate takes how many processes there are.
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
YES_OR_NO = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
CHOICES = {"ACCELERATE_MIXED_PRECISION": ("no", "fp16", "bf16", "fp8"), **dict.fromkeys(FLAGS, YES_OR_NO)}


def uses_fsdp(args: Any) -> bool:
    """Whether a run with these arguments of the Trainer shards its model: they say so, or accelerate's config does."""
    return bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true"


def check_variables() -> None:
    """Raise an HfTlmError for a number or a choice that is no value of its variable; warn of one process that is alone."""
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
    # With --num_processes 2 but without --multi_gpu or settings that say so, `accelerate launch` tells the one process that
    # it starts where others would find it, and not how many there are.
    if {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys() and not os.environ.keys() & set(SIZES):
        logger.warning(
            "accelerate launch was asked for several processes and has started one, which works alone. Start them with "
            "--num_processes of hf-tlm, or with --config_file recipes/configs/accelerate/cpu_2.yaml of accelerate launch "
            "(on GPUs ddp.yaml)."
        )


def _refused(name: str, value: str, expected: str) -> HfTlmError:
    return HfTlmError(f"The environment variable {name}: expected {expected}; received {value!r:.60}. Set another or none.")
