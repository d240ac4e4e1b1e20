"""Points shared by processes: each runs once, points of a killed process are taken over, and failures do not stop the
rest."""

import json
import logging
import threading
import time
from functools import partial

import pytest

from hf_tlm.errors import HfTlmError
from hf_tlm.runs import PointsError, run_shared, sharing
from hf_tlm.utils import locks
from support import warm

NAMES = ["a", "b", "c", "d", "e", "f"]
# Points are names; a finished point has a line with the process and the time. The point "hang" never ends.
PROGRAM = """
import os, sys, time
from pathlib import Path
from hf_tlm.runs import run_shared
root, names, pause = Path(sys.argv[1]), sys.argv[2].split(), float(sys.argv[3])
def run(name):
    (root / name).mkdir(exist_ok=True)
    (root / name / "begun").write_text("")
    time.sleep(60 if name == "hang" else pause)
    with open(root / name / "done", "a") as file:
        file.write(f"{os.getpid()}\\n")
(root / f"ready-{os.getpid()}").write_text("")
while len(list(root.glob("ready-*"))) < int(sys.argv[4]):
    time.sleep(0.01)
run_shared(names, lambda name: root / name, lambda name: (root / name / "done").is_file(), run)
"""
IN_A_JOB = """
import sys
import torch.distributed as distributed
from pathlib import Path
from hf_tlm.runs import sharing
root, rank = Path(sys.argv[1]), int(sys.argv[2])
sharing.POLL_SECONDS = 0.05
distributed.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=2)
def run(name):
    (root / name).mkdir(exist_ok=True)
    (root / name / str(rank)).write_text("")
    distributed.barrier()
# Only the first process looks at what is done.
done = lambda name: 1 / (1 - rank) and (root / name / "0").is_file()
sharing.run_shared(["a", "b", "c"], lambda name: root / name, done, run)
distributed.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sharing, "POLL_SECONDS", 0.05)


def start(root, names, pause=0.0, processes=1):
    [process] = warm.start(partial(warm.run_program, PROGRAM, [str(root), " ".join(names), str(pause), str(processes)]), 1)
    return process


def work(root, names=NAMES, fail=(), ran=None):
    """Run the points in this process; return the names it ran, in order."""
    ran = [] if ran is None else ran

    def run(name):
        ran.append(name)
        if name in fail:
            raise HfTlmError(f"no {name} today")
        (root / name).mkdir(exist_ok=True)
        (root / name / "done").write_text("here\n")

    run_shared(names, lambda name: root / name, lambda name: (root / name / "done").is_file(), run)
    return ran


def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_two_processes_run_each_point_once(tmp_path):
    processes = [start(tmp_path, NAMES, pause=0.3, processes=2) for _ in range(2)]
    assert [warm.ended([process], 60) for process in processes] == [0, 0]
    lines = [(tmp_path / name / "done").read_text().splitlines() for name in NAMES]
    assert all(len(line) == 1 for line in lines), "a point was run twice"
    assert {line[0] for line in lines} == {str(process.pid) for process in processes}
    assert not list(tmp_path.glob("*.lock"))
    assert work(tmp_path) == []


@pytest.mark.slow
def test_points_of_a_killed_process_are_taken_over(tmp_path, caplog):
    other = start(tmp_path, ["a", "hang", "b"])
    wait_for(tmp_path / "hang" / "begun")
    ran = []
    worker = threading.Thread(target=work, args=(tmp_path, ["a", "hang", "b"], (), ran))
    with caplog.at_level(logging.WARNING):
        worker.start()
        wait_for(tmp_path / "b" / "done")
        time.sleep(0.2)
        assert worker.is_alive() and ran == ["b"]
        other.kill()
        worker.join(30)
    other.join()
    assert ran == ["b", "hang"]
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "Waiting for other processes, which work on hang."
    assert "hang was left unfinished by another process" in second


def test_failing_point_does_not_stop_the_others(tmp_path):
    with pytest.raises(PointsError, match="2 of 6 runs failed:\n  a: no a today\n  e: no e today\n") as error:
        work(tmp_path, fail=("a", "e"))
    assert set(error.value.failures) == {tmp_path / "a", tmp_path / "e"}
    assert work(tmp_path) == ["a", "e"]


def test_error_of_several_points_is_logged_once(tmp_path, caplog):
    def run(name):
        raise HfTlmError(f"no {'model' if name in 'abc' else 'data'} today")

    with pytest.raises(PointsError):
        run_shared(["a", "b", "d", "c"], lambda name: tmp_path / name, lambda name: False, run)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "a failed: no model today",
        "b failed, like another.",
        "d failed: no data today",
        "c failed, like another.",
    ]


def test_first_failure_ends_the_run_without_keep_going(tmp_path):
    ran = []

    def run(name):
        ran.append(name)
        raise HfTlmError(f"no {name} today")

    with pytest.raises(HfTlmError, match="^no a today$"):
        run_shared(NAMES, lambda name: tmp_path / name, lambda name: False, run, keep_going=False)
    assert ran == ["a"]


def test_point_starts_once_its_predecessors_have_ended_or_failed(tmp_path):
    """It waits for nothing else."""
    after = {"a": ["c"], "b": ["d"], "c": [], "d": []}
    ran = []

    def run(name):
        ran.append(name)
        if name == "d":
            raise HfTlmError("no d today")
        (tmp_path / name).mkdir()
        (tmp_path / name / "done").write_text("")

    with pytest.raises(PointsError, match="1 of 4 runs failed:\n  d: no d today\n"):
        run_shared(
            list(after),
            lambda name: tmp_path / name,
            lambda name: (tmp_path / name / "done").is_file(),
            run,
            after=after.get,
        )
    assert ran == ["c", "a", "d", "b"]


def test_points_of_other_processes_delay_only_their_successors(tmp_path, caplog):
    """Another process holds the lock of `slow`; `after slow` waits for it, and is not logged as another process's
    point."""
    after = {"a/slow": [], "b/after slow": ["a/slow"], "c/free": []}
    ran, held = [], threading.Event()

    def run(name):
        ran.append(name)
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "done").write_text("")

    def work_on_it():
        with locks.try_lock(tmp_path / "a/slow"):
            held.set()
            wait_for(tmp_path / "c/free/done")
            time.sleep(0.2)
            run("a/slow")

    other = threading.Thread(target=work_on_it)
    other.start()
    held.wait()
    run_shared(
        list(after), lambda name: tmp_path / name, lambda name: (tmp_path / name / "done").is_file(), run, after=after.get
    )
    other.join()
    assert ran == ["c/free", "a/slow", "b/after slow"]
    assert [record.message for record in caplog.records] == ["Waiting for other processes, which work on slow."]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_interrupted_point_can_be_run_again(tmp_path, stop):
    def run(name):
        raise stop

    with pytest.raises(stop):
        run_shared(["a"], lambda name: tmp_path / name, lambda name: False, run)
    assert work(tmp_path, ["a"]) == ["a"]


def test_point_finished_just_before_it_was_locked_is_not_run(tmp_path):
    answers = iter([False, True])
    run_shared(["a"], lambda name: tmp_path / name, lambda name: next(answers), lambda name: pytest.fail("run again"))
    assert not list(tmp_path.iterdir())


def test_point_finished_just_before_it_was_locked_delays_nothing(tmp_path, caplog):
    """The point that waits for it starts at once."""
    answers, ran = iter([False, True, True]), []

    def done(name):
        return next(answers) if name == "x" else name in ran

    after = {"x": [], "y": ["x"]}
    run_shared(["x", "y"], lambda name: tmp_path / name, done, ran.append, after=after.get)
    assert ran == ["y"] and not caplog.records


def test_waiting_points_are_not_checked_for_being_done(tmp_path):
    asked, ran = [], []

    def done(name):
        asked.append(name)
        return name in ran

    run_shared(["b", "a"], lambda name: tmp_path / name, done, ran.append, after={"b": ["a"], "a": []}.get)
    assert ran == ["a", "b"] and asked.index("b") > asked.index("a") and asked[:2] == ["a", "a"]


def test_lock_is_released_at_the_end_of_its_block(tmp_path):
    with locks.try_lock(tmp_path / "a"):
        assert locks.try_lock(tmp_path / "a") is None
    with locks.awaited(tmp_path / "a"):
        assert locks.try_lock(tmp_path / "a") is None
    assert not list(tmp_path.iterdir())


def test_path_that_cannot_be_locked_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        HfTlmError, match="Cannot lock .*file/a: a file is where a folder is expected .*: choose another folder"
    ):
        work(tmp_path / "file", ["a"])


@pytest.mark.slow
def test_processes_of_one_job_run_the_same_points(tmp_path):
    jobs = [warm.start(partial(warm.run_program, IN_A_JOB, [str(tmp_path), str(rank)]), 1) for rank in range(2)]
    assert [warm.ended(job, 100) for job in jobs] == [0, 0]
    assert json.dumps({name: len(list((tmp_path / name).iterdir())) for name in "abc"}) == '{"a": 2, "b": 2, "c": 2}'
