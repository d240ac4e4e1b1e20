"""Read the logs of runs from `trainer_state.json`: a curve for each quantity and seed, with stages in sequence.

for run in read_runs({"COCO-LM": "runs/cocolm"}).values():
    for seed in run.seeds:
        print(seed.curve("corpus/copy_accuracy_replaced").values)
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from hf_tlm.analysis.arguments import AXES
from hf_tlm.analysis.runs import check_places, is_number, read_json, subfolders
from hf_tlm.errors import AnalysisError
from hf_tlm.training.checkpoints import STATE, checkpoints_in
from hf_tlm.training.run_folder import places_of
from hf_tlm.utils.run_files import GRID_FILE, RESULTS_FILE, SEED

_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
# Logged values that are no quantities: the position of an entry on the axes, and speeds.
_BOOKKEEPING = re.compile(
    r"steps?|epoch|tokens|real_tokens|flops|measured_flops|flops_ratio|total_flos|seconds|energy_kwh|estimated_kwh|co2_kg"
    r"|num_input_tokens_seen|.*runtime|.*_per_second|train_loss"
)


@dataclass(frozen=True)
class Curve:
    """The logged values of one quantity of one seed.

    x: axis -> float64 [N], totals over the stages; NaN where an axis was not logged (`steps` always is).
    values: float64 [N], as logged, including those that are not finite.
    stages: [N], names.
    """

    x: Mapping[str, np.ndarray]
    values: np.ndarray
    stages: Sequence[str]


@dataclass
class SeedLog:
    """The log of one seed.

    points: quantity -> [(stage, position by axis, value)].
    ends: positions where the stages end, except the last one.
    of_checkpoints: whether the points are scores of a pretraining's checkpoints, at these checkpoints' positions.
    """

    seed: str
    points: dict[str, list[tuple[str, dict[str, float], float]]] = field(default_factory=dict)
    ends: list[dict[str, float]] = field(default_factory=list)
    of_checkpoints: bool = False

    def curve(self, quantity: str) -> Curve | None:
        """Return the curve of a quantity; None if this seed has not logged it."""
        points = self.points.get(quantity)
        if not points:
            return None
        x = {axis: np.array([position.get(axis, math.nan) for _, position, _ in points]) for axis in AXES}
        return Curve(x, np.array([value for *_, value in points]), [stage for stage, *_ in points])


@dataclass
class RunLog:
    """The logs of a run's seeds; name: as the run was given."""

    name: str
    seeds: list[SeedLog]

    @property
    def quantities(self) -> list[str]:
        return list(dict.fromkeys(name for seed in self.seeds for name in seed.points))

    def lacks(self, axis: str) -> bool:
        """Return whether no point has a position on the axis."""
        return all(
            axis not in position for seed in self.seeds for points in seed.points.values() for _, position, _ in points
        )


def read_runs(places: Mapping[str, str | os.PathLike]) -> dict[str, RunLog]:
    """Read the logs of runs, by name.

    Args:
        places: name -> a folder of a run, of one of its seeds or stages, any folder with a `trainer_state.json`, such a
            file, a grid over the checkpoints of a pretraining, or a folder of such folders, each of which is then a run.
            For an interrupted stage the newest checkpoint's log is read; for a finished fine-tuning, which keeps no state,
            its results.

    Raises:
        AnalysisError: a path does not exist, has no log or an empty one; a file is not what the Trainer writes.
    """
    check_places(places)
    logs: dict[str, RunLog] = {}
    for name, location in places.items():
        path = Path(location)
        if not path.exists():
            raise AnalysisError(f"There is no {path}. Set --run to folders of runs, or to {STATE} files.")
        seeds = [_read_stages("", [("", path)])] if path.is_file() else _read_seeds(path)
        runs = {name: RunLog(name, seeds)} if seeds else _read_subfolders(path, name if len(places) > 1 else "")
        if not any(seed.points for run in runs.values() for seed in run.seeds):
            raise AnalysisError(
                f"Nothing was logged in {path}: no {STATE} with entries was found in it or in runs below it."
            )
        logs |= runs
    return logs


def read_log(folder: Path) -> list[dict[str, float]]:
    """Read what a Trainer logged in a folder: the numbers of each step, `step` among them; see `read_runs`.

    Entries that a resumed training logged again are left out. Empty if there is no checkpoint and no finished training.
    """
    state = _find_state(folder)
    return [values | {"step": step} for step, values in _read_entries(state)] if state else []


def _read_subfolders(folder: Path, prefix: str, depth: int = 4) -> dict[str, RunLog]:
    """Read the runs in subfolders, up to `depth` levels deep, by their relative paths."""
    logs: dict[str, RunLog] = {}
    for path in subfolders(folder) if depth else ():
        name = f"{prefix}/{path.name}".lstrip("/")
        seeds = _read_seeds(path)
        logs |= {name: RunLog(name, seeds)} if seeds else _read_subfolders(path, name, depth - 1)
    return logs


def _read_seeds(folder: Path) -> list[SeedLog]:
    """Read the logs of a run's seeds; empty if the folder is not a run."""
    if seeds := _read_checkpoints(folder):
        return seeds
    if stages := _find_stages(folder):
        return [_read_stages(folder.name.removeprefix(SEED) if folder.name.startswith(SEED) else "", stages)]
    logs: list[SeedLog] = []
    for path in sorted(folder.glob(f"{SEED}*"), key=lambda path: (len(path.name), path.name)):
        if stages := _find_stages(path):
            logs.append(_read_stages(path.name.removeprefix(SEED), stages))
        elif path.is_dir():  # `reproduce.py` puts a run of one seed into a folder of that seed.
            logs += _read_seeds(path)
    return logs


@contextmanager
def checked_grid(file: Path) -> Iterator[None]:
    """Convert an error of the block into an AnalysisError that names `file`, as a `grid.json` of any content may be read."""
    try:
        yield
    except AnalysisError:  # It already names the file.
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, OSError) as error:
        raise AnalysisError(f"{file} is not what a grid writes: {error!r:.80}. The file is damaged.") from error


def checkpoint_points(grid: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return the points of a grid over a pretraining's checkpoints: step -> point (COCO-LM, Figure 3).

    If a checkpoint has several settings, the one with the highest median over the seeds counts. Empty for any other grid.
    """
    best: dict[int, Mapping[str, Any]] = {}
    for point in grid.get("points", ()):
        match = _CHECKPOINT.fullmatch(PurePath(str(point["values"].get("model_name_or_path", ""))).name)
        if "validation" not in point or not match:
            continue
        step, score = int(match[1]), point["validation"][grid["metric"]]["median"]
        if step not in best or score > best[step]["validation"][grid["metric"]]["median"]:
            best[step] = point
    return dict(sorted(best.items()))


def _read_checkpoints(folder: Path) -> list[SeedLog]:
    """Read the validation scores of a grid over a pretraining's checkpoints, at their positions; empty for other folders."""
    record = read_json(folder / GRID_FILE) if (folder / GRID_FILE).is_file() else {}
    with checked_grid(folder / GRID_FILE):
        best = checkpoint_points(record)
        seeds = [SeedLog(str(seed), of_checkpoints=True) for seed in record.get("seeds", ())] if best else []
        for step, point in best.items():
            position, shown = {"steps": float(step)}, point["values"]["model_name_or_path"]
            start = Path(places_of(folder / point["folder"]).get(shown, shown))
            if (start / STATE).is_file():
                positions = _axis_positions(_read_entries(start / STATE))
                position |= {
                    axis: float(values[-1]) for axis, values in positions.items() if axis != "steps" and len(values)
                }
            for name, statistics in point["validation"].items():
                for seed, value in zip(seeds, statistics["values"], strict=True):
                    seed.points.setdefault(f"eval_{name}", []).append(("", position, float(value)))
    return seeds


def _find_stages(folder: Path) -> list[tuple[str, Path]]:
    """Return (name, file) of each stage of a seed in order; empty if nothing is logged in this folder."""
    if state := _find_state(folder):
        return [("", state)]
    states = [(name, _find_state(folder / name)) for name in ("stage1", "stage2", "training")]
    if stages := [(name.removeprefix("stage"), state) for name, state in states if state]:
        return stages
    results = folder / RESULTS_FILE
    return [("", results)] if results.is_file() and "history" in read_json(results) else []


def _find_state(folder: Path) -> Path | None:
    """Return the state file of a finished training, else that of the newest checkpoint; None without either."""
    folders = [folder, *(path for _, path in reversed(checkpoints_in(folder)))]
    return next((path / STATE for path in folders if (path / STATE).is_file()), None)


def _read_stages(seed: str, stages: Sequence[tuple[str, Path]]) -> SeedLog:
    log, start = SeedLog(seed), dict.fromkeys(AXES, 0.0)
    for stage_index, (stage, file) in enumerate(stages):
        entries = _read_entries(file)
        positions = _axis_positions(entries)
        end = start
        for index, (_, values) in enumerate(entries):
            end = {
                axis: start[axis] + float(axis_positions[index])
                for axis, axis_positions in positions.items()
                if axis in start
            }
            for name, value in values.items():
                if not _BOOKKEEPING.fullmatch(name):
                    log.points.setdefault(name, []).append((stage, end, value))
        if entries and stage_index + 1 < len(stages):
            log.ends.append(end)
        start = end
    return log


def _read_entries(file: Path) -> list[tuple[float, dict[str, float]]]:
    """Return (step, numbers logged at it), sorted, each step once.

    After a resume the log continues from an earlier step: entries from that step on that were logged before are dropped.
    If a name is logged twice at one step, the last value counts.
    """
    content = read_json(file)
    history = content.get("history" if file.name == RESULTS_FILE else "log_history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise AnalysisError(f"{file} is not what the Trainer writes: it has no list log_history.")
    if file.name == RESULTS_FILE:
        history = list(_convert_history(history, content.get("cost", {})))
    logged: dict[float, dict[str, float]] = {}
    previous = -math.inf
    for entry in history:
        step = entry.get("step")
        if not is_number(step):
            raise AnalysisError(f"{file}: an entry of log_history has no step: {str(entry)[:80]}.")
        if step < previous:
            logged = {earlier: values for earlier, values in logged.items() if earlier < step}
        logged.setdefault(step, {}).update({name: float(value) for name, value in entry.items() if is_number(value)})
        previous = step
    return sorted(logged.items())


def _convert_history(history: Sequence[Mapping[str, Any]], cost: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Yield a fine-tuning's validation scores as the Trainer logs them, then the position of its end."""
    for entry in history:
        yield {name if name == "step" else f"eval_{name}": value for name, value in entry.items()}
    if "steps" in cost:
        yield {"step": cost["steps"]} | {axis: cost[axis] for axis in AXES if axis in cost}


def _axis_positions(entries: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, np.ndarray]:
    """Return the positions of the entries on every axis that their stage has logged, float64 [N].

    An entry without a value for an axis, such as that of an evaluation, gets one by linear interpolation over the steps,
    starting at 0.
    """
    steps = np.array([step for step, _ in entries], np.float64)
    positions = {"steps": steps}
    for axis in AXES:
        logged = [(step, values[axis]) for step, values in entries if math.isfinite(values.get(axis, math.nan))]
        if axis != "steps" and logged:
            logged_steps, logged_values = zip((0.0, 0.0), *logged, strict=True)
            positions[axis] = np.interp(steps, logged_steps, logged_values)
    return positions
