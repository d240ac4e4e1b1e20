"""What errors of torch mean that a user can mend: a GPU without memory left, a process of the job that is gone."""

from __future__ import annotations

import re
import sys

# What gloo and NCCL say where the process at the other end has gone.
_BROKEN_CONNECTION = re.compile(r"Connection (closed|reset) by peer|remote process exited|Broken pipe")


def gpu_problem(error: Exception) -> str | None:
    """What to do about a GPU whose memory is full, without a full stop; None for an error of another kind."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    said = re.split(r"(?<= is free)\.", str(error))[0].rstrip(".")  # Then come processes and advice of torch's own.
    return (
        f"{said}. Take fewer texts at a time (--per_device_train_batch_size, with --total_batch_size for those of a step; "
        "--per_device_eval_batch_size), shorter ones (--max_length) or a smaller model, or free the GPU of other processes"
    )


def process_problem(error: Exception) -> str | None:
    """What to do where another process of the same job was killed, without a full stop; None for another error."""
    distributed = sys.modules.get("torch.distributed")
    joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if not joined or not isinstance(error, RuntimeError) or not _BROKEN_CONNECTION.search(str(error)):
        return None  # A connection to a Hub that breaks is no RuntimeError.
    return "Another process of this job has ended: what it said is above, or it was killed"
