"""Where the parts of a small chart are; the template draws them, in the colours of light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_tlm.analysis.report.blocks import Column, Table, make_table

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 12, 42
MOST_POINTS, MOST_DOTS, MOST_SERIES = 200, 1500, 7
TABLE_ROWS = 60

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Places are in a box of WIDTH x HEIGHT, its origin above and left.

    ticks: (place, label). lines: (name, "x,y x,y ..."). dots: (x, y), of a scatter plot. diagonal: "x,y x,y" of y = x.
    """

    title: str
    x_label: str
    y_label: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    lines: Sequence[tuple[str, str]] = ()
    dots: Sequence[tuple[float, float]] = ()
    numbers: Table | None = None
    diagonal: str | None = None
    note: str = ""
    box: tuple[int, ...] = (WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM)
    block: str = "chart"


def line_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> Chart | None:
    """A line for each series, in the order of x; None without finite points. What does not fit is thinned out evenly."""
    finite = {name: _finite(points) for name, points in series.items()}
    finite = {name: points for name, points in finite.items() if points}
    if not finite:
        return None
    left_out = list(finite)[MOST_SERIES:]
    finite = {name: _thinned(sorted(points), MOST_POINTS) for name, points in list(finite.items())[:MOST_SERIES]}
    x, y = (_Axis([point[of] for points in finite.values() for point in points], of) for of in (0, 1))
    rows = [(name, *point) for name, points in finite.items() for point in _thinned(points, TABLE_ROWS // len(finite))]
    columns = (Column("series"), Column(x_label, "number", "{:,g}"), Column(y_label, "number", "{:.5g}"))
    return Chart(
        title,
        x_label,
        y_label,
        x.ticks,
        y.ticks,
        lines=[(name, " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)) for name, points in finite.items()],
        numbers=make_table("", columns, rows),
        note=f"Not drawn: {', '.join(left_out)}." if left_out else "",
    )


def scatter(title: str, x_label: str, y_label: str, points: Points) -> Chart | None:
    """A dot for each point, and the line where both numbers are the same; None without finite points."""
    finite = _finite(points)
    if not finite:
        return None
    drawn = _thinned(finite, MOST_DOTS)
    values = [value for point in finite for value in point]
    x, y = _Axis(values, 0), _Axis(values, 1)
    low, high = min(values), max(values)
    return Chart(
        title,
        x_label,
        y_label,
        x.ticks,
        y.ticks,
        dots=[(round(x(a), 1), round(y(b), 1)) for a, b in drawn],
        diagonal=f"{x(low):.1f},{y(low):.1f} {x(high):.1f},{y(high):.1f}",
        note=f"{len(drawn):,} of {len(finite):,} rows are drawn." if len(drawn) < len(finite) else "",
    )


class _Axis:
    """From values to places, with ticks at round numbers. of: 0 for x, 1 for y."""

    def __init__(self, values: Sequence[float], of: int):
        low, high = min(values), max(values)
        if low == high:
            room = abs(low) * 0.05 or 0.5
            low, high = low - room, high + room
        step = _round_step((high - low) / 5)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if of == 0:
            self.low, self.high = low, high
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        else:
            self.low, self.high = first * step, last * step
        self.start, self.end = (LEFT, WIDTH - RIGHT) if of == 0 else (HEIGHT - BOTTOM, TOP)
        self.ticks = [(round(self(at * step), 1), _label(at * step, step)) for at in range(first, last + 1)]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _label(value: float, step: float) -> str:
    if abs(value) >= 1e6 or 0 < step < 1e-4:
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:,.{digits}f}"


def _finite(points: Sequence[Any]) -> list[tuple[float, float]]:
    pairs = [(float(a), float(b)) for a, b in points]
    return [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _thinned(points: Sequence[Any], most: int) -> list[Any]:
    """Every so many-th point, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]
