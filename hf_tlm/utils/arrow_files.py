"""Arrow files of caches: a truncated or changed file is detected and written again.

Beside each file is its seal, `<name>.seal`: rows, size, modification time and checksum. A file whose size and time match the
seal is trusted, so that a corpus is not read completely at every start; any other file is read and its checksum compared.
Changes that leave the modification time as it was (a failing disk) are not detected; that is up to the file system.
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

import pandas as pd
import pyarrow as pa
from datasets import Dataset, config

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.problems import writing_cache
from hf_tlm.utils.seals import checksum

logger = logging.getLogger(__name__)


def cache_folder(chosen: str | os.PathLike | None = None) -> Path:
    """Return the cache folder: the chosen one, or `hf_tlm` in the cache of `datasets`."""
    return Path(chosen or Path(config.HF_DATASETS_CACHE) / "hf_tlm")


def without_format(rows: Dataset) -> Dataset:
    """Return rows that give Python values, without the effect of `set_format`; a transform, which computes texts, stays."""
    return rows if rows.format["type"] == "custom" else rows.with_format(None)


def frame_to_dataset(data: Any, refusal: type[HfTlmError]) -> Any:
    """Return a `pandas.DataFrame` as a `Dataset`, without its index; any other value is returned unchanged.

    Raises:
        HfTlmError: of the class `refusal`: a column has values of several types, or its name is repeated.
    """
    if not isinstance(data, pd.DataFrame):
        return data
    try:
        return Dataset.from_pandas(data, preserve_index=False)
    except (ValueError, TypeError) as error:  # Those of Arrow are subclasses.
        reason = " ".join(map(str, error.args)).rstrip(".")
        raise refusal(f"The DataFrame is no table: {reason:.300}. Give every column its own name and one type.") from error


def seal_rows(file: Path, rows: int) -> None:
    """Write the seal of a complete Arrow file, or raise an OSError or HfTlmError."""
    facts = {"rows": rows, **_file_stamp(file), "xxh3": checksum(file)}
    atomic_write(_seal_path(file), json.dumps(facts) + "\n")


def find_rows(file: Path, rows: int | None = None) -> Dataset | None:
    """Return the rows of an Arrow file, memory-mapped; None if it is missing or, with a warning, damaged.

    Args:
        rows: expected number of rows; None: any. Without it, an unsealed file that was truncated between two batches is not
            recognised as damaged.
    """
    if not file.is_file():
        return None
    try:
        problem = _seal_mismatch(file)
        dataset = None if problem else Dataset.from_file(str(file))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        dataset, problem = None, str(error).partition("\n")[0]
    if dataset is not None and rows is not None and len(dataset) != rows:
        problem = f"{len(dataset):,} rows of {rows:,}"
    if problem:
        logger.warning("%s is damaged and will be created again (%s).", file, problem)
        return None
    return dataset


def map_rows(rows: Dataset, function: Callable, *, one_of_each: bool = True, **options: Any) -> Dataset:
    """Call `rows.map`, and call it again without the cache if the cached result is damaged.

    Args:
        one_of_each: whether the function returns one row for each row; otherwise the number of rows is not checked.
    """
    folder = next((file.parent for file in _cache_files(rows)), Path(config.HF_DATASETS_CACHE))

    def map_once(**overrides: Any) -> Dataset:
        with writing_cache(folder):
            return rows.map(function, **options, **overrides)

    map_again = partial(map_once, load_from_cache_file=False)
    return _ensure_sealed(map_once, map_again, options.get("desc", "Rows"), folder, len(rows) if one_of_each else None)


def cached_rows(load: Callable[[], Dataset]) -> Dataset:
    """Return the rows that `load` reads through the cache of `datasets`; load them again if the cached files are damaged."""
    folder = Path(config.HF_DATASETS_CACHE)

    def reload() -> Dataset:
        for file in list(filter(_seal_mismatch, folder.rglob("*.arrow"))):
            if (file.parent / config.DATASET_INFO_FILENAME).is_file():  # A prepared data set has its own folder.
                shutil.rmtree(file.parent, ignore_errors=True)
        return load()

    return _ensure_sealed(load, reload, "Rows", folder)


def _ensure_sealed(
    make: Callable[[], Dataset], remake: Callable[[], Dataset], name: str, folder: Path, expected: int | None = None
) -> Dataset:
    """Return the rows that `make` finds in a cache or writes to it, or those of `remake` if they are damaged; seal them.

    Args:
        name: what the rows are called in a warning.
        folder: the folder of their files, or a parent of it.
        expected: expected number of rows; None: any.
    """
    try:
        dataset = make()
        problem = None if expected in (None, len(dataset)) else f"{len(dataset):,} rows of {expected:,}"
        problem = problem or next(filter(None, map(_seal_mismatch, _cache_files(dataset))), None)
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # An error of the system, such as a full disk; Arrow's have no errno.
            raise
        problem = str(error).partition("\n")[0]
    except (ValueError, TypeError, KeyError, AttributeError):
        # Either the input is bad, or the first bytes of a cached file are damaged.
        if (problem := next(filter(None, map(_seal_mismatch, sorted(folder.rglob("*.arrow")))), None)) is None:
            raise
    if problem is not None:
        logger.warning("%s: its copy in the cache is damaged and will be created again (%s).", name, problem)
        dataset = remake()
    for file in _cache_files(dataset):
        if problem is not None or not _seal_path(file).exists():
            with contextlib.suppress(OSError, HfTlmError):  # A cache of other users may not be writable.
                seal_rows(file, len(dataset))
    return dataset


def is_intact(file: Path) -> bool:
    """Return whether a cached file exists and matches its seal; log a warning if it does not match."""
    if not file.is_file():
        return False
    if (problem := _seal_mismatch(file)) is not None:
        logger.warning("%s is damaged and will be created again (%s).", file, problem)
    return problem is None


def _seal_mismatch(file: Path) -> str | None:
    """Return how a file differs from its seal; None if it matches, or has no seal. May raise an OSError."""
    if not _seal_path(file).is_file():
        return None
    sealed = find_object(_seal_path(file))
    if sealed is None or not {"size", "mtime_ns", "xxh3"} <= sealed.keys():
        return "its seal cannot be read"
    stamp = _file_stamp(file)
    if stamp == {name: sealed[name] for name in stamp}:
        return None
    if stamp["size"] != sealed["size"]:
        return f"{stamp['size']:,} bytes of {sealed['size']!s:.20}"
    if checksum(file) != sealed["xxh3"]:
        return "its checksum differs"
    with contextlib.suppress(OSError, HfTlmError):  # The file is a copy with a new time: seal that, to skip the next check.
        atomic_write(_seal_path(file), json.dumps(sealed | stamp) + "\n")
    return None


def _seal_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.seal")


def _file_stamp(file: Path) -> dict[str, int]:
    status = file.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _cache_files(rows: Dataset) -> list[Path]:
    """Return the files that hold rows on disk."""
    return [Path(file["filename"]) for file in rows.cache_files]
