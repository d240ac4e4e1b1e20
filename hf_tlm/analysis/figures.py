"""Settings and helpers that all figures share: size, colours, and the three files of each figure.

Figures are half a page wide, so that two fit side by side in a paper or on a screen, with 8-point text at that size.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.errors import AnalysisError
from hf_tlm.utils.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.typing import RcKeyType

WIDTH, HEIGHT = 3.3, 2.4  # inches
WIDE = 6.8  # Inches: the width of a page.
DPI = 300
# Okabe and Ito (2008): distinguishable with every kind of colour vision. Their yellow is too pale for lines on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Series differ in marker and dashes too, not only in colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
STYLE: dict[RcKeyType, Any] = {
    "font.size": 8,
    "text.parse_math": False,  # Names and texts of data may have dollar signs.
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e0e0e0",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "axes.linewidth": 0.6,
    "svg.fonttype": "none",  # Letters stay letters: small files, searchable.
    "svg.hashsalt": "hf_tlm",  # The same numbers give the same file.
}


def check_installed() -> None:
    """Check that matplotlib is installed, or raise an AnalysisError."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise AnalysisError("Figures need matplotlib: pip install 'hf-tlm[analysis]'.") from error


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of all figures, as a context or, with `@style()`, as a decorator.

    Raises:
        AnalysisError: matplotlib is not installed.
    """
    os.environ["MPLBACKEND"] = "agg"  # Nothing is shown; an unknown backend in the environment would fail the import.
    check_installed()
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def new_figure(rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = HEIGHT, **subplots: Any):
    """Return (figure, axes) as `pyplot.subplots` does, without pyplot's global state and without a display.

    To draw on them in the style of all figures, call it within `style()`.

    Args:
        width, height: of the figure, inches.

    Raises:
        AnalysisError: matplotlib is not installed.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **subplots)


def new_panels(count: int, height: Callable[[int, int], float], **subplots: Any) -> tuple[Figure, list[Axes], int]:
    """Return (figure, its panels, number of columns): up to three panels side by side, but four as two by two.

    Args:
        height: function of the numbers of rows and columns that returns the figure's height in inches.
    """
    columns = min(count, 2 if count == 4 else 3)
    rows = math.ceil(count / columns)
    width = WIDTH if columns == 1 else WIDE
    figure, grid = new_figure(rows, columns, width=width, height=height(rows, columns), squeeze=False, **subplots)
    for unused in grid.flat[count:]:
        unused.remove()
    return figure, list(grid.flat[:count]), columns


def series_style(index: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the index-th series of a plot."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def add_legend(figure: Figure, *entries: Any, **options: Any) -> Legend:
    """Add a legend outside of the axes, by default below them; `entries` and `options` as in `Figure.legend`."""
    return figure.legend(*entries, **{"loc": "outside lower center"} | options)


def label_decades(axis: Axis) -> None:
    """Label a logarithmic axis at powers of ten; if its limits span less than two decades, also at 2 and 5 times them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain = high < 100 * low or (low >= 1e-5 and high <= 1e5)
    axis.set_major_formatter("{x:g}" if plain else lambda value, _: power_of_ten(round(math.log10(value))))
    axis.set_minor_formatter(NullFormatter())


def power_of_ten(exponent: int) -> str:
    """Format a power of ten with superscripts: 10⁻³ for -3."""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def shortened(text: str, width: int) -> str:
    """Put a text on one line and truncate it to `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"


def save_figure(figure: Figure, directory: str | os.PathLike, name: str, numbers: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write a figure as name.png and name.svg, and its numbers as name.csv.

    Args:
        numbers: CSV rows with the same keys.
    """
    png, svg = _render(figure, "png", dpi=DPI), to_svg(figure)
    return save_files(directory, {f"{name}.png": png, f"{name}.svg": svg, f"{name}.csv": numbers})


def save_files(
    directory: str | os.PathLike, contents: Mapping[str, str | bytes | Sequence[Mapping[str, Any]]]
) -> list[Path]:
    """Write files by name, rows as CSV, and return their paths."""
    for name, content in contents.items():
        atomic_write(Path(directory) / name, content if isinstance(content, (str, bytes)) else to_csv(content))
    return [Path(directory) / name for name in contents]


def to_svg(figure: Figure) -> bytes:
    """Render a figure as SVG without a date, so that the same figure gives the same file."""
    return _render(figure, "svg", metadata={"Date": None})


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as CSV under the keys of the first row; floats in full precision."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _render(figure: Figure, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    with style(), warnings.catch_warnings():
        # Texts of data may be in any script; a glyph that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(content, format=kind, **options)
    return content.getvalue()
