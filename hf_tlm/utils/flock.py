"""Locks of the system on open files (`flock`), which it drops when their process ends, however that does."""

from __future__ import annotations

import errno
import fcntl
import os

# What a file system says where somebody else has the lock; anything else says that it has no locks.
_TAKEN = (errno.EAGAIN, errno.EACCES)


class Flock:
    """The lock of an open file or folder: `lock` takes it, `release` gives it back and closes the file.

    A forked process does not inherit it: the lock of a killed process is free although its workers still live.
    """

    _held: set[Flock] = set()

    def __init__(self, descriptor: int):
        self.descriptor: int | None = descriptor
        Flock._held.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike, flags: int = os.O_RDONLY) -> Flock:
        """Open a file, to lock it, or raise an OSError."""
        return cls(os.open(path, flags | os.O_CLOEXEC, 0o666))

    def lock(self) -> bool | None:
        """Whether the lock was free and now is held; None where the file system has no locks."""
        assert self.descriptor is not None
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return False if error.errno in _TAKEN else None
        return True

    def is_of(self, path: str | os.PathLike) -> bool:
        """Whether the path still names what was opened."""
        assert self.descriptor is not None
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path, follow_symlinks=False))
        except OSError:
            return False

    def release(self) -> None:
        if self.descriptor is not None:
            # By closing alone a process that a library forked would keep it.
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            except OSError:
                pass
            self._close()

    def _close(self) -> None:
        Flock._held.discard(self)
        descriptor, self.descriptor = self.descriptor, None
        assert descriptor is not None
        os.close(descriptor)

    @staticmethod
    def _forget() -> None:
        for lock in list(Flock._held):
            lock._close()


os.register_at_fork(after_in_child=Flock._forget)
