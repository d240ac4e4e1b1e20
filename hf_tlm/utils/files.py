"""Atomic outputs: a reader sees the old file or folder or the complete new one, never a part."""

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
from hf_tlm.utils.problems import describe_error, disk_problem

# Errors of file systems that cannot sync folders, or do not need to.
_UNSUPPORTED_ERRNOS = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF, errno.EISDIR)
_MAX_TRIES = 100


class Temporary:
    """A new hidden sibling of a path, `.<name>.<32 hex digits>`, an empty folder or file, locked until `release`."""

    def __init__(self, target: Path, *, folder: bool, kind: str = ""):
        for _ in range(_MAX_TRIES):
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
            # Another process may have removed it as abandoned before it was locked.
            if self._lock.lock() is not False and self._lock.is_lock_of(self.path):
                return
            self._lock.release()
        raise OSError(errno.EAGAIN, "others remove what is made", str(self.path))

    def open(self) -> BinaryIO:
        """Open the file for writing. On SMB a locked file can be read or written only through the locked descriptor."""
        return os.fdopen(os.dup(self._lock.descriptor), "wb")

    def release(self) -> None:
        """Remove the file or folder if it still exists, and unlock it."""
        remove(self.path)
        self.unlock()

    def unlock(self) -> None:
        """Release the lock without removing anything; a later write may then remove it as abandoned."""
        self._lock.release()


def remove(path: Path) -> None:
    """Remove a file or folder, ignoring errors."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_abandoned(target: Path) -> None:
    """Remove temporary siblings of a path whose process has ended; those whose lock cannot be checked stay."""
    for path in list(_find_temporary(target)):
        try:
            lock = Flock.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        except OSError:
            continue
        if lock.lock():
            remove(path)
        lock.release()


def _find_temporary(target: Path) -> Iterator[Path]:
    # If the target does not exist, a folder `.old.` holds its last content and is not abandoned.
    kinds = "(old\\.)?" if os.path.lexists(target) else ""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{kinds}[0-9a-f]{{32}}")
    try:
        with os.scandir(target.parent) as entries:
            yield from (Path(entry.path) for entry in entries if pattern.fullmatch(entry.name) and not entry.is_symlink())
    except OSError:
        return


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, or raise an OSError."""
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRNOS:
            raise


def sync_tree(folder: Path) -> None:
    """Flush everything in a folder to disk, so that after its rename a power cut leaves all of it or nothing."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.isfile(path) and not os.path.islink(path):
                _sync(path)
        sync_folder(Path(parent))


def _sync(path: str | os.PathLike) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; rename it to `path` when the block ends without an error.

    An existing folder at `path` is exchanged with the new one in a single step and then removed. After an error, a kill or a
    power cut `path` is unchanged or complete. A kill leaves at most a hidden `.<name>.*` sibling, which is never read and
    which the next write of `path` removes. Where the system cannot exchange folders (NFS, macOS), two renames are used
    instead, and for a moment `path` does not exist: a kill at that moment leaves the old folder in `.<name>.old.*`, from
    where it can be moved back.

    Raises:
        HfTlmError: the disk cannot be written (full, read-only, no permission), `path` is a file, or a folder that cannot be
            replaced: a mounted disk, or one that contains the working directory. The message says why.
    """
    path = Path(path)
    _check_no_device(path)
    if path.is_file():
        raise HfTlmError(f"Cannot write {path}: expected a folder or a new name; found a file.")
    _check_replaceable(path, f"Cannot write {path}")
    path = path.resolve()  # Replace the target of a symbolic link, not the link, which may lead to a larger disk.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        temporary = Temporary(path, folder=True)
    except OSError as error:
        reason = describe_error(error, path, "Choose another output folder")
        raise HfTlmError(f"Cannot write under {path.parent}: {reason}.") from error
    try:
        yield temporary.path
        _make_readable(temporary.path)
        sync_tree(temporary.path)
        _replace_folder(temporary.path, path)
        sync_folder(path.parent)
        remove_abandoned(path)  # Old folders `.old.` are abandoned, too, now that `path` exists.
    except Exception as error:
        # Libraries write into the folder as well, and raise their own types of errors.
        if isinstance(error, HfTlmError) or not (isinstance(error, OSError) or disk_problem(error)):
            raise
        raise HfTlmError(
            f"Cannot write {path}: {describe_error(error, path)}. Its previous content is unchanged."
        ) from error
    finally:
        temporary.release()


def _make_readable(folder: Path) -> None:
    """Make files readable for everybody who may read their folder: those of safetensors are readable by the owner only."""
    readers = folder.stat().st_mode & 0o444
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and readers & ~mode:
            with contextlib.suppress(OSError):  # Not every file system has modes.
                path.chmod(stat.S_IMODE(mode) | readers)


def _replace_folder(new_folder: Path, path: Path) -> None:
    """Rename the folder `new_folder` to `path`; an existing folder there is removed, or is at `new_folder` afterwards."""
    if not path.exists():
        try:
            os.rename(new_folder, path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # Another process may have created it meanwhile.
                raise
    if not _swap_folders(path, new_folder):
        old = Temporary(path, folder=True, kind="old.")
        backup = old.path / path.name
        try:
            os.rename(path, backup)
            try:
                os.rename(new_folder, path)
            except BaseException:
                os.rename(backup, path)
                raise
        except OSError as error:
            if not path.exists():
                old.unlock()
                raise HfTlmError(
                    f"Cannot write {path}: {describe_error(error, path)}. Its previous content is in {backup}: move it back."
                ) from error
            raise
        finally:
            if path.exists():
                old.release()


def _swap_folders(first: Path, second: Path) -> bool:
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

    A symbolic link at `path` is replaced, not followed: in a folder from elsewhere it may lead anywhere, and in the Hub's
    cache it leads to a file that others share.

    Raises:
        HfTlmError: the disk cannot be written, or `path` is a device or a pipe; the previous file, if any, is intact.
    """
    path, temporary = Path(path), None
    _check_no_device(path)
    new_folder = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        temporary = Temporary(path, folder=False)
        with temporary.open() as stream:
            yield stream
            if not stream.closed:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary.path, path)
        sync_folder(path.parent)
    except Exception as error:
        if isinstance(error, HfTlmError) or not (isinstance(error, OSError) or disk_problem(error)):
            raise
        raise HfTlmError(f"Cannot write {path}: {describe_error(error, path)}. A previous file is unchanged.") from error
    finally:
        if temporary is not None:
            temporary.release()
        if new_folder and not path.exists():  # The write failed: remove the folder created for it, unless it is in use.
            with contextlib.suppress(OSError):
                path.parent.rmdir()


def _check_no_device(path: Path) -> None:
    """Raise an HfTlmError if a path is a device or a pipe: replacing /dev/null by a file would break the machine."""
    try:
        is_device = path.exists() and not (path.is_file() or path.is_dir())
    except OSError:  # For example a name that is too long: the write reports it.
        is_device = False
    if is_device or (path.is_symlink() and os.readlink(path).startswith("/proc/")):  # /dev/stdout is such a link.
        raise HfTlmError(f"Cannot write {path}: expected a file or a new name; found a pipe or a device.")


def _check_replaceable(folder: Path, what: str) -> None:
    """Raise an ArgumentsError if a folder cannot be replaced: a mounted disk, or a parent of the working directory."""
    resolved = folder.resolve()
    if os.path.ismount(resolved):
        problem = "a disk is mounted at it"
    elif Path.cwd().is_relative_to(resolved):
        problem = "the working directory is in it"
    else:
        return
    raise ArgumentsError(f"{what}: the folder cannot be replaced, as {problem}. Choose a folder in it.")


def check_writable(folder: str | os.PathLike, what: str | None = None, *, replaced: bool = False) -> None:
    """Check that a folder can be written, before the work whose result it is to hold.

    Args:
        folder: the folder; it need not exist yet.
        what: the beginning of the message. Default: the folder as --output_dir.
        replaced: whether the folder is replaced as a whole, as by `atomic_directory`, which needs a writable parent.

    Raises:
        ArgumentsError: `folder` is a file, its nearest existing parent cannot be written, or no folder can have this name;
            or a folder to be replaced is a mounted disk, or contains the working directory.
    """
    folder = Path(folder)
    what = what or f"--output_dir {folder}"
    # A folder that is replaced is first written beside it, under a longer name.
    longest = folder.absolute().parent / f".{folder.name}.{'0' * 32}" if replaced else folder
    try:
        longest.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # For example a name that is too long.
        error.filename = os.fspath(folder)
        raise ArgumentsError(f"{what}: {describe_error(error, folder, 'Choose another')}.") from error
    existing = next(candidate for candidate in (folder, *folder.absolute().parents) if os.path.exists(candidate))
    if replaced and existing == folder and existing.is_dir():
        _check_replaceable(folder, what)
        existing = folder.resolve().parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ArgumentsError(f"{what}: {existing} is not a writable folder. Choose another.")


def check_working_folder() -> None:
    """Raise an HfTlmError if the working directory has been removed: no relative path could be resolved."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise HfTlmError("The working directory has been removed. Change to a directory that exists.") from None


def atomic_write(path: str | os.PathLike, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path` atomically, see `atomic_file`."""
    with atomic_file(path) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)


def files_in(folder: Path) -> dict[str, Path]:
    """Return all files in a folder and its subfolders, by their paths relative to it."""
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def sha256(path: str | os.PathLike) -> str:
    """Return the SHA-256 hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
