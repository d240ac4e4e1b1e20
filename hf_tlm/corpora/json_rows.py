"""Rows of JSON files: checks before Arrow reads them, arrays of objects, and objects without Arrow's conversions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
from datasets import Features

_WHOLE = re.compile(r"-?\d+")
MAX_DEPTH = 1000  # Levels of brackets.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[{}\]]")
# Start of a file that is one object with all rows: {"data": [{...}, ...]}, or what pandas writes: by columns
# {"text": {"0": ..., "1": ...}, ...}, by rows {"0": {"text": ..., ...}, ...}, split {"columns": [...], ...}, with a schema.
_TABLE_START = re.compile(
    rb'\{\s*("data"\s*:\s*\[\s*\{|"(?:[^"\\]|\\.)*"\s*:\s*\{\s*"-?\d+"\s*:|"-?\d+"\s*:\s*\{'
    rb'|"columns"\s*:\s*\[\s*"|"schema"\s*:\s*\{\s*"fields"\s*:)'
)


def check_lines(file: Iterable[bytes]) -> None:
    """Raise a ValueError for a line of JSON that Arrow cannot read: not UTF-8, a null row, or a value nested too deeply."""
    pending: list[bytes] = []
    brackets = 0
    for line_number, line in enumerate(file, 1):
        if not line.isascii():
            line.decode("utf-8-sig")  # Arrow does not check it: the texts would fail where they are used.
        if line[:1] != b"{" and re.match(rb"(\xef\xbb\xbf)?\s*null(?!\w)", line) and not pending:
            raise ValueError(f"line {line_number} is null; rows are JSON objects.")
        pending.append(line)
        brackets += line.count(b"{") + line.count(b"[")
        if brackets > MAX_DEPTH and _nesting_depth(b"".join(pending)) > MAX_DEPTH:
            raise ValueError(f"line {line_number} is nested more than {MAX_DEPTH:,} levels deep.")
        if line.rstrip().endswith(b"}"):
            pending, brackets = [], 0


def _nesting_depth(text: bytes) -> int:
    """Return the maximum nesting depth of brackets outside strings."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def read_array(file: BinaryIO) -> list[dict[str, Any]] | None:
    """Read a JSON file that is one array of objects; None if it is not an array (JSON Lines).

    The array may be the field `data` of an object, or a table as pandas's `to_json` writes it, if its index is of numbers.
    The `orient` "values" has no names of columns.

    `datasets` is not used, because it would convert all values of a column with texts and other values to JSON.
    """
    head = file.read(1 << 10).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head.startswith(b"[") and not _TABLE_START.match(head):
        return None
    try:
        rows = json.loads((head + file.read()).decode())
    except json.JSONDecodeError:
        if head.startswith(b"["):
            raise
        return None  # Lines that begin like a table.
    if isinstance(rows, dict) and (rows := _rows_of_table(rows)) is None:
        return None
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"item {index} of the array is a {type(row).__name__}; rows are JSON objects.")
    return rows


def _rows_of_table(table: dict[str, Any]) -> list[Any] | None:
    """Return the rows of an object that holds a table, see `read_array`; None if it is a row itself."""
    if isinstance(rows := table.get("data"), list):
        names = table.get("columns")
        if isinstance(names, list) and all(isinstance(row, list) and len(row) == len(names) for row in rows):
            return [dict(zip(names, row, strict=True)) for row in rows]
        return rows
    columns = list(table.values())
    if not all(isinstance(column, dict) and column.keys() == columns[0].keys() for column in columns):
        return None
    if all(_WHOLE.fullmatch(key) for key in table) and not all(_WHOLE.fullmatch(name) for name in columns[0]):
        return columns  # Rows by their numbers.
    return [dict(zip(table, cells, strict=True)) for cells in zip(*(column.values() for column in columns), strict=True)]


def has_times(features: Features | None) -> bool:
    """Return whether Arrow converted strings of JSON that are dates to times, which lose their time zone and their form."""

    def is_time(kind: pa.DataType) -> bool:
        return pa.types.is_timestamp(kind) or any(is_time(kind.field(i).type) for i in range(kind.num_fields))

    return any(map(is_time, features.arrow_schema.types)) if features else False


def read_objects(file: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON, one or more lines each, without Arrow."""
    text = ""
    for line_number, line in enumerate(file, 1):
        text += line
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            if error.pos < len(text.rstrip()):
                raise ValueError(f"line {line_number} is not JSON ({error.msg}).") from error
            continue  # The object continues on the next line.
        yield row
        text = ""
    if text.strip():
        raise ValueError("the last object is not closed.")
