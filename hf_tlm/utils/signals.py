"""SIGTERM, by which schedulers and clusters ask a process to end, and Ctrl-C."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

# Seconds after which a signal that was lost is sent again.
_AGAIN = 0.05


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
