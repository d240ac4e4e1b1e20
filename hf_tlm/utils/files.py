"""Atomic outputs: a reader sees the old file or folder or the whole new one, never a part."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hf_tlm.errors import ArgumentsError, HfTlmError
from hf_tlm.utils.locks import Flock
from hf_tlm.utils.problems import disk_problem, told

# What a file system says that keeps folders in another way.
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF, errno.EISDIR)
_TRIES = 100


class Temporary:
    """A new hidden sibling of a path, `.<name>.<32 hex digits>`, an empty folder or file, locked until `release`."""

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
    """Have the disk keep a folder's names, or raise an OSError."""
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise


def sync_tree(folder: Path) -> None:
    """Have the disk keep everything in a folder: what a power cut leaves of it is all or nothing once it is renamed."""
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


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; rename it to `path` when the block ends without an error.

    An existing folder at `path` changes places with the new one in a single step and is then removed. After an error, a
    kill or a power cut `path` is as it was, or whole. A kill leaves at most a hidden `.<name>.*` sibling, which nothing ever
    reads and the next write of `path` removes. Where the system cannot exchange folders (NFS, macOS) there are two renames
    instead, and for a moment nothing at `path`: a kill in it leaves the old folder in `.<name>.old.*`, from where it can be
    moved back.

    Raises:
        HfTlmError: the disk cannot be written (full, read-only, no permission), a file is there, or a folder that cannot be
            replaced: a mounted disk, or one that holds the working folder. The message says why.
    """
    path = Path(path)
    _check_place(path)
    if path.is_file():
        raise HfTlmError(f"Cannot write {path}: expected a folder or a new name; this is a file.")
    _check_replaceable(path, f"Cannot write {path}")
    path = path.resolve()  # A link to a folder stays, and what it leads to changes: the link may lead to a larger disk.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        work = Temporary(path, folder=True)
    except OSError as error:
        reason = told(error, path, "Choose another output folder")
        raise HfTlmError(f"Cannot write under {path.parent}: {reason}.") from error
    try:
        yield work.path
        _share(work.path)
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


def _share(folder: Path) -> None:
    """Let whoever may read a folder read its files: those of safetensors are their writer's alone."""
    readers = folder.stat().st_mode & 0o444
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and readers & ~mode:
            with contextlib.suppress(OSError):  # Not every file system has modes.
                path.chmod(stat.S_IMODE(mode) | readers)


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


def _check_replaceable(folder: Path, what: str) -> None:
    """Refuse a folder that no other can take the place of: a mounted disk, or one that a process is started in."""
    place = folder.resolve()
    if os.path.ismount(place):
        problem = "a disk is mounted there"
    elif Path.cwd().is_relative_to(place):
        problem = "this is started in it"
    else:
        return
    raise ArgumentsError(f"{what}: it is replaced as a whole, which cannot be, as {problem}. Give a folder in it.")


def check_writable(folder: str | os.PathLike, what: str | None = None, *, replaced: bool = False) -> None:
    """Refuse a folder that nothing could be written to, before the work whose result is to be there.

    Args:
        folder: it need not be there yet.
        what: the beginning of the message. Default: the folder as --output_dir.
        replaced: whether it appears as a whole, as of `atomic_directory`, which makes it in the folder above.

    Raises:
        ArgumentsError: a file is there, the nearest folder that is there cannot be written in, or no folder can have
            that name; one that is replaced is a mounted disk, or holds the working folder.
    """
    folder = Path(folder)
    what = what or f"--output_dir {folder}"
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # Of a name that is too long, say.
        raise ArgumentsError(f"{what}: {told(error, folder, 'Give another')}.") from error
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    if replaced and there == folder and there.is_dir():
        _check_replaceable(folder, what)
        there = folder.resolve().parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ArgumentsError(f"{what}: {there} is no folder that can be written in. Give another.")


def check_working_folder() -> None:
    """Raise an HfTlmError where the folder that a command was started in was removed: no path would be found."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise HfTlmError("The folder that this is started in has been removed. Change to one that is there.") from None


def atomic_write(path: str | os.PathLike, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path` as `atomic_file` does."""
    with atomic_file(path) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)


def files_in(folder: Path) -> dict[str, Path]:
    """The files in a folder and in the folders in it, by their paths from it."""
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def sha256(path: str | os.PathLike) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
