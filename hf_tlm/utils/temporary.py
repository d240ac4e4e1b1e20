"""Temporary siblings of files and folders: locked while they are written, so that those of killed processes are known."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hf_tlm.utils.flock import Flock

# What a file system says that keeps folders in another way.
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF, errno.EISDIR)
_TRIES = 100


class Temporary:
    """A new hidden sibling of a path, `.<name>.<32 hex digits>`, an empty folder or file, locked until `release`.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, target: Path, *, folder: bool, kind: str = ""):
        for _ in range(_TRIES):
            self.path = target.with_name(f".{target.name}.{kind}{uuid.uuid4().hex}")
            if folder:
                self.path.mkdir()
            else:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            try:
                self._lock = Flock.open(self.path, os.O_RDONLY if folder else os.O_RDWR)
            except FileNotFoundError:
                continue
            except BaseException:
                remove(self.path)
                raise
            # Before it was locked it may have been taken for abandoned.
            if self._lock.lock() is not False and self._lock.is_of(self.path):
                return
            self._lock.release()
        raise OSError(errno.EAGAIN, "others remove what is made", str(self.path))

    def open(self) -> BinaryIO:
        """The file, for writing. Of a locked file on SMB only the descriptor that has the lock can be read or written."""
        assert self._lock.descriptor is not None
        return os.fdopen(os.dup(self._lock.descriptor), "wb")

    def release(self) -> None:
        """Remove what is still there."""
        remove(self.path)
        self.unlock()

    def unlock(self) -> None:
        """Leave it to whoever comes next."""
        self._lock.release()


def remove(path: Path) -> None:
    """Remove a file or folder, as far as that is possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_abandoned(target: Path) -> None:
    """Remove temporary siblings of a path whose process has ended; where that cannot be told they stay."""
    for path in list(_siblings(target)):
        try:
            lock = Flock.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        except OSError:
            continue
        if lock.lock():
            remove(path)
        lock.release()


def _siblings(target: Path) -> Iterator[Path]:
    # An old folder is what is left of the target while there is no new one.
    kinds = "(old\\.)?" if os.path.lexists(target) else ""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{kinds}[0-9a-f]{{32}}")
    try:
        with os.scandir(target.parent) as entries:
            yield from (Path(entry.path) for entry in entries if pattern.fullmatch(entry.name) and not entry.is_symlink())
    except OSError:
        return


def sync_folder(folder: Path) -> None:
    """Have the disk keep a folder's names.

    Raises:
        OSError: it failed to.
    """
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise


def sync_tree(folder: Path) -> None:
    """Have the disk keep everything in a folder: what a power cut leaves of it is all or nothing once it is renamed.

    Raises:
        OSError: it failed to.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if os.path.isfile(path) and not os.path.islink(path):
                _sync(path)
        sync_folder(Path(place))


def _sync(path: str | os.PathLike) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
