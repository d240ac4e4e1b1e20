"""Run a recipe or a function on bad input in a separate process, and check how it ends."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support import warm
from support.warm import Outcome

# Bad input must be refused within SECONDS of processor time (tests share cores); after LIMIT seconds it counts as a hang.
SECONDS, LIMIT = 20, 60


def attack(recipe: str, *arguments: Any, environment: Mapping[str, str] | None = None, limit: float = LIMIT) -> Outcome:
    """Run `recipes/<recipe>.py` with the given arguments."""
    return warm.recipe(f"recipes/{recipe}.py", arguments, environment=environment, limit=limit)


def attack_often(recipe: str, lines: Sequence[Sequence[Any]]) -> list[Outcome]:
    """Run a recipe with one command line after another in one process: for input that is refused before any work
    begins.
    """
    lines = [[str(argument) for argument in line] for line in lines]
    outcome = warm.call(_run_lines, f"recipes/{recipe}.py", lines, limit=LIMIT + len(lines))
    assert outcome.status == 0, outcome.stderr[-4000:]
    return [Outcome(status, "", error) for status, error in json.loads(outcome.stdout.splitlines()[-1])]


def _run_lines(path: str, lines: list[list[str]]) -> None:
    """Run the lines and print a list of [status, standard error] as JSON on the last line."""
    results = []
    for line in lines:
        status: Any = 0
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            try:
                warm.run_file(path, line)
            except SystemExit as end:
                status = end.code
        results.append([status, stderr.getvalue()])
    print("\n" + json.dumps(results))


def call(function: Callable, *arguments: Any, environment: Mapping[str, str] | None = None) -> Outcome:
    """Call a function of a test module like a recipe: an error of the package becomes one line and a status."""
    return warm.call(_run_like_a_recipe, function, arguments, environment=environment, limit=LIMIT)


def _run_like_a_recipe(function: Callable, arguments: tuple) -> None:
    from hf_tlm.config import run

    run(lambda: function(*arguments))


def assert_refused(outcome: Outcome, *expected: str) -> None:
    """Check for one clear message with status 1 or 2 that contains every text of `expected`, without a traceback or a
    hang.
    """
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
    """Return the contents of every file below a folder by its name, which an attack must not change."""
    folder = Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
