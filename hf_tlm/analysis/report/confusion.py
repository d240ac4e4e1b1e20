"""How often each class was taken for each other, and the precision and recall of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

MOST_CLASSES = 25
OTHERS = "(others)"


@dataclass(frozen=True)
class Confusion:
    """counts: int64 [C, C], rows by truth, columns by prediction."""

    names: Sequence[str]
    counts: np.ndarray

    @property
    def support(self) -> np.ndarray:
        """int64 [C]: rows of each true class."""
        return self.counts.sum(axis=1)

    @property
    def shares(self) -> np.ndarray:
        """The predictions' shares of each true class, float [C, C]; 0 where a class has no rows."""
        return self.counts / np.maximum(1, self.support)[:, None]

    @property
    def recall(self) -> np.ndarray:
        """The accuracy on each true class, float [C]."""
        return np.diagonal(self.shares)

    @property
    def precision(self) -> np.ndarray:
        """The precision of each class, float [C]; 0 for a class that was never predicted."""
        return np.diagonal(self.counts) / np.maximum(1, self.counts.sum(axis=0))

    @property
    def f1(self) -> np.ndarray:
        """The F1 of each class, float [C]; 0 for a class that is neither there nor predicted."""
        return 2 * np.diagonal(self.counts) / np.maximum(1, self.counts.sum(axis=0) + self.support)


def confusion(pairs: Iterable[tuple[str, str]], names: Sequence[str] = ()) -> Confusion:
    """Of (true class, predicted class) pairs.

    Args:
        names: order of the classes; others follow by how frequent they are, then by name.
    """
    counted = Counter(pairs)
    frequency: Counter[str] = Counter()
    for (truth, predicted), count in counted.items():
        frequency[truth] += count
        frequency[predicted] += 0
    others = sorted(set(frequency) - set(names), key=lambda name: (-frequency[name], name))
    ordered = [*names, *others]
    place = {name: at for at, name in enumerate(ordered)}
    counts = np.zeros((len(ordered), len(ordered)), np.int64)
    for (truth, predicted), count in counted.items():
        counts[place[truth], place[predicted]] = count
    return Confusion(ordered, counts)


def fewer_classes(found: Confusion, most: int = MOST_CLASSES) -> Confusion:
    """The most frequent classes in their order, and all others as one."""
    if len(found.names) <= most:
        return found
    kept = np.sort(np.argsort(-found.support, kind="stable")[: most - 1])
    left = np.setdiff1d(np.arange(len(found.names)), kept)
    groups = [*(np.array([at]) for at in kept), left]
    counts = np.array([[found.counts[np.ix_(rows, columns)].sum() for columns in groups] for rows in groups])
    return Confusion([*(found.names[at] for at in kept), OTHERS], counts)
