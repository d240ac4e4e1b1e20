"""The process of a command: signals that end it, what it prints, the memory that it frees, and environment variables."""

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

# Environment variables at whose odd values libraries would fail late, each in its way: the least of a number, and choices.
NUMBERS = {"RANK": 0, "LOCAL_RANK": -1, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "NUMBA_NUM_THREADS": 1}
FLAGS = ("ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE")
# Those from which accelerate takes how many processes there are.
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
YES_OR_NO = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
CHOICES = {"ACCELERATE_MIXED_PRECISION": ("no", "fp16", "bf16", "fp8"), **dict.fromkeys(FLAGS, YES_OR_NO)}
# Seconds after which a signal that was lost is sent again.
_AGAIN = 0.05
# mallopt's parameters of malloc.h: how much free memory at the end of the heap, and how large a block, goes back at once.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Bytes of the largest block that is kept. Attention weights of long texts, in each batch of another length, would leave
# holes that no later ones fit: with 16 texts of 800 to 2,048 tokens 10 GB after forty steps, and ever more; 4 GB so.
_LARGEST_KEPT = 2**27


class Terminated(SystemExit):
    """SIGTERM ends the process with status 143, without a traceback. `hf_tlm.config.run` prints the message."""

    code: int

    def __init__(self, message: str):
        super().__init__(128 + signal.SIGTERM)
        self.message = message

    def __str__(self) -> str:
        return self.message


@contextlib.contextmanager
def on_sigterm(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` when SIGTERM comes within the block; afterwards the previous handler is back.

    Only the process that enters the block is concerned: SIGTERM ends processes forked in it, as pools expect. In other
    threads than the main one Python cannot set a handler, and the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def handle(number, frame):
        if os.getpid() == owner:
            handler()
        else:
            end_at_once()

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        # None stands for a handler that was not set from Python and cannot be set again from it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


@contextlib.contextmanager
def never_lost() -> Iterator[None]:
    """Send Ctrl-C and SIGTERM again within the block where what they raised was dropped, as Python drops it in `__del__`."""
    numbers = {Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
    owner, before = os.getpid(), sys.unraisablehook

    def look(dropped: sys.UnraisableHookArgs) -> None:
        number = numbers.get(dropped.exc_type) if os.getpid() == owner else None
        if number is None:
            before(dropped)
        else:  # Later, and from a thread: now it would be dropped as well.
            timer = threading.Timer(_AGAIN, os.kill, (owner, number))
            timer.daemon = True
            timer.start()

    sys.unraisablehook = look
    try:
        yield
    finally:
        sys.unraisablehook = before


def end_at_once() -> None:
    """What SIGTERM does to a process that has no handler for it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def ignore_sigterm(worker: int) -> None:
    """For a DataLoader's workers: clusters signal every process, and training needs its workers up to its last step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _kill_workers() -> None:
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


# At its end Python ends by SIGTERM what workers it has left, and waits for them: for ever, where they ignore it. This comes
# before, and after pools have ended theirs: killed, one may hold a lock that a pool waits for. A forked process kills none.
multiprocessing.util.Finalize(None, _kill_workers, exitpriority=0)


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Names and texts out of files, in what is printed and logged within the block, command no terminal."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The command was started with it closed.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    logs = logging.lastResort
    if logs is not None:
        logging.lastResort = _AboveBars()
        logging.lastResort.setLevel(logs.level)
    stream: Any = sys.stdout
    write = stream.write
    stream.write = lambda text: write(for_terminal(text))
    try:
        yield
        stream.flush()
    finally:
        stream.write = write
        logging.lastResort = logs


class _AboveBars(logging.StreamHandler):
    """A line of its own for what is logged: it would begin behind a progress bar, and the bar be drawn again behind it."""

    def format(self, record: logging.LogRecord) -> str:
        return for_terminal(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)  # What it is now, where somebody captures it.
        bars = sys.modules.get("tqdm")  # Where nobody has imported it, there are none.
        with bars.tqdm.external_write_mode(file=sys.stderr) if bars else contextlib.nullcontext():
            super().emit(record)


def nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has ended; what is printed from then on is dropped."""
    try:
        output = sys.stdout.fileno()
        poll = select.poll()
        poll.register(output, 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            return False
    except (OSError, ValueError):  # Of a stream that is no file.
        return False
    drop_output()
    return True


def drop_output() -> None:
    """Drop what is printed, as Python would fail once more when it closes its output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, but for the largest blocks. glibc only; elsewhere, nothing.

    A step on a CPU frees its activations and gradients, and the next one asks for as much. By default glibc gives all of
    it back to the system in between, which then hands out every page anew, filled with zeros: some 6 % of a step of a
    BERT of 4 layers x 256.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # Older versions accept no more than 32 MiB. Without either, the threshold must go on growing by itself, which the
        # other one would end.
        if libc.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) or libc.mallopt(_MMAP_THRESHOLD, 2**25):
            libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Give the system what `keep_freed_memory` has kept. glibc only; elsewhere, nothing."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


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
