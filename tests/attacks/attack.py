"""Bad input given to a recipe or a function, in a process of its own, and what has to come of it.

Processes are forked from a server that has imported everything heavy: an attack takes a tenth of a second more than what
it does. A recipe runs from the repository root, as a user starts it.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
# Seconds within which bad input is refused: of the processor, as tests share cores, and until it counts as a hang.
SECONDS, LIMIT = 20, 60


@dataclass
class Outcome:
    """status: None after a hang. seconds: of the processor, without what was imported before."""

    status: int | None
    stdout: str
    stderr: str
    seconds: float = 0.0


@functools.cache
def _server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attacks.preload"])
    # The server of Python 3.11 does not take over sys.path, and passes over in silence what it cannot import.
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


def attack(recipe: str, *arguments: Any, environment: Mapping[str, str] | None = None, limit: float = LIMIT) -> Outcome:
    """Run `recipes/<recipe>.py` with a command line."""
    return _run(_recipe, (recipe, [str(argument) for argument in arguments]), environment, limit)


def call(function: Callable, *arguments: Any, environment: Mapping[str, str] | None = None) -> Outcome:
    """Call a function of a test module as a recipe is called: one line and a status for an error of ours."""
    return _run(_function, (function, arguments), environment, LIMIT)


def _run(target: Callable, arguments: tuple, environment: Mapping[str, str] | None, limit: float) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        out, err, spent = (Path(folder, name) for name in ("out", "err", "spent"))
        files = (str(out), str(err), str(spent))
        process = _server().Process(target=_child, args=(target, arguments, dict(environment or {}), *files))
        process.start()
        process.join(limit)
        status = process.exitcode
        if status is None:
            process.kill()
            process.join()
        read = [path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in (out, err)]
        seconds = float(spent.read_text()) if spent.exists() else 0.0
    return Outcome(status, *read, seconds)


def _child(target: Callable, arguments: tuple, environment: dict[str, str], out: str, err: str, spent: str) -> None:
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)
    os.environ.update(environment)
    os.chdir(ROOT)
    status = 0
    try:
        target(*arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    Path(spent).write_text(str(sum(usage.ru_utime + usage.ru_stime for usage in used)))
    os._exit(status)


def _recipe(name: str, arguments: list[str]) -> None:
    sys.argv = [f"recipes/{name}.py", *arguments]
    sys.path.insert(0, str(ROOT / "recipes"))
    runpy.run_path(f"recipes/{name}.py", run_name="__main__")


def _function(function: Callable, arguments: tuple) -> None:
    from hf_tlm.config import run

    run(lambda: function(*arguments))


def assert_refused(outcome: Outcome, *expected: str) -> None:
    """One clear message with status 1 or 2, which holds every text of `expected`; no traceback, no hang."""
    shown = f"status {outcome.status}\n{outcome.stdout[-2000:]}\n{outcome.stderr[-4000:]}"
    assert outcome.status is not None, f"It hangs: {shown}"
    assert outcome.status in (1, 2), shown
    assert "Traceback" not in outcome.stderr, shown
    assert outcome.seconds < SECONDS, f"It took {outcome.seconds:.1f} seconds. {shown}"
    message = outcome.stderr.rpartition("Error")[2]
    for text in expected:
        assert text in message, f"{text!r} is not in the message. {shown}"
    assert len(message) < 2000, f"The message has {len(message):,} characters. {shown}"


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its name: what an attack must leave as it was."""
    folder = Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
