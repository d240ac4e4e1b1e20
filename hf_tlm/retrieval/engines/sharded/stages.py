"""One stage of work on an executor of datatrove's: every task's output is there in the end, or an error says why not."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loguru import logger as datatrove_logger

from hf_tlm.retrieval.analyzer import RetrievalError
from hf_tlm.retrieval.engines.sharded.executors import EXECUTORS
from hf_tlm.retrieval.engines.sharded.steps import Step
from hf_tlm.retrieval.engines.sharded.workspace import Workspace
from hf_tlm.utils.disk import told
from hf_tlm.utils.locks import locked

POLL = {True: 0.2, False: 15.0}  # seconds between looks at a local and a remote folder, for the progress bar


def open_workspace(work_dir: str | os.PathLike, executor: str) -> Workspace:
    """Return the workspace at `work_dir`: a remote location for the executor jobs, a folder for others.

    Raises:
        RetrievalError: the machines of this executor cannot all see it.
    """
    location = str(work_dir)
    if ("://" in location) != (executor == "jobs"):
        kind = (
            "a remote work_dir, such as hf://buckets/<user>/<bucket>/<folder>"
            if executor == "jobs"
            else "a folder as work_dir"
        )
        raise RetrievalError(f"The {executor} executor needs {kind}; received {location}.")
    return Workspace(location if executor == "jobs" else str(Path(location).expanduser().absolute()))


@contextlib.contextmanager
def lock(workspace: Workspace) -> Iterator[None]:
    """One run at a time; the system drops the lock when a run is killed. A remote folder has none.

    Raises:
        LockError: see `locked`.
        RetrievalError: the folder cannot be made.
    """
    if not workspace.local:
        yield
        return
    folder = Path(workspace.location)
    with locked(folder, "choose another work_dir"):
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            reason = told(error, folder, "Choose another work_dir")
            raise RetrievalError(f"Cannot write under {folder}: {reason}.") from error
        yield


def run_stage(step: Step, tasks: int, name: str, options: dict[str, Any], title: str | None = None) -> None:
    """One stage: every task's output is there in the end.

    Args:
        name, options: what `check_executor` has looked at.

    Raises:
        RetrievalError: a task failed, with its message if it is one of ours, else with the place of its log.
    """
    datatrove_logger.remove()  # Its console; from here on there are only the tasks' logs.
    options = {key: value for key, value in options.items() if key != "address"}
    logs = step.workspace.path(f"logs/{step.name}")
    executor = EXECUTORS[name](pipeline=[step], tasks=tasks, logging_dir=logs, **options)
    for rank in set(range(tasks)).difference(executor.incomplete()):
        if not step.done(rank):
            executor.forget(rank)
    executor.forget_errors()
    with _progress(executor, title, step.workspace.local):
        try:
            executor.run()
        except RetrievalError:
            if not executor.errors():
                raise
        except Exception as error:
            if not executor.errors():
                raise RetrievalError(f"The stage {step.name} could not run: {type(error).__name__}: {error}") from error
    if missing := executor.incomplete():
        errors = executor.errors()
        rank, failure = next(iter(errors.items()), (missing[0], None))
        if failure and failure["known"]:
            raise RetrievalError(failure["message"])
        what = failure["message"] if failure else "its process or machine was lost"
        raise RetrievalError(
            f"Shard {rank} failed in the stage {step.name}: {what}. See {executor.log_of(rank)}; the same call continues "
            "from here."
        )


@contextlib.contextmanager
def _progress(executor, title: str | None, local: bool) -> Iterator[None]:
    """A bar of the tasks that are complete; none without a title."""
    from tqdm.auto import tqdm

    if title is None or not executor.incomplete():
        yield
        return
    ended = threading.Event()
    with tqdm(total=executor.world_size, desc=title, unit=" shards") as bar:

        def show() -> None:
            if (done := executor.world_size - len(executor.incomplete())) > bar.n:
                bar.update(done - bar.n)

        def watch() -> None:
            while not ended.wait(POLL[local]):
                show()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            show()
