"""Scoring of a subset by tasks of datatrove's executors, into the files that `hf_tlm.influence.score` writes."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from datasets import Dataset

from hf_tlm.errors import InfluenceError
from hf_tlm.influence.score_files import WORK_FOLDER, ScoreFiles, open_scores
from hf_tlm.retrieval.sharded.workspace import Workspace, lock, open_workspace, shard_name
from hf_tlm.utils.options import check_numbers

if TYPE_CHECKING:
    from hf_tlm.influence.scorer import InfluenceScorer
    from hf_tlm.retrieval import Sharding

PRELOAD = ["hf_tlm.influence.datatrove_steps"]


def score_sharded(
    task_rows: Dataset,
    subset_rows: Dataset,
    scorer: InfluenceScorer,
    sharding: Sharding,
    work_dir: str | Path | None = None,
    *,
    task_batch_size: int = 1,
) -> ScoreFiles:
    """Return the influence of every passage on every task batch, computed by tasks of an executor of datatrove.

    Each of `sharding.num_shards` tasks loads the scorer from `work_dir` and scores its share of the shards of 1,024
    passages, on the accelerator of its machine, or on the CPU if `scorer` is on the CPU of a machine with an accelerator.
    Shards that a killed run has written are not computed again. With the same number of torch threads on the same kind of
    machine, the files are byte for byte those of `hf_tlm.influence.score`.

    Args:
        task_rows, subset_rows, task_batch_size: see `hf_tlm.influence.score`.
        work_dir: directory that the machines share, see `hf_tlm.influence.score`; for "jobs" a URL such as
            `hf://buckets/<user>/<bucket>/<folder>`, from which the scores are copied to the cache of `datasets`.

    Raises:
        InfluenceError: datatrove is missing, or see `hf_tlm.influence.score`.
        RetrievalError: the executor or its options cannot be used, another run uses the folder, or a task failed.
    """
    check_sharding(sharding, work_dir)
    from hf_tlm.influence import datatrove_steps as steps
    from hf_tlm.retrieval.sharded.executors import cluster, run_stage

    executor = sharding.executor
    options, threads = _shares(sharding)
    remote = executor == "jobs"
    scores = open_scores(task_rows, subset_rows, scorer, None if remote else work_dir, task_batch_size)
    # Several runs may share a bucket: each combination of settings has its own folder in it.
    workspace = open_workspace(f"{work_dir}/{scores.folder.name}" if remote else scores.folder / WORK_FOLDER, executor)
    tasks = min(sharding.num_shards, scores.num_shards)
    missing = scores.missing()
    if not missing:
        return scores
    with lock(workspace), cluster(executor, options, PRELOAD):
        _write_task_files(workspace, task_rows, subset_rows, scorer, scores, missing)
        device = "cpu" if scorer.device.type == "cpu" and torch.accelerator.is_available() else None
        worker = steps.Worker(device, threads)
        run_stage(steps.FitTask(workspace, worker, task_batch_size), 1, executor, options)
        run_stage(steps.ScoreShards(workspace, worker, missing, tasks), tasks, executor, options, "Scoring")
        _collect(workspace, scores, missing)
        if workspace.local:
            shutil.rmtree(workspace.location, ignore_errors=True)
    return scores


def check_sharding(sharding: Sharding, work_dir: str | Path | None) -> None:
    """Check the executor and its options, before there is a score model.

    Raises:
        InfluenceError: datatrove is missing, or a number is out of range.
        RetrievalError: see `score_sharded`.
    """
    check_numbers(InfluenceError, num_shards=sharding.num_shards, workers=_workers(sharding))
    if importlib.util.find_spec("datatrove") is None:
        raise InfluenceError("Scoring on executors needs datatrove: pip install 'hf-tlm[sharded]'.")
    from hf_tlm.retrieval.sharded.executors import check_executor

    check_executor(sharding.executor, _shares(sharding)[0])
    if work_dir is not None or sharding.executor == "jobs":
        open_workspace(work_dir or "", sharding.executor)


def _workers(sharding: Sharding) -> int | None:
    """Return how many tasks run at a time, from `workers` or the executor's options."""
    return sharding.options.get("workers") if sharding.workers is None else sharding.workers


def _shares(sharding: Sharding) -> tuple[dict, int | None]:
    """Return the executor's options and the number of threads of a task; the threads of this process are divided."""
    from hf_tlm.retrieval.sharded.executors import share_out

    threads = torch.get_num_threads()
    return share_out(sharding.executor, sharding.options, _workers(sharding), sharding.num_shards, threads)


def _write_task_files(workspace: Workspace, task_rows, subset_rows, scorer, scores: ScoreFiles, missing: list[int]) -> None:
    """Write the files that the tasks read, unless they exist."""
    from hf_tlm.influence import datatrove_steps as steps
    from hf_tlm.influence.scorer import save_scorer

    if not workspace.has(steps.SCORER_FOLDER):
        with workspace.writing(steps.SCORER_FOLDER) as folder:
            save_scorer(scorer, folder, gradients=False)
    inputs = {steps.TASK_FOLDER: range(len(task_rows))}
    inputs |= {shard_name("passages", number): scores.rows(number) for number in missing}
    for name, rows in inputs.items():
        if not workspace.has(name):
            with workspace.writing(name) as folder:
                steps.write_rows(folder, (task_rows if name == steps.TASK_FOLDER else subset_rows).select(rows))


def _collect(workspace: Workspace, scores: ScoreFiles, missing: list[int]) -> None:
    """Copy the shards that tasks have written to `scores`; raise an InfluenceError for a damaged one."""
    for number in missing:
        shard_files = ScoreFiles(workspace.reading(shard_name("scores", number)), scores.shape).find(number)
        if shard_files is None:
            raise InfluenceError(
                f"{workspace.path(shard_name('scores', number))} is damaged. Remove it, and run the same command again."
            )
        scores.write(number, shard_files)
