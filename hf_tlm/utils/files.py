"""Atomic outputs: a reader sees the old file or folder or the whole new one, never a part."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.disk import disk_problem, told
from hf_tlm.utils.temporary import Temporary, remove_abandoned, sync_folder, sync_tree


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; rename it to `path` when the block ends without an error.

    An existing folder at `path` changes places with the new one in a single step and is then removed. After an error, a
    kill or a power cut `path` is as it was, or whole. A kill leaves at most a hidden `.<name>.*` sibling, which nothing ever
    reads and the next write of `path` removes. Where the system cannot exchange folders (NFS, macOS) there are two renames
    instead, and for a moment nothing at `path`: a kill in it leaves the old folder in `.<name>.old.*`, from where it can be
    moved back.

    Raises:
        HfTlmError: the disk cannot be written (full, read-only, no permission), or a file is there; the message says why.
    """
    path = Path(path)
    _check_place(path)
    if path.is_file():
        raise HfTlmError(f"Cannot write {path}: expected a folder or a new name; this is a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        work = Temporary(path, folder=True)
    except OSError as error:
        reason = told(error, path, "Choose another output folder")
        raise HfTlmError(f"Cannot write under {path.parent}: {reason}.") from error
    try:
        yield work.path
        sync_tree(work.path)
        _put(work.path, path)
        sync_folder(path.parent)
        remove_abandoned(path)  # Now an old folder is one, too.
    except Exception as error:
        # Libraries write, too, and have error types of their own.
        if isinstance(error, HfTlmError) or not (isinstance(error, OSError) or disk_problem(error)):
            raise
        raise HfTlmError(f"Cannot write {path}: {told(error, path)}. What was there before is unchanged.") from error
    finally:
        work.release()


def _put(work: Path, path: Path) -> None:
    """Rename a folder; what is at `path` is removed, or at `work` afterwards."""
    if not path.exists():
        try:
            os.rename(work, path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # Somebody else has made it meanwhile.
                raise
    if not _exchange(path, work):
        old = Temporary(path, folder=True, kind="old.")
        kept = old.path / path.name
        try:
            os.rename(path, kept)
            try:
                os.rename(work, path)
            except BaseException:
                os.rename(kept, path)
                raise
        except OSError as error:
            if not path.exists():
                old.unlock()
                raise HfTlmError(
                    f"Cannot write {path}: {told(error, path)}. What was there is in {kept}: move it."
                ) from error
            raise
        finally:
            if path.exists():
                old.release()


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step (renameat2 with RENAME_EXCHANGE); False where system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    at_fdcwd, exchange = -100, 2
    return renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), exchange) == 0


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Yield a temporary sibling of `path`, open for writing; rename it to `path` when the block ends without an error.

    Raises:
        HfTlmError: the disk cannot be written, or `path` is a device or a pipe; the previous file, if any, is intact.
    """
    path, work = Path(path), None
    _check_place(path)
    new_folder = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        work = Temporary(path, folder=False)
        with work.open() as stream:
            yield stream
            if not stream.closed:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(work.path, path)
        sync_folder(path.parent)
    except Exception as error:
        if isinstance(error, HfTlmError) or not (isinstance(error, OSError) or disk_problem(error)):
            raise
        raise HfTlmError(f"Cannot write {path}: {told(error, path)}. A previous file there is unchanged.") from error
    finally:
        if work is not None:
            work.release()
        if new_folder and not path.exists():  # Nothing came of it: the folder made for it goes, unless others use it.
            with contextlib.suppress(OSError):
                path.parent.rmdir()


def _check_place(path: Path) -> None:
    """A device or a pipe must not change places with a file: without /dev/null nothing on a machine works."""
    try:
        other = path.exists() and not (path.is_file() or path.is_dir())
    except OSError:  # Of a name that is too long, say: the write will tell.
        other = False
    if other or (path.is_symlink() and os.readlink(path).startswith("/proc/")):  # /dev/stdout is such a link.
        raise HfTlmError(f"Cannot write {path}: expected a file or a new name; this is a pipe or a device.")


def atomic_write(path: str | os.PathLike, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path` as `atomic_file` does."""
    with atomic_file(path) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)


def sha256(path: str | os.PathLike) -> str:
    """Hex digest of a file's content, read in blocks of 1 MiB."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
