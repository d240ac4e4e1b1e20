"""What teachers of every kind give, and how their classes become the task's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from tqdm.auto import tqdm

from hf_tlm.training.errors import ArgumentsError
from hf_tlm.utils.locks import place_in_job

# The least probability of a class: a model that has not seen a class would say 0.
LEAST = 1e-6
T = TypeVar("T")


@dataclass
class Answers:
    """A teacher's answers.

    train: float [N, C], probabilities of the training texts; a row of zeros is none. For regression values [N, 1], or NaN.
    passages: float [M, C], the same of the passages of the subset; [0, C] where it was asked of none.
    report: JSON values: how good it is, and what it cost.
    disagreement: float [M], how far the answers of several teachers for a passage are from their average, which `passages`
        has: the mean Kullback-Leibler divergence, in nats (McCallum and Nigam 1998, section 3). Of one teacher 0.
    """

    train: np.ndarray
    passages: np.ndarray
    report: dict[str, Any] = field(default_factory=dict)
    disagreement: np.ndarray = field(default_factory=lambda: np.zeros(0))


def progress(items: Iterable[T], description: str, unit: str) -> Iterable[T]:
    """The items with a bar, on the first process."""
    return tqdm(items, desc=description, unit=unit, disable=place_in_job()[0] > 0)


def read_mapping(pairs: Sequence[str] | None) -> dict[str, str]:
    """teacher=task pairs of names of classes.

    Raises:
        ArgumentsError: one is no pair, or a name is there twice.
    """
    found: dict[str, str] = {}
    for pair in pairs or ():
        own, equals, name = pair.partition("=")
        if not equals or not own or not name or own in found:
            raise ArgumentsError(
                f"teacher_labels: expected the teacher's name=the task's, once for each class of it; received {pair!r:.60}."
            )
        found[own] = name
    return found


def class_matrix(own: Sequence[str], classes: Sequence[str], mapping: Mapping[str, str], who: str) -> np.ndarray:
    """Which class of the task each of the teacher's is, float64 [own, classes] of 0 and 1.

    Args:
        mapping: the teacher's name -> the task's; empty: they have the same names, in any order.

    Raises:
        ArgumentsError: a name that the other side lacks.
    """
    if unknown := sorted(set(mapping) - set(own)):
        raise ArgumentsError(f"teacher_labels: {who} has no class {unknown[0]!r:.60}; it has {_some(own)}.")
    named = [mapping.get(name, None if mapping else name) for name in own]
    if None in named or set(named) != set(classes):
        example = " ".join(f"{name}={classes[place % len(classes)]}" for place, name in enumerate(own[:3]))
        raise ArgumentsError(
            f"The classes of {who} are {_some(own)}, and the task's are {_some(classes)}: expected the same names. Give "
            f"--teacher_labels, for every one of them its name=the task's (such as {example:.100})."
        )
    return np.array([[float(name == label) for label in classes] for name in named])


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"{name:.40}" for name in names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
