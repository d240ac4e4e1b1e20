"""The picture of training curves: a panel for each quantity, a line for each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.analysis.arguments import AXES
from hf_tlm.analysis.curves.series import average, smooth, unit
from hf_tlm.analysis.curves.states import RunLog
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.figures import PALETTE, STYLE, WIDTH, add_legend, new_figure, power_of_ten, series_style, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 6.8  # inches: the width of a page
_MARKS = 8  # on a line


@style()
def curves_figure(
    runs: Mapping[str, RunLog], quantities: Sequence[str], *, x: str = "steps", smoothing: int = 1, spread: str = "band"
) -> Figure:
    """Small multiples; dotted lines are where a stage ends.

    Args:
        x: an axis of `AXES`. smoothing: points of a running mean.
        spread: of several seeds, "band" for the standard deviation around the mean, "lines" for every seed.

    Raises:
        AnalysisError: more runs than lines that can be told apart.
    """
    if len(runs) > len(PALETTE):
        raise AnalysisError(
            f"One picture shows up to {len(PALETTE)} runs; there are {len(runs)}: {', '.join(runs)}. Choose some, as in "
            "--run first=DIR second=DIR."
        )
    columns = min(len(quantities), 3 if len(quantities) != 4 else 2)
    rows = math.ceil(len(quantities) / columns)
    figure, axes = new_figure(
        rows, columns, width=WIDTH if columns == 1 else WIDE, height=0.7 + 1.5 * rows, squeeze=False, sharex=True
    )
    exponent = _exponent(runs, quantities, x)
    for at, panel in enumerate(axes.flat):
        if at >= len(quantities):
            panel.remove()
            continue
        word, scale = unit(quantities[at])
        panel.set_title(quantities[at])
        panel.set_ylabel(word)
        for number, run in enumerate(runs.values()):
            look = {**series_style(number), "markersize": 3, "markevery": number / len(runs)}
            _draw(panel, run, quantities[at], x, 10.0**-exponent, scale, smoothing, spread, look)
        for end in _ends(runs, x):
            panel.axvline(end * 10.0**-exponent, color="#808080", linestyle=":", linewidth=0.8, zorder=0)
        panel.margins(x=0.03)
        bottom, top = panel.get_ylim()
        if word == "%" and top > 100:
            panel.set_ylim(bottom, 100 + 0.03 * (100 - bottom))
        panel.tick_params(labelbottom=at + columns >= len(quantities))
    figure.supxlabel(_x_label(x, exponent, smoothing), fontsize=STYLE["axes.labelsize"])
    looks = [{**series_style(number), "markersize": 3} for number in range(len(runs))]
    handles = [figure.axes[0].plot([], [], label=name, **look)[0] for name, look in zip(runs, looks, strict=True)]
    add_legend(figure, handles=handles, loc="outside upper center", ncols=min(len(runs), 2 if columns == 1 else 4))
    return figure


def _draw(panel, run: RunLog, quantity: str, x: str, shrink: float, scale: float, window: int, spread: str, look) -> None:
    if spread == "lines":
        for seed in run.seeds:
            if curve := seed.curve(quantity):
                values = scale * smooth(curve.values, curve.stages, window)
                panel.plot(shrink * curve.x[x], values, **_marked(look, len(values)) | {"linewidth": 0.7})
        return
    of = average(run, quantity)
    if of is None:
        return
    mean, along = scale * smooth(of.mean, of.stages, window), shrink * of.x[x]
    panel.plot(along, mean, **_marked(look, len(mean)))
    if np.isfinite(of.deviation).any():
        deviation = scale * smooth(of.deviation, of.stages, window)
        panel.fill_between(along, mean - deviation, mean + deviation, color=look["color"], alpha=0.18, linewidth=0)


def _marked(look, points: int):
    """Marks on some points of a line, so that it is told apart without colour; of a long one on others than other lines'."""
    every = max(1, math.ceil(points / _MARKS))
    return {**look, "markevery": (int(look["markevery"] * every), every)}


def _ends(runs: Mapping[str, RunLog], x: str) -> list[float]:
    """Where the stages end; of seeds or runs that differ by little, one line in their middle."""
    ends = sorted({seed_end[x] for run in runs.values() for seed in run.seeds for seed_end in seed.ends if x in seed_end})
    groups: list[list[float]] = []
    for end in ends:
        if groups and end - groups[-1][0] <= 0.02 * end:
            groups[-1].append(end)
        else:
            groups.append([end])
    return [sum(group) / len(group) for group in groups]


def _exponent(runs: Mapping[str, RunLog], quantities: Sequence[str], x: str) -> int:
    """Of the power of ten that numbers on the axis are multiples of: 0, 3, 6, ..."""
    points = (
        point for run in runs.values() for seed in run.seeds for name in quantities for point in seed.points.get(name, ())
    )
    largest = max((position.get(x, 0.0) for _, position, _ in points), default=0.0)
    return 3 * int(math.log10(largest) // 3) if largest >= 10_000 else 0


def _x_label(x: str, exponent: int, smoothing: int) -> str:
    label = AXES[x] + (f" ({power_of_ten(exponent)})" if exponent else "")
    return label + (f", running means of {smoothing} points" if smoothing > 1 else "")
