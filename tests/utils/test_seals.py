"""Seals of folders, on files of a few bytes."""

import os

import pytest

from hf_tlm.utils.seals import read_seal, seal_problem, write_seal


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    (path / "below").mkdir(parents=True)
    (path / "below" / "weights").write_bytes(b"weights")
    (path / "config.json").write_text("{}")
    write_seal(path, step=3)
    return path


def test_intact_folder_has_no_problem(folder):
    assert seal_problem(folder) is None and read_seal(folder)["step"] == 3
    (folder / "README.md").write_text("Later.")
    assert seal_problem(folder, "config.json") is None
    write_seal(folder)
    assert seal_problem(folder, "README.md") is None


@pytest.mark.parametrize(
    "harm,problem",
    [
        (lambda path: (path / "below/weights").write_bytes(b"Weights"), "below/weights has changed since it was saved"),
        (lambda path: os.truncate(path / "below/weights", 3), "below/weights has 3 bytes and had 7"),
        (lambda path: (path / "config.json").unlink(), "config.json is missing"),
        (lambda path: (path / "seal.json").unlink(), "has no seal.json: its save was cut short"),
        (lambda path: os.truncate(path / "seal.json", 30), "cannot be read: JSONDecodeError"),
        (lambda path: (path / "seal.json").write_text("[]"), "cannot be read: TypeError"),
        (lambda path: (path / "seal.json").write_text('{"files": {"config.json": 3}}'), "cannot be read: TypeError"),
        (lambda path: (path / "seal.json").write_text("[" * 100_000), "cannot be read: RecursionError"),
        (lambda path: (path / "seal.json").write_bytes(b"\xff"), "cannot be read: UnicodeDecodeError"),
    ],
)
def test_damaged_folder_is_described(folder, harm, problem):
    harm(folder)
    assert problem in seal_problem(folder)


def test_missing_files_and_folders_are_named(folder, tmp_path):
    assert "model.safetensors is missing" in seal_problem(folder, "model.safetensors")
    assert "none is missing" in seal_problem(tmp_path / "none")
