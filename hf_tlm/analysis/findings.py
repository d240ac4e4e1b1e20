"""What an analysis comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_tlm.utils.shown import for_markdown


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Columns of texts first, as many as said, then numbers. Texts are shown as they are, and are no markup."""
    lines = [_line(head), f"| {' | '.join(['---'] * texts + ['---:'] * (len(head) - texts))} |", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(for_markdown(cell, 1000) for cell in cells) + " |"


@dataclass(frozen=True)
class Findings:
    """A few sentences or tables in markdown, and the files that were written."""

    title: str
    text: str
    files: Sequence[Path] = ()

    def to_text(self) -> str:
        listed = "\n".join(f"  {path}" for path in self.files)
        return f"## {self.title}\n\n{self.text.strip()}\n" + (f"\nSaved:\n{listed}\n" if listed else "")
