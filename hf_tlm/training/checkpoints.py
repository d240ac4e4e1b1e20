"""Checkpoints that a run can resume from: those with a seal (see `hf_tlm.utils.seals`) that every file matches.

Facts of the seal are the step, the number of processes, whether the optimizer's state is there, and the name of the
checkpoint best so far. Files are read again only when a run resumes.
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
    """A checkpoint that cannot be written, or not be resumed from."""


def checkpoints_in(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every `checkpoint-*` folder, sealed or not, by step."""
    found = ((re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in Path(folder).glob("checkpoint-*"))
    return sorted((int(match.group(1)), path) for match, path in found if match and path.is_dir())


def leave_out_places(folder: Path) -> None:
    """Take this machine's paths out of the state that the Trainer wrote to a folder, which may be published."""
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    state["best_model_checkpoint"] = None
    atomic_write(folder / STATE, json.dumps(state, indent=2, sort_keys=True) + "\n")


def damage(checkpoint: Path) -> str | None:
    """Return why a run cannot resume from the folder; None if it can.

    It can if the folder is sealed, every file is as it was when sealed, and the same holds for the checkpoint best on
    validation so far, from which the run would export its model.
    """
    if (problem := seal_problem(checkpoint, STATE)) is not None:
        return problem
    if read_seal(checkpoint).get("resumable") is not True:
        return f"{checkpoint} holds the model alone (save_only_model)"
    best = best_of(checkpoint)
    if best in (None, checkpoint) or (problem := seal_problem(best, STATE)) is None:
        return None
    return f"{checkpoint.name} needs the best checkpoint so far, and {problem}"


def last_complete_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint of a folder that a run can resume from; None if there is none.

    A newer one that is passed over is logged with the file that is wrong and the checkpoint taken instead.
    """
    problems, taken = [], None
    for _, path in reversed(checkpoints_in(Path(folder))):
        if (problem := damage(path)) is None:
            taken = path
            break
        problems.append(problem)
    for problem in problems:
        logger.warning("%s. %s", problem, f"Resuming from {taken} instead." if taken else "There is no whole one before it.")
    return None if taken is None else str(taken)


def check_checkpoint(path: str | Path) -> str:
    """`path`, if a run can resume from it; else a CheckpointError that names the file and what is wrong with it."""
    if (problem := damage(Path(path))) is not None:
        raise CheckpointError(
            f"Cannot resume from {path}: {problem}. Give another checkpoint, or resume_from_checkpoint=True for the newest "
            "complete one."
        )
    return str(path)


def warn_of_other_processes(checkpoint: str, world_size: int) -> None:
    """Log that dropout will differ, where a checkpoint was written by another number of processes."""
    before = read_seal(checkpoint)["world_size"]
    if before != world_size:
        logger.warning(
            "%s was saved by %d processes, now there are %d: texts, masks and rates go on exactly, dropout's random numbers "
            "do not.",
            checkpoint,
            before,
            world_size,
        )


def rotate(newest: Path, *, limit: int | None) -> None:
    """Keep the `limit` newest checkpoints up to the just sealed `newest`, and the best model that each of them knows.

    The Trainer's rule would keep only the newest one's: then no run could resume from the one before. Checkpoints of later
    steps, which a run that resumed before them passed over, go too, and, whatever the limit, what kills left of saves.
    """
    sealed = []
    for step, path in checkpoints_in(newest.parent):
        if (path / SEAL).is_file():
            sealed.append((step, path))
        else:
            shutil.rmtree(path, ignore_errors=True)
    if limit is None or limit <= 0:
        return
    last = int(newest.name.rpartition("-")[2])
    keep = set([path for step, path in sealed if step <= last][-limit:])
    keep |= {best for path in keep if (best := best_of(path)) is not None}
    for _, path in sealed:
        if path not in keep:
            # The seal first, or a kill would leave a part that looks like a checkpoint.
            (path / SEAL).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def best_of(checkpoint: Path) -> Path | None:
    """The checkpoint best on validation when this one was saved, wherever the run's folder is now."""
    best = read_seal(checkpoint).get("best")
    if best is None:  # Before seals had it, the state did.
        best = json.loads((checkpoint / STATE).read_text(encoding="utf-8")).get("best_model_checkpoint")
    return None if best is None else checkpoint.with_name(Path(best).name)
