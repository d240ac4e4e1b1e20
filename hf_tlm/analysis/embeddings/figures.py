"""Figures of embeddings: t-SNE and distributions of cosine similarities, a panel for each model.

Shapes: N texts, P pairs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_tlm.analysis.figures import HEIGHT, MARKERS, PALETTE, WIDTH, add_legend, new_figure, save_figure, shortened, style

# Panels -> columns, where it is not as many as there are or three.
COLUMNS = {4: 2}
BINS = 50
GREY, EDGE = "#b0b0b0", "#404040"
# Similar pairs that are marked; the colours and markers there are.
MARKED = 6
NAME_WIDTH = 26


@style()
def draw_classes(
    projections: Mapping[str, np.ndarray], labels: np.ndarray, names: Sequence[str], directory: str | os.PathLike
) -> list[Path]:
    """Figure 4 of the ISS paper: embeddings_tsne.png, .svg and .csv, a panel for each model, a colour for each class.

    Of more than seven classes the six with most texts have colours; the others are grey.

    Args:
        projections: name of a model -> [N, 2].
        labels: int64 [N], indices of `names`.
    """
    counts = np.bincount(labels, minlength=len(names))
    present = [label for label in np.argsort(-counts, kind="stable") if counts[label]]
    shown = present if len(present) <= len(PALETTE) else present[: len(PALETTE) - 1]
    figure, panels = _panels(len(projections), legend_rows=math.ceil((len(shown) + 1) / _legend_columns(projections)))
    for axes, (name, points) in zip(panels, projections.items(), strict=True):
        _title(axes, name)
        rest = ~np.isin(labels, shown)
        if rest.any():
            axes.scatter(*points[rest].T, s=5, c=GREY, marker=".", linewidths=0, label=f"{len(present) - len(shown)} others")
        # The largest class first: small ones would vanish under it.
        for at, label in enumerate(shown):
            look = {"s": _size(len(labels)), "c": PALETTE[at], "marker": MARKERS[at], "linewidths": 0, "alpha": 0.8}
            axes.scatter(*points[labels == label].T, label=shortened(names[label], NAME_WIDTH), **look)
    _legend(figure, panels[0], _legend_columns(projections))
    rows = [
        {"model": name, "text": row, "class": names[label], "x": float(x), "y": float(y)}
        for name, points in projections.items()
        for row, (label, (x, y)) in enumerate(zip(labels, points, strict=True))
    ]
    return save_figure(figure, directory, "embeddings_tsne", rows)


@style()
def draw_pairs(
    projections: Mapping[str, np.ndarray], pairs: np.ndarray, directory: str | os.PathLike, *, seed: int = 0
) -> list[Path]:
    """Draw figure 6 of the COCO-LM paper: texts of similar pairs, some of the pairs marked.

    Marked ones have the same shape and are joined by a line. Writes embeddings_tsne.png, .svg and .csv.

    Args:
        projections: name of a model -> [N, 2].
        pairs: int64 [P, 2], rows of the projections.
    """
    drawn = np.random.default_rng(seed).permutation(np.flatnonzero(pairs[:, 0] != pairs[:, 1]))[:MARKED]
    figure, panels = _panels(len(projections), legend_rows=0)
    for axes, (name, points) in zip(panels, projections.items(), strict=True):
        _title(axes, name)
        axes.scatter(*points.T, s=_size(len(points)), c=GREY, marker="o", linewidths=0)
        for at, pair in enumerate(drawn):
            look = {"color": PALETTE[at], "marker": MARKERS[at], "markeredgecolor": EDGE, "markeredgewidth": 0.4}
            axes.plot(*points[pairs[pair]].T, linewidth=0.8, markersize=5, **look)
    rows = [
        {
            "model": name,
            "pair": at,
            "marked": at in drawn,
            "first_x": x[0],
            "first_y": x[1],
            "second_x": y[0],
            "second_y": y[1],
        }
        for name, points in projections.items()
        for at, (x, y) in enumerate(points[pairs].astype(float).tolist())
    ]
    return save_figure(figure, directory, "embeddings_tsne", rows)


@style()
def draw_cosines(cosines: Mapping[str, Mapping[str, np.ndarray]], vector: str, directory: str | os.PathLike) -> list[Path]:
    """Draw figures 1 and 5 of the COCO-LM paper: histograms of the cosine similarities of some kinds of pairs.

    There is a panel for each model, with kernel density estimates and means. Writes embeddings_cosine.png, .svg and .csv.

    Args:
        cosines: name of a model -> kind of pairs, such as "random" -> [P].
        vector: what the cosines are of, for the axis.
    """
    least = min(found.min() for kinds in cosines.values() for found in kinds.values())
    edges = np.linspace(min(math.floor(least * 10) / 10, 0.9), 1, BINS + 1)
    figure, panels = _panels(len(cosines), legend_rows=1, labels=(f"cosine similarity of {vector}", "share of pairs (%)"))
    rows: list[dict[str, Any]] = []
    for axes, (name, kinds) in zip(panels, cosines.items(), strict=True):
        means = ", ".join(f"{kind} {found.mean():.2f}" for kind, found in kinds.items())
        _title(axes, f"{shortened(name, NAME_WIDTH)}\nmean: {means}")
        # A bin beyond 1, where squeezed spaces have all of their pairs at the very edge.
        axes.set_xlim(edges[0], 2 - edges[-2])
        for at, (kind, found) in enumerate(kinds.items()):
            shares = 100 * np.histogram(found, edges)[0] / len(found)
            # Filled and hollow, so that they differ without colour.
            look = {"color": PALETTE[at], "alpha": 0.35} if at == 0 else {"facecolor": "none", "edgecolor": PALETTE[at]}
            axes.stairs(shares, edges, fill=at == 0, linewidth=0.8, label=kind, **look)
            axes.plot(*_density(found, edges), color=PALETTE[at], linewidth=1.1)
            axes.axvline(found.mean(), color=PALETTE[at], linewidth=0.9, linestyle=("--", ":")[at % 2])
            rows += [
                {"model": name, "pairs": kind, "cosine_from": low, "cosine_to": high, "share_percent": share}
                for low, high, share in zip(*(x.tolist() for x in (edges[:-1], edges[1:], shares)), strict=True)
            ]
        axes.set_ylim(bottom=0)
    _legend(figure, panels[0], 2)
    return save_figure(figure, directory, "embeddings_cosine", rows)


def _density(cosines: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density estimate, in percent a bin; nothing of values so close that bins already smooth them."""
    from scipy.stats import gaussian_kde

    width = edges[1] - edges[0]
    if cosines.std() < width:
        return np.zeros(0), np.zeros(0)
    at, estimate = np.linspace(edges[0], edges[-1], 4 * BINS + 1), gaussian_kde(cosines)
    # What the kernels put beyond 1 or -1, where no cosine is, comes back.
    return at, 100 * width * sum(estimate(x) for x in (at, 2 - at, -2 - at))


def _panels(count: int, legend_rows: int, labels: tuple[str, str] = ("t-SNE 1", "t-SNE 2")) -> tuple[Any, list[Any]]:
    """A figure with room for a legend below, and as many axes; those of t-SNE have no ticks, as they have no unit."""
    columns = COLUMNS.get(count, min(count, 3))
    rows = math.ceil(count / columns)
    width = WIDTH if count == 1 else 2 * WIDTH + 0.2
    height = rows * (HEIGHT if columns < 3 else 2.1) + 0.17 * legend_rows
    figure, grid = new_figure(rows, columns, width=width, height=height, squeeze=False)
    panels = list(grid.flat)
    for unused in panels[count:]:
        unused.remove()
    for at, axes in enumerate(panels[:count]):
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1] if at % columns == 0 else "")
        if labels[0].startswith("t-SNE"):
            axes.set(xticks=[], yticks=[])
    return figure, panels[:count]


def _legend(figure: Any, axes: Any, columns: int) -> None:
    handles, names = axes.get_legend_handles_labels()
    last = [at for at, name in enumerate(names) if name.endswith(" others")]
    order = [at for at in range(len(names)) if at not in last] + last
    add_legend(
        figure,
        [handles[at] for at in order],
        [names[at] for at in order],
        ncols=min(columns, len(names)),
        markerscale=1.8,
        handletextpad=0.4,
        columnspacing=1.2,
    )


def _legend_columns(projections: Mapping[str, Any]) -> int:
    return 3 if len(projections) == 1 else 5


def _title(axes: Any, text: str) -> None:
    axes.set_title(text if "\n" in text else shortened(text, NAME_WIDTH))


def _size(count: int) -> float:
    """Of a point, in square points: smaller where there are many."""
    return float(np.clip(4000 / max(count, 1), 4, 14))
