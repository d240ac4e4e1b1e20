"""Files of a run, for writers and readers: names of files and folders, predictions, and the figure that sums up the seeds.

<run>/settings.json       the settings, by which the same command recognises its run
<run>/results.json        the results
<run>/seed-<n>/           one seed: stage<n>/ with checkpoints, model/, predictions/<split>.jsonl, results.json
<run>/split-<n>/          one split of a few-shot run, with the same files
<run>/round-<n>/          a complete run, one of several rounds in which each round's model teaches the next
<run>/grid.json           the scores of a grid; results.md is their table
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.seals import sealed_file_problem

SETTINGS_FILE, RESULTS_FILE, STAGE_FILE = "settings.json", "results.json", "stage.json"
GRID_FILE, TABLE_FILE, PLACES_FILE = "grid.json", "results.md", ".places.json"
# The teacher's predictions for the subset, with examples.
TEACHER_FILE = "teacher.json"
# The ids of the examples of a few-shot split: of `train` and of `validation`.
EXAMPLES_FILE = "examples.json"
# The ids of the training texts of a seed that was trained on a share of them.
TRAIN_IDS_FILE = "train_ids.json"
# The description of a folder of ONNX graphs.
EXPORT_FILE = "export.json"
# The ONNX graphs, under the names that transformers.js and other libraries expect.
ONNX_FILES = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx", "fp16": "onnx/model_fp16.onnx"}
# The description of a subset.
MANIFEST_FILE = "manifest.json"
# The description of a linear model on TF-IDF.
LINEAR_FILE = "linear.json"
# Advice for damaged predictions.
REPAIR_ADVICE = "Copy the file again, or run the command of the run again, which creates it again."
SEED, SPLIT, STAGE, PREDICTIONS = "seed-", "split-", "stage", "predictions"


@contextmanager
def mention_if_finished(folder: Path) -> Iterator[None]:
    """Add to an error in the block that the run in the folder is finished, if so: missing inputs may be unneeded then."""
    try:
        yield
    except HfTlmError as error:
        if not (folder / RESULTS_FILE).is_file() or not (folder / SETTINGS_FILE).is_file():
            raise
        raise type(error)(f"{error} The run in {folder} is finished: its model and {RESULTS_FILE} are there.") from error


def is_export(folder: Path) -> bool:
    """Return whether a folder holds exported graphs without the weights that torch would need."""
    return (folder / EXPORT_FILE).is_file() and not any(folder.glob("*.safetensors"))


def seed_folder(run: Path, seed: int | str) -> Path:
    """Return the folder of one seed."""
    return run / f"{SEED}{seed}"


def split_folder(run: Path, split: int | str) -> Path:
    """Return the folder of one split of a few-shot run."""
    return run / f"{SPLIT}{split}"


def stage_folder(seed: Path, stage: int | str) -> Path:
    """Return the folder of one stage, inside its seed's folder."""
    return seed / f"{STAGE}{stage}"


def predictions_file(seed: Path, split: str) -> Path:
    """Return the path of a seed's predictions for a split of its task: one JSON line for each text."""
    return seed / PREDICTIONS / f"{split}.jsonl"


def read_prediction_records(
    seed: Path, split: str, error: type[HfTlmError] = HfTlmError, advice: str = REPAIR_ADVICE
) -> list[dict[str, Any]] | None:
    """Read a seed's predictions for a split of its task, one object for each text; None if there are none.

    Args:
        seed: the seed's folder, whose seal has the file's checksum; folders of versions without seals are accepted.
        advice: what to do about a damaged file.

    Raises:
        HfTlmError: of the class `error`, with `advice`: the file cannot be read, or has changed since it was written.
    """
    path = predictions_file(seed, split)
    if not path.is_file():
        return None
    lines: list[dict[str, Any]] = []
    try:
        damage = sealed_file_problem(seed, path.relative_to(seed).as_posix())
        with open(path, encoding="utf-8") as file:
            for json_line in file:
                if not isinstance(line := json.loads(json_line), dict):
                    raise ValueError(f"expected an object, found {line!r:.60}")
                lines.append(line)
    except (OSError, ValueError, RecursionError) as problem:
        raise error(
            f"{path}, line {len(lines) + 1}, cannot be read as JSON: {problem}. It is damaged. {advice}"
        ) from problem
    damage = damage or (None if lines else f"{path} is empty, but should have a line per text")
    if damage is not None:
        raise error(f"{damage}. It is damaged. {advice}")
    return lines


def _nan_if_any(statistic: Callable[[Sequence[float]], float]) -> Callable[[Sequence[float]], float]:
    """Return `statistic` with NaN for scores that contain NaN, like the mean; else a result would depend on their order."""
    return lambda scores: math.nan if any(map(math.isnan, scores)) else statistic(scores)


# `--seed_figure` -> its name in texts, and the function that computes it from the seeds' scores.
SEED_FIGURES: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "mean": ("mean", statistics.fmean),
    "median": ("median", _nan_if_any(statistics.median)),
    "max": ("maximum", _nan_if_any(max)),
}


def seed_figure(name: Any) -> tuple[str, Callable[[Sequence[float]], float]]:
    """Return the word and the function of a name in `SEED_FIGURES`; those of the mean for any other name."""
    return SEED_FIGURES.get(str(name), SEED_FIGURES["mean"])
