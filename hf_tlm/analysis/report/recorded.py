"""The task and the subset that a run's command named, where they still are what the run was given."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.arguments import AnalyzedTask
from hf_tlm.analysis.report.run_folder import MANIFEST, RunFolder
from hf_tlm.files import HfTlmError
from hf_tlm.parser import config_files, read_configs

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task


def recorded_task(run: RunFolder) -> Task | None:
    """The task of the recorded command, if its data are those of the run; None otherwise."""
    values = _options(run)
    if not values.get("task"):
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
    folders = [base / str(place) for base in (Path(), *run.path.resolve().parents)]
    for name in [str(folder) for folder in folders if (folder / MANIFEST).is_file()] or [str(place)]:
        try:
            subset = Subset.open(name)
        except (ValueError, OSError):
            continue
        if subset.manifest == manifest:
            return subset
    return None


def _options(run: RunFolder) -> dict[str, Any]:
    """Options of the recorded command and of its YAML files; a value is a string or a list of them, True without one."""
    command = run.record.get("command")
    try:
        recipe, *arguments = shlex.split(command) if isinstance(command, str) else [""]
    except ValueError:
        return {}
    values: dict[str, Any] = {}
    try:
        values |= read_configs(config_files(arguments), recipe.removesuffix(".py"))
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
