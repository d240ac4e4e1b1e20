"""Temporary files of killed processes are removed by the next write; those of running processes are not."""

import fcntl
import multiprocessing
import os
import signal

import pytest

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_directory, atomic_file, atomic_write, remove_abandoned

STDOUT = "/proc/self/fd/1"
FORK = multiprocessing.get_context("fork")


def write_slowly(writer, path, end):
    with writer(path) as work:
        if writer is atomic_file:
            work.write(b"half")
        else:
            (work / "half").write_text("half")
        end.send("half")
        end.poll(60)


def begin_writing(writer, path):
    """Start a process that is in the middle of writing a path; return it and the pipe that ends it."""
    here, other = FORK.Pipe()
    process = FORK.Process(target=write_slowly, args=(writer, path, other))
    process.start()
    assert here.poll(60) and here.recv() == "half"
    return process, here


def write_completely(writer, path):
    with writer(path) as work:
        work.write(b"new") if writer is atomic_file else (work / "new").write_text("new")


def read(path):
    return path.read_text() if path.is_file() else (path / "new").read_text()


@pytest.mark.parametrize("writer", [atomic_file, atomic_directory])
def test_temporary_file_of_a_killed_process_is_removed(tmp_path, writer):
    process, _ = begin_writing(writer, tmp_path / "out")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert len(os.listdir(tmp_path)) == 1
    write_completely(writer, tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"] and read(tmp_path / "out") == "new"


@pytest.mark.parametrize("writer", [atomic_file, atomic_directory])
def test_temporary_file_of_a_running_process_stays(tmp_path, writer):
    process, pipe = begin_writing(writer, tmp_path / "out")
    write_completely(writer, tmp_path / "out")
    assert len(os.listdir(tmp_path)) == 2
    pipe.send("go")
    process.join(60)
    assert process.exitcode == 0 and os.listdir(tmp_path) == ["out"]
    if writer is atomic_file:
        assert (tmp_path / "out").read_text() == "half"
    else:
        assert os.listdir(tmp_path / "out") == ["half"]


def test_files_with_similar_names_stay(tmp_path):
    names = [
        ".env.local",
        ".env.lock",
        ".env.defaults",
        ".env.b." + "0" * 32,
        ".environment." + "0" * 32,
        ".env." + "0" * 31,
    ]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / (".env." + "1" * 32)).symlink_to("mine")
    atomic_write(tmp_path / "env", "text")
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "env", "mine", ".env." + "1" * 32])


def test_replaced_folder_stays_until_the_new_one_exists(tmp_path):
    replaced = tmp_path / (".out.old." + "0" * 32)
    replaced.mkdir()
    (replaced / "out").write_text("all there is")
    remove_abandoned(tmp_path / "out")
    assert replaced.exists()
    (tmp_path / "out").mkdir()
    remove_abandoned(tmp_path / "out")
    assert not replaced.exists()


def test_nothing_is_removed_on_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(descriptor, operation):
        raise OSError(38, "Function not implemented")

    (tmp_path / (".out." + "0" * 32)).write_text("whose?")
    monkeypatch.setattr("fcntl.flock", none)
    atomic_write(tmp_path / "out", "new")
    assert len(os.listdir(tmp_path)) == 2 and (tmp_path / "out").read_text() == "new"


def test_files_are_synced_to_disk_before_the_rename(tmp_path, monkeypatch):
    done, fsync, rename, replace = [], os.fsync, os.rename, os.replace
    monkeypatch.setattr("os.fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    monkeypatch.setattr("os.rename", lambda *paths: (done.append("rename"), rename(*paths)))
    monkeypatch.setattr("os.replace", lambda *paths: (done.append("rename"), replace(*paths)))
    with atomic_directory(tmp_path / "out") as work:
        (work / "deep").mkdir()
        (work / "deep" / "file").write_text("text")
    assert {str(work), str(work / "deep"), str(work / "deep" / "file")} == set(done[: done.index("rename")])
    assert done[done.index("rename") + 1 :] == [str(tmp_path)]
    done.clear()
    atomic_write(tmp_path / "file", "text")
    assert len(done) == 3 and done[1:] == ["rename", str(tmp_path)]


def test_write_that_cannot_be_synced_is_undone(tmp_path, monkeypatch):
    def fails(file):
        raise OSError(5, "Input/output error")

    atomic_write(tmp_path / "file", "old")
    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(HfTlmError, match="fails .input/output error.*A previous file is unchanged"):
        atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_file_is_written_through_its_locked_descriptor(tmp_path):
    """On SMB locks are mandatory: only the descriptor that has locked a file can write it."""
    with atomic_file(tmp_path / "out") as stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # Fails if another descriptor had the lock.
        (work,) = tmp_path.iterdir()
        with open(work, "rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stream.write(b"new")
    assert (tmp_path / "out").read_bytes() == b"new"


@pytest.mark.parametrize("writer", [atomic_file, atomic_directory])
@pytest.mark.parametrize("target", [None, "/dev/null", STDOUT])
def test_pipe_or_device_is_not_replaced(tmp_path, writer, target):
    os.mkfifo(tmp_path / "out") if target is None else (tmp_path / "out").symlink_to(target)
    before = os.lstat(tmp_path / "out")
    with pytest.raises(HfTlmError, match="found a pipe or a device"):
        write_completely(writer, tmp_path / "out")
    after = os.lstat(tmp_path / "out")
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino) and os.listdir(tmp_path) == ["out"]


def test_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(HfTlmError, match="expected a folder or a new name; found a file"):
        write_completely(atomic_directory, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine" and os.listdir(tmp_path) == ["out"]
