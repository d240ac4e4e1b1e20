"""Sheets of Excel files as columns."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hf_tlm.tasks.spec import TaskError

logger = logging.getLogger(__name__)
_ROWS = 2**20
# What no cell can hold.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def check_excel(path: Path) -> None:
    """Check that a file for Excel can be read or written.

    Raises:
        TaskError: openpyxl is not installed.
    """
    try:
        import openpyxl  # noqa: F401  # pandas' own message is of an optional dependency.
    except ImportError as error:
        raise TaskError(
            f"{path}: Excel files need openpyxl, which is not installed: pip install 'hf-tlm[excel]', or save it as CSV."
        ) from error


def read_excel(path: Path) -> dict[str, list[Any]]:
    """The columns of the first sheet of an .xlsx file, by way of pandas and openpyxl.

    Empty cells are None, dates texts as ISO 8601 writes them; a column that mixes texts with other values is of texts.

    Raises:
        TaskError: openpyxl is not installed.
    """
    import pandas

    check_excel(path)
    with pandas.ExcelFile(path, engine="openpyxl") as book:
        if len(book.sheet_names) > 1:
            logger.warning("%s has %d sheets; the first, %s, is read.", path, len(book.sheet_names), book.sheet_names[0])
        sheet = book.parse(0, dtype=object, keep_default_na=False, na_values=[""])
    return {str(name): _plain([None if pandas.isna(cell) else cell for cell in sheet[name]]) for name in sheet.columns}


def write_excel(columns: Mapping[str, list[Any]], stream: BinaryIO) -> None:
    """Write columns as the only sheet of a file; texts are texts, also those that begin as a formula does.

    Raises:
        TaskError: there are more rows than a sheet has.
    """
    import pandas

    frame = pandas.DataFrame(dict(columns))
    if len(frame) >= _ROWS:
        raise TaskError(f"A sheet of Excel has {_ROWS:,} rows, and these are {len(frame) + 1:,}. Write csv or parquet.")
    frame = frame.map(lambda cell: _CONTROL.sub("", cell) if isinstance(cell, str) else cell)
    with pandas.ExcelWriter(stream, engine="openpyxl") as book:
        frame.to_excel(book, index=False)
        for row in book.sheets["Sheet1"].iter_rows():
            for cell in row:
                if cell.data_type == "f":
                    cell.data_type = "s"


def _plain(cells: list[Any]) -> list[Any]:
    cells = [cell.isoformat() if isinstance(cell, (datetime.date, datetime.time)) else cell for cell in cells]
    kinds = {type(cell) for cell in cells if cell is not None}
    mixed = len(kinds) > 1 and not kinds <= {int, float}
    return [None if cell is None else str(cell) for cell in cells] if mixed else cells
