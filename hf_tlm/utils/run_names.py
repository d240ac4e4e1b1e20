"""Names of files and folders in a run's folder: who writes them and who reads them are far apart.

<run>/settings.json       what was asked for, by which the same command knows its run again
<run>/results.json        what came out of it
<run>/seed-<n>/           one seed: stage<n>/ with checkpoints, model/, predictions/<split>.jsonl, results.json
<run>/split-<n>/          the same of a few-shot split
<run>/round-<n>/          a whole run, of several of which each is taught by the one before
<run>/grid.json           a grid's scores; results.md is their table
"""

from __future__ import annotations

from pathlib import Path

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
