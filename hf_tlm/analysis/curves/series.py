"""What is drawn of logs: which quantities, means over seeds, running means."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_tlm.analysis.arguments import AXES
from hf_tlm.analysis.curves.states import RunLog
from hf_tlm.analysis.errors import AnalysisError

MOST_PANELS = 12
_LEAST_WANTED = ("learning_rate", "grad_norm", "mfu", "eval_loss")


@dataclass(frozen=True)
class Average:
    """Over seeds, at every step that one of them has logged.

    x: axis -> float64 [N], means over seeds. mean: float64 [N], of finite values; NaN where there is none.
    deviation: float64 [N], with n - 1; NaN of one seed. seeds: int [N], how many values there are. stages: [N].
    """

    x: Mapping[str, np.ndarray]
    mean: np.ndarray
    deviation: np.ndarray
    seeds: np.ndarray
    stages: Sequence[str]


def choose_quantities(runs: Iterable[RunLog], wanted: Sequence[str] | None = None) -> list[str]:
    """Names of what the runs have logged.

    Args:
        wanted: names as logged, the same without `corpus/` or `task/`, or patterns with `*`; None for what has two points or
            more and is a loss term, an accuracy, a cosine, a share or a score, at most 12.

    Raises:
        AnalysisError: nothing is known by a name; the message lists what is.
    """
    runs = list(runs)
    logged = list(dict.fromkeys(name for run in runs for name in run.quantities))
    if wanted is None:
        return _default(runs, logged)
    found: dict[str, None] = {}
    for name in wanted:
        matching = [other for other in logged if other == name]
        matching = matching or [other for other in logged if _matches(other, name)]
        if not matching:
            close = difflib.get_close_matches(name, logged, n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise AnalysisError(f"No run has logged {name!r}.{hint} There are: {', '.join(sorted(logged))}.")
        found |= dict.fromkeys(matching)
    return list(found)


def _matches(name: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(form, pattern) for form in (name, name.partition("/")[2]) if form)


def _default(runs: Sequence[RunLog], logged: Sequence[str]) -> list[str]:
    def points(name: str) -> int:
        return max(len(seed.points.get(name, ())) for run in runs for seed in run.seeds)

    terms = [name for name in logged if name.endswith("_loss") and "/" in name]
    drawn = [name for name in logged if name not in _LEAST_WANTED and not (name == "loss" and terms)]
    # Of a term of the corpus loss the curve in training tells more than that on validation.
    drawn = [name for name in drawn if f"corpus/{name.removeprefix('eval_')}" not in logged or not name.startswith("eval_")]
    drawn = [name for name in drawn if points(name) > 1] or drawn or list(logged)
    ranks = {name: rank for rank, name in enumerate(sorted(drawn, key=lambda name: (_kind(name), name)))}
    # Where there are too many, those that corpus and task batches both have are drawn of the corpus.
    again = [name for name in drawn if name.startswith("task/") and f"corpus/{name[5:]}" in drawn]
    kept = sorted(drawn, key=lambda name: (name in again, ranks[name]))[:MOST_PANELS]
    return sorted(kept, key=ranks.__getitem__)


def _kind(name: str) -> int:
    """Losses, scores, accuracies, the rest."""
    if name.endswith("loss"):
        return 0
    return 1 if name.startswith("eval_") else 2 if "accuracy" in name else 3


def average(run: RunLog, quantity: str) -> Average | None:
    """The mean over the seeds of a run; None where none has logged the quantity."""
    curves = [curve for seed in run.seeds if (curve := seed.curve(quantity)) is not None]
    if not curves:
        return None
    steps = np.unique(np.concatenate([curve.x["steps"] for curve in curves]))
    values = np.full((len(curves), len(steps)), np.nan)
    x = {axis: np.full_like(values, np.nan) for axis in AXES}
    stages: dict[int, str] = {}
    for row, curve in enumerate(curves):
        places = np.searchsorted(steps, curve.x["steps"])
        values[row, places] = np.where(np.isfinite(curve.values), curve.values, np.nan)
        for axis, along in curve.x.items():
            x[axis][row, places] = along
        stages.update(zip(places.tolist(), curve.stages, strict=True))
    mean, deviation, seeds = _moments(values)
    return Average(
        {axis: _moments(of)[0] for axis, of in x.items()}, mean, deviation, seeds, [stages[at] for at in range(len(steps))]
    )


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, sample deviation and number of what is not NaN, over the rows."""
    counts = np.isfinite(values).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(values, axis=0) / counts
        squares = np.nansum((values - mean) ** 2, axis=0)
        return np.where(counts > 0, mean, np.nan), np.sqrt(np.where(counts > 1, squares / (counts - 1), np.nan)), counts


def smooth(values: np.ndarray, stages: Sequence[str], window: int) -> np.ndarray:
    """Running means, float64 [N].

    Args:
        window: odd: points of a mean, of one stage alone; fewer towards its ends, so that as many are before as after. Of
            points that are not finite the others' mean is taken.
    """
    if window == 1:
        return values
    stage_of = np.asarray(stages)
    smoothed = np.full(len(values), math.nan)
    for at in range(len(values)):
        own = np.flatnonzero(stage_of == stage_of[at])
        half = min(window // 2, at - own[0], own[-1] - at)
        near = values[at - half : at + half + 1]
        if np.isfinite(near).any():
            smoothed[at] = near[np.isfinite(near)].mean()
    return smoothed


def unit(quantity: str) -> tuple[str, float]:
    """(what an axis says, by what values are multiplied)."""
    name = quantity.rpartition("/")[2]
    if name.endswith("loss"):
        return "nats", 1.0
    if "cosine" in name:
        return "cosine", 1.0
    if "accuracy" in name or name.endswith("fraction") or name.startswith("eval_") or name == "mfu":
        return "%", 100.0
    return name.replace("_", " "), 1.0


def point_rows(runs: Mapping[str, RunLog], quantities: Sequence[str], window: int) -> list[dict[str, Any]]:
    """Every point that was logged, and the means over seeds, as rows of a csv. `drawn`: after `smooth`."""
    rows = []
    for quantity in quantities:
        for name, run in runs.items():
            for seed in run.seeds:
                if curve := seed.curve(quantity):
                    about = {"run": name, "quantity": quantity, "seed": seed.seed}
                    rows += _rows(about, curve.x, curve.stages, curve.values, np.full(len(curve.values), np.nan), 1, window)
            if len(run.seeds) > 1 and (of := average(run, quantity)):
                about = {"run": name, "quantity": quantity, "seed": "mean"}
                rows += _rows(about, of.x, of.stages, of.mean, of.deviation, of.seeds, window)
    return rows


def _rows(about, x, stages, values, deviation, seeds, window: int) -> list[dict[str, Any]]:
    drawn, counts = smooth(values, stages, window), np.broadcast_to(seeds, values.shape)
    return [
        {**about, "stage": stages[at]}
        | {axis: _written(along[at]) for axis, along in x.items()}
        | {
            "value": float(values[at]),
            "deviation": _written(deviation[at]),
            "seeds": int(counts[at]),
            "drawn": float(drawn[at]),
        }
        for at in range(len(values))
    ]


def _written(number: float) -> float | str:
    return "" if math.isnan(number) else float(number)
