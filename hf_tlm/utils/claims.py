"""A folder that a command has just made its own, until there is something worth keeping in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from hf_tlm.utils.flock import Flock
from hf_tlm.utils.locks import LockError

# What is there before any work: locks, what was being written, logs of trackers, and a tokenizer, which is in the cache too.
_PASSING = ("*.lock", ".*", "*/.*", "*events.out.tfevents*", "tokenizer/*")


class Claim:
    """A context that takes a new claim back where its block ends in an error and nothing worth keeping is in the folder.

        with claim:
            ...  # A refusal here leaves the folder as it was, and the corrected command works.

    What interrupts a run (Ctrl-C, SIGTERM) leaves the claim: the same command goes on.

    Args:
        folder: of the run. To be made before the folder is.
        *files: those that claim it, as globs of paths in it.
    """

    def __init__(self, folder: Path, *files: str):
        self.folder, self.passing = Path(folder), (*files, *_PASSING)
        self.made = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
        # Whether this process wrote the claim.
        self.new = False

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if self.new and isinstance(error, Exception):
            with contextlib.suppress(OSError, LockError):
                self._take_back()

    def _take_back(self) -> None:
        files = [path for path in self.folder.rglob("*") if path.is_symlink() or not path.is_dir()]
        if not all(self._is_passing(path.relative_to(self.folder).as_posix()) for path in files):
            return
        with _held([path for path in files if path.suffix == ".lock"]):
            for path in files:
                path.unlink(missing_ok=True)
            for folder in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
                folder.rmdir()
        for folder in self.made:
            folder.rmdir()

    def _is_passing(self, name: str) -> bool:
        return any(fnmatch(name, glob) for glob in self.passing)


@contextlib.contextmanager
def _held(locks: Sequence[Path]) -> Iterator[None]:
    """All of them held, so that nobody is at work.

    Raises:
        LockError: one is in other hands.
    """
    with contextlib.ExitStack() as stack:
        for path in locks:
            lock = Flock.open(path)
            stack.callback(lock.release)
            if lock.lock() is False:
                raise LockError(f"{path} is held by another process.")
        yield
