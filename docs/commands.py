"""The commands of hf_tlm, what each takes, and the presets: what the reference and the checks of the pages read.

A command's classes are those that its recipe hands to `hf_tlm.config.parse`; the recipe is stopped there.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "recipes"
PRESETS = RECIPES / "configs"
# Command of hf-tlm -> its recipe; in the order in which a person meets them.
COMMANDS = {
    "quickstart": "quickstart",
    "retrieve": "retrieve",
    "select-influence": "select_influence",
    "train": "train_tlm",
    "pretrain": "pretrain",
    "finetune": "finetune",
    "few-shot": "few_shot",
    "predict": "predict",
    "analyze": "analyze",
    "baseline": "baseline",
    "publish": "publish",
    "reproduce": "reproduce",
}


@dataclass(frozen=True)
class Command:
    """What a command hands to `hf_tlm.config.parse`: the dataclasses of its options, its recipe's name, its docstring."""

    name: str
    recipe: str
    classes: tuple[Any, ...]
    description: str


class _ParserReachedError(Exception):
    """The recipe is about to parse."""


@functools.cache
def read_command(name: str) -> Command:
    """A command by its name in `COMMANDS`, without running it.

    Raises:
        KeyError: there is no such command.
    """
    recipe = COMMANDS[name]
    module_name = f"documented_{recipe}"
    spec = importlib.util.spec_from_file_location(module_name, RECIPES / f"{recipe}.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # Dataclasses look their module up.
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


def commands() -> list[str]:
    """The names of the commands that are there."""
    return [name for name, recipe in COMMANDS.items() if (RECIPES / f"{recipe}.py").is_file()]


def preset_path(name: str) -> Path | None:
    """The file of a preset by name (`tlm/coffee`), or by its path in a clone (`recipes/configs/tlm/coffee.yaml`)."""
    for path in (PRESETS / f"{name}.yaml", ROOT / name):
        if path.is_file():
            return path
    return None
