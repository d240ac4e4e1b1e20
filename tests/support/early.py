"""The server of `support.warm`, forked from the process of the tests: a new one imports the same again for seven seconds.

It is forked before a test is collected, when what all tests need has been imported, and waits to be wanted. What pytest has
changed for its own process by then is as in a new one.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import logging
import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from multiprocessing import forkserver, resource_tracker
from typing import Any

_waiting: tuple[socket.socket, int] | None = None


def fork() -> None:
    """Fork a process that waits for `become`; it ends with this one."""
    global _waiting
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        _waiting = ours, pid
        return
    try:
        _as_new(theirs.fileno())
        _serve(theirs)
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # Nothing of pytest, in whose stack this is.


def become(path: bytes, arguments: list[Any], descriptors: list[int]) -> int:
    """Let the waiting process run what `multiprocessing.util.spawnv_passfds` would start Python for; its number."""
    global _waiting
    assert _waiting is not None
    (ours, pid), _waiting = _waiting, None
    given = repr((arguments[-1], os.environ.get("PYTHONPATH"), descriptors))
    # Its standard output is what this process has now, while pytest captures it.
    socket.send_fds(ours, [given.encode()], [1, 2, *descriptors])
    ours.close()
    return pid


def is_waiting() -> bool:
    return _waiting is not None


def _serve(theirs: socket.socket) -> None:
    given, received, _, _ = socket.recv_fds(theirs, 1 << 20, 64)
    if not given:
        return  # Not wanted.
    theirs.close()
    program, path, descriptors = eval(given)
    os.environ["PYTHONPATH"] = path
    # By way of numbers that are none of those wanted.
    above = [fcntl.fcntl(one, fcntl.F_DUPFD, 1000) for one in received]
    for one in received:
        os.close(one)
    for one, number in zip(above, (1, 2, *descriptors), strict=True):
        os.dup2(one, number)
        os.close(one)
    exec(program, {})


def _as_new(kept: int) -> None:
    """What a new process has: no descriptors of others, standard streams, and none of pytest's hooks."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = sys.stdout
    sys.stdin = sys.__stdin__ = open(os.devnull)
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    for reference in logging._handlerList:
        if type(handler := reference()) is logging.StreamHandler:
            handler.stream = sys.stdout if handler.stream is before else sys.stderr
            if "flush" in vars(handler):
                handler.flush = handler.stream.flush
    # That these are always shown is pytest's.
    shown = (DeprecationWarning, PendingDeprecationWarning)
    warnings.filters[:] = [one for one in warnings.filters if one[0] != "always" or one[2] not in shown]
    warnings._filters_mutated()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_pytest")]
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    forkserver._forkserver.__init__()
    resource_tracker._resource_tracker.__init__()
    gc.freeze()
