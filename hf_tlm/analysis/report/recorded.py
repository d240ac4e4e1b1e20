"""The task and the subset that a run's command named, where they are on this machine and still what the run was given.

Somebody else may have written the command: what it names is not asked for over a network, and what a run of the Hub names is
not looked for at all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.arguments import AnalyzedTask
from hf_tlm.analysis.report.run_folder import RunFolder, read_run
from hf_tlm.commands import COMMANDS, find_preset
from hf_tlm.config import config_files, read_configs
from hf_tlm.errors import AnalysisError, HfTlmError
from hf_tlm.hub.repo import is_foreign
from hf_tlm.tasks import TASKS
from hf_tlm.training.run_folder import places_of
from hf_tlm.utils.run_files import SETTINGS_FILE

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

# Options of a task that are numbers.
_NUMBERS = {"validation_share": float, "test_share": float, "max_train_samples": int, "max_eval_samples": int}


def recorded_task(run: RunFolder) -> Task | None:
    """The task of the recorded command, if its data are those of the run; None otherwise."""
    try:
        return _recorded_task(run)[0]
    except AnalysisError:
        return None


def task_of_run(folder: str | os.PathLike) -> tuple[Task, str]:
    """The task that a run was trained on, as its command named it and with the same data, and the place of these.

    Args:
        folder: of a run of this machine, or one within it: `mlm`, `seed-0/model`.

    Raises:
        AnalysisError: it is none, or the task cannot be told, is not where it was, or has other data now.
    """
    here = Path(folder).resolve()
    home = next((place for place in (here, *here.parents[:4]) if (place / SETTINGS_FILE).is_file()), None)
    if home is None:
        raise AnalysisError(f"{folder} is no folder of a run, which would name its task.")
    return _recorded_task(read_run(home))


def _recorded_task(run: RunFolder) -> tuple[Task, str]:
    """See `task_of_run`."""
    if is_foreign(run.path):
        raise AnalysisError(f"{run.name} is from the Hub: what its command names is not looked for here.")
    values = _options(run)
    named = str(values.get("task") or "")
    if not named:
        raise AnalysisError(f"The command that {run.name} recorded names no task.")
    places = [named] if named in TASKS else _places(run, named)
    known = {name: values[name] for name in AnalyzedTask.__dataclass_fields__ if name in values}
    problem = f"{named}, the task of {run.name}, is no file or folder here."
    for place in places:
        try:
            task = AnalyzedTask(**known | {"task": place}).load()
        except (ValueError, TypeError, OSError) as error:  # No data there, or no network.
            problem = f"{named}, the task of {run.name}, cannot be loaded: {' '.join(str(error).split())}"
            continue
        if task.fingerprint == run.record.get("task_fingerprint"):
            return task, place
        problem = f"{named} has other data now than when {run.name} was trained."
    raise AnalysisError(problem)


def _places(run: RunFolder, named: str) -> list[str]:
    """Where it is on this machine: as it was called where the run was started, which may be a folder above the run's."""
    places = [os.path.join(base, named) for base in ("", *map(str, run.path.resolve().parents))]
    return [place for place in places if not place.startswith(("//", "\\\\")) and os.path.exists(place)]


def recorded_subset(run: RunFolder) -> Subset | None:
    """The subset of the recorded command, if its manifest is the one that the run recorded; None otherwise."""
    from hf_tlm.retrieval import Subset

    place, manifest = _options(run).get("subset"), run.record.get("subset")
    if not place or not manifest:
        return None
    for folder in _places(run, str(place)):
        try:
            subset = Subset.load(folder)
        except (ValueError, OSError):
            continue
        if subset.manifest == manifest:
            return subset
    return None


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
        values |= (
            read_configs(files, recipe.removesuffix(".py")) if all(find_preset(file).is_file() for file in files) else {}
        )
    except (ValueError, OSError, HfTlmError, argparse.ArgumentError, SystemExit):
        pass  # The files are elsewhere; what stands in the command itself still holds.
    name = None
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            name = name.replace("-", "_")
            values[name] = value if equals else True
        elif name is not None:
            before = values[name]
            values[name] = argument if before is True else [*(before if isinstance(before, list) else [before]), argument]
    return _typed(values)


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`columns` is a list also where it has one pair, numbers are numbers, and `drop_bad_rows` is true also as "true"."""
    typed = dict(values)
    if isinstance(typed.get("columns"), str):
        typed["columns"] = [typed["columns"]]
    for name, kind in _NUMBERS.items():
        with contextlib.suppress(KeyError, ValueError, TypeError):  # A task refuses what is no number.
            typed[name] = kind(typed[name])
    if "drop_bad_rows" in typed:
        typed["drop_bad_rows"] = str(typed["drop_bad_rows"]).lower() in ("true", "1", "yes")
    return typed
