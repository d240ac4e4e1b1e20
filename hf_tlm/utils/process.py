"""Settings of a command's process: termination signals, output, freed memory, and environment variables."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing.util
import os
import platform
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.shown import for_terminal

logger = logging.getLogger(__name__)

# Environment variables whose wrong values would make libraries fail late: the least value of a number, and choices.
MINIMA = {"RANK": 0, "LOCAL_RANK": -1, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "NUMBA_NUM_THREADS": 1}
FLAGS = ("ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE")
# Variables from which accelerate reads the number of processes.
SIZE_VARIABLES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
YES_OR_NO = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
CHOICES = {"ACCELERATE_MIXED_PRECISION": ("no", "fp16", "bf16", "fp8"), **dict.fromkeys(FLAGS, YES_OR_NO)}
# Seconds after which a lost signal is sent again.
_RESEND_SECONDS = 0.05
# Parameters of mallopt (malloc.h): the size of free memory at the end of the heap, and of a block, from which memory is
# returned to the system at once.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Size in bytes of the largest block that is kept. Larger ones, such as attention weights of long texts whose length changes
# with each batch, would fragment the heap: 16 texts of 800 to 2,048 tokens took 10 GB after forty steps, and kept growing;
# with this limit 4 GB.
_LARGEST_KEPT = 2**27


class Terminated(SystemExit):
    """Raised on SIGTERM: ends the process with status 143, without a traceback. `hf_tlm.config.run` prints the message."""

    code: int

    def __init__(self, message: str):
        super().__init__(128 + signal.SIGTERM)
        self.message = message

    def __str__(self) -> str:
        return self.message


@contextlib.contextmanager
def on_sigterm(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` when SIGTERM arrives during the block; restore the previous handler afterwards.

    Only the process that enters the block uses the handler: SIGTERM ends processes forked in it, as pools expect. In threads
    other than the main one Python cannot set a handler, and the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def handle(signal_number, frame):
        if os.getpid() == owner:
            handler()
        else:
            end_at_once()

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        # None means a handler that was not set from Python, and that Python cannot set again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


@contextlib.contextmanager
def resend_lost_signals() -> Iterator[None]:
    """Send Ctrl-C and SIGTERM again if Python drops their exception during the block, as it does in `__del__`."""
    signals = {Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
    owner, previous_hook = os.getpid(), sys.unraisablehook

    def resend(dropped: sys.UnraisableHookArgs) -> None:
        signal_number = signals.get(dropped.exc_type) if os.getpid() == owner else None
        if signal_number is None:
            previous_hook(dropped)
        else:  # Send it later, from a thread: raised here, it would be dropped again.
            timer = threading.Timer(_RESEND_SECONDS, os.kill, (owner, signal_number))
            timer.daemon = True
            timer.start()

    sys.unraisablehook = resend
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


def end_at_once() -> None:
    """End this process as SIGTERM ends a process without a handler."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def ignore_sigterm(worker: int) -> None:
    """Ignore SIGTERM in a DataLoader's worker: clusters signal every process, but training needs its workers to the end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _kill_workers() -> None:
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


# When Python exits, it sends SIGTERM to remaining workers and waits for them: for ever, if they ignore it. This finalizer
# runs before that, and after pools have ended their workers, because a killed worker may hold a lock that a pool waits for.
# A forked process kills no workers.
multiprocessing.util.Finalize(None, _kill_workers, exitpriority=0)


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Escape control characters in all output and logs of the block, so that texts from files cannot control a terminal."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The command was started with this stream closed.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    last_resort = logging.lastResort
    if last_resort is not None:
        logging.lastResort = _AboveBars()
        logging.lastResort.setLevel(last_resort.level)
    stream: Any = sys.stdout
    write = stream.write
    stream.write = lambda text: write(for_terminal(text))
    try:
        yield
        stream.flush()
    finally:
        stream.write = write
        logging.lastResort = last_resort


class _AboveBars(logging.StreamHandler):
    """A log handler that writes records above progress bars; otherwise they would begin behind a bar, on its line."""

    def format(self, record: logging.LogRecord) -> str:
        return for_terminal(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)  # The current stream, which may have been replaced to capture output.
        bars = sys.modules.get("tqdm")  # There are no bars if tqdm is not imported.
        with bars.tqdm.external_write_mode(file=sys.stderr) if bars else contextlib.nullcontext():
            super().emit(record)


def nobody_reads() -> bool:
    """Return whether standard output is a pipe whose reader has ended; further output is then dropped."""
    try:
        output = sys.stdout.fileno()
        poll = select.poll()
        poll.register(output, 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            return False
    except (OSError, ValueError):  # The stream is not a file.
        return False
    drop_output()
    return True


def drop_output() -> None:
    """Redirect standard output to /dev/null, because Python would fail again when it closes the broken pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def keep_freed_memory() -> None:
    """Make glibc keep the memory that this process frees, except the largest blocks; no effect without glibc.

    A step on a CPU frees its activations and gradients, and the next step allocates as much again. By default glibc returns
    the memory to the system in between, which then hands out every page again, filled with zeros: some 6 % of the time of a
    step of a BERT with 4 layers of size 256.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # Older versions accept at most 32 MiB. If neither is accepted, the trim threshold is not set, because setting it
        # would stop the automatic growth of the mmap threshold.
        if libc.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) or libc.mallopt(_MMAP_THRESHOLD, 2**25):
            libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Return the memory that `keep_freed_memory` has kept to the system; no effect without glibc."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def is_first_process() -> bool:
    """Return whether this process is the first of its job, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def uses_fsdp(args: Any) -> bool:
    """Return whether a run shards its model with FSDP, by these Trainer arguments or by accelerate's config."""
    return bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true"


def check_variables() -> None:
    """Check environment variables, and warn if accelerate was asked for several processes but started one.

    Raises:
        HfTlmError: a number or a choice is not a valid value of its variable.
    """
    for name, minimum in MINIMA.items():
        value = os.environ.get(name)
        if value is not None and not (value.removeprefix("-").isdecimal() and int(value) >= minimum):
            raise _variable_error(name, value, f"a whole number from {minimum}")
    for name, choices in CHOICES.items():
        value = os.environ.get(name)
        if value is not None and value.lower() not in choices:
            raise _variable_error(name, value, f"one of {', '.join(choices)}")
    name = "ACCELERATE_DYNAMO_BACKEND"
    if (value := os.environ.get(name)) is not None:
        from accelerate.utils import DynamoBackend  # Takes seconds to import; a run with this variable needs it anyway.

        if value.upper() not in DynamoBackend.list():
            raise _variable_error(name, value, f"one of {', '.join(DynamoBackend.list())}")
    # With --num_processes 2 but without --multi_gpu or a config that says so, `accelerate launch` starts a single process
    # and sets MASTER_ADDR for it, but not the number of processes.
    if {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys() and not os.environ.keys() & set(SIZE_VARIABLES):
        logger.warning(
            "accelerate launch should start several processes, but has started only one. Start them with --num_processes of "
            "hf-tlm, or with --config_file recipes/configs/accelerate/cpu_2.yaml of accelerate launch (on GPUs ddp.yaml)."
        )


def _variable_error(name: str, value: str, expected: str) -> HfTlmError:
    return HfTlmError(f"The environment variable {name}: expected {expected}; received {value!r:.60}. Change or unset it.")
