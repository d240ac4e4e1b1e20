"""Learning from few labels: a share of the training examples, with the classes as they are in all of them."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

# Of a regression task's labels, whose examples are drawn from each in the same share.
QUANTILES = 10


def draw_fraction(train: Dataset, fraction: float, seed: int, kind: str) -> np.ndarray:
    """Indices, int64 and ascending, of round(fraction x n) of the n examples of every class, at least one of each.

    They depend on the data, the fraction and the seed alone, so that every model learns from the same ones, and those of a
    smaller fraction are among those of a larger one. Regression draws from ten quantiles of its labels as from classes;
    question answering, multiple choice and tagging from all examples together (COCO-LM, Figure 7, has fractions of MNLI).

    Args:
        train: column `label` for classification and regression.
        fraction: in (0, 1]; 1 is all of them.
        kind: of the task, see `hf_tlm.tasks.TaskSpec`.
    """
    if fraction == 1:
        return np.arange(len(train))
    if kind == "classification":
        groups = np.asarray(train["label"][:])
    elif kind == "regression":
        ranks = np.argsort(np.argsort(np.asarray(train["label"][:]), kind="stable"), kind="stable")
        groups = ranks * min(QUANTILES, len(train)) // len(train)
    else:
        groups = np.zeros(len(train), dtype=np.int64)
    drawn = []
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        order = np.random.default_rng([seed, int(group)]).permutation(members)
        drawn.append(order[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(drawn))
