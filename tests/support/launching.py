"""Run recipes as a user starts them, for two steps on toy files."""

import contextlib
import io
import multiprocessing
import os
import runpy
import subprocess
import sys

import pytest

from support import warm
from support.warm import ROOT

TINY = ["--max_length", "32", "--vocab_size", "120", "--max_steps", "2", "--stage2_max_steps", "2", "--report_to", "none"]
TINY += ["--stage2_eval_steps", "1", "--use_cpu", "true", "--save_strategy", "no", "--rho1", "1"]
PRETRAIN = ["--max_length", "16", "--vocab_size", "120", "--max_steps", "3", "--total_batch_size", "4", "--use_cpu", "true"]
PRETRAIN += ["--report_to", "none", "--save_strategy", "no", "--logging_steps", "1", "--validation_share", "0.2"]
PRETRAIN += ["--config", "recipes/configs/pretrain/tiny.yaml"]


def run_recipe(recipe, *arguments, processes=1, status=0):
    """Run a recipe in new processes, which start warm; return its standard output, or its error if it has to fail.

    `launch` starts it with `accelerate launch` itself.
    """
    environment = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "OMP_NUM_THREADS": "1"}
    done = warm.recipe(recipe, arguments, environment=environment, processes=processes, limit=480)
    assert done.status is not None and (done.status != 0) == (status != 0), done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout if status == 0 else done.stderr


def launch(*arguments, config=None, processes=1, status=0):
    """Run a recipe with `accelerate launch`; otherwise like `run_recipe`.

    Args:
        config: name of a file in `recipes/configs/accelerate`; it runs on CPUs in any case.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command += ["--num_machines", "1", "--num_processes", str(processes)]
    if config is None:
        command += ["--cpu"]
    else:
        command += ["--config_file", f"recipes/configs/accelerate/{config}.yaml"]
        command += ["--main_process_port", str(20000 + os.getpid() % 20000)]
        command += ["tests/support/fsdp_on_cpus.py"] if config == "fsdp" else []
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=480
    )
    assert (done.returncode != 0) == (status != 0), done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout if status == 0 else done.stderr


def run_benchmark(benchmark, *arguments):
    """Run a benchmark like `run_recipe`; the Python programs that it starts one after another start warm too."""
    done = warm.call(_start_warm, benchmark, list(map(str, arguments)), limit=480)
    assert done.status == 0, done.stdout[-3000:] + done.stderr[-6000:]


def _start_warm(benchmark, arguments):
    run = subprocess.run

    def start(command, **options):
        if command[0] != sys.executable or not command[1].endswith(".py"):
            return run(command, **options)
        process = multiprocessing.get_context("fork").Process(target=warm.run_file, args=(command[1], command[2:]))
        process.start()
        process.join()
        done = subprocess.CompletedProcess(command, process.exitcode)
        done.check_returncode()
        return done

    subprocess.run = start
    warm.run_file(benchmark, arguments)


def fails(recipe, *arguments, message):
    """Check that a recipe ends with this message and without a traceback.

    It runs in this process, as a new one imports for ten seconds.
    """
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as stop:
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [recipe, *map(str, arguments)])
        runpy.run_path(recipe, run_name="__main__")
    assert stop.value.code in (1, 2)
    assert message in errors.getvalue() and "Traceback" not in errors.getvalue(), errors.getvalue()[-3000:]
