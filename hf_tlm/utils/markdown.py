"""Tables in markdown: of cards, reports, analyses and the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hf_tlm.utils.shown import for_markdown

LONGEST = 1000


def markdown_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: int | Collection[int] = 1,
    *,
    padded: bool = False,
    longest: int = LONGEST,
) -> str:
    """A table, a line a row, with a new line at its end. Cells are shown as they are: only a `Markdown` one is markup.

    Args:
        texts: the columns of texts, aligned left: so many first ones, or these numbers. The others are aligned right.
        padded: to one width a column, to be read as text too; then no column says how it is aligned.
        longest: characters after which a cell is cut.
    """
    left = range(texts) if isinstance(texts, int) else texts
    lines = [[for_markdown(cell, longest) for cell in line] for line in (head, *rows)]
    widths = [max(map(len, column)) if padded else 0 for column in zip(*lines, strict=True)]
    rule = ["-" * width if padded else "---" if at in left else "---:" for at, width in enumerate(widths)]
    lines.insert(1, rule)
    return "".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |\n" for line in lines
    )
