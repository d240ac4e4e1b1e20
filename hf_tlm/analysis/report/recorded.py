"""The task and the subset that a run's command named, where they are on this machine and still what the run was given.

Somebody else may have written the command: what it names is not asked for over a network, and what a run of the Hub names is
not looked for at all.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.arguments import AnalyzedTask
from hf_tlm.analysis.report.run_folder import RunFolder
from hf_tlm.commands import COMMANDS
from hf_tlm.config import config_files, read_configs
from hf_tlm.errors import HfTlmError
from hf_tlm.hub.run_files import is_foreign
from hf_tlm.presets import find
from hf_tlm.tasks import TASKS
from hf_tlm.training.run_folder import places_of

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task


def recorded_task(run: RunFolder) -> Task | None:
    """The task of the recorded command, if its data are those of the run; None otherwise."""
    values = _options(run)
    place = str(values.get("task") or "")
    if place not in TASKS and not _is_here(place):
        return None
    known = {name: values[name] for name in AnalyzedTask.__dataclass_fields__ if name in values}
    try:
        task = AnalyzedTask(**known).load()
    except (ValueError, TypeError, OSError):  # No data there, or no network.
        return None
    return task if task.fingerprint == run.record.get("task_fingerprint") else None


def recorded_subset(run: RunFolder) -> Subset | None:
    """The subset of the recorded command, if its manifest is the one that the run recorded; None otherwise."""
    from hf_tlm.retrieval import Subset

    place, manifest = _options(run).get("subset"), run.record.get("subset")
    if not place or not manifest:
        return None
    # As it was called where the run was started, which may be a folder above the run's.
    for folder in (os.path.join(base, str(place)) for base in ("", *map(str, run.path.resolve().parents))):
        if not _is_here(folder):
            continue
        try:
            subset = Subset.load(folder)
        except (ValueError, OSError):
            continue
        if subset.manifest == manifest:
            return subset
    return None


def _is_here(folder: str) -> bool:
    """Whether it is a folder, and of no other machine."""
    return not folder.startswith(("//", "\\\\")) and os.path.isdir(folder)


def _options(run: RunFolder) -> dict[str, Any]:
    """Options of the recorded command and of its YAML files; a value is a string or a list of them, True without one."""
    command = None if is_foreign(run.path) else run.record.get("command")
    try:
        recipe, *arguments = shlex.split(command) if isinstance(command, str) else [""]
        if recipe == "hf-tlm":  # Its command names the recipe.
            recipe, *arguments = arguments
            recipe, _ = COMMANDS.get(recipe, ("", ""))
    except ValueError:
        return {}
    places = places_of(run.path)
    arguments = [places.get(argument, argument) for argument in arguments]
    values: dict[str, Any] = {}
    try:
        files = config_files(arguments)
        values |= read_configs(files, recipe.removesuffix(".py")) if all(find(file).is_file() for file in files) else {}
    except (ValueError, OSError, HfTlmError, argparse.ArgumentError, SystemExit):
        pass  # The files are elsewhere; what stands in the command itself still holds.
    name = None
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            values[name] = value if equals else True
        elif name is not None:
            before = values[name]
            values[name] = argument if before is True else [*(before if isinstance(before, list) else [before]), argument]
    return _typed(values)


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`columns` is a list also where it has one pair, `drop_bad_rows` true also as "true"."""
    typed = dict(values)
    if isinstance(typed.get("columns"), str):
        typed["columns"] = [typed["columns"]]
    if "drop_bad_rows" in typed:
        typed["drop_bad_rows"] = str(typed["drop_bad_rows"]).lower() in ("true", "1", "yes")
    return typed
