"""Sheets of Excel files as columns."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import Any

from hf_tlm.tasks.spec import TaskError

logger = logging.getLogger(__name__)


def read_excel(path: Path) -> dict[str, list[Any]]:
    """The columns of the first sheet of an .xlsx file, by way of pandas and openpyxl.

    Empty cells are None, dates texts as ISO 8601 writes them; a column that mixes texts with other values is of texts.

    Raises:
        TaskError: openpyxl is not installed.
    """
    import pandas

    try:
        import openpyxl  # noqa: F401  # pandas' own message is of an optional dependency.
    except ImportError as error:
        raise TaskError(
            f"{path}: Excel files are read with openpyxl, which is not installed: pip install 'hf-tlm[excel]', or save it "
            "as CSV."
        ) from error
    with pandas.ExcelFile(path, engine="openpyxl") as book:
        if len(book.sheet_names) > 1:
            logger.warning("%s has %d sheets; the first, %s, is read.", path, len(book.sheet_names), book.sheet_names[0])
        sheet = book.parse(0, dtype=object, keep_default_na=False, na_values=[""])
    return {str(name): _plain([None if pandas.isna(cell) else cell for cell in sheet[name]]) for name in sheet.columns}


def _plain(cells: list[Any]) -> list[Any]:
    cells = [cell.isoformat() if isinstance(cell, (datetime.date, datetime.time)) else cell for cell in cells]
    kinds = {type(cell) for cell in cells if cell is not None}
    mixed = len(kinds) > 1 and not kinds <= {int, float}
    return [None if cell is None else str(cell) for cell in cells] if mixed else cells
