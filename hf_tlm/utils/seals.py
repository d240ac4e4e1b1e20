"""Sealed folders: a folder that is incomplete, or was damaged later, is detected.

The last file written to a folder is its seal, `seal.json`: size and checksum (xxh3, 128 bits) of every other file. A folder
without a seal was left by a killed save; a file that does not match its seal is damaged. Files added later are allowed.
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
# Errors of reading a file that is not a valid seal.
_INVALID_SEAL_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

logger = logging.getLogger(__name__)


class SealError(HfTlmError):
    """Raised when a folder was damaged, or edited, after it was sealed."""


def write_seal(folder: str | os.PathLike, *parts: str, **facts: Any) -> None:
    """Write the seal of a folder that has all of its files.

    Args:
        parts: seal only these files and folders of the folder, without Markdown files, which people edit; missing parts are
            left out. Without `parts` everything is sealed.
        facts: JSON values to store beside the files' checksums, for `read_seal`.

    Raises:
        OSError, HfTlmError: a file cannot be read, or the seal cannot be written.
    """
    folder = Path(folder)
    paths = {path for name in parts or ("",) for path in (folder / name, *(folder / name).rglob("*"))}
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "xxh3": checksum(path)}
        for path in sorted(paths)
        if path.is_file() and path != folder / SEAL and not (parts and path.suffix == ".md")
    }
    atomic_write(folder / SEAL, json.dumps({**facts, "files": files}, indent=2) + "\n")


def read_seal(folder: str | os.PathLike) -> dict[str, Any]:
    """Read a folder's seal: its facts, and `files`, which maps the name of every sealed file to its `size` and `xxh3`."""
    return json.loads((Path(folder) / SEAL).read_text(encoding="utf-8"))


def unsealed_files(folder: str | os.PathLike, *others: str) -> list[str]:
    """Return the names of files in a sealed folder that are not in its seal; none if the seal cannot be read.

    Args:
        others: names of files that are expected without a seal, such as cards.
    """
    folder = Path(folder)
    try:
        expected = {*read_seal(folder)["files"], SEAL, *others}
    except (OSError, *_INVALID_SEAL_ERRORS):
        return []
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return [name for name in names if name not in expected]


def seal_problem(folder: str | os.PathLike, *needed: str) -> str | None:
    """Describe how a folder differs from its seal, in one line; None if every sealed and every `needed` file matches it."""
    try:
        return broken_seal(folder, *needed)
    except OSError as error:
        return f"{folder} cannot be read: {type(error).__name__}: {error}"


def broken_seal(folder: str | os.PathLike, *needed: str) -> str | None:
    """Return the same as `seal_problem`, but raise an OSError for a failing disk, which may work the next time."""
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
    except _INVALID_SEAL_ERRORS as error:
        return f"{folder} cannot be read: {type(error).__name__}: {error}"
    return None


def sealed_file_problem(folder: str | os.PathLike, name: str) -> str | None:
    """Describe how one file differs from its folder's seal; None if it matches, or if it or the folder has no seal."""
    folder = Path(folder)
    if not (folder / SEAL).is_file():
        return None
    try:
        sealed = read_seal(folder)["files"].get(name)
        return None if sealed is None else _file_problem(folder / name, sealed)
    except _INVALID_SEAL_ERRORS as error:
        return f"{folder / SEAL} cannot be read: {type(error).__name__}: {error}"


def _file_problem(path: Path, sealed: Any) -> str | None:
    """Describe how a file differs from its seal; None if it matches. sealed: its size and checksum, or None."""
    if sealed is None or not path.is_file():
        return f"{path} is missing"
    if (size := path.stat().st_size) != sealed["size"]:
        return f"{path} has {size:,} bytes and had {sealed['size']:,} when it was saved"
    if checksum(path) != sealed["xxh3"]:
        return f"{path} has changed since it was saved (its checksum differs)"
    return None


def check_seal(folder: str | os.PathLike) -> None:
    """Raise a SealError if a folder has a seal that its files do not match; a process checks each seal only once."""
    with contextlib.suppress(OSError):
        _check_once(str(Path(folder).resolve()), os.stat(Path(folder) / SEAL).st_mtime_ns)


@functools.cache
def _check_once(folder: str, _: int) -> None:
    if (problem := seal_problem(folder)) is not None:
        raise SealError(
            f"{problem}. Copy the folder again, or run its command again, which repairs it; if you made the change, remove "
            f"{SEAL} from the folder."
        )


def keep_sealed(folder: str | os.PathLike, make: Callable[[Path], object], *needed: str, unsealed: bool = False) -> None:
    """Ensure that a sealed folder with the files of `make` exists: create it if it is missing, and again if it is damaged.

    Args:
        make: writes the files into the folder that it is given.
        needed: names of files that must be among them.
        unsealed: accept a folder without a seal that has the needed files, as versions without seals wrote them.

    Raises:
        HfTlmError: the folder cannot be written.
    """
    folder = Path(folder)
    if unsealed and not (folder / SEAL).is_file() and all((folder / name).is_file() for name in needed):
        return
    if (problem := seal_problem(folder, *needed)) is None:
        return
    if folder.is_dir():
        logger.warning("%s. It will be created again.", problem)
    with atomic_directory(folder) as work:
        make(work)
        write_seal(work)


def checksum(path: Path) -> str:
    """Return the checksum of a file: xxh3, 128 bits, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
