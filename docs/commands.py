"""Find what each command of hf_tlm accepts, for the reference and for the checks of the pages.

A command's classes are those that its recipe passes to `hf_tlm.config.parse`; the recipe is stopped at that call.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_tlm.commands import COMMANDS, recipes_folder

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Command:
    """What a command passes to `hf_tlm.config.parse`: the dataclasses of its options, its recipe's name, its docstring."""

    name: str
    recipe: str
    classes: tuple[Any, ...]
    description: str


class _ParserReachedError(Exception):
    """Raised in place of parsing, to stop a recipe."""


@functools.cache
def read_command(name: str) -> Command:
    """Read a command by its name in `hf_tlm.commands.COMMANDS`, without running it.

    Raises:
        KeyError: there is no such command.
    """
    recipe, _ = COMMANDS[name]
    module_name = f"documented_{recipe}"
    spec = importlib.util.spec_from_file_location(module_name, recipes_folder() / f"{recipe}.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # Dataclasses look up their module.
    spec.loader.exec_module(module)
    found: dict[str, Any] = {}

    def parse(*classes: Any, recipe: str, description: str, **_: Any) -> None:
        found.update(name=name, recipe=recipe, classes=classes, description=description)
        raise _ParserReachedError

    module.parse = parse
    try:
        module.main()
    except _ParserReachedError:
        return Command(**found)
    raise AssertionError(f"{recipe}.py does not parse its arguments.")
