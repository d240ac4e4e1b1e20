"""What a command prints: plain text, though nobody may read it, as behind `| head`, or there may be nowhere to print to."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

from hf_tlm.utils.shown import for_terminal


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Names and texts out of files, in what is printed and logged within the block, command no terminal."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The command was started with it closed.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PlainFormatter())
    stream: Any = sys.stdout
    write = stream.write
    stream.write = lambda text: write(for_terminal(text))
    try:
        yield
        stream.flush()
    finally:
        stream.write = write


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return for_terminal(super().format(record))


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
