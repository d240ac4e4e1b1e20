"""Several processes that write one folder at once: one does, and the others are refused or wait."""

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from attacks.attack import assert_refused, attack, call, tree
from attacks.holding import FORK, holder
from hf_tlm.utils import locks
from hf_tlm.utils.locks import LockError, awaited, let_others_in, lock_file, owned


def test_second_writer_is_refused_with_the_name_of_the_first(tmp_path):
    with holder(tmp_path / "out") as process:
        with pytest.raises(LockError) as refused, owned(tmp_path / "out"):
            pass
        assert f"process {process.pid} on " in str(refused.value) and "since 20" in str(refused.value)
        assert "Wait for it to end, or choose another --output_dir." in str(refused.value)
    with owned(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path) == []


def test_lock_of_a_killed_process_is_free_while_its_workers_live(tmp_path):
    def worker(ready):
        ready.set()
        time.sleep(10)

    def parent(ready):
        with owned(tmp_path / "out"):
            FORK.Process(target=worker, args=(ready,)).start()
            time.sleep(60)

    ready = FORK.Event()
    process = FORK.Process(target=parent, args=(ready,))
    process.start()
    assert ready.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with owned(tmp_path / "out"):
        assert json.loads(lock_file(tmp_path / "out").read_text())["pid"] == os.getpid()


def claim_in_rounds(folder, start, end, results):
    for round in range(50):
        start.wait()
        with contextlib.suppress(LockError), owned(folder / str(round)):
            results.put(round)
            end.wait()
            continue
        end.wait()


def test_only_one_of_many_simultaneous_starts_gets_the_lock(tmp_path):
    processes = 8
    start, end, results = FORK.Barrier(processes), FORK.Barrier(processes), FORK.SimpleQueue()
    runs = [FORK.Process(target=claim_in_rounds, args=(tmp_path, start, end, results)) for _ in range(processes)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    assert [run.exitcode for run in runs] == [0] * processes
    assert sorted(results.get() for _ in range(50)) == list(range(50)) and results.empty()


def increment_in_turns(folder, file):
    for _ in range(20):
        with awaited(folder):
            value = int(file.read_text())
            file.write_text(str(value + 1))


def test_awaited_lock_is_taken_in_turn(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    (tmp_path / "count").write_text("0")
    processes = [FORK.Process(target=increment_in_turns, args=(tmp_path / "folder", tmp_path / "count")) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert (tmp_path / "count").read_text() == "80" and os.listdir(tmp_path) == ["count"]
    with holder(tmp_path / "folder") as process:
        asleep = []
        monkeypatch.setattr("time.sleep", lambda seconds: asleep.append(os.kill(process.pid, 9)))
        with awaited(tmp_path / "folder"):
            assert asleep
    assert f"Waiting for process {process.pid}" in caplog.text


def test_owned_waits_if_asked_to(tmp_path, monkeypatch, caplog):
    with holder(tmp_path / "out") as process:
        monkeypatch.setattr("time.sleep", lambda seconds: os.kill(process.pid, 9))
        with owned(tmp_path / "out", wait=True):
            assert f"Waiting for process {process.pid}" in caplog.text
            with pytest.raises(LockError, match="being written by"), owned(tmp_path / "out", wait=True):
                pass  # A process does not wait for itself.


def test_processes_of_a_job_wait_by_short_broadcasts(tmp_path, monkeypatch):
    """A broadcast that lasts as long as another process's training would fail after `ddp_timeout`."""
    out, decisions = tmp_path / "out", []
    with holder(out) as process:
        monkeypatch.setattr(locks, "rank_and_size", lambda: (0, 2))
        monkeypatch.setattr(locks, "broadcast_decision", lambda decision, processes: decisions.append(decision) or decision)
        monkeypatch.setattr("time.sleep", lambda seconds: os.kill(process.pid, 9) if decisions.count(False) == 3 else None)
        with owned(out, wait=True):
            assert decisions[:4] == [True, False, False, False] and decisions[-2:] == [True, None]
    answers = iter([True, False, True, None])
    monkeypatch.setattr(locks, "rank_and_size", lambda: (1, 2))
    monkeypatch.setattr(locks, "broadcast_decision", lambda decision, processes: next(answers))
    with owned(out, wait=True):
        assert next(answers, "no more") == "no more" and not lock_file(out).exists()


def test_lock_is_released_for_others_and_taken_back(tmp_path, monkeypatch):
    out = tmp_path / "out"

    def free():
        with ThreadPoolExecutor(1) as pool:  # Another thread stands for another process.
            lock = pool.submit(locks.try_lock, out).result()
        if lock is not None:
            lock.release()
        return lock is not None

    with owned(out):
        with let_others_in(out) as together:
            assert together and free()
        assert not free()
        with pytest.raises(ValueError), let_others_in(out):
            raise ValueError
        assert not free()  # The lock is needed to withdraw the claim.
        with pytest.raises(KeyboardInterrupt), let_others_in(out):
            raise KeyboardInterrupt
        assert free()
    with locks.try_lock(out), owned(out), let_others_in(out) as together:
        assert not together and not free()  # The lock belongs to the caller, which runs this as a point of a grid.
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr("fcntl.flock", lambda descriptor, operation: (_ for _ in ()).throw(OSError(38, "none")))
    with owned(out), let_others_in(out) as together:
        assert not together


def test_claim_is_not_withdrawn_while_another_process_has_the_lock(tmp_path):
    claim = locks.Claim(tmp_path / "out", "settings.json")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "settings.json").write_text("{}")
    claim.new = True
    with holder(tmp_path / "out"), pytest.raises(ValueError), claim:
        raise ValueError
    assert (tmp_path / "out" / "settings.json").is_file()
    with pytest.raises(ValueError), claim:
        raise ValueError
    assert os.listdir(tmp_path) == []


def test_holder_of_a_lock_may_own_the_folder(tmp_path):
    """A grid does so for a point, in the thread that runs the points."""
    with locks.try_lock(tmp_path / "point"):
        with owned(tmp_path / "point"):
            pass
        assert locks.try_lock(tmp_path / "point") is None
        with pytest.raises(LockError, match="another folder"), awaited(tmp_path / "point"):
            pass
        with ThreadPoolExecutor(1) as pool, pytest.raises(LockError):
            pool.submit(lambda: owned(tmp_path / "point").__enter__()).result()
    assert os.listdir(tmp_path) == []


def test_link_to_a_folder_has_the_same_lock(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with owned(tmp_path / "real"), pytest.raises(LockError), owned(tmp_path / "link"):
        pass


def test_output_folder_as_index_or_work_folder_is_refused(tmp_path, toys):
    with owned(tmp_path / "out"), pytest.raises(LockError, match="is the output folder of this command"):
        with awaited(tmp_path / "out"):
            pass
    with awaited(tmp_path / "out"):
        pass
    for recipe, option in (("retrieve", "--index_dir"), ("select_influence", "--work_dir")):
        outcome = attack(recipe, *toys.commands[recipe], option, toys.out)
        assert_refused(outcome, f"{toys.out} is the output folder of this command. Choose another folder")
        assert not toys.out.exists()
        outcome = attack(recipe, *toys.commands[recipe], option, toys.out / "work")
        assert_refused(
            outcome, f"{option} {toys.out / 'work'} is in {toys.out}, which may only contain the subset. Choose another"
        )
        assert not toys.out.exists()


def test_run_continues_on_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    def none(descriptor, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    with owned(tmp_path / "out"), owned(tmp_path / "out"):
        pass
    assert "Cannot lock" in caplog.text and "has no locks" in caplog.text
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with owned(tmp_path / "file" / "out"):  # The error is left to the code that writes there.
        pass


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": "x"}', "[" * 100_000])
def test_unreadable_lock_file_is_reported_as_another_process(tmp_path, content):
    with owned(tmp_path / "out"):
        lock_file(tmp_path / "out").write_text(content)
        with pytest.raises(LockError, match="written by another process. Wait"), owned(tmp_path / "out"):
            pass


@pytest.mark.parametrize("recipe", ["retrieve", "pretrain"])
def test_recipe_is_refused_while_another_process_writes_its_folder(toys, recipe):
    with holder(toys.out):
        assert_refused(attack(recipe, *toys.commands[recipe]), f"{toys.out} is being written by process")
        assert not toys.out.exists()
    assert attack(recipe, *toys.commands[recipe]).status == 0
    before = tree(toys.out)
    with holder(toys.out):
        assert_refused(attack(recipe, *toys.commands[recipe]), "Wait for it to end")
    assert tree(toys.out) == before and not lock_file(toys.out).exists()


def claim_in_turn(folder):
    from hf_tlm.training.run_folder import claim

    with owned(folder):
        claim(folder, {"model": {}, "pid": os.getpid()}, (), 0)
        time.sleep(1)


def test_only_one_of_several_processes_claims_a_run(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(lambda _: call(claim_in_turn, tmp_path / "out"), range(4)))
    assert sorted(end.status for end in ends) == [0, 1, 1, 1], [end.stderr for end in ends]
    assert all("is being written by process" in end.stderr for end in ends if end.status)


def own_in_a_job(folder, store, rank, results):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        with owned(folder):
            results.put((rank, "held"))
    except LockError as error:
        results.put((rank, str(error)))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("taken", [False, True])
def test_processes_of_a_job_share_a_lock_or_are_all_refused(tmp_path, taken):
    with holder(tmp_path / "out") if taken else contextlib.nullcontext():
        results = FORK.SimpleQueue()
        arguments = [(tmp_path / "out", tmp_path / "store", rank, results) for rank in range(2)]
        processes = [FORK.Process(target=own_in_a_job, args=process_arguments) for process_arguments in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        ends = dict(results.get() for _ in processes)
    assert ends.keys() == {0, 1} and ends[0] == ends[1]
    assert ("is being written by process" in ends[0]) if taken else (ends[0] == "held")
