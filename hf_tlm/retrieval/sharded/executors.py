"""datatrove's executors behind one function, without output to the terminal, and safe to kill.

A task writes its log and its error to its stage's directory, so that the run waiting for it can report what happened. Two
loops replace datatrove's: its local pool waits forever once a worker is killed, and so does its Ray loop if a node leaves
while a task starts there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from copy import deepcopy
from multiprocessing.connection import wait
from typing import Any

from datatrove.executor.base import PipelineExecutor
from datatrove.executor.jobs import ARRAY_INDEX_ENV_VAR, JobsPipelineExecutor
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from huggingface_hub import get_token
from loguru import logger as datatrove_logger
from tqdm.auto import tqdm

from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval.sharded.steps import Step
from hf_tlm.retrieval.texts import RetrievalError
from hf_tlm.utils.options import COUNT, Range, check_number

logger = logging.getLogger(__name__)
# Arguments of datatrove's executors that are set here, and those that our loops do not use.
OWN_ARGUMENTS = {"pipeline", "tasks", "logging_dir", "skip_completed", "depends", "depends_job_id", "run_on_dependency_fail"}
UNUSED_ARGUMENTS = {
    "local": {"local_tasks", "local_rank_offset"},
    "ray": {"nodes_per_task", "tasks_per_job", "time", "log_first"},
    "slurm": {"max_array_launch_parallel", "stagger_max_array_jobs"},  # `run` waits for one job, the last.
}
# Executor options that must be numbers: some would be accepted as text, and fail hours later when computed with.
_COUNT, _ANY_COUNT = Range(1, COUNT, whole=True), Range(0, COUNT, whole=True)
NUMBERS = {
    **dict.fromkeys(("cpus_per_task", "nodes_per_task", "tasks_per_job", "max_array_size"), _COUNT),
    **dict.fromkeys(("gpus_per_task", "randomize_start_duration", "max_retries"), _ANY_COUNT),
    "mem_per_cpu_gb": Range(0, COUNT, above=True),
    "poll_interval": Range(0, COUNT),  # Seconds.
}
RAY_RETRIES = 3  # Retries of a task whose node or process is lost.
SLURM_POLL = 10.0  # Seconds.
POLL = {True: 0.2, False: 15.0}  # Seconds between checks of a local and a remote directory, for the progress bar.


def in_queue(job: str | int) -> bool:
    """Return whether Slurm still lists a job.

    Slurm forgets a job some time after it ends, and then reports an invalid job id. Any other error, such as a busy
    controller, says nothing about the job, which then counts as listed, so that the caller asks again later.
    """
    if job == -1:
        return False
    listed = subprocess.run(["squeue", "--noheader", "--jobs", str(job)], capture_output=True, text=True)
    if listed.returncode:
        gone = "invalid job id" in listed.stderr.lower()
        if not gone:
            logger.warning("squeue failed: %s", listed.stderr.strip())
        return not gone
    return bool(listed.stdout.strip())


class _Quiet(PipelineExecutor):
    """An executor whose tasks write only to their logs, and write their error to `errors/<rank>.json`."""

    pipeline: list[PipelineStep]
    _run = PipelineExecutor._run_for_rank

    @staticmethod
    def check(options: dict[str, Any]) -> None:
        """Raise a RetrievalError if this executor cannot run: an option is missing, or it cannot be started from here."""

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1):
        """Run one task; if it fails, write its error for `errors` and raise it."""
        # datatrove's logger adds sys.stderr as its console whenever a task begins or ends.
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                return self._run(rank, local_rank, node_rank)
            except Exception as error:
                is_known = isinstance(error, HfTlmError)
                with self.logging_dir.open(f"errors/{rank:05d}.json", "w") as file:
                    json.dump(
                        {"known": is_known, "message": str(error) if is_known else f"{type(error).__name__}: {error}"}, file
                    )
                raise

    def incomplete(self) -> list[int]:
        """Return the ranks without a completion marker, bypassing the file system's cache."""
        self.logging_dir.fs.invalidate_cache()
        return self.get_incomplete_ranks(skip_completed=True)

    def log(self, rank: int) -> str:
        """Return the path of a task's log."""
        return self.logging_dir.resolve_paths(f"logs/task_{rank:05d}.log")

    lost_log = log  # Where to look for the reason if a task was lost and wrote no error.

    def errors(self) -> dict[int, dict[str, Any]]:
        """Return the errors of the tasks that failed in this run: rank -> {"known": it is an HfTlmError, "message"}."""
        errors = {}
        for rank in self.incomplete():
            if self.logging_dir.isfile(path := f"errors/{rank:05d}.json"):
                with self.logging_dir.open(path, "r") as file:
                    errors[rank] = json.load(file)
        return errors


class LocalExecutor(_Quiet, LocalPipelineExecutor):
    """An executor that runs each task in a local process, `workers` at a time; a single worker is this process."""

    def run(self) -> None:
        """Run all incomplete tasks, until one fails; its error is in `errors`.

        Raises:
            RetrievalError: a process was killed, or ended before its task began.
            Exception: with a single worker, the error of the task that failed.
        """
        ranks = self.get_incomplete_ranks()
        if self.workers == 1:
            pipeline = self.pipeline
            for rank in ranks:
                self.pipeline = deepcopy(pipeline)
                self._run_for_rank(rank)
            return
        context = multiprocessing.get_context(self.start_method)
        running: dict[Any, tuple[int, Any]] = {}
        try:
            while ranks or running:
                while ranks and len(running) < self.workers:
                    rank = ranks.pop(0)
                    process = context.Process(target=_run_in_process, args=(self, rank), daemon=True)
                    process.start()
                    running[process.sentinel] = rank, process
                for sentinel in wait(list(running)):
                    rank, process = running.pop(sentinel)
                    process.join()
                    if process.exitcode < 0:
                        raise RetrievalError(
                            f"The process of shard {rank} was killed by signal {-process.exitcode}. If it needed too much "
                            "memory, use more shards or fewer workers. Start the same run again to continue from here."
                        )
                    if process.exitcode and rank not in self.errors():
                        raise RetrievalError(
                            f"The process of shard {rank} ended with status {process.exitcode} before its work began. A "
                            "script that runs shards in local processes must be a file (not standard input), with its code "
                            "under `if __name__ == '__main__':`."
                        )
                    if process.exitcode:
                        return
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.join()


def _run_in_process(executor: LocalExecutor, rank: int) -> None:
    """Run one task in a child process; exit with status 1 if it fails."""
    # A task must not outlive a killed run, because nothing else would stop it.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        executor._run_for_rank(rank)
    except Exception:  # The error is in `errors` and in the log.
        os._exit(1)


def _exit_with_parent() -> None:
    """Wait for the parent process to end, then end this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # It is None only in the main process of a run.
    parent.join()
    os._exit(1)


class RayExecutor(_Quiet, RayPipelineExecutor):
    """An executor that runs tasks on Ray, which restarts a task if its node is lost, and reuses processes."""

    @staticmethod
    def check(options: dict[str, Any]) -> None:
        if importlib.util.find_spec("ray") is None:
            raise RetrievalError("The ray executor needs Ray: pip install 'hf-tlm[ray]'.")

    def run(self) -> None:
        """Run all incomplete tasks, until one fails.

        Raises:
            RetrievalError: no node of the cluster has the resources of a task.
        """
        import ray

        memory = int(self.mem_per_cpu_gb * self.cpus_per_task * 2**30)
        needs = {"CPU": self.cpus_per_task, "GPU": self.gpus_per_task, "memory": memory}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
            raise RetrievalError(
                f"No node of the Ray cluster has the resources that a task needs: {self.cpus_per_task} CPUs with "
                f"{self.mem_per_cpu_gb} GB of memory each. Lower cpus_per_task or mem_per_cpu_gb."
            )
        ranks = self.get_incomplete_ranks()
        running: list[ray.ObjectRef] = []
        options = {
            "num_cpus": self.cpus_per_task,
            "num_gpus": self.gpus_per_task,
            "memory": memory,
            "max_retries": RAY_RETRIES,
            "scheduling_strategy": "SPREAD",
            **(self.ray_remote_kwargs or {}),
        }
        task, executor = ray.remote(_Quiet._run_for_rank).options(**options), ray.put(self)
        try:
            while ranks or running:
                while ranks and len(running) < self.workers:
                    running.append(task.remote(executor, ranks.pop(0)))
                for done in ray.wait(running, num_returns=1)[0]:
                    running.remove(done)
                    try:
                        ray.get(done)
                    except ray.exceptions.RayError:  # The error is in `errors`, or the task was lost too often.
                        return
        finally:
            for waiting in running:
                ray.cancel(waiting, force=True)


class SlurmExecutor(_Quiet, SlurmPipelineExecutor):
    """An executor that runs tasks in Slurm array jobs; `run` waits for them, also for queued jobs of a killed run."""

    @staticmethod
    def check(options: dict[str, Any]) -> None:
        if missing := [key for key in ("partition", "time") if not options.get(key)]:
            raise RetrievalError(
                f"The slurm executor needs {' and '.join(missing)}, in the format of sbatch (such as time: 04:00:00)."
            )
        if float(options.get("mem_per_cpu_gb") or 0) % 1:
            raise RetrievalError(
                "mem_per_cpu_gb of the slurm executor: expected a whole number of gigabytes; received "
                f"{options['mem_per_cpu_gb']}. To set megabytes: sbatch_args: {{mem-per-cpu: 500M}}."
            )
        if shutil.which("sbatch") is None:
            raise RetrievalError("There is no sbatch on the PATH: start the run on a login node of the Slurm cluster.")
        if "SLURM_ARRAY_TASK_ID" in os.environ:
            raise RetrievalError(
                "The slurm executor submits its own array jobs and cannot start inside one. Start the run on a login node."
            )

    def run(self) -> None:
        if "SLURM_ARRAY_TASK_ID" in os.environ:
            super().run()
            return
        job = json.loads(self.logging_dir.cat_file("job.json")) if self.logging_dir.isfile("job.json") else -1
        if not in_queue(job):
            try:
                super().run()
            except subprocess.CalledProcessError as error:
                raise RetrievalError(
                    "Slurm refused the job; sbatch printed why, above. Correct the executor's options, and start the same "
                    "run again."
                ) from error
            job = self.job_id
        try:
            self.logging_dir.pipe_file("job.json", json.dumps(job).encode())
            while self.incomplete() and in_queue(job):
                time.sleep(SLURM_POLL)
        except KeyboardInterrupt:
            logger.warning("Slurm job %s goes on; the same command waits for it. To stop it: scancel %s.", job, job)
            raise

    def lost_log(self, rank: int) -> str:
        return self.slurm_logs_folder  # Slurm writes there that a task was cancelled, or needed more time or memory.

    def launch_merge_stats(self) -> None:
        """Do nothing: the outputs have all counts that are needed, and this saves a job in the queue."""


class JobsExecutor(_Quiet, JobsPipelineExecutor):
    """An executor that runs tasks as Hugging Face Jobs, which share a remote directory."""

    _run = JobsPipelineExecutor._run_for_rank

    @staticmethod
    def check(options: dict[str, Any]) -> None:
        if not (options.get("token") or get_token()):
            raise RetrievalError(
                "The jobs executor needs a token of the Hugging Face Hub: set HF_TOKEN, or run `hf auth login`."
            )
        if not options.get("dependencies"):
            raise RetrievalError(
                "The jobs executor needs dependencies: the packages that a Job installs, hf-tlm included, such as "
                '["hf-tlm[sharded] @ git+https://..."].'
            )
        if ARRAY_INDEX_ENV_VAR in os.environ:
            raise RetrievalError(
                "The jobs executor submits its own Jobs and cannot start inside one. Start the run elsewhere."
            )


EXECUTORS: dict[str, type[_Quiet]] = {
    "local": LocalExecutor,
    "ray": RayExecutor,
    "slurm": SlurmExecutor,
    "jobs": JobsExecutor,
}


def check_executor(name: str, options: dict[str, Any]) -> None:
    """Check an executor and its options before anything runs.

    Raises:
        RetrievalError: the executor or an option is unknown, or an option must be a number and is not; slurm without
            partition and time, without `sbatch`, or inside an array job; jobs without a token or the packages to install, or
            inside a Job; ray is not installed.
    """
    if name not in EXECUTORS:
        raise RetrievalError(f"executor must be one of {', '.join(EXECUTORS)}; received {name!r}.")
    accepted = inspect.signature(EXECUTORS[name]).parameters.keys() - OWN_ARGUMENTS - UNUSED_ARGUMENTS.get(name, set())
    if name == "ray":
        accepted = accepted | {"address"}
    if unknown := sorted(options.keys() - accepted):
        raise RetrievalError(
            f"The {name} executor has no option {', '.join(unknown)}; it has {', '.join(sorted(accepted))}."
        )
    for option in options.keys() & NUMBERS.keys():
        check_number(RetrievalError, f"{option} of the executor's options", options[option], NUMBERS[option])
    methods, method = multiprocessing.get_all_start_methods(), options.get("start_method")
    if method is not None and method not in methods:
        raise RetrievalError(
            f"start_method of the executor's options: expected {' or '.join(methods)}; received {method!r:.60}."
        )
    EXECUTORS[name].check(options)


def share_out(
    name: str, options: dict[str, Any], workers: int | None, tasks: int, cores: int
) -> tuple[dict[str, Any], int | None]:
    """Choose the number of tasks at a time and the threads of each task.

    Args:
        name, options: the executor and its options.
        workers: tasks at a time; None: for local processes one per core, no limit for other executors.
        tasks: number of tasks.
        cores: cores of this machine.

    Returns:
        The options with `workers` set (-1: no limit), and the number of threads; None: all cores of the task's machine.
    """
    threads = None if name == "jobs" else options.get("cpus_per_task", 1)
    if name == "local":
        workers = workers or min(tasks, cores)
        threads = max(1, cores // workers)
    return {**options, "workers": workers or -1}, threads


@contextlib.contextmanager
def cluster(name: str, options: dict[str, Any], preload: list[str]) -> Iterator[None]:
    """Start what the tasks of a run need; a connection to Ray opened here is closed after the block.

    local: the server process that workers are forked from; it imports the modules of `preload` in the background. ray: an
    existing connection or, if there is none, one to options["address"], $RAY_ADDRESS, or a new cluster on this machine.

    Raises:
        RetrievalError: the Ray cluster cannot be reached.
    """
    if name == "local" and options.get("workers") != 1 and options.get("start_method", "forkserver") == "forkserver":
        multiprocessing.set_forkserver_preload(preload)
        multiprocessing.forkserver.ensure_running()
    if name != "ray":
        yield
        return
    import ray

    if ray.is_initialized():
        yield
        return
    address = options.get("address") or os.environ.get("RAY_ADDRESS")
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would retry for many minutes.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except OSError as error:
        raise RetrievalError(f"Cannot reach the Ray cluster at {address}: {error}.") from error
    try:
        yield
    finally:
        ray.shutdown()


def run_stage(step: Step, tasks: int, name: str, options: dict[str, Any], title: str | None = None) -> None:
    """Run all tasks of one stage that are not done yet.

    Args:
        step: the stage's pipeline step.
        tasks: number of tasks.
        name, options: the executor and its options, checked by `check_executor`.
        title: title of the progress bar; None: no progress bar.

    Raises:
        RetrievalError: a task failed; the message is the task's if its error is an HfTlmError, else it has the path of its
            log.
    """
    datatrove_logger.remove()  # Remove its console: from here on only the tasks' logs are written.
    options = {key: value for key, value in options.items() if key != "address"}
    executor = EXECUTORS[name](pipeline=[step], tasks=tasks, logging_dir=step.workspace.path(f"logs/{step.name}"), **options)
    logs = executor.logging_dir
    for rank in set(range(tasks)).difference(executor.incomplete()):
        if not step.done(rank):  # The task is marked as complete, but its output is missing: run it again.
            logs.rm(f"completions/{rank:05d}")
    if logs.isdir("errors"):  # Errors of an earlier run.
        logs.rm("errors", recursive=True)
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
        reason = failure["message"] if failure else "its process or machine was lost"
        log = executor.log(rank) if failure else executor.lost_log(rank)
        raise RetrievalError(
            f"Shard {rank} failed in the stage {step.name}: {reason}. See {log}; repeat the same call to continue from here."
        )


@contextlib.contextmanager
def _progress(executor, title: str | None, local: bool) -> Iterator[None]:
    """Show a progress bar of the completed tasks during the block; none without a title."""
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
