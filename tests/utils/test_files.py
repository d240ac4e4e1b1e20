import os

import pytest
import torch
from safetensors.torch import save_file

from hf_tlm.errors import ArgumentsError, HfTlmError
from hf_tlm.utils.files import atomic_directory, atomic_write, check_writable, sha256


def test_directory_appears_complete(tmp_path):
    with atomic_directory(tmp_path / "a" / "out") as work:
        (work / "one").write_text("1")
        assert not (tmp_path / "a" / "out").exists()
    assert (tmp_path / "a" / "out" / "one").read_text() == "1"
    assert os.listdir(tmp_path / "a") == ["out"]


def test_unwritable_folder_is_refused_before_work(tmp_path, monkeypatch):
    """Root may write everywhere, so os.access is replaced for a folder without permission."""
    (tmp_path / "file").touch()
    for name in ("kept", "others"):
        (tmp_path / name / "inner").mkdir(parents=True)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: allowed(path, mode) and os.fspath(path) != str(tmp_path / "others"))
    for folder, blocking in (("file", "file"), ("file/a/b", "file"), ("others", "others"), ("others/a/b", "others")):
        for replaced in (True, False):
            if (folder, replaced) == ("others", True):
                continue
            with pytest.raises(ArgumentsError) as found:
                check_writable(tmp_path / folder, replaced=replaced)
            message = f"--output_dir {tmp_path / folder}: {tmp_path / blocking} is not a writable folder. Choose another."
            assert str(found.value) == message
    with pytest.raises(ArgumentsError, match=r"^--page: .*others is not a writable folder"):
        check_writable(tmp_path / "others/inner", "--page", replaced=True)
    with pytest.raises(ArgumentsError, match="File name too long"):
        check_writable(tmp_path / ("x" * 300))
    check_writable(tmp_path / ("x" * 221), replaced=True)
    with pytest.raises(ArgumentsError, match=f"File name too long: '{tmp_path}/{'x' * 222}'"):
        check_writable(tmp_path / ("x" * 222), replaced=True)  # The folder beside it would have 256 characters.
    check_writable(tmp_path / "others", replaced=True)
    check_writable(tmp_path / "others/inner")
    for folder in ("kept", "kept/new", "a/b/c"):
        check_writable(tmp_path / folder)
        check_writable(tmp_path / folder, replaced=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "kept", "others"]


@pytest.mark.parametrize("umask,mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_have_the_permissions_of_the_umask(tmp_path, umask, mode):
    """safetensors creates files that only their owner can read; other users of a cluster could not load the model."""
    before = os.umask(umask)
    try:
        with atomic_directory(tmp_path / "out") as work:
            (work / "mlm").mkdir()
            save_file({"weight": torch.ones(2)}, work / "mlm" / "model.safetensors")
            (work / "run").touch(mode=0o700)
    finally:
        os.umask(before)
    found = [path.stat().st_mode & 0o777 for path in (tmp_path / "out/mlm/model.safetensors", tmp_path / "out/run")]
    assert found == [mode, mode | 0o100]


def test_directory_is_replaced_as_a_whole(tmp_path):
    for name in ("old", "new"):
        with atomic_directory(tmp_path / "out") as work:
            (work / name).write_text(name)
    assert os.listdir(tmp_path / "out") == ["new"] and os.listdir(tmp_path) == ["out"]


def test_directory_is_replaced_without_an_atomic_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_tlm.utils.files._swap_folders", lambda first, second: False)
    test_directory_is_replaced_as_a_whole(tmp_path)
    rename = os.rename

    def full(source, target):
        if (tmp_path / source / "third").exists():
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr("hf_tlm.utils.files.os.rename", full)
    with pytest.raises(HfTlmError, match="Its previous content is unchanged"), atomic_directory(tmp_path / "out") as work:
        (work / "third").write_text("third")
    assert os.listdir(tmp_path / "out") == ["new"] and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_failed_write_leaves_the_old_directory(tmp_path, error):
    with atomic_directory(tmp_path / "out") as work:
        (work / "old").write_text("old")
    expected = HfTlmError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected), atomic_directory(tmp_path / "out") as work:
        (work / "new").write_text("half")
        raise error
    assert os.listdir(tmp_path / "out") == ["old"] and os.listdir(tmp_path) == ["out"]


def test_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    wrong = r"a file is where a folder is expected \(.*\): choose another folder"
    with pytest.raises(HfTlmError, match=wrong), atomic_directory(tmp_path / "file" / "out"):
        pass
    for name in ("file/x", "file/a/x"):
        with pytest.raises(HfTlmError, match=f"Cannot write .*{wrong}"):
            atomic_write(tmp_path / name, "text")


@pytest.mark.parametrize(
    "folder,problem",
    [("/", "a disk is mounted at it"), (".", "working directory is in it"), ("..", "working directory is in it")],
)
def test_mount_point_or_working_directory_cannot_be_replaced(tmp_path, monkeypatch, folder, problem):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ArgumentsError, match=f"^--output_dir {folder}: .*{problem}.* Choose a folder in it.$"):
        check_writable(folder, replaced=True)
    with pytest.raises(HfTlmError, match=f"^Cannot write .*{problem}"), atomic_directory(folder):
        pass
    check_writable(folder)
    assert os.listdir(tmp_path) == ["here"] and not os.listdir()


@pytest.mark.parametrize("there", [True, False])
def test_link_to_a_folder_stays_a_link(tmp_path, there):
    """It may point to a larger disk."""
    (tmp_path / "disk").mkdir()
    if there:
        with atomic_directory(tmp_path / "disk" / "run") as work:
            (work / "old").touch()
    (tmp_path / "run").symlink_to("disk/run")
    with atomic_directory(tmp_path / "run") as work:
        assert work.parent == tmp_path / "disk"
        (work / "new").touch()
    assert (tmp_path / "run").is_symlink() and os.listdir(tmp_path / "run") == ["new"]
    assert sorted(os.listdir(tmp_path)) == ["disk", "run"] and os.listdir(tmp_path / "disk") == ["run"]


def test_atomic_write_replaces_a_file_and_sha256_is_correct(tmp_path):
    atomic_write(tmp_path / "x", "old")
    atomic_write(tmp_path / "x", "abc")
    assert os.listdir(tmp_path) == ["x"]
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_folder_created_by_another_process_meanwhile_is_replaced(tmp_path, monkeypatch):
    rename, path = os.rename, tmp_path / "out"

    def after_another(source, target):
        if target == path and not path.exists():
            path.mkdir()
            (path / "theirs").touch()
        rename(source, target)

    monkeypatch.setattr("os.rename", after_another)
    with atomic_directory(path) as work:
        (work / "ours").touch()
    assert [file.name for file in tmp_path.rglob("*")] == ["out", "ours"]
