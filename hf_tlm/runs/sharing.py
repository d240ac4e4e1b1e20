"""Share a list of runs, each with its own folder, among any number of processes.

The processes need only a shared file system: a run belongs to the process that holds the lock beside its folder, and the
operating system releases the lock when that process ends for any reason.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from hf_tlm.errors import HfTlmError
from hf_tlm.training.base_arguments import SeedsArguments
from hf_tlm.training.run_folder import SEED, finished
from hf_tlm.utils.locks import broadcast_decision, let_others_in, rank_and_size, try_lock
from hf_tlm.utils.run_files import seed_folder

logger = logging.getLogger(__name__)

P = TypeVar("P")
POLL_SECONDS = 2.0  # between checks while other processes hold all remaining runs


class PointsError(HfTlmError):
    """Raised when some of the runs failed; the others are finished.

    failures: folder -> its error; names: folder -> name of the run; total: number of all runs.
    """

    def __init__(self, failures: Mapping[Path, HfTlmError], names: Mapping[Path, str], total: int):
        self.failures = dict(failures)
        listed = "\n".join(f"  {names[folder]}: {error}" for folder, error in self.failures.items())
        super().__init__(
            f"{len(self.failures)} of {total} runs failed:\n{listed}\nThe others are finished. The same command tries "
            "the failed ones again."
        )


def run_shared(
    points: Sequence[P],
    folder: Callable[[P], Path],
    done: Callable[[P], bool],
    run: Callable[[P], object],
    *,
    after: Callable[[P], Collection[P]] = lambda point: (),
    name: Callable[[P], str] | None = None,
    keep_going: bool = True,
) -> None:
    """Run every point that is not done, until all are; other processes that make the same call share the points.

    A point is run by the one process that holds its folder's lock. When other processes hold all remaining points, this one
    waits for them, and takes over the points of those that died; `run` has to continue what they left. However this function
    ends, also by Ctrl-C or SIGTERM, its point is free for the next process at once.

    In a job of several processes (`torch.distributed`) the first one chooses the point, and all of them run it together.

    Args:
        folder: returns the folder of a point's results; every point has its own.
        done: returns whether a point is finished, according to the content of its folder.
        run: runs a point until it is done. If it raises an `HfTlmError`, the other points are still run, and the error is
            reported at the end; in a job of several processes, which may not all have failed, it is raised at once like any
            other error.
        after: returns the points that must end before this one begins: finished, or failed in this process.
        name: returns the name of a point in messages; by default that of its folder.
        keep_going: False raises the first `HfTlmError` at once.

    Raises:
        PointsError: some points failed, and the others are finished.
        LockError: a lock cannot be created.
    """
    rank, processes = rank_and_size()
    folders = [folder(point) for point in points]
    names = [name(point) if name else path.name for point, path in zip(points, folders, strict=True)]
    queue = _PointQueue(points, folders, [[points.index(needed) for needed in after(point)] for point in points], done)
    failures: dict[Path, HfTlmError] = {}
    awaited: set[int] = set()
    while True:
        point_index, lock, busy = queue.take() if rank == 0 else (None, None, set())
        with lock or contextlib.nullcontext():
            point_index, looked_too_early, ended = broadcast_decision(
                (point_index, not busy, not queue.remaining), processes
            )
            if point_index is not None:
                if point_index in awaited:
                    logger.warning("%s was left unfinished by another process and is continued here.", names[point_index])
                awaited = set()
                try:
                    run(points[point_index])
                except HfTlmError as error:
                    if processes > 1 or not keep_going:
                        raise
                    repeated = str(error) in map(str, failures.values())
                    failures[folders[point_index]] = error
                    reason = ", like another." if repeated else f": {error}"
                    logger.warning("%s failed%s", names[point_index], reason)
                queue.remaining.remove(point_index)
                continue
        if ended:
            break
        if looked_too_early:  # The points that were free have just been finished, and others may be free now.
            continue
        if rank == 0 and busy != awaited:
            busy_names = ", ".join(sorted(names[i] for i in busy))
            logger.warning("Waiting for other processes, which work on %s.", busy_names)
            awaited = busy
        time.sleep(POLL_SECONDS)
    if failures:
        raise PointsError(failures, dict(zip(folders, names, strict=True)), len(points))


@dataclass
class _PointQueue(Generic[P]):
    """The points of `run_shared`, by index, and the indices of those that are left; only the job's first process uses it."""

    points: Sequence[P]
    folders: Sequence[Path]
    prerequisites: Sequence[Sequence[int]]
    done: Callable[[P], bool]

    def __post_init__(self):
        self.remaining = list(range(len(self.points)))

    def take(self) -> tuple[int | None, AbstractContextManager | None, set[int]]:
        """Lock the first free point that no other process works on.

        Returns:
            (index, held lock, empty set); or (None, None, indices of the points that other processes work on).
        """
        free = self._find_free()
        for index in free:
            lock = try_lock(self.folders[index])
            if lock is None:
                continue
            if not self.done(self.points[index]):
                return index, lock, set()
            with lock:
                self.remaining.remove(index)  # Another process has just finished it.
        return None, None, {index for index in free if index in self.remaining}

    def _find_free(self) -> list[int]:
        """Return the remaining points whose `after` points have all ended; `done` is called for these points only."""
        unfinished, ended = set(self.remaining), {}

        def has_ended(i: int) -> bool:
            if i not in ended:
                ended[i] = i not in unfinished or (all(map(has_ended, self.prerequisites[i])) and self.done(self.points[i]))
            return ended[i]

        self.remaining = [i for i in self.remaining if not has_ended(i)]
        return [i for i in self.remaining if all(map(has_ended, self.prerequisites[i]))]


def run_once(folder: Path, done: Callable[[], bool], run: Callable[[], None]) -> None:
    """Run a single point of `run_shared`: one process runs it, and the others wait. Its own error is raised."""
    try:
        run_shared([folder], lambda folder: folder, lambda _: done(), lambda _: run())
    except PointsError as error:
        raise error.failures[folder] from None


def share_seeds(
    args: SeedsArguments,
    run: Callable[[int], dict[str, Any]],
    done: Callable[[dict[str, Any]], bool] = lambda record: True,
    *,
    alone: bool,
) -> list[dict[str, Any]]:
    """Train the seeds of a run whose output folder this process has locked, together with other processes.

    Processes of the same command join while the seeds are trained; each seed is trained by one process.

    Args:
        run: trains what is not finished of a seed, and returns its record.
        done: returns whether the record of a finished seed has everything that is needed.
        alone: other processes cannot join.

    Returns:
        The records of the seeds, in their order.
    """
    folder, complete = partial(seed_folder, args.folder), set[int]()

    def is_done(seed: int) -> bool:
        if seed not in complete:
            record = finished(folder(seed), args, fields=SEED, local=True)
            if record is not None and done(record):
                complete.add(seed)
        return seed in complete

    if not alone:
        with let_others_in(args.folder) as can_join:
            if can_join:
                run_shared(args.run_seeds, folder, is_done, run, keep_going=False)
    return [run(seed) for seed in args.run_seeds]
