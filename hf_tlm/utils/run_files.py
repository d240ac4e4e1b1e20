"""What a run leaves, for who writes and who reads it: names of files and folders, answers, the one figure of its seeds.

<run>/settings.json       what was asked for, by which the same command knows its run again
<run>/results.json        what came out of it
<run>/seed-<n>/           one seed: stage<n>/ with checkpoints, model/, predictions/<split>.jsonl, results.json
<run>/split-<n>/          the same of a few-shot split
<run>/round-<n>/          a whole run, of several of which each is taught by the one before
<run>/grid.json           a grid's scores; results.md is their table
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.seals import sealed_file_problem

SETTINGS_FILE, RESULTS_FILE, STAGE_FILE = "settings.json", "results.json", "stage.json"
GRID_FILE, TABLE_FILE, PLACES_FILE = "grid.json", "results.md", ".places.json"
# What a teacher says of the subset, with examples.
TEACHER_FILE = "teacher.json"
# Of a few-shot split, the ids of its examples: of `train` and of `validation`.
EXAMPLES_FILE = "examples.json"
# Of a seed that learned from a share of the training texts, their ids.
TRAIN_IDS_FILE = "train_ids.json"
# Of a folder of ONNX graphs.
EXPORT_FILE = "export.json"
# The graphs themselves, under the names by which transformers.js and others look for them.
ONNX_FILES = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx", "fp16": "onnx/model_fp16.onnx"}
# Of a subset, what it says of itself.
MANIFEST_FILE = "manifest.json"
# Of a linear model on TF-IDF, what it is.
LINEAR_FILE = "linear.json"
# What to do about damaged answers.
AGAIN = "Copy the file again, or run the command again that made the run, which makes it again."
SEED, SPLIT, STAGE, PREDICTIONS = "seed-", "split-", "stage", "predictions"


def seed_folder(run: Path, seed: int | str) -> Path:
    """The folder of one seed."""
    return run / f"{SEED}{seed}"


def split_folder(run: Path, split: int | str) -> Path:
    """The folder of one split of a few-shot run."""
    return run / f"{SPLIT}{split}"


def stage_folder(seed: Path, stage: int | str) -> Path:
    """The folder of one stage, in that of its seed."""
    return seed / f"{STAGE}{stage}"


def predictions_file(seed: Path, split: str) -> Path:
    """What a seed's model says of a split of its task, a JSON line a text."""
    return seed / PREDICTIONS / f"{split}.jsonl"


def read_answers(
    seed: Path, split: str, error: type[HfTlmError] = HfTlmError, advice: str = AGAIN
) -> list[dict[str, Any]] | None:
    """What a seed's model says of a split of its task, an object a row; None where it has left nothing of it.

    Args:
        seed: its folder, whose seal knows the file. That of before there were seals has none.
        advice: what to do about a damaged file.

    Raises:
        HfTlmError: of the class `error`, with `advice`: the file cannot be read, or is not as it was written.
    """
    path = predictions_file(seed, split)
    if not path.is_file():
        return None
    lines: list[dict[str, Any]] = []
    try:
        damage = sealed_file_problem(seed, path.relative_to(seed).as_posix())
        with open(path, encoding="utf-8") as file:
            for text in file:
                if not isinstance(line := json.loads(text), dict):
                    raise ValueError(f"expected an object, found {line!r:.60}")
                lines.append(line)
    except (OSError, ValueError, RecursionError) as problem:
        raise error(
            f"{path}, line {len(lines) + 1}, cannot be read as JSON: {problem}. It is damaged. {advice}"
        ) from problem
    damage = damage or (None if lines else f"{path} is empty, and had a line a text")
    if damage is not None:
        raise error(f"{damage}. It is damaged. {advice}")
    return lines


def _of_known(figure: Callable[[Sequence[float]], float]) -> Callable[[Sequence[float]], float]:
    """Of scores with a NaN the figure is NaN, as their mean is; else it would be another in another order."""
    return lambda scores: math.nan if any(map(math.isnan, scores)) else figure(scores)


# `--seed_figure` -> what it is called, and how it comes of the seeds' scores.
SEED_FIGURES: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "mean": ("mean", statistics.fmean),
    "median": ("median", _of_known(statistics.median)),
    "max": ("maximum", _of_known(max)),
}


def seed_figure(name: Any) -> tuple[str, Callable[[Sequence[float]], float]]:
    """The word and the function by a name of `SEED_FIGURES`, as records have it; by any other those of the mean."""
    return SEED_FIGURES.get(str(name), SEED_FIGURES["mean"])
