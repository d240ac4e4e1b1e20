"""Lines of JSON that end a process: the parser of Arrow has no error for them."""

from __future__ import annotations

import re
from pathlib import Path

import fsspec

DEPTH = 1000
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[{}\]]")


def check_lines(path: Path) -> None:
    """Whether Arrow can read a file of lines of JSON: no row is null, and no value lies too deep.

    Raises:
        ValueError: the first line that it cannot read.
        OSError: the file cannot be read, nor decompressed.
    """
    pending: list[bytes] = []
    opened = 0
    with fsspec.open(str(path), "rb", compression="infer") as file:
        for number, line in enumerate(file, 1):
            if line[:1] != b"{" and re.match(rb"(\xef\xbb\xbf)?\s*null(?!\w)", line) and not pending:
                raise ValueError(f"line {number} is null; rows are JSON objects.")
            pending.append(line)
            opened += line.count(b"{") + line.count(b"[")
            if opened > DEPTH and _depth(b"".join(pending)) > DEPTH:
                raise ValueError(f"line {number} holds more than {DEPTH:,} values within each other.")
            if line.rstrip().endswith(b"}"):
                pending, opened = [], 0


def _depth(text: bytes) -> int:
    """How many brackets are open at most, of those that are not within strings."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest
