"""Pictures of the views of subsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.figures import PALETTE, WIDTH, add_legend, new_figure, series_style, style
from hf_tlm.analysis.subsets.influence import RankInfluence
from hf_tlm.analysis.subsets.overlap import Overlap
from hf_tlm.analysis.subsets.ranks import SizeAgainstK, steps
from hf_tlm.analysis.subsets.sources import SourceShare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----")
CORPUS_COLORS = ("#b0b0b0", "#d8d8d8")
BAR = 0.06  # inches that a bar is high
LONGEST_LABEL = 26
LETTER = 0.055  # inches that a letter of a label is wide
IN_A_FIGURE = 6  # subsets that are told apart
SIDE_BY_SIDE = 8  # subsets whose matrices are legible beside each other


@style()
def draw_size(curves: Mapping[str, SizeAgainstK]) -> Figure:
    """Above, the size of the union against K; below, the score at each rank with its standard deviation."""
    figure, (above, below) = new_figure(2, 1, height=3.6, sharex=True)
    for index, (name, curve) in enumerate(curves.items()):
        look, known = series_style(index), ~np.isnan(curve.score)
        at = np.array(steps(len(curve.k)))
        above.plot(curve.k, curve.passages, label=label(name), markevery=at - 1, **look)
        if known.any():
            k, score, deviation = (values[known] for values in (curve.k, curve.score, curve.deviation))
            below.plot(k, score, markevery=np.flatnonzero(np.isin(k, at)).tolist(), **look)
            below.fill_between(k, score - deviation, score + deviation, color=look["color"], alpha=0.15, linewidth=0)
    above.set(xscale="log", ylabel="passages in the union", ylim=(0, None))
    below.set(xscale="log", xlabel="K, or rank k (log scale)", ylabel="BM25 score at rank k", ylim=(0, None))
    ticks = steps(max(len(curve.k) for curve in curves.values()))
    below.set_xticks(ticks if len(ticks) < 8 else [tick for tick in ticks if str(tick).strip("0") == "1"], minor=False)
    below.set_xticks([], minor=True)
    for axes in (above, below):
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    _legend(figure, above, len(curves))
    return figure


@style()
def draw_sources(shares: Sequence[SourceShare], corpora: Mapping[str, Sequence[str]]) -> Figure:
    """Bars of the sources' shares, the corpora's first.

    Args:
        corpora: by its name, the subsets of each corpus that have its sources.
    """
    groups = [list(own) for _, own in groupby(shares, key=lambda share: share.source)]
    subsets = [share.subset for share in groups[0]]
    bars = [(name, [_of(own, names[0]).corpus_share for own in groups]) for name, names in corpora.items()]
    bars += [(name, [_of(own, name).share for own in groups]) for name in subsets]
    height = 0.9 + len(groups) * (len(bars) + 1) * BAR + 0.12 * len(bars)
    figure, axes = new_figure(height=height)
    places = np.arange(len(groups)) * (len(bars) + 1.0)
    for index, (name, values) in enumerate(bars):
        own = index - len(corpora)
        look = (
            {"color": CORPUS_COLORS[index % len(CORPUS_COLORS)]}
            if own < 0
            else {"facecolor": PALETTE[own % len(PALETTE)], "hatch": HATCHES[own % len(HATCHES)], "edgecolor": "white"}
        )
        axes.barh(places + index, 100 * np.array(values), height=1, linewidth=0.3, label=label(name), **look)
    names = [f"{own[0].others:,} others" if own[0].source is None else label(own[0].source or "(none)") for own in groups]
    axes.set_yticks(places + (len(bars) - 1) / 2, names)
    axes.set(xlabel="share of passages (%)", ylim=(places[-1] + len(bars), -1))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    _legend(figure, axes, len(bars))
    return figure


@style()
def draw_influence(found: RankInfluence) -> Figure:
    """By group of ranks, where the middle half and nine tenths of influence are, and its mean with standard deviation."""
    figure, axes = new_figure()
    at = np.arange(len(found.bins))
    quantiles = np.array([group.quantiles for group in found.bins])
    for low, high, color, what in ((0, 4, "#dcdcdc", "5 to 95%"), (1, 3, "#a8a8a8", "25 to 75%")):
        axes.bar(at, quantiles[:, high] - quantiles[:, low], 0.7, quantiles[:, low], color=color, label=what)
    axes.hlines(quantiles[:, 2], at - 0.35, at + 0.35, color="black", linewidth=0.8, label="median")
    mean, deviation = (np.array([getattr(group, name) for group in found.bins]) for name in ("mean", "deviation"))
    look = series_style(1) | {"linestyle": ""}
    axes.errorbar(at, mean, deviation, elinewidth=0.9, capsize=2, label="mean, standard deviation", **look)
    axes.use_sticky_edges = False  # Bars would have no margin below.
    names = [f"{g.first:,}" if g.first == g.last else f"{g.first:,}–{g.last:,}" for g in found.bins]
    axes.set_xticks(at, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set(xlabel="BM25 rank", ylabel="influence\n(loss per learning rate)")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=False)
    axes.grid(False, axis="x")
    _legend(figure, axes, 4)
    return figure


@style()
def draw_overlap(found: Overlap) -> Figure:
    """Annotated matrices of the measures that apply."""
    measures = {"Jaccard index": found.jaccard, "share of the row in the column": found.containment}
    apart = found.per_query[~np.eye(len(found.names), dtype=bool)]
    if not np.isnan(apart).all():
        measures["Jaccard index per query"] = found.per_query
    across = len(measures) if len(found.names) <= SIDE_BY_SIDE else 1
    down = len(measures) // across
    names = [label(name, 18) for name in found.names]
    width = 2 * WIDTH + 0.2 if across > 1 else WIDTH
    beside = 0.2 + LETTER * max(map(len, names))  # inches that names take
    cell = (width - beside) / across / len(names)
    height = down * (0.3 + cell * len(names)) + beside
    figure, grid = new_figure(down, across, width=width, height=height, sharex=True, sharey=True, squeeze=False)
    size = min(7, 26 * cell)
    for axes, (title, values) in zip(grid.flat, measures.items(), strict=True):
        axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            written = "–" if np.isnan(value) else f"{value:.2f}"
            axes.text(
                column, row, written, ha="center", va="center", fontsize=size, color="white" if value > 0.6 else "black"
            )
        axes.set_title(title, fontsize=7)
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def label(text: str, longest: int = LONGEST_LABEL) -> str:
    """On one line, the middle left out where it is long: names of files often differ at their ends."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _of(shares: Sequence[SourceShare], subset: str) -> Any:
    return next(share for share in shares if share.subset == subset)


def _legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Above the plot, where no data are."""
    add_legend(figure, *axes.get_legend_handles_labels(), loc="outside upper center", ncols=2 if entries > 1 else 1)
