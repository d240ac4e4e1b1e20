"""The content of a report page as plain values: sections of tables, charts, matrices and paragraphs.

Nothing here is markup; charts hold coordinates, not SVG. The template escapes every string, whatever data it came from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from markupsafe import escape

from hf_tlm.analysis.arguments import ReportPageArguments
from hf_tlm.utils.shown import for_markdown, markdown_table

# Control characters, and marks that change the direction of the text after them.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST = 4000  # Most characters in any string of the page.
SMALL_TABLE, LARGE_TABLE = 60_000, 500_000  # Most bytes in the cells of a table.
SMALL_ROWS = 200

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 12, 42
MOST_POINTS, MOST_DOTS, MOST_SERIES = 200, 1500, 7
TABLE_ROWS = 60

Points = Sequence[tuple[float, float]]


def printable(text: str, longest: int = LONGEST) -> str:
    """Truncate a text to `longest` characters, with an ellipsis, and replace characters that a page cannot hold."""
    text = text if len(text) <= longest else f"{text[:longest]}…"
    return _CONTROL_CHARACTERS.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


class Block:
    """Base class of the content of sections; `block` tells the template how to draw it."""

    @property
    def block(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Column:
    """A column of a table.

    of: "text"; "number", formatted by `format`; "share", a number from 0 to 1, shown as percent with a bar.
    """

    title: str
    of: str = "text"
    format: str = "{:,}"
    wide: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table: the shown text, the sort key of its column, and the length of its bar from 0 to 1.

    pieces: the text in pieces (piece, whether it is marked) if parts are marked.
    """

    text: str
    sort: float | None = None
    bar: float | None = None
    pieces: Sequence[tuple[str, bool]] = ()


@dataclass(frozen=True)
class Table(Block):
    """A table; left_out: number of rows that are not shown."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    searchable: bool = False


@dataclass(frozen=True)
class Matrix(Block):
    """A confusion matrix.

    counts: rows are true classes, columns predicted classes.
    shares: counts divided by the row's sum, 0 for an empty row.
    """

    caption: str
    names: Sequence[str]
    counts: Sequence[Sequence[str]]
    shares: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Text(Block):
    text: str


@dataclass(frozen=True)
class Code(Block):
    text: str


@dataclass(frozen=True)
class Facts(Block):
    """A list of names and their values."""

    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Row(Block):
    """Blocks that are shown side by side if the window is wide enough."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Folded(Block):
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chart(Block):
    """A line chart or scatter plot; coordinates are in a box of WIDTH x HEIGHT with the origin at the upper left.

    x_ticks, y_ticks: (position, label).
    lines: (name, "x,y x,y ...").
    dots: (x, y) of a scatter plot.
    diagonal: "x,y x,y" of y = x.
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


@dataclass(frozen=True)
class Section:
    title: str
    anchor: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def make_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    total: int | None = None,
    most: int = SMALL_ROWS,
    characters: int = LONGEST,
    most_bytes: int = SMALL_TABLE,
    searchable: bool = False,
) -> Table:
    """Build a table of the first rows, limited in size so that a page stays small however long the data are.

    Args:
        rows: a value for each column: a string, a number, a list of (piece of a text, whether it is marked), or None for an
            empty cell.
        total: total number of rows; None: len(rows).
        most: most rows.
        characters: most characters of a cell.
        most_bytes: most bytes of all cells; one row is always kept.
    """
    # Without a total, `rows` is a sequence.
    total = len(rows) if total is None else total  # type: ignore[arg-type]
    kept: list[list[Cell]] = []
    size = 0
    for row in islice(rows, most):
        cells = [_make_cell(value, column, characters) for value, column in zip(row, columns, strict=True)]
        # A cell's tags and attributes take about 60 bytes, those of a mark 13.
        size += sum(60 + 13 * len(cell.pieces) + len(str(escape(cell.text)).encode("utf-8")) for cell in cells)
        if size > most_bytes and kept:
            break
        kept.append(cells)
    return Table(caption, columns, kept, total - len(kept), searchable)


def texts_table(
    caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Any]], total: int, options: ReportPageArguments
) -> Table:
    """Build a searchable table with texts of the data."""
    bounds = {"most": options.report_rows, "characters": options.report_characters, "most_bytes": LARGE_TABLE}
    return make_table(caption, columns, rows, total=total, **bounds, searchable=True)


def line_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> Chart | None:
    """Draw a line for each series, sorted by x, with evenly thinned points if there are many.

    Series beyond the first `MOST_SERIES` are named in a note. Returns None if there are no finite points.
    """
    finite = {name: _finite_points(points) for name, points in series.items()}
    finite = {name: points for name, points in finite.items() if points}
    if not finite:
        return None
    left_out = list(finite)[MOST_SERIES:]
    finite = {name: _thin_points(sorted(points), MOST_POINTS) for name, points in list(finite.items())[:MOST_SERIES]}
    x, y = (_Axis([point[axis] for points in finite.values() for point in points], axis) for axis in (0, 1))
    rows = [(name, *point) for name, points in finite.items() for point in _thin_points(points, TABLE_ROWS // len(finite))]
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
    """Draw a dot for each point, and the line y = x; return None if there are no finite points."""
    finite = _finite_points(points)
    if not finite:
        return None
    shown = _thin_points(finite, MOST_DOTS)
    values = [value for point in finite for value in point]
    x, y = _Axis(values, 0), _Axis(values, 1)
    low, high = min(values), max(values)
    return Chart(
        title,
        x_label,
        y_label,
        x.ticks,
        y.ticks,
        dots=[(round(x(a), 1), round(y(b), 1)) for a, b in shown],
        diagonal=f"{x(low):.1f},{y(low):.1f} {x(high):.1f},{y(high):.1f}",
        note=f"{len(shown):,} of {len(finite):,} rows are drawn." if len(shown) < len(finite) else "",
    )


def to_markdown(blocks: Iterable[Any]) -> str:
    """Format the texts and tables of the blocks as Markdown, without searchable tables, which hold texts of the data."""
    parts = []
    for block in blocks:
        if isinstance(block, Row):
            parts.append(to_markdown(block.blocks).strip())
        elif isinstance(block, Text):
            parts.append(for_markdown(block.text, LONGEST))
        elif isinstance(block, Table) and block.rows and not block.searchable:
            texts = sum(column.of == "text" for column in block.columns)
            rows = [[cell.text for cell in row] for row in block.rows]
            table = markdown_table([column.title for column in block.columns], rows, texts)
            parts.append(f"**{for_markdown(block.caption, LONGEST)}**\n\n{table}".strip())
    return "\n\n".join(parts) + "\n"


def _make_cell(value: Any, column: Column, characters: int) -> Cell:
    if value is None:
        return Cell("")
    if isinstance(value, list):
        pieces = _truncate_pieces(value, characters)
        return Cell("".join(piece for piece, _ in pieces), pieces=pieces)
    if column.of == "text" or isinstance(value, str):
        return Cell(printable(str(value), characters))
    try:
        number = float(value)
    except OverflowError:  # An integer in a foreign file may exceed a float.
        return Cell(printable(str(value), characters))
    if column.of == "share":
        return Cell(f"{100 * value:.1f}%", number, min(max(number, 0.0), 1.0))
    return Cell(column.format.format(value), number)


def _truncate_pieces(pieces: Sequence[tuple[str, bool]], characters: int) -> list[tuple[str, bool]]:
    """Truncate a marked text to its first characters, with an ellipsis."""
    kept: list[tuple[str, bool]] = []
    for piece, marked in pieces:
        kept.append((printable(piece, characters), marked))
        characters -= len(piece)
        if characters < 0:
            break
    return kept


class _Axis:
    """A linear scale from values to coordinates, with ticks at round numbers; of: 0 for x, 1 for y."""

    def __init__(self, values: Sequence[float], axis: int):
        low, high = min(values), max(values)
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # A constant, apart from rounding errors.
            margin = abs(low) * 0.05 or 0.5
            low, high = low - margin, high + margin
        step = _round_step((high - low) / 5)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if axis == 0:
            self.low, self.high = low, high
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        else:
            self.low, self.high = first * step, last * step
        self.start, self.end = (LEFT, WIDTH - RIGHT) if axis == 0 else (HEIGHT - BOTTOM, TOP)
        self.ticks = [(round(self(index * step), 1), _tick_label(index * step, step)) for index in range(first, last + 1)]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _round_step(step: float) -> float:
    """Round a step up to the next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _tick_label(value: float, step: float) -> str:
    place = math.floor(math.log10(step) + 1e-9)  # Of the last digit that distinguishes ticks.
    if abs(value) >= 1e6 or step < 1e-4:
        digits = math.floor(math.log10(abs(value))) - place + 1 if value else 1
        return f"{value:.{max(3, digits)}g}"
    return f"{value + 0.0:,.{max(0, -place)}f}"


def _finite_points(points: Sequence[Any]) -> list[tuple[float, float]]:
    pairs = [(float(a), float(b)) for a, b in points]
    return [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _thin_points(points: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` evenly spaced points, including the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]
