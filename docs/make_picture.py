"""Draw docs/images/method.svg, one picture of the method.

    python docs/make_picture.py

All text is on cards, and arrows have a medium grey, so that the picture is legible on light and on dark pages.
"""

from __future__ import annotations

import random
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parent / "images" / "method.svg"
WIDTH, HEIGHT = 1000, 372
TASK, CORPUS, PLAIN = "#d9772b", "#2f7bbf", "#c6ccd4"
INK, CARD, EDGE, ARROW, PILL = "#1f2630", "#f7f8fa", "#c6ccd4", "#808a96", "#56606c"
FONTS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
CELL, GAP = 10, 3


def text(x: float, y: float, words: str, size: int = 14, weight: str = "normal", colour: str = INK) -> str:
    """Return a line of text, centred at x."""
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="middle"'
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def card(x: float, y: float, width: float, height: float, title: str, *lines: str) -> str:
    """Return a card with a title at its top and lines at its bottom."""
    middle = x + width / 2
    parts = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="{CARD}" stroke="{EDGE}"/>']
    parts.append(text(middle, y + 24, title, 16, "bold"))
    first = y + height - 14 - 18 * (len(lines) - 1)
    parts += [text(middle, first + 18 * number, line) for number, line in enumerate(lines)]
    return "\n".join(parts)


def cells(x: float, y: float, columns: int, colours: list[str]) -> str:
    """Return a grid of small squares, one per colour, row by row."""
    step = CELL + GAP
    places = [(x + step * (n % columns), y + step * (n // columns), colour) for n, colour in enumerate(colours)]
    size = f'width="{CELL}" height="{CELL}" rx="2"'
    return "\n".join(f'<rect x="{left}" y="{top}" {size} fill="{colour}"/>' for left, top, colour in places)


def arrow(*points: tuple[float, float]) -> str:
    """Return a line through the points, with an arrowhead at its end."""
    path = " L".join(f"{x},{y}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{ARROW}" stroke-width="2.5" marker-end="url(#head)"/>'


def label(x: float, y: float, words: str) -> str:
    """Return a text on an arrow, on a small card."""
    width = 8.2 * len(words) + 16
    pill = f'<rect x="{x - width / 2}" y="{y - 12}" width="{width}" height="22" rx="11" fill="{PILL}"/>'
    return pill + text(x, y + 4, words, 13, "bold", "#ffffff")


def draw() -> str:
    """Return the picture as SVG, always the same."""
    step = CELL + GAP
    chosen = set(random.Random(3).sample(range(15 * 8), 24))
    corpus = [CORPUS if place in chosen else PLAIN for place in range(15 * 8)]
    joint = ([CORPUS] * 3 + [TASK]) * 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="{FONTS}">',
        "<title>hf_tlm: a labelled task retrieves a subset of a general corpus; one model is trained on both</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">',
        f'<path d="M0,0 L10,5 L0,10 z" fill="{ARROW}"/></marker></defs>',
        card(10, 10, 230, 130, "Labelled task", "texts with labels"),
        cells(10 + (230 - 12 * step + GAP) / 2, 50, 12, [TASK] * 36),
        card(10, 196, 230, 166, "General corpus", ""),
        cells(10 + (230 - 15 * step + GAP) / 2, 236, 15, corpus),
        card(300, 196, 180, 166, "Subset", "resembles the task,", "found without labels"),
        cells(300 + (180 - 8 * step + GAP) / 2, 246, 8, [CORPUS] * 24),
        card(540, 78, 200, 166, "Stage 1", "language of both and", "labels of the task"),
        cells(540 + (200 - 12 * step + GAP) / 2, 120, 12, joint),
        card(800, 78, 190, 166, "Stage 2", "labels of the task,", "best on validation"),
        cells(800 + (190 - 12 * step + GAP) / 2, 120, 12, [TASK] * 48),
        card(780, 300, 210, 62, "A stock checkpoint", "pipeline, Auto classes, Hub"),
        arrow((125, 142), (125, 192)),
        label(125, 166, "BM25"),
        arrow((242, 279), (296, 279)),
        arrow((242, 75), (510, 75), (510, 140), (536, 140)),
        arrow((482, 279), (510, 279), (510, 182), (536, 182)),
        arrow((742, 161), (796, 161)),
        arrow((895, 246), (895, 296)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the picture."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
