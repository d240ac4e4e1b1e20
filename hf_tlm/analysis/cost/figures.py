"""The picture of score against cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.cost.comparison import Comparison
from hf_tlm.analysis.figures import MARKERS, PALETTE, WIDTH, add_legend, label_decades, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#606060"
WIDE = 6.8  # inches: the width of a page


@style()
def cost_figure(found: Comparison) -> Figure:
    """Draw all points by FLOPs, one's own filled and coloured, published ones hollow and grey.

    Beside them are, where there are several, one's own scores alone, which are close together in the first panel, with the
    seeds' deviation.
    """
    several = len(found.own) > 1
    height = max(2.6, 1.0 + 0.2 * len(found.own)) + (0.5 if found.published else 0.0)
    figure, axes = new_figure(1, 1 + several, width=WIDE if several else WIDTH, height=height, squeeze=False)
    _by_flops(axes[0, 0], found)
    if several:
        _own(axes[0, 1], found)
    elif found.own:
        axes[0, 0].set_title(f"{found.own[0].name} (filled)")
    if found.published:
        handles = [line for line in axes[0, 0].lines if not line.get_label().startswith("_")]
        title = "published, not measured here"
        add_legend(figure, handles=handles, title=title, ncols=3 if several else 2)
    return figure


def _style(number: int) -> dict[str, Any]:
    """With another marker at each turn of the colours."""
    return {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]}


def _by_flops(axes: Axes, found: Comparison) -> None:
    for number, point in enumerate(found.own):
        axes.plot(point.ratio, point.score, linestyle="", label="_own", zorder=3, **_style(number))
    for number, family in enumerate(dict.fromkeys(point.family for point in found.published)):
        points = sorted((point for point in found.published if point.family == family), key=lambda point: point.flops)
        axes.plot(
            [point.ratio for point in points],
            [point.score for point in points],
            color=GREY,
            linewidth=0.6,
            marker=MARKERS[number % len(MARKERS)],
            markerfacecolor="none",
            markeredgewidth=0.8,
            label=family,
        )
    axes.set_xscale("log")
    axes.margins(x=0.06, y=0.1)
    axes.set_xlabel("training FLOPs relative to RoBERTa-Large")
    label_decades(axes.xaxis)
    axes.set_ylabel(_score(found))


def _own(axes: Axes, found: Comparison) -> None:
    """A line for each, the best on top."""
    order = sorted(range(len(found.own)), key=lambda number: found.own[number].score)
    for place, number in enumerate(order):
        point = found.own[number]
        axes.errorbar(point.score, place, xerr=point.deviation, linestyle="", elinewidth=0.8, **_style(number))
    names = [f"{found.own[number].name}\n{found.own[number].flops:.2g} FLOPs" for number in order]
    axes.set_yticks(range(len(order)), names)
    axes.margins(x=0.08, y=0.12)
    axes.set_xlabel(_score(found))
    axes.set_title("own runs" + (", mean ± standard deviation" if any(point.deviation for point in found.own) else ""))


def _score(found: Comparison) -> str:
    tasks = f"{next(iter(found.tasks))}," if len(found.tasks) == 1 else f"average of {len(found.tasks)} tasks,"
    return f"{tasks} {found.split} score (%)"
