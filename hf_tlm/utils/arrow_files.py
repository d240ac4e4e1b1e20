"""Arrow files of caches: one that was cut short or overwritten is made again, not trusted and no traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

logger = logging.getLogger(__name__)


def find_rows(file: Path, rows: int | None = None) -> Dataset | None:
    """The rows in an Arrow file, memory-mapped; None where there is no whole one, with a warning where it is damaged.

    Args:
        rows: how many there must be. A file that ends between two batches looks whole; None takes it.
    """
    if not file.is_file():
        return None
    try:
        found = Dataset.from_file(str(file))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        logger.warning("%s is damaged and will be made again (%s).", file, str(error).partition("\n")[0])
        return None
    if rows is not None and len(found) != rows:
        logger.warning("%s is damaged and will be made again (%s rows of %s).", file, f"{len(found):,}", f"{rows:,}")
        return None
    return found


def map_rows(rows: Dataset, function: Callable, **options: Any) -> Dataset:
    """`rows.map` of a function that makes one row of each, again where what the cache holds is damaged."""
    try:
        found = rows.map(function, **options)
        problem = None if len(found) == len(rows) else f"{len(found):,} rows of {len(rows):,}"
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # Of the system, as of a full disk; Arrow's have none.
            raise
        problem = str(error).partition("\n")[0]
    if problem is None:
        return found
    logger.warning("%s: what the cache holds is damaged and will be made again (%s).", options.get("desc", "Rows"), problem)
    return rows.map(function, load_from_cache_file=False, **options)
