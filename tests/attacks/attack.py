"""Bad input given to a recipe or a function, in a process of its own, and what has to come of it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support import warm
from support.warm import Outcome

# Seconds within which bad input is refused: of the processor, as tests share cores, and until it counts as a hang.
SECONDS, LIMIT = 20, 60


def attack(recipe: str, *arguments: Any, environment: Mapping[str, str] | None = None, limit: float = LIMIT) -> Outcome:
    """Run `recipes/<recipe>.py` with a command line."""
    return warm.recipe(f"recipes/{recipe}.py", arguments, environment=environment, limit=limit)


def attack_often(recipe: str, lines: Sequence[Sequence[Any]]) -> list[Outcome]:
    """Run a recipe with one command line after another in one process: for what is refused before anything is begun."""
    lines = [[str(argument) for argument in line] for line in lines]
    outcome = warm.call(_often, f"recipes/{recipe}.py", lines, limit=LIMIT + len(lines))
    assert outcome.status == 0, outcome.stderr[-4000:]
    return [Outcome(status, "", said) for status, said in json.loads(outcome.stdout.splitlines()[-1])]


def _often(path: str, lines: list[list[str]]) -> None:
    """Print a list of [status, standard error] as JSON on the last line."""
    found = []
    for line in lines:
        status: Any = 0
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                warm.run_file(path, line)
            except SystemExit as end:
                status = end.code
        found.append([status, said.getvalue()])
    print("\n" + json.dumps(found))


def call(function: Callable, *arguments: Any, environment: Mapping[str, str] | None = None) -> Outcome:
    """Call a function of a test module as a recipe is called: one line and a status for an error of ours."""
    return warm.call(_as_a_recipe, function, arguments, environment=environment, limit=LIMIT)


def _as_a_recipe(function: Callable, arguments: tuple) -> None:
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
