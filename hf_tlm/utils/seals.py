"""Sealed folders: one that was not written to its end, or was damaged since, is never taken for a whole one.

The last file of a folder is its seal, `seal.json`: size and checksum (xxh3, 128 bits) of every other file. A folder without
a seal is what a kill left of a save; a file that does not match its seal is damaged. Files that came later do no harm.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_directory, atomic_write

SEAL = "seal.json"
# What reading a seal raises that is none.
_NO_SEAL = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

logger = logging.getLogger(__name__)


class SealError(HfTlmError):
    """A folder that was damaged, or edited, since it was sealed."""


def write_seal(folder: str | os.PathLike, *parts: str, **facts: Any) -> None:
    """Write the seal of a folder whose files are all there.

    Args:
        parts: of the folder only these files and folders, but Markdown, which people edit; those that are not there are
            left out. None: everything.
        facts: JSON values to keep beside the files' checksums, for `read_seal`.

    Raises:
        OSError, HfTlmError: a file cannot be read, or the seal not be written.
    """
    folder = Path(folder)
    found = {path for name in parts or ("",) for path in (folder / name, *(folder / name).rglob("*"))}
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "xxh3": checksum(path)}
        for path in sorted(found)
        if path.is_file() and path != folder / SEAL and not (parts and path.suffix == ".md")
    }
    atomic_write(folder / SEAL, json.dumps({**facts, "files": files}, indent=2) + "\n")


def read_seal(folder: str | os.PathLike) -> dict[str, Any]:
    """The facts of a seal, and `files`: of every sealed file, by its name, `size` and `xxh3`."""
    return json.loads((Path(folder) / SEAL).read_text(encoding="utf-8"))


def unsealed_files(folder: str | os.PathLike, *others: str) -> list[str]:
    """Files of a sealed folder that its seal does not know, by name; none of one without a seal that can be read.

    Args:
        others: names of files that no seal has, such as cards.
    """
    folder = Path(folder)
    try:
        known = {*read_seal(folder)["files"], SEAL, *others}
    except (OSError, *_NO_SEAL):
        return []
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return [name for name in found if name not in known]


def seal_problem(folder: str | os.PathLike, *needed: str) -> str | None:
    """What is wrong with a folder, in one line; None if every file, the `needed` among them, is as it was when sealed."""
    try:
        return broken_seal(folder, *needed)
    except OSError as error:
        return f"{folder} cannot be read: {type(error).__name__}: {error}"


def broken_seal(folder: str | os.PathLike, *needed: str) -> str | None:
    """As `seal_problem`, but a disk that fails is an OSError and no damage: it may answer the next time."""
    folder = Path(folder)
    if not folder.is_dir():
        return f"{folder} is missing"
    if not (folder / SEAL).is_file():
        return f"{folder} has no {SEAL}: its save was cut short"
    try:
        files = read_seal(folder)["files"]
        for name in dict.fromkeys([*needed, *files]):
            if (problem := _file_problem(folder / name, files.get(name))) is not None:
                return problem
    except _NO_SEAL as error:
        return f"{folder} cannot be read: {type(error).__name__}: {error}"
    return None


def sealed_file_problem(folder: str | os.PathLike, name: str) -> str | None:
    """What is wrong with a file that a folder has, whatever became of the others; None too where nothing is known of it."""
    folder = Path(folder)
    if not (folder / SEAL).is_file():
        return None
    try:
        sealed = read_seal(folder)["files"].get(name)
        return None if sealed is None else _file_problem(folder / name, sealed)
    except _NO_SEAL as error:
        return f"{folder / SEAL} cannot be read: {type(error).__name__}: {error}"


def _file_problem(path: Path, sealed: Any) -> str | None:
    """What is wrong with a file. sealed: its size and checksum; None of one that is not sealed."""
    if sealed is None or not path.is_file():
        return f"{path} is missing"
    if (size := path.stat().st_size) != sealed["size"]:
        return f"{path} has {size:,} bytes and had {sealed['size']:,} when it was saved"
    if checksum(path) != sealed["xxh3"]:
        return f"{path} has changed since it was saved (its checksum differs)"
    return None


def check_seal(folder: str | os.PathLike) -> None:
    """Raise a SealError if a folder has a seal that a file does not match; a process looks once at a folder."""
    with contextlib.suppress(OSError):
        _check(str(Path(folder).resolve()), os.stat(Path(folder) / SEAL).st_mtime_ns)


@functools.cache
def _check(folder: str, _: int) -> None:
    if (problem := seal_problem(folder)) is not None:
        raise SealError(
            f"{problem}. Copy the folder again, or run the command again that made it, which mends it; if the change is "
            f"yours, remove {SEAL} there."
        )


def keep_sealed(folder: str | os.PathLike, make: Callable[[Path], object], *needed: str, unsealed: bool = False) -> None:
    """Have what `make` writes in a sealed folder: made where it is not there yet, and again where it is damaged.

    Args:
        make: writes the files into the folder that it is given.
        needed: names of files that must be among them.
        unsealed: a folder without a seal that has these files is as good, as those of before there were seals.

    Raises:
        HfTlmError: the folder cannot be written.
    """
    folder = Path(folder)
    if unsealed and not (folder / SEAL).is_file() and all((folder / name).is_file() for name in needed):
        return
    if (problem := seal_problem(folder, *needed)) is None:
        return
    if folder.is_dir():
        logger.warning("%s. It is made again.", problem)
    with atomic_directory(folder) as work:
        make(work)
        write_seal(work)


def checksum(path: Path) -> str:
    """The checksum of a file: xxh3, 128 bits, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
