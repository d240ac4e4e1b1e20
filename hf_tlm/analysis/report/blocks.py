"""What a page is made of, as plain values: sections of tables, charts, matrices and paragraphs.

Nothing here is markup, of a chart neither: where its parts are. The template escapes every string when it draws them,
whatever data it came from.
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
from hf_tlm.utils.shown import markdown_table

# Control characters, and marks that change the direction of what follows.
_BLANKS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST = 4000  # characters of any string of the page
SMALL_TABLE, LARGE_TABLE = 60_000, 500_000  # bytes of the cells of a table
SMALL_ROWS = 200

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 12, 42
MOST_POINTS, MOST_DOTS, MOST_SERIES = 200, 1500, 7
TABLE_ROWS = 60

Points = Sequence[tuple[float, float]]


def printable(text: str, longest: int = LONGEST) -> str:
    """At most so many characters of a text, and an ellipsis for others; without what a page cannot hold."""
    text = text if len(text) <= longest else f"{text[:longest]}…"
    return _BLANKS.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


class Block:
    """What sections hold; the template draws each as its `block` says."""

    @property
    def block(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Column:
    """of: "text"; "number", which `format` shows; "share", a number from 0 to 1 as percent with a bar."""

    title: str
    of: str = "text"
    format: str = "{:,}"
    wide: bool = False


@dataclass(frozen=True)
class Cell:
    """What a person reads, what the column is sorted by, and the length of its bar from 0 to 1.

    pieces: of the text, where some are marked: (piece, whether it is).
    """

    text: str
    sort: float | None = None
    bar: float | None = None
    pieces: Sequence[tuple[str, bool]] = ()


@dataclass(frozen=True)
class Table(Block):
    """left_out: how many rows there were beside these."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    searchable: bool = False


@dataclass(frozen=True)
class Matrix(Block):
    """counts: of each true class (row) by predicted class (column). shares: of the row's sum, 0 for an empty row."""

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
    """Names and what they are."""

    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Row(Block):
    """Blocks beside each other where there is room."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Folded(Block):
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chart(Block):
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
    """A table of the first rows, as many as fit: a page stays small however long the data are.

    Args:
        rows: a value for each column: a string, a number, a list of (piece of a text, whether it is marked), or None for an
            empty cell.
        total: how many rows there are; None: len(rows).
        most, characters, most_bytes: rows; characters of a cell; bytes of all cells.
    """
    # Who leaves it out gives a sequence.
    total = len(rows) if total is None else total  # type: ignore[arg-type]
    kept: list[list[Cell]] = []
    size = 0
    for row in islice(rows, most):
        cells = [_cell(value, column, characters) for value, column in zip(row, columns, strict=True)]
        # A cell's tags and attributes are some 60 bytes, those of a mark 13.
        size += sum(60 + 13 * len(cell.pieces) + len(str(escape(cell.text)).encode("utf-8")) for cell in cells)
        if size > most_bytes and kept:
            break
        kept.append(cells)
    return Table(caption, columns, kept, total - len(kept), searchable)


def texts_table(
    caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Any]], total: int, options: ReportPageArguments
) -> Table:
    """A table of the data's texts, which one searches."""
    bounds = {"most": options.report_rows, "characters": options.report_characters, "most_bytes": LARGE_TABLE}
    return make_table(caption, columns, rows, total=total, **bounds, searchable=True)


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


def to_markdown(blocks: Iterable[Any]) -> str:
    """The texts and tables among blocks, without the tables that one searches, which are of the data's texts."""
    parts = []
    for block in blocks:
        if isinstance(block, Row):
            parts.append(to_markdown(block.blocks).strip())
        elif isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, Table) and block.rows and not block.searchable:
            texts = sum(column.of == "text" for column in block.columns)
            rows = [[cell.text for cell in row] for row in block.rows]
            table = markdown_table([column.title for column in block.columns], rows, texts)
            parts.append(f"**{block.caption}**\n\n{table}".strip())
    return "\n\n".join(parts) + "\n"


def _cell(value: Any, column: Column, characters: int) -> Cell:
    if value is None:
        return Cell("")
    if isinstance(value, list):
        pieces = _first(value, characters)
        return Cell("".join(piece for piece, _ in pieces), pieces=pieces)
    if column.of == "text" or isinstance(value, str):
        return Cell(printable(str(value), characters))
    try:
        number = float(value)
    except OverflowError:  # A whole number that a stranger's file may have.
        return Cell(printable(str(value), characters))
    if column.of == "share":
        return Cell(f"{100 * value:.1f}%", number, min(max(number, 0.0), 1.0))
    return Cell(column.format.format(value), number)


def _first(pieces: Sequence[tuple[str, bool]], characters: int) -> list[tuple[str, bool]]:
    """The first characters of a marked text, and an ellipsis for others."""
    kept: list[tuple[str, bool]] = []
    for piece, marked in pieces:
        kept.append((printable(piece, characters), marked))
        characters -= len(piece)
        if characters < 0:
            break
    return kept


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
