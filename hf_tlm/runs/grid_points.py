"""Grids of hyperparameters: their values by argument, their points, and the options of recipes."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from hf_tlm.config import typed_values
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, option
from hf_tlm.utils.safe_yaml import load_yaml, read_yaml
from hf_tlm.utils.shown import shown_values, suggestion

SELECTIONS = ("median", "mean", "best")
# The checkpoint to fine-tune, in which points may differ in addition to the options of training.
CHECKPOINT = "model_name_or_path"
KEYS = ("grid", "seeds", "select_by")
LONGEST_NAME = 150  # of a point's folder, in characters; file systems allow 255 bytes
_WITHOUT_GRID = NoEffect("grid", (None,), "without --grid, which has the values to choose from. Remove it, or pass --grid.")


class GridError(HfTlmError):
    """Raised when a grid cannot be run."""


@dataclass(frozen=True)
class Range:
    """A range of numbers from `min` to `max` for a search; with `log` it is sampled uniformly in the log domain."""

    min: float
    max: float
    log: bool = False

    @classmethod
    def of(cls, name: str, value: Mapping[str, Any]) -> Range:
        """Read a range of the argument `name` from {min, max} with an optional log, or raise a GridError."""
        field_names = {field.name for field in fields(cls)}
        if not {"min", "max"} <= value.keys() <= field_names or not isinstance(value.get("log", False), bool):
            raise GridError(f"{name}: a range must be {{min: ..., max: ..., log: true or false}}; received {dict(value)}.")
        bounds = _convert_values({name: [value["min"], value["max"]]})[name]
        if not all(
            isinstance(bound, (int, float)) and not isinstance(bound, bool) and math.isfinite(bound) for bound in bounds
        ):
            raise GridError(f"{name}: min and max of a range must be numbers; received {dict(value)}.")
        if not bounds[0] < bounds[1] or (value.get("log") and bounds[0] <= 0):
            raise GridError(f"{name}: min must be below max, and above 0 with log; received {dict(value)}.")
        return cls(bounds[0], bounds[1], value.get("log", False))


@dataclass
class Grid:
    """A grid of values for fields of `FinetuneArguments`, or for `model_name_or_path`; a point has one value of each.

    values: field -> list of its values, or a range for a search; text that stands for a number, such as YAML's 2e-5, is
        converted.
    seeds: every point is run with each of them; None for those of the arguments.
    select_by: how a point's validation scores are aggregated over the seeds; the point with the highest one is chosen.
    """

    values: dict[str, list[Any] | Range]
    seeds: list[int] | None = None
    select_by: str = "median"

    def __post_init__(self):
        if not isinstance(self.values, Mapping) or not self.values:
            raise GridError(f"A grid must be a mapping of arguments to lists of values; received {self.values!r:.80}.")
        if self.select_by not in SELECTIONS:
            raise GridError(f"select_by must be one of {', '.join(SELECTIONS)}; received {self.select_by!r}.")
        if self.seeds is not None:
            _check_seeds(self.seeds)
        ranges = {
            name: value if isinstance(value, Range) else Range.of(name, value)
            for name, value in self.values.items()
            if isinstance(value, (Mapping, Range))
        }
        others = {name: value for name, value in self.values.items() if name not in ranges}
        lists = _convert_values(
            {name: list(entry) if isinstance(entry, (list, tuple)) else [entry] for name, entry in others.items()}
        )
        for name, choices in lists.items():
            if not choices or any(value in choices[:i] for i, value in enumerate(choices)):
                raise GridError(f"{name} must have at least one value, and each only once; received {choices}.")
        self.values = {name: ranges.get(name) or lists[name] for name in self.values}

    @classmethod
    def read(
        cls, source: str | os.PathLike | Mapping[str, Any], seeds: list[int] | None = None, select_by: str | None = None
    ) -> Grid:
        """Read a grid from a YAML file, YAML text that is a mapping, or a mapping.

        The source holds the values by argument, or {grid: values by argument, seeds: ..., select_by: ...}.

        Args:
            seeds, select_by: take precedence over those of the source.

        Raises:
            GridError: there is no such file, it is not YAML, or not of this form; or the values are invalid.
        """
        content: Any = source
        if isinstance(source, str) and source.lstrip().startswith("{"):
            content = load_yaml(source, f"The grid {source:.60}", GridError)
        elif isinstance(source, (str, os.PathLike)):
            content = read_yaml(source, f"the grid {source}", GridError)
        if not isinstance(content, Mapping) or "grid" not in content:
            content = {"grid": content}
        for key in content:
            if key not in KEYS:
                hint = suggestion(str(key), KEYS, 1)
                raise GridError(f"A grid's file may contain grid, seeds and select_by; received {key!r}.{hint}")
        return cls(content["grid"], seeds or content.get("seeds"), select_by or content.get("select_by") or Grid.select_by)

    def points(self) -> list[dict[str, Any]]:
        """Return every combination of values, those of the last argument changing fastest.

        Raises:
            GridError: the grid has ranges.
        """
        lists = {name: value for name, value in self.values.items() if not isinstance(value, Range)}
        if ranges := [name for name in self.values if name not in lists]:
            raise GridError(
                f"{', '.join(ranges)}: the values of a range cannot be combined. Pass a list of values, or --optuna_trials "
                "to search the range."
            )
        return [dict(zip(self.values, values, strict=True)) for values in itertools.product(*lists.values())]

    def each_value(self) -> list[dict[str, Any]]:
        """Return points that cover every value of a list and both ends of a range, beside the first value of the others."""
        covered = {
            name: [choices.min, choices.max] if isinstance(choices, Range) else choices
            for name, choices in self.values.items()
        }
        first = {name: values[0] for name, values in covered.items()}
        others = [first | {name: value} for name, values in covered.items() for value in values[1:]]
        return [first, *others]


def _check_seeds(seeds: Any) -> None:
    if not isinstance(seeds, list) or not seeds or any(type(seed) is not int for seed in seeds):
        raise GridError(f"seeds of a grid must be a list of whole numbers; received {seeds!r:.80}.")
    if len(set(seeds)) < len(seeds):
        raise GridError(f"seeds of a grid must be different; received {seeds}. Remove the duplicates.")


def point_name(point: Mapping[str, Any]) -> str:
    """Return the name of a point's folder, such as `learning_rate=2e-05,num_train_epochs=3.0`."""
    text, shown = (",".join(f"{name}={value}" for name, value in values.items()) for values in (point, shown_values(point)))
    name = re.sub(r"[^\w.,=+-]", "-", shown)[:LONGEST_NAME]
    return name if name == text else f"{name}-{hashlib.sha256(json.dumps(text).encode()).hexdigest()[:8]}"


def _convert_values(values: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Convert values to the types of their options, as the command line does."""
    # Imported here because only a grid needs the class, and --help has to start fast.
    from hf_tlm.runs.finetuning.arguments import FinetuneArguments

    typed = typed_values(FinetuneArguments, {name: v for name, v in values.items() if name != CHECKPOINT}, "the grid")
    return {name: typed[name] if name in typed else list(map(str, choices)) for name, choices in values.items()}


def checkpoints(pattern: str) -> list[str]:
    """Return the folders that match a pattern such as `runs/a/training/checkpoint-*`, sorted by number.

    Raises:
        GridError: no folder matches.
    """
    folders = [folder for folder in glob.glob(pattern) if os.path.isdir(folder)]
    if not folders:
        raise GridError(
            f"No folder matches {pattern}. Pass the checkpoints of a run, such as runs/electra/training/checkpoint-*: they "
            "are saved according to --save_strategy and --save_steps, and the last --save_total_limit are kept."
        )
    return sorted(folders, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


@dataclass
class GridArguments:
    """Settings of a grid of hyperparameters, chosen by their scores on validation."""

    grid: str | None = option(
        None,
        "Lists of values by argument; every combination is run. A YAML file, or YAML text such as "
        "'{learning_rate: [2e-5, 3e-5], num_train_epochs: [3, 10]}'. A file may also hold {grid: ..., seeds: ..., "
        "select_by: ...}. Processes with the same --output_dir share the work.",
    )
    grid_select_by: Annotated[str | None, _WITHOUT_GRID] = option(
        None,
        "Choose the point whose validation scores have the highest median (default), mean or best over the seeds.",
        choices=list(SELECTIONS),
    )
    optuna_trials: Annotated[int | None, _WITHOUT_GRID] = option(
        None,
        "Number of trials, of one seed each, that Optuna (extra [search]) draws instead of every combination; the best one "
        "is run with all seeds. The grid may also hold ranges: {learning_rate: {min: 1e-5, max: 1e-4, log: true}}.",
    )

    def __post_init__(self):
        check_effects(self, GridError)
        check_ranges(self, GridError)

    def read(self, seeds: list[int] | None = None, model_name_or_path: str = "") -> Grid | None:
        """Return the grid; None where none was given.

        Args:
            seeds: those of the command line, which take precedence over those of the grid's file.
            model_name_or_path: a pattern adds the folders that match it as an axis of the grid.

        Raises:
            GridError: no folder matches; see also `Grid.read`.
        """
        is_pattern = any(sign in model_name_or_path for sign in "*?[")
        if self.grid is None and not is_pattern:
            return None

        checkpoint_axis: dict[str, list[Any] | Range] = {CHECKPOINT: checkpoints(model_name_or_path)} if is_pattern else {}
        if self.grid is None:
            return Grid(checkpoint_axis, seeds)
        grid = Grid.read(self.grid, seeds=seeds, select_by=self.grid_select_by)
        return Grid({**checkpoint_axis, **grid.values}, grid.seeds, grid.select_by)
