"""What an analysis comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Findings:
    """A few sentences or tables in markdown, and the files that were written."""

    title: str
    text: str
    files: Sequence[Path] = ()

    def to_text(self) -> str:
        listed = "\n".join(f"  {path}" for path in self.files)
        return f"## {self.title}\n\n{self.text.strip()}\n" + (f"\nSaved:\n{listed}\n" if listed else "")
