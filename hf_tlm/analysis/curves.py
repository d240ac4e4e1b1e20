"""Training curves (COCO-LM, Figures 7 and 8; ISS, Figure 2): choose the logged quantities, and draw them."""

from __future__ import annotations

import fnmatch
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.arguments import AXES, AnalyzeArguments, AnalyzedTask, CurvesArguments, Findings
from hf_tlm.analysis.figures import (
    PALETTE,
    STYLE,
    add_legend,
    new_panels,
    power_of_ten,
    save_figure,
    series_style,
    style,
)
from hf_tlm.analysis.trainer_logs import RunLog, read_runs
from hf_tlm.errors import AnalysisError
from hf_tlm.utils.shown import suggestion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 12
_LEAST_WANTED = ("learning_rate", "grad_norm", "mfu", "eval_loss")
_MARKS = 8  # Markers per line.


@dataclass(frozen=True)
class Average:
    """The mean curve over seeds, at every step that at least one seed has logged.

    x: axis -> float64 [N], means over seeds.
    mean: float64 [N], over finite values; NaN if there are none.
    deviation: float64 [N], standard deviation (n - 1); NaN for a single seed.
    seeds: int [N], number of finite values.
    stages: [N], names of stages.
    """

    x: Mapping[str, np.ndarray]
    mean: np.ndarray
    deviation: np.ndarray
    seeds: np.ndarray
    stages: Sequence[str]


def choose_quantities(runs: Iterable[RunLog], wanted: Sequence[str] | None = None) -> list[str]:
    """Return the names of the logged quantities to draw.

    Args:
        wanted: names as logged, names without `corpus/` or `task/`, or patterns with `*`. None: loss terms, accuracies,
            cosines, shares and scores with two points or more, at most 12.

    Raises:
        AnalysisError: a name matches no logged quantity; the message lists what was logged.
    """
    runs = list(runs)
    logged = list(dict.fromkeys(name for run in runs for name in run.quantities))
    if wanted is None:
        return _default_quantities(runs, logged)
    chosen: dict[str, None] = {}
    for name in wanted:
        matching = [other for other in logged if other == name]
        matching = matching or [other for other in logged if _matches(other, name)]
        if not matching:
            hint = suggestion(name, logged)
            raise AnalysisError(f"No run has logged {name!r}.{hint} Logged quantities: {', '.join(sorted(logged))}.")
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def _matches(name: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(form, pattern) for form in (name, name.partition("/")[2]) if form)


def _default_quantities(runs: Sequence[RunLog], logged: Sequence[str]) -> list[str]:
    def points(name: str) -> int:
        return max(len(seed.points.get(name, ())) for run in runs for seed in run.seeds)

    terms = [name for name in logged if name.endswith("_loss") and "/" in name]
    candidates = [name for name in logged if name not in _LEAST_WANTED and not (name == "loss" and terms)]
    # For a term of the corpus loss, the training curve says more than the validation curve.
    candidates = [
        name for name in candidates if f"corpus/{name.removeprefix('eval_')}" not in logged or not name.startswith("eval_")
    ]
    candidates = [name for name in candidates if points(name) > 1] or candidates or list(logged)
    ranks = {name: rank for rank, name in enumerate(sorted(candidates, key=lambda name: (_sort_group(name), name)))}
    # If there are too many, drop the task batches' curve of a quantity that corpus batches have too.
    repeated = [name for name in candidates if name.startswith("task/") and f"corpus/{name[5:]}" in candidates]
    kept = sorted(candidates, key=lambda name: (name in repeated, ranks[name]))[:MOST_PANELS]
    return sorted(kept, key=ranks.__getitem__)


def _sort_group(name: str) -> int:
    """Return the sort group of a quantity: losses, scores, accuracies, then the rest."""
    if name.endswith("loss"):
        return 0
    return 1 if name.startswith("eval_") else 2 if "accuracy" in name else 3


def average(run: RunLog, quantity: str) -> Average | None:
    """Return the mean over the seeds of a run; None if no seed has logged the quantity."""
    curves = [curve for seed in run.seeds if (curve := seed.curve(quantity)) is not None]
    if not curves:
        return None
    steps = np.unique(np.concatenate([curve.x["steps"] for curve in curves]))
    values = np.full((len(curves), len(steps)), np.nan)
    x = {axis: np.full_like(values, np.nan) for axis in AXES}
    stages: dict[int, str] = {}
    for row, curve in enumerate(curves):
        indices = np.searchsorted(steps, curve.x["steps"])
        values[row, indices] = curve.values
        for axis, positions in curve.x.items():
            x[axis][row, indices] = positions
        stages.update(zip(indices.tolist(), curve.stages, strict=True))
    mean, deviation, seeds = _mean_and_deviation(values)
    return Average(
        {axis: _mean_and_deviation(axis_values)[0] for axis, axis_values in x.items()},
        mean,
        deviation,
        seeds,
        [stages[index] for index in range(len(steps))],
    )


def _mean_and_deviation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, sample standard deviation and number of the finite values of each column."""
    values = np.where(np.isfinite(values), values, np.nan)
    with warnings.catch_warnings(action="ignore"):  # Columns with fewer than two values give NaN.
        return np.nanmean(values, axis=0), np.nanstd(values, axis=0, ddof=1), np.isfinite(values).sum(axis=0)


def smooth(values: np.ndarray, stages: Sequence[str], window: int) -> np.ndarray:
    """Return the running means of a curve, float64 [N].

    Args:
        window: number of points in a mean, odd. A window stays within one stage, and shrinks towards its ends so that it
            stays centred. Points that are not finite are left out of the mean.
    """
    if window == 1:
        return values
    stage_of = np.asarray(stages)
    smoothed = np.full(len(values), math.nan)
    for stage in dict.fromkeys(stages):
        stage_indices = np.flatnonzero(stage_of == stage)
        for index in stage_indices:
            half = min(window // 2, index - stage_indices[0], stage_indices[-1] - index)
            window_values = values[index - half : index + half + 1]
            if np.isfinite(window_values).any():
                smoothed[index] = window_values[np.isfinite(window_values)].mean()
    return smoothed


def unit(quantity: str) -> tuple[str, float]:
    """Return (axis label, factor by which values are multiplied) for a quantity."""
    name = quantity.rpartition("/")[2]
    if name.endswith("loss"):
        return "nats", 1.0
    if "cosine" in name:
        return "cosine", 1.0
    if "accuracy" in name or name.endswith("fraction") or name.startswith("eval_") or name == "mfu":
        return "%", 100.0
    return name.replace("_", " "), 1.0


def point_rows(runs: Mapping[str, RunLog], quantities: Sequence[str], window: int) -> list[dict[str, Any]]:
    """Return every logged point, and the means over seeds, as CSV rows. `drawn` is the value after `smooth`."""
    rows = []
    for quantity in quantities:
        for name, run in runs.items():
            for seed in run.seeds:
                if curve := seed.curve(quantity):
                    description = {"run": name, "quantity": quantity, "seed": seed.seed}
                    rows += _curve_rows(
                        description, curve.x, curve.stages, curve.values, np.full(len(curve.values), np.nan), 1, window
                    )
            if len(run.seeds) > 1 and (mean_curve := average(run, quantity)):
                description = {"run": name, "quantity": quantity, "seed": "mean"}
                rows += _curve_rows(
                    description,
                    mean_curve.x,
                    mean_curve.stages,
                    mean_curve.mean,
                    mean_curve.deviation,
                    mean_curve.seeds,
                    window,
                )
    return rows


def _curve_rows(description, x, stages, values, deviation, seeds, window: int) -> list[dict[str, Any]]:
    smoothed, counts = smooth(values, stages, window), np.broadcast_to(seeds, values.shape)
    return [
        {**description, "stage": stages[index]}
        | {axis: _format_number(positions[index]) for axis, positions in x.items()}
        | {
            "value": float(values[index]),
            "deviation": _format_number(deviation[index]),
            "seeds": int(counts[index]),
            "drawn": float(smoothed[index]),
        }
        for index in range(len(values))
    ]


def _format_number(number: float) -> float | str:
    return "" if math.isnan(number) else float(number)


@style()
def curves_figure(
    runs: Mapping[str, RunLog], quantities: Sequence[str], *, x: str = "steps", smoothing: int = 1, spread: str = "band"
) -> Figure:
    """Draw a panel for each quantity; dotted lines mark the ends of stages.

    Args:
        x: an axis of `AXES`.
        smoothing: number of points in a running mean.
        spread: for several seeds, "band" draws the standard deviation around the mean, "lines" draws every seed.

    Raises:
        AnalysisError: there are more runs than line styles.
    """
    if len(runs) > len(PALETTE):
        raise AnalysisError(
            f"A figure shows at most {len(PALETTE)} runs; received {len(runs)}: {', '.join(runs)}. Choose some of them, as "
            "in --run first=DIR second=DIR."
        )
    figure, panels, columns = new_panels(len(quantities), lambda rows, _: 0.7 + 1.5 * rows, sharex=True)
    exponent = _axis_exponent(runs, quantities, x)
    for index, (panel, quantity) in enumerate(zip(panels, quantities, strict=True)):
        word, scale = unit(quantity)
        panel.set_title(quantity)
        panel.set_ylabel(word)
        for run_index, run in enumerate(runs.values()):
            line_style = {**series_style(run_index), "markersize": 3, "markevery": run_index / len(runs)}
            _draw_curve(panel, run, quantity, x, 10.0**-exponent, scale, smoothing, spread, line_style)
        for end in _stage_ends(runs, x):
            panel.axvline(end * 10.0**-exponent, color="#808080", linestyle=":", linewidth=0.8, zorder=0)
        panel.margins(x=0.03)
        bottom, top = panel.get_ylim()
        if word == "%" and top > 100:
            panel.set_ylim(bottom, 100 + 0.03 * (100 - bottom))
        panel.tick_params(labelbottom=index + columns >= len(quantities))
    label = AXES[x] + (f" ({power_of_ten(exponent)})" if exponent else "")
    label += f", running means of {smoothing} points" if smoothing > 1 else ""
    figure.supxlabel(label, fontsize=STYLE["axes.labelsize"])
    line_styles = [{**series_style(run_index), "markersize": 3} for run_index in range(len(runs))]
    handles = [
        figure.axes[0].plot([], [], label=name, **line_style)[0] for name, line_style in zip(runs, line_styles, strict=True)
    ]
    add_legend(figure, handles=handles, loc="outside upper center", ncols=min(len(runs), 2 if columns == 1 else 4))
    return figure


def _draw_curve(
    panel, run: RunLog, quantity: str, x: str, shrink: float, scale: float, window: int, spread: str, line_style
) -> None:
    if spread == "lines":
        for seed in run.seeds:
            if curve := seed.curve(quantity):
                values = scale * smooth(curve.values, curve.stages, window)
                panel.plot(shrink * curve.x[x], values, **_with_markers(line_style, len(values)) | {"linewidth": 0.7})
        return
    mean_curve = average(run, quantity)
    if mean_curve is None:
        return
    mean, positions = scale * smooth(mean_curve.mean, mean_curve.stages, window), shrink * mean_curve.x[x]
    panel.plot(positions, mean, **_with_markers(line_style, len(mean)))
    if np.isfinite(mean_curve.deviation).any():
        deviation = scale * smooth(mean_curve.deviation, mean_curve.stages, window)
        panel.fill_between(positions, mean - deviation, mean + deviation, color=line_style["color"], alpha=0.18, linewidth=0)


def _with_markers(line_style, points: int):
    """Return the line style with markers at a few points, at different ones for each run, to be readable without colour."""
    interval = max(1, math.ceil(points / _MARKS))
    return {**line_style, "markevery": (int(line_style["markevery"] * interval), interval)}


def _stage_ends(runs: Mapping[str, RunLog], x: str) -> list[float]:
    """Return the x positions where stages end; ends within 2% of each other are merged into their mean."""
    ends = sorted({seed_end[x] for run in runs.values() for seed in run.seeds for seed_end in seed.ends if x in seed_end})
    groups: list[list[float]] = []
    for end in ends:
        if groups and end - groups[-1][0] <= 0.02 * end:
            groups[-1].append(end)
        else:
            groups.append([end])
    return [sum(group) / len(group) for group in groups]


def _axis_exponent(runs: Mapping[str, RunLog], quantities: Sequence[str], x: str) -> int:
    """Return the exponent of the power of ten that the axis is scaled by: 0, 3, 6, ..."""
    points = (
        point for run in runs.values() for seed in run.seeds for name in quantities for point in seed.points.get(name, ())
    )
    largest = max((position.get(x, 0.0) for _, position, _ in points), default=0.0)
    return 3 * int(math.log10(largest) // 3) if largest >= 10_000 else 0


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: CurvesArguments) -> Findings:
    """Write curves.png, curves.svg, and curves.csv with every point."""
    if not args.run:
        raise AnalysisError("--what curves needs --run: runs, or a folder of runs.")
    runs = read_runs(args.runs)
    lacking = [name for name, run in runs.items() if run.lacks(options.x)]
    if len(lacking) == len(runs):
        raise AnalysisError(
            f"{', '.join(lacking)}: the log has no {AXES[options.x]} (--x {options.x}). Steps are always logged; tokens, "
            "FLOPs and seconds only by a Trainer of hf_tlm, with the losses (--logging_steps)."
        )
    drawn = {name: run for name, run in runs.items() if name not in lacking}
    quantities = choose_quantities(drawn.values(), options.quantities)
    figure = curves_figure(drawn, quantities, x=options.x, smoothing=options.smoothing, spread=options.spread)
    files = save_figure(figure, args.folder, "curves", point_rows(drawn, quantities, options.smoothing))
    return Findings("Training curves", _format_text(drawn, quantities, lacking, options), files)


def _format_text(runs: Mapping[str, RunLog], quantities: list[str], lacking: list[str], options: CurvesArguments) -> str:
    axis = AXES[options.x]
    lines = [f"Drawn against {axis}: {', '.join(quantities)}."]
    for name, run in runs.items():
        lines += _describe_run(name, run, quantities, axis)
    lines += [f"- {name} is left out: its log has no {axis}" for name in lacking]
    others = sorted({name for run in runs.values() for name in run.quantities} - set(quantities))
    if others:
        lines.append(f"\nAlso logged (--quantities): {', '.join(others)}.")
    if options.spread == "band" and any(len(run.seeds) > 1 for run in runs.values()):
        lines.append("\nLines are means over seeds, bands their standard deviation (n - 1).")
    return "\n".join(lines)


def _describe_run(name: str, run: RunLog, quantities: Sequence[str], axis: str) -> Iterator[str]:
    """Yield Markdown lines that say what is drawn of a run, what it has not logged, and where values are not finite."""
    seeds = f"{len(run.seeds)} seeds" if len(run.seeds) > 1 else "one seed"
    if any(seed.of_checkpoints for seed in run.seeds):
        seeds += f", fine-tuned from a pretraining's checkpoints, and drawn against that pretraining's {axis}"
    missing = [quantity for quantity in quantities if quantity not in run.quantities]
    yield f"- {name}: {seeds}" + (f"; not logged: {', '.join(missing)}" if missing else "")
    for seed, quantity in product(run.seeds, quantities):
        bad = [x["steps"] for _, x, value in seed.points.get(quantity, ()) if not math.isfinite(value)]
        if bad:
            where = f"at step {', '.join(f'{step:g}' for step in bad[:5])}" + (", ..." if len(bad) > 5 else "")
            yield f"- {name}, seed {seed.seed or 0}: {quantity} is not finite {where}; the others' mean is drawn"
