"""Locks: of open files, of folders (one writer at a time, named in a lock file beside the folder), and claims of folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import inspect
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.problems import describe_error

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
# Errors that mean that another process has the lock; any other error means that the file system has no locks.
_LOCKED_ERRNOS = (errno.EAGAIN, errno.EACCES)
POLL_SECONDS = 0.2
_MAX_TRIES = 100
# The locks that this process holds, by their files: waiting for one of them would never end.
_HELD_LOCKS: dict[Path, _HeldLock] = {}
# Files that exist before any work is done: locks, temporary files, logs of trackers, and a tokenizer, which is cached too.
_TRANSIENT_FILES = ("*.lock", ".*", "*/.*", "*events.out.tfevents*", "tokenizer/*")


class LockError(HfTlmError):
    """Raised when a folder cannot be locked, usually because another process writes it."""


class Flock:
    """The lock of an open file or folder: `lock` acquires it, `release` releases it and closes the file.

    Forked processes do not inherit it, so the lock of a killed process is free even while its workers are running.
    """

    _open_locks: set[Flock] = set()

    def __init__(self, descriptor: int):
        self.descriptor = descriptor  # -1: closed.
        Flock._open_locks.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike, flags: int = os.O_RDONLY) -> Flock:
        """Open a file that is to be locked, or raise an OSError."""
        return cls(os.open(path, flags | os.O_CLOEXEC, 0o666))

    def lock(self) -> bool | None:
        """Try to acquire the lock; return whether it was free, or None if the file system has no locks."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return False if error.errno in _LOCKED_ERRNOS else None
        return True

    def is_lock_of(self, path: str | os.PathLike) -> bool:
        """Return whether the path still refers to the file that was opened."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path, follow_symlinks=False))
        except OSError:
            return False

    def release(self) -> None:
        if self.descriptor >= 0:
            # Closing alone is not enough: a process that a library forked would keep the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        Flock._open_locks.discard(self)
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)

    @staticmethod
    def _close_inherited() -> None:
        for lock in list(Flock._open_locks):
            lock._close()


os.register_at_fork(after_in_child=Flock._close_inherited)


@contextlib.contextmanager
def owned(folder: str | os.PathLike, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder's lock during a block; the first process of a job holds it for all of the job's processes.

    The lock is a hidden file beside the folder. If the file system has no locks, a warning is logged and the block runs
    without one. If this thread already holds the folder through `awaited` or `try_lock`, the block uses that lock.

    Args:
        wait: wait for another process that holds the lock, instead of raising an error.

    Raises:
        LockError: in all processes of the job, if another process holds the lock, or this one holds it as the folder that
            its command writes.
    """
    rank, processes = rank_and_size()
    problem: str | None = None
    held_lock: _HeldLock | None = None
    outer_lock = _find_own_lock(folder) if rank == 0 else None
    if wait and broadcast_decision(outer_lock is None, processes):
        held_lock = _wait_for_lock(folder, rank, processes)
    elif rank == 0 and not (outer_lock and outer_lock.lent) and (held_lock := _HeldLock.acquire(folder)) is None:
        problem = _refusal(folder, "choose another --output_dir")
    if held_lock is not None:
        held_lock.lent = False
    with held_lock or contextlib.nullcontext():
        if (problem := broadcast_decision(problem, processes)) is not None:
            raise LockError(problem)
        yield


def owns_output_dir(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function with an argument `args` to hold the lock of `args.output_dir` while it runs; see `owned`."""
    return _hold_output_dir(function, wait=False)


def shares_output_dir(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function like `owns_output_dir`, but wait for the lock; for functions that use `let_others_in`."""
    return _hold_output_dir(function, wait=True)


def _hold_output_dir(function: Callable[P, R], wait: bool) -> Callable[P, R]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def holding(*positional: P.args, **keywords: P.kwargs) -> R:
        args = signature.bind(*positional, **keywords).arguments["args"]
        if not hasattr(args, "output_dir"):
            return function(*positional, **keywords)  # The function itself reports the wrong argument.
        with owned(args.output_dir, wait=wait):
            return function(*positional, **keywords)

    return holding


@contextlib.contextmanager
def let_others_in(folder: str | os.PathLike) -> Iterator[bool]:
    """Release a folder's lock during a block, so that other processes of the same command can do their part of its work.

    Yields whether other processes may enter: False if the lock belongs to a caller that runs this as one point of a grid,
    or if the file system has no locks.
    """
    rank, processes = rank_and_size()
    held_lock = _find_own_lock(folder) if rank == 0 else None
    can_release = held_lock is not None and not held_lock.lent and held_lock.lock is not None
    if not broadcast_decision(can_release, processes):
        yield False
        return
    if held_lock is not None:
        held_lock.release()
    try:
        yield True
    except Exception:
        if held_lock is not None and (new_lock := _HeldLock.acquire(folder)) is not None:
            held_lock.take_over(new_lock)
        raise
    new_lock = _wait_for_lock(folder, rank, processes)
    if held_lock is not None and new_lock is not None:
        held_lock.take_over(new_lock)


@contextlib.contextmanager
def awaited(folder: str | os.PathLike) -> Iterator[None]:
    """Wait for a folder's lock and hold it during a block; raise a LockError if this thread holds it for its own output."""
    if _find_own_lock(folder):
        raise LockError(f"{folder} is the output folder of this command. Choose another folder for its working files.")
    with _wait_for_lock(folder) or contextlib.nullcontext():
        yield


def _wait_for_lock(folder: str | os.PathLike, rank: int = 0, processes: int = 1) -> _HeldLock | None:
    """Wait for a folder's lock; return it in the first process of a job, and None in its other processes.

    The processes wait by many short broadcasts, because a single one fails after `ddp_timeout`, and another training may
    take longer.
    """
    held_lock = _HeldLock.acquire(folder) if rank == 0 else None
    if rank == 0 and held_lock is None:
        logger.warning("Waiting for %s, which writes %s.", owner_of(folder), folder)
    while not broadcast_decision(held_lock is not None, processes):
        time.sleep(POLL_SECONDS)
        held_lock = _HeldLock.acquire(folder) if rank == 0 else None
    return held_lock


def try_lock(folder: str | os.PathLike) -> contextlib.AbstractContextManager | None:
    """Try to lock a folder; return a context manager, or None if another process or thread holds the lock.

    Raises:
        LockError: the folder cannot be locked.
    """
    try:
        return _HeldLock.acquire(folder, needed=True)
    except OSError as error:
        reason = describe_error(error, folder, "Choose an output folder that can be written, on a file system with locks")
        raise LockError(f"Cannot lock {folder}: {reason}.") from error


@contextlib.contextmanager
def locked(folder: str | os.PathLike, choose: str) -> Iterator[None]:
    """Hold a folder's lock in this process alone, regardless of its job; raise a LockError that advises to `choose`."""
    held_lock = try_lock(folder)
    if held_lock is None:
        raise LockError(_refusal(folder, choose))
    with held_lock:
        yield


def _refusal(folder: str | os.PathLike, choose: str) -> str:
    return f"{folder} is being written by {owner_of(folder)}. Wait for it to end, or {choose}."


def _find_own_lock(folder: str | os.PathLike) -> _HeldLock | None:
    """Return the lock of a folder if this thread holds it, else None."""
    held_lock = _HELD_LOCKS.get(lock_file(folder))
    return held_lock if held_lock is not None and held_lock.thread == threading.get_ident() else None


def lock_file(folder: str | os.PathLike) -> Path:
    """Return the path of a folder's lock file: beside the folder, because replacing the folder would remove a file in it."""
    folder = Path(folder).resolve()
    return folder.parent / f".{folder.name}.lock"


def owner_of(folder: str | os.PathLike) -> str:
    """Describe the process that holds a folder's lock, for messages."""
    try:
        owner = json.loads(lock_file(folder).read_text(encoding="utf-8"))
        process = f"process {int(owner['pid'])} on {owner['host']:.60} ({owner['command']:.60})"
        return f"{process} since {owner['since']:.30}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "another process"


class _HeldLock(contextlib.AbstractContextManager):
    """A lock that is held until `release`, or to the end of a `with` block.

    lent: whether a run in the folder may use this lock as its own.
    """

    def __init__(self, path: Path, lock: Flock | None, created_folders: list[Path]):
        self.path, self.lock, self.created_folders = path, lock, created_folders
        self.thread, self.lent = threading.get_ident(), True

    @classmethod
    def acquire(cls, folder: str | os.PathLike, needed: bool = False) -> _HeldLock | None:
        """Acquire the lock of a folder; return None if another process has it.

        If the folder cannot be locked, a warning is logged and an object without a lock is returned; if the lock is
        `needed`, an OSError is raised instead.
        """
        path, created_folders = lock_file(folder), []
        try:
            for _ in range(_MAX_TRIES):
                try:
                    created_folders += _create_folders(path.parent)
                    lock = Flock.open(path, os.O_RDWR | os.O_CREAT)
                except FileNotFoundError:  # The process that created the parent folder has removed it again.
                    continue
                acquired = lock.lock()
                if acquired and lock.is_lock_of(path):
                    break
                lock.release()
                if acquired is False:
                    return None
                if acquired is None:
                    raise OSError("the file system has no locks")
            else:
                raise OSError("it is created and removed repeatedly")
        except OSError as error:
            if needed:
                raise
            logger.warning("Cannot lock %s: %s. Do not start another command that writes to it.", folder, error)
            return cls(path, None, created_folders)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "command": Path(sys.argv[0]).name}
        owner["since"] = datetime.now().astimezone().isoformat(" ", "seconds")
        with contextlib.suppress(OSError):  # The lock holds without its owner's name, too.
            os.ftruncate(lock.descriptor, 0)
            os.pwrite(lock.descriptor, json.dumps(owner).encode(), 0)
        _HELD_LOCKS[path] = held_lock = cls(path, lock, created_folders)
        return held_lock

    def __exit__(self, *_: object) -> None:
        self.release()

    def take_over(self, other: _HeldLock) -> None:
        """Take over the lock and the created folders of another `_HeldLock` of the same folder."""
        self.lock, self.created_folders = other.lock, self.created_folders + other.created_folders
        if self.lock is not None:
            _HELD_LOCKS[self.path] = self

    def release(self) -> None:
        if self.lock is not None and self.lock.descriptor >= 0:
            _HELD_LOCKS.pop(self.path, None)
            with contextlib.suppress(OSError):
                self.path.unlink()
            self.lock.release()
        for folder in reversed(self.created_folders):
            with contextlib.suppress(OSError):  # The folder is in use.
                folder.rmdir()


def _create_folders(folder: Path) -> list[Path]:
    """Create a folder with its parents; return the folders that were created, the outermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def rank_and_size() -> tuple[int, int]:
    """Return rank and number of processes of this job; (0, 1) if torch is not imported, because importing takes seconds."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def broadcast_decision(decision: Any, processes: int) -> Any:
    """Return the decision of the job's first process, in all processes."""
    if processes == 1:
        return decision
    from torch.distributed import broadcast_object_list

    decisions = [decision]
    broadcast_object_list(decisions, src=0)
    return decisions[0]


class Claim(contextlib.AbstractContextManager):
    """A context manager that removes a new claim on a folder if its block fails before any work worth keeping is done.

        with claim:
            ...  # An error here leaves the folder as it was, and the corrected command works.

    An interruption (Ctrl-C, SIGTERM) keeps the claim: the same command continues the run.

    Args:
        folder: the run's folder. Create the `Claim` before the folder exists.
        *files: the files that claim the folder, as globs of paths relative to it.
    """

    def __init__(self, folder: Path, *files: str):
        self.folder, self.transient = Path(folder), (*files, *_TRANSIENT_FILES)
        self.created_folders = [parent for parent in (self.folder, *self.folder.parents) if not parent.exists()]
        # Whether this process wrote the claim.
        self.new = False

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if self.new and isinstance(error, Exception):
            with contextlib.suppress(OSError):
                self._remove_claim()

    def _remove_claim(self) -> None:
        """Remove the folder's content, unless a file is worth keeping or another process is using the folder."""
        with contextlib.ExitStack() as stack:
            if not _find_own_lock(self.folder):
                if (own_lock := _HeldLock.acquire(self.folder)) is None:
                    return
                stack.enter_context(own_lock)
            files = [path for path in self.folder.rglob("*") if path.is_symlink() or not path.is_dir()]
            names = [path.relative_to(self.folder).as_posix() for path in files]
            if not all(any(fnmatch(name, glob) for glob in self.transient) for name in names):
                return
            for path in files:
                if path.suffix == ".lock":
                    lock = Flock.open(path)
                    stack.callback(lock.release)
                    if lock.lock() is False:
                        return
            for path in files:
                path.unlink(missing_ok=True)
            for folder in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
                folder.rmdir()
        for folder in self.created_folders:
            folder.rmdir()
