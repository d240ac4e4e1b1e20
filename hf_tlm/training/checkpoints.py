"""Verification and rotation of checkpoints. A run can resume from one whose files match its seal (`hf_tlm.utils.seals`).

The seal also records the step, the number of processes, whether the optimizer's state is saved, and the name of the best
checkpoint so far. Checksums are verified only when a run resumes.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.seals import SEAL, read_seal, seal_problem

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"


class CheckpointError(HfTlmError):
    """Raised when a checkpoint cannot be written, or a run cannot resume from it."""


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every `checkpoint-*` directory in a folder, sealed or not, by step."""
    candidates = ((re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in Path(folder).glob("checkpoint-*"))
    return sorted((int(match.group(1)), path) for match, path in candidates if match and path.is_dir())


def remove_local_paths(folder: Path) -> None:
    """Remove this machine's paths from the Trainer's state in a folder, because the folder may be published."""
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    state["best_model_checkpoint"] = None
    atomic_write(folder / STATE, json.dumps(state, indent=2, sort_keys=True) + "\n")


def resume_problem(checkpoint: Path) -> str | None:
    """Return why a run cannot resume from a checkpoint; None if it can.

    It can if the checkpoint is sealed, no file has changed since, and the same holds for the best checkpoint on validation
    so far, from which the run would export its model.
    """
    if (problem := seal_problem(checkpoint, STATE)) is not None:
        return problem
    if read_seal(checkpoint).get("resumable") is not True:
        return f"{checkpoint} contains only the model (save_only_model)"
    best = best_of(checkpoint)
    if best in (None, checkpoint) or (problem := seal_problem(best, STATE)) is None:
        return None
    return f"{checkpoint.name} needs the best checkpoint so far, and {problem}"


def last_complete_checkpoint(folder: str | Path) -> str | None:
    """Return the newest checkpoint of a folder that a run can resume from; None if there is none.

    For every newer checkpoint that cannot be used, log which file is wrong and which checkpoint is used instead.
    """
    problems, usable = [], None
    for _, path in reversed(checkpoints_in(Path(folder))):
        if (problem := resume_problem(path)) is None:
            usable = path
            break
        problems.append(problem)
    for problem in problems:
        logger.warning(
            "%s. %s", problem, f"Resuming from {usable} instead." if usable else "There is no earlier complete checkpoint."
        )
    return None if usable is None else str(usable)


def check_checkpoint(path: str | Path) -> str:
    """Return `path` if a run can resume from it, or raise a CheckpointError that says which file is wrong and why."""
    if (problem := resume_problem(Path(path))) is not None:
        raise CheckpointError(
            f"Cannot resume from {path}: {problem}. Pass another checkpoint, or resume_from_checkpoint=True for the newest "
            "complete one."
        )
    return str(path)


def warn_of_other_processes(checkpoint: str, world_size: int) -> None:
    """Warn that dropout will differ if a checkpoint was written by another number of processes."""
    saved_world_size = read_seal(checkpoint)["world_size"]
    if saved_world_size != world_size:
        logger.warning(
            "%s was saved by %d processes, and now there are %d: texts, masks and learning rates continue exactly, random "
            "numbers of dropout do not.",
            checkpoint,
            saved_world_size,
            world_size,
        )


def rotate(newest: Path, *, limit: int | None) -> None:
    """Remove all but the `limit` newest checkpoints up to `newest`, which has just been sealed, and their best checkpoints.

    The Trainer would keep only the best checkpoint of the newest one, and then no run could resume from the previous one.
    Checkpoints of later steps, left from before a run resumed at an earlier step, are removed too. Incomplete checkpoints
    of killed runs are removed whatever the limit.

    Args:
        limit: number of checkpoints to keep; None, 0 or less: all sealed ones.
    """
    sealed = []
    for step, path in checkpoints_in(newest.parent):
        if (path / SEAL).is_file():
            sealed.append((step, path))
        else:
            shutil.rmtree(path, ignore_errors=True)
    if limit is None or limit <= 0:
        return
    last_step = int(newest.name.rpartition("-")[2])
    keep = set([path for step, path in sealed if step <= last_step][-limit:])
    keep |= {best for path in keep if (best := best_of(path)) is not None}
    for _, path in sealed:
        if path not in keep:
            # Remove the seal first, so that a kill cannot leave a partial checkpoint with a seal.
            (path / SEAL).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def best_of(checkpoint: Path) -> Path | None:
    """Return the path of the best checkpoint on validation when this one was saved; None if there was none.

    Its name is looked up beside `checkpoint`, so the run's directory may have been moved.
    """
    best = read_seal(checkpoint).get("best")
    if best is None:  # Older versions recorded it in the Trainer's state only.
        best = json.loads((checkpoint / STATE).read_text(encoding="utf-8")).get("best_model_checkpoint")
    return None if best is None else checkpoint.with_name(Path(best).name)
