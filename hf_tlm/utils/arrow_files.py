"""Arrow files of caches: one that was cut short or changed is made again, not trusted and no traceback.

Beside each lies its seal, `<name>.seal`: rows, size, time of change and checksum. A file whose size and time are the sealed
ones is taken at its word, so that a corpus is not read whole at every start; any other is read and compared. What changes
bytes and leaves the time as it was (a failing disk) is for the file system to notice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, config

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.problems import writing_cache
from hf_tlm.utils.seals import checksum

logger = logging.getLogger(__name__)


def cache_folder(chosen: str | os.PathLike | None = None) -> Path:
    """The folder of what is kept for later runs: the one that was chosen, or `hf_tlm` in the cache of `datasets`."""
    return Path(chosen or Path(config.HF_DATASETS_CACHE) / "hf_tlm")


def without_format(rows: Dataset) -> Dataset:
    """Rows as Python's values, whatever was made of them by `set_format`; a transform, which makes the texts, stays."""
    return rows if rows.format["type"] == "custom" else rows.with_format(None)


def seal_rows(file: Path, rows: int) -> None:
    """Write the seal of an Arrow file that is whole, or raise an OSError or HfTlmError."""
    facts = {"rows": rows, **_stamp(file), "xxh3": checksum(file)}
    atomic_write(_seal(file), json.dumps(facts) + "\n")


def find_rows(file: Path, rows: int | None = None) -> Dataset | None:
    """The rows in an Arrow file, memory-mapped; None where there is no whole one, with a warning where it is damaged.

    Args:
        rows: how many there must be. A file without a seal that ends between two batches looks whole; None takes it.
    """
    if not file.is_file():
        return None
    try:
        problem = _broken(file)
        found = None if problem else Dataset.from_file(str(file))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        found, problem = None, str(error).partition("\n")[0]
    if found is not None and rows is not None and len(found) != rows:
        problem = f"{len(found):,} rows of {rows:,}"
    if problem:
        logger.warning("%s is damaged and will be made again (%s).", file, problem)
        return None
    return found


def map_rows(rows: Dataset, function: Callable, *, one_of_each: bool = True, **options: Any) -> Dataset:
    """`rows.map`, again where what the cache holds is damaged.

    Args:
        one_of_each: the function makes one row of each; else any number, which is not checked.
    """
    place = next((file.parent for file in _files(rows)), Path(config.HF_DATASETS_CACHE))

    def mapped(**more: Any) -> Dataset:
        with writing_cache(place):
            return rows.map(function, **options, **more)

    again = partial(mapped, load_from_cache_file=False)
    return _sealed(mapped, again, options.get("desc", "Rows"), place, len(rows) if one_of_each else None)


def cached_rows(load: Callable[[], Dataset]) -> Dataset:
    """What `datasets` reads into its cache, again where what is there is damaged."""
    place = Path(config.HF_DATASETS_CACHE)

    def again() -> Dataset:
        for file in list(filter(_broken, place.rglob("*.arrow"))):
            if (file.parent / config.DATASET_INFO_FILENAME).is_file():  # What was read of a file is in a folder of its own.
                shutil.rmtree(file.parent, ignore_errors=True)
        return load()

    return _sealed(load, again, "Rows", place)


def _sealed(
    make: Callable[[], Dataset], again: Callable[[], Dataset], name: str, place: Path, expected: int | None = None
) -> Dataset:
    """What `make` finds in a cache or makes there, or where that is damaged `again`, with seals.

    Args:
        name: of what is made, for a warning.
        place: the folder of its files, or one above it.
        expected: how many rows there must be.
    """
    try:
        found = make()
        problem = None if expected in (None, len(found)) else f"{len(found):,} rows of {expected:,}"
        problem = problem or next(filter(None, map(_broken, _files(found))), None)
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # Of the system, as of a full disk; Arrow's have none.
            raise
        problem = str(error).partition("\n")[0]
    except (ValueError, TypeError, KeyError, AttributeError):
        # Of what it makes them of, or of a file whose first bytes are damaged.
        if (problem := next(filter(None, map(_broken, sorted(place.rglob("*.arrow")))), None)) is None:
            raise
    if problem is not None:
        logger.warning("%s: what the cache holds is damaged and will be made again (%s).", name, problem)
        found = again()
    for file in _files(found):
        if problem is not None or not _seal(file).exists():
            with contextlib.suppress(OSError, HfTlmError):  # A cache that others made, and that cannot be written.
                seal_rows(file, len(found))
    return found


def is_whole(file: Path) -> bool:
    """Whether a file of a cache is there, and as it was when it was sealed, with a warning where it is not."""
    if not file.is_file():
        return False
    if (problem := _broken(file)) is not None:
        logger.warning("%s is damaged and will be made again (%s).", file, problem)
    return problem is None


def _broken(file: Path) -> str | None:
    """What is wrong with a file that has a seal; None if it is as it was when sealed, or has none. May raise an OSError."""
    if not _seal(file).is_file():
        return None
    sealed = find_object(_seal(file))
    if sealed is None or not {"size", "mtime_ns", "xxh3"} <= sealed.keys():
        return "its seal cannot be read"
    stamp = _stamp(file)
    if stamp == {name: sealed[name] for name in stamp}:
        return None
    if stamp["size"] != sealed["size"]:
        return f"{stamp['size']:,} bytes of {sealed['size']!s:.20}"
    if checksum(file) != sealed["xxh3"]:
        return "its checksum differs"
    with contextlib.suppress(OSError, HfTlmError):  # A copy: it need not be read again at the next start.
        atomic_write(_seal(file), json.dumps(sealed | stamp) + "\n")
    return None


def _seal(file: Path) -> Path:
    return file.with_name(f"{file.name}.seal")


def _stamp(file: Path) -> dict[str, int]:
    status = file.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _files(rows: Dataset) -> list[Path]:
    """The files that rows on disk are in."""
    return [Path(file["filename"]) for file in rows.cache_files]
