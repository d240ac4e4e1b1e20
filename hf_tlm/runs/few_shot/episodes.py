"""What a model with few labels may see: k training and k validation examples a class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from hf_tlm.tasks import Task, TaskError


@dataclass(frozen=True)
class Episode:
    """One split. train, validation: k rows of each class, in the order of the classes, with the task's columns."""

    seed: int
    train: Dataset
    validation: Dataset


def draw_episode(task: Task, k: int, seed: int) -> Episode:
    """Draw k training and k other validation examples of every class, both from the task's training split.

    Equal tasks, k and seed give equal examples.

    Raises:
        TaskError: k is not positive, or a class has fewer than 2 k training examples.
    """
    if k < 1:
        raise TaskError(f"k is the number of examples of a class and must be at least 1; received {k}.")
    labels = np.asarray(task.train["label"][:])
    generator = np.random.default_rng(seed)
    train, validation = [], []
    for label, name in task.id2label.items():
        rows = generator.permutation(np.flatnonzero(labels == label))
        if len(rows) < 2 * k:
            raise TaskError(
                f"Task {task.name} has {len(rows)} training examples of class {name!r}; k = {k} for training and {k} for "
                f"validation take {2 * k}. Give a smaller --k{f', at most {len(rows) // 2}' if len(rows) > 1 else ''}."
            )
        train += rows[:k].tolist()
        validation += rows[k : 2 * k].tolist()
    return Episode(seed, task.train.select(train), task.train.select(validation))


def scored_split(task: Task) -> str:
    """The split that is scored: test, or validation where test has no labels (as of GLUE; so do LM-BFF and COCO-LM)."""
    return "validation" if task.test is None else "test"
