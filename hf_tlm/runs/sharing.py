"""A list of runs, each with a folder, that any number of processes work through together.

The processes need nothing but a file system that all of them see: a run belongs to the process that holds the lock beside
its folder, and the system drops the lock when that process ends, however it does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from hf_tlm.errors import HfTlmError
from hf_tlm.training.base_arguments import SeedsArguments
from hf_tlm.training.run_folder import SEED, finished
from hf_tlm.utils.locks import agree, let_others_in, place_in_job, try_lock
from hf_tlm.utils.run_files import seed_folder

logger = logging.getLogger(__name__)

P = TypeVar("P")
POLL_SECONDS = 2.0  # between looks at runs that are all in other hands


class PointsError(HfTlmError):
    """Some of the runs failed; the others are finished.

    failures: folder -> what went wrong there; names: folder -> what the run is called; total: of all runs.
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
    """Run every point that is not done, until all are; other processes that do the same take their share.

    A point is run by the one process that holds its folder's lock. When all that is left is being worked on by others, they
    are waited for, and the points of those that died are taken over; `run` finds what was finished of them. Whatever ends
    this function, Ctrl-C and SIGTERM among it, its point is free for the next process at once.

    In a job of several processes (`torch.distributed`) the first one decides, and all of them run the same point.

    Args:
        folder: where a point's results lie; every point has its own.
        done: whether a point is finished, told by what is in its folder.
        run: makes a point done. An `HfTlmError` of it is kept for the end, and the other points go on; in a job of
            several processes, which may not all have failed, it ends the work as any other error does.
        after: the points that have to end before this one begins: finished, or failed in this process.
        name: what a point is called in messages; by default as its folder.
        keep_going: False has the first `HfTlmError` end the work.

    Raises:
        PointsError: some points failed, and the others are finished.
        LockError: a lock cannot be made.
    """
    rank, processes = place_in_job()
    work, failures = _Points(points, folder, done, after, name), {}
    awaited: set[int] = set()
    while True:
        taken, lock, others = work.take() if rank == 0 else (None, None, set())
        with lock or contextlib.nullcontext():
            taken, looked_too_early, ended = agree((taken, not others, not work.left), processes)
            if taken is not None:
                if taken in awaited:
                    logger.warning("%s was left unfinished by another process and is continued here.", work.names[taken])
                awaited = set()
                try:
                    run(points[taken])
                except HfTlmError as error:
                    if processes > 1 or not keep_going:
                        raise
                    failures[work.folders[taken]] = error
                    logger.warning("%s failed: %s", work.names[taken], error)
                work.left.remove(taken)
                continue
        if ended:
            break
        if looked_too_early:  # What was free is finished by now, and something else may be free.
            continue
        if rank == 0 and others != awaited:
            held = ", ".join(sorted(work.names[i] for i in others))
            logger.warning("Waiting for other processes, which work on %s.", held)
            awaited = others
        time.sleep(POLL_SECONDS)
    if failures:
        raise PointsError(failures, dict(zip(work.folders, work.names, strict=True)), len(points))


class _Points(Generic[P]):
    """The points of `run_shared`, by their places, and which of them are left, as the first process of the job knows."""

    def __init__(
        self,
        points: Sequence[P],
        folder: Callable[[P], Path],
        done: Callable[[P], bool],
        after: Callable[[P], Collection[P]],
        name: Callable[[P], str] | None,
    ):
        self.points, self.done = points, done
        self.folders = [folder(point) for point in points]
        self.names = [name(point) if name else path.name for point, path in zip(points, self.folders, strict=True)]
        self.needs = [[points.index(needed) for needed in after(point)] for point in points]
        self.left = list(range(len(points)))

    def take(self) -> tuple[int | None, AbstractContextManager | None, set[int]]:
        """The first free point that nobody works on, with its lock held; without one those that others work on."""
        free = self._free()
        for index in free:
            lock = try_lock(self.folders[index])
            if lock is None:
                continue
            if not self.done(self.points[index]):
                return index, lock, set()
            with lock:
                self.left.remove(index)  # It was finished just now.
        return None, None, {index for index in free if index in self.left}

    def _free(self) -> list[int]:
        """Of the points that are left those that nothing holds up. Whether a point is done is asked of these alone."""
        unknown, ended = set(self.left), {}

        def has_ended(i: int) -> bool:
            if i not in ended:
                ended[i] = i not in unknown or (all(map(has_ended, self.needs[i])) and self.done(self.points[i]))
            return ended[i]

        self.left = [i for i in self.left if not has_ended(i)]
        return [i for i in self.left if all(map(has_ended, self.needs[i]))]


def once(folder: Path, done: Callable[[], bool], run: Callable[[], None]) -> None:
    """One point, see `run_shared`: a process runs it, and the others wait for it. What fails is raised as it is."""
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
    """Train all seeds of a run whose output folder this process holds, or its share of them.

    Processes of the same command come in while the seeds are trained, each of them by one.

    Args:
        run: makes what is not finished of a seed, and returns its record.
        done: whether a finished seed has all that is asked for, by its record.
        alone: nobody comes in.

    Returns:
        The records of the seeds, in their order.
    """
    folder, whole = partial(seed_folder, args.folder), set[int]()

    def is_done(seed: int) -> bool:
        if (
            seed not in whole
            and (record := finished(folder(seed), args, fields=SEED, local=True)) is not None
            and done(record)
        ):
            whole.add(seed)
        return seed in whole

    if not alone:
        with let_others_in(args.folder) as together:
            if together:
                run_shared(args.run_seeds, folder, is_done, run, keep_going=False)
    return [run(seed) for seed in args.run_seeds]
