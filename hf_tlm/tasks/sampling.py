"""Parts of a task's training texts, of every class its share: what would fewer labels have given?"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from datasets import Dataset

# Of a regression task's labels, whose examples are drawn from each in the same share.
QUANTILES = 10
_SCALE = 2.0**64


def content_place(content: Any) -> float:
    """A number in [0, 1) by which equal contents are equal, and others evenly spread."""
    text = content if isinstance(content, str) else repr(content)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / _SCALE


def strata(rows: Dataset, kind: str, ties: np.ndarray | None = None) -> np.ndarray:
    """The group of every row, of which a part has its share: int64 [N].

    These are the classes of classification and ten quantiles of the labels of regression; other kinds have one.

    Args:
        rows: column `label` for classification and regression.
        kind: of the task, see `hf_tlm.tasks.TaskSpec`.
        ties: [N], by which rows of equal labels come into quantiles; default: their order.
    """
    if kind == "classification":
        return np.asarray(rows["label"][:], dtype=np.int64)
    if kind == "regression":
        ties = np.arange(len(rows)) if ties is None else ties
        ranks = np.argsort(np.lexsort((ties, np.asarray(rows["label"][:]))), kind="stable")
        return ranks * min(QUANTILES, len(rows)) // len(rows)
    return np.zeros(len(rows), dtype=np.int64)


def sample(groups: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Indices, int64 [size] and ascending, of a part with one row of every group at least, else its share, to within one.

    Groups whose share is less than one row have one at the cost of the others. Neither the order of rows nor a seed
    matters, and the rows of a smaller part are among those of a larger one.

    Args:
        groups: int64 [N], see `strata`.
        places: float64 [N], see `content_place`; of each group those with the smallest come first.
        size: at least as many as there are groups, at most N.
    """
    order = np.lexsort((groups, places))
    turn = np.empty(len(groups))
    for group in np.unique(groups):
        members = order[groups[order] == group]
        turn[members] = (np.arange(len(members)) + 0.5) / len(members)
        turn[members[0]] = 0.0
    return np.sort(order[np.argsort(turn[order], kind="stable")][:size])
