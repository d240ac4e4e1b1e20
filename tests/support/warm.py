"""Start processes quickly, by forking a server that has imported everything heavy; a new Python takes seven seconds.

A process runs a recipe, or calls a function, in the repository root like a user's, and shares nothing with the process of
the tests. Its environment is the one in which the server was started, before the first test. Of the variables that a test
sets, only those in `VARIABLES` reach it, with the values that libraries derive from them, whether the fixture `hub` is
active or not, and those passed to `call` as `environment`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import multiprocessing
import multiprocessing.connection
import os
import resource
import runpy
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch

from support.loopback import VARIABLES, constants

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Outcome:
    """The result of a process.

    status: None after a timeout. seconds: CPU time, without the preloaded imports.
    """

    status: int | None
    stdout: str
    stderr: str
    seconds: float = 0.0


@functools.cache
def server():
    """Return the context whose processes are forked from a server that has imported `support.preload`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.preload"])
    # The server of Python 3.11 does not inherit sys.path, and silently skips modules that it cannot import.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [before])])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def recipe(path: str | Path, arguments: Sequence[Any], **options: Any) -> Outcome:
    """Run a file with a command line; options: those of `call`."""
    return call(run_file, str(path), [str(argument) for argument in arguments], **options)


def command(arguments: Sequence[Any], **options: Any) -> Outcome:
    """Run `hf-tlm` with these arguments; options: those of `call`."""
    return call(_command, [str(argument) for argument in arguments], **options)


def program(text: str, arguments: Sequence[Any], **options: Any) -> Outcome:
    """Run a program text with a command line, as `python -c` does; options: those of `call`."""
    return call(run_program, text, [str(argument) for argument in arguments], **options)


def call(
    function: Callable,
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
    processes: int = 1,
    folder: str | Path = ROOT,
    limit: float = 60,
) -> Outcome:
    """Call a function in a new process, or in several joined by torch.distributed, and return the outcome.

    Args:
        environment: further variables, beside those that reach it anyway; see the module's docstring.
        limit: seconds after which it counts as hanging and is killed.
    """
    with tempfile.TemporaryDirectory() as kept:
        files = [Path(kept, name) for name in ("out", "err", "spent")]
        child = functools.partial(_child, function, arguments, dict(environment or {}), str(folder), *map(str, files))
        started = start(child, processes)
        status = ended(started, limit)
        out, err, spent = (file.read_text("utf-8", "replace") if file.exists() else "" for file in files)
    return Outcome(status, out, err, sum(map(float, spent.split())))


def start(target: Callable[[], None], processes: int) -> list:
    """Start processes that call `target`; if several, with the environment that torchrun sets for torch.distributed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    of_hub = {name: os.environ.get(name) for name in VARIABLES}
    started = [server().Process(target=_joined, args=(target, rank, processes, port, of_hub)) for rank in range(processes)]
    for process in started:
        process.start()
    return started


def ended(started: list, limit: float) -> int | None:
    """Wait for processes, and kill the others when one fails.

    Returns 0, the status of the first that failed, or None after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while any(process.is_alive() for process in started):
        multiprocessing.connection.wait([p.sentinel for p in started if p.is_alive()], max(0, deadline - time.monotonic()))
        failed = next((process.exitcode for process in started if process.exitcode), None)
        if failed is not None or time.monotonic() >= deadline:
            for process in started:
                process.kill()
                process.join()
            return failed
    return next((process.exitcode for process in started if process.exitcode), 0)


def take_over(variables: Mapping[str, str | None]) -> None:
    """Set the `VARIABLES` of the tests' process, None for unset ones, and what libraries have read from them.

    The server may have been started while the fixture `hub` was active, or before.
    """
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for name, value in constants(Path(os.environ["HF_HOME"]), os.environ.get("HF_HUB_OFFLINE") != "0").items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)


def _joined(target: Callable[[], None], rank: int, processes: int, port: int, of_hub: Mapping[str, str | None]) -> None:
    gc.freeze()  # Else a Trainer's garbage collection would copy the memory that the child shares with the server.
    torch.set_num_threads(1)
    take_over(of_hub)
    if processes > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
    target()


def _child(
    function: Callable, arguments: tuple, environment: dict[str, str], folder: str, out: str, err: str, spent: str
) -> None:
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)
    os.environ.update(environment)
    os.chdir(folder)
    status = 0
    try:
        function(*arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    with open(spent, "a") as file:
        file.write(f"{sum(usage.ru_utime + usage.ru_stime for usage in used)}\n")
    sys.exit(status)  # A normal exit releases named locks of the system.


def run_file(path: str, arguments: list[str]) -> None:
    """Run a file in this process as Python runs a script."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")


def run_program(text: str, arguments: list[str]) -> None:
    """Run a program in this process as `python -c` does."""
    sys.argv = ["-c", *arguments]
    exec(text, {"__name__": "__main__"})


def _command(arguments: list[str]) -> None:
    from hf_tlm import cli

    sys.argv = ["hf-tlm", *arguments]
    cli.main()
