"""Seals, and the order in which older checkpoints are deleted, on folders of a few bytes."""

import json
import os

import pytest

from hf_tlm.training.checkpoints import (
    CheckpointError,
    best_of,
    check_checkpoint,
    last_complete_checkpoint,
    resume_problem,
    rotate,
)
from hf_tlm.utils.seals import write_seal


def make_checkpoint(folder, step, best=None, sealed=True):
    """Write a checkpoint with a file in a subfolder, as with FSDP."""
    path = folder / f"checkpoint-{step}"
    (path / "optimizer_0").mkdir(parents=True)
    (path / "optimizer_0" / "shard.distcp").write_bytes(b"moments")
    (path / "model.safetensors").write_bytes(b"weights")
    state = {"best_model_checkpoint": None if best is None else f"elsewhere/checkpoint-{best}"}
    (path / "trainer_state.json").write_text(json.dumps(state))
    if sealed:
        write_seal(path, step=step, world_size=1, resumable=True, best=None)
    return path


def names(folder):
    return sorted((path.name for path in folder.iterdir()), key=lambda name: int(name.split("-")[1]))


DAMAGES = {
    "a changed byte": (lambda path: (path / "optimizer_0/shard.distcp").write_bytes(b"momentS"), "shard.distcp has changed"),
    "a short file": (lambda path: os.truncate(path / "model.safetensors", 3), "model.safetensors has 3 bytes and had 7"),
    "a missing file": (lambda path: (path / "model.safetensors").unlink(), "model.safetensors is missing"),
    "a missing state": (lambda path: (path / "trainer_state.json").unlink(), "trainer_state.json is missing"),
    "no seal": (lambda path: (path / "seal.json").unlink(), "its save was cut short"),
    "half a seal": (lambda path: os.truncate(path / "seal.json", 30), "cannot be read: JSONDecodeError"),
    "another seal": (lambda path: (path / "seal.json").write_text("[]"), "cannot be read: TypeError"),
}


@pytest.mark.parametrize("harm,message", DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_checkpoint_is_reported_and_skipped(tmp_path, caplog, harm, message):
    older, newer = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 10)
    assert resume_problem(newer) is None and last_complete_checkpoint(tmp_path) == str(newer) == check_checkpoint(newer)
    assert not caplog.text
    harm(newer)
    assert last_complete_checkpoint(tmp_path) == str(older)
    assert message in caplog.text and f"Resuming from {older} instead" in caplog.text
    with pytest.raises(CheckpointError, match=message):
        check_checkpoint(newer)


def test_checkpoint_needs_its_best_checkpoint(tmp_path):
    """Also where the run's folder was moved: the state has the best checkpoint's old path."""
    first, second = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 4, best=2)
    assert resume_problem(second) is None
    (first / "model.safetensors").write_bytes(b"Weights")
    assert "checkpoint-4 needs the best checkpoint so far" in resume_problem(second)
    assert last_complete_checkpoint(tmp_path) is None


def test_seal_names_the_best_checkpoint(tmp_path):
    """The best saved one, which need not be the best evaluated; only the folder's name counts."""
    make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 4)
    newest = make_checkpoint(tmp_path, 6, best=4, sealed=False)
    write_seal(newest, step=6, world_size=1, resumable=True, best="/elsewhere/checkpoint-2")
    assert best_of(newest) == tmp_path / "checkpoint-2"
    rotate(newest, limit=1)
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-6"]


def test_missing_folder_has_no_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path / "none") is None
    with pytest.raises(CheckpointError, match="is missing"):
        check_checkpoint(tmp_path / "checkpoint-3")


@pytest.mark.parametrize(
    "limit,best,left",
    [
        (None, {}, [2, 4, 6, 8, 10]),
        (0, {}, [2, 4, 6, 8, 10]),
        (3, {}, [4, 6, 8]),
        (2, {}, [6, 8]),
        (2, {8: 4}, [4, 6, 8]),
        (1, {8: 4}, [4, 8]),
        (1, {8: 8}, [8]),
        # Should 8 be damaged, the run can resume from checkpoint-6 only together with the best checkpoint that 6 refers
        # to.
        (2, {6: 2, 8: 8}, [2, 6, 8]),
    ],
)
def test_rotation_keeps_the_newest_and_the_best(tmp_path, limit, best, left):
    """After the save of step 8 in a run that skipped a damaged checkpoint-10, which is deleted too."""
    for step in (2, 4, 6, 10):
        make_checkpoint(tmp_path, step, best=best.get(step))
    make_checkpoint(tmp_path, 7, sealed=False)
    rotate(make_checkpoint(tmp_path, 8, best=best.get(8)), limit=limit)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in left]
    if limit and best:
        assert all(resume_problem(tmp_path / name) is None for name in names(tmp_path) if name != "checkpoint-2")
