"""What teachers of every kind give, how their classes become the task's, and which passages they are trusted on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from tqdm.auto import tqdm

from hf_tlm.corpora.passages import count_words, end_of_words
from hf_tlm.errors import ArgumentsError
from hf_tlm.utils.locks import place_in_job
from hf_tlm.utils.shown import few

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


def held_out(what: str, probabilities: np.ndarray, labels: np.ndarray, **further: float) -> dict[str, Any]:
    """What a report says of a classifier's answers, float [N, C], for texts of known classes that it has not learned."""
    right, largest = (probabilities.argmax(1) == labels).mean(), np.bincount(labels).max() / len(labels)
    of_all = {"largest_class": round(float(largest), 4)}
    return {"held_out": what, "held_out_accuracy": round(float(right), 4), **further, **of_all}


def progress(items: Iterable[T], description: str, unit: str) -> Iterable[T]:
    """The items with a bar, on the first process."""
    return tqdm(items, desc=description, unit=unit, disable=place_in_job()[0] > 0)


def read_mapping(pairs: Sequence[str] | None) -> dict[str, str]:
    """teacher=task pairs of names of classes; an ArgumentsError where one is no pair, or a name is there twice."""
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
    return few([f"{name:.40}" for name in names], 10)


def most_certain(probabilities: np.ndarray, shares: np.ndarray, count: int, trust: str = "confidence") -> np.ndarray:
    """Rows, ascending: of each class at most its share of `count`, those where it is likeliest and the teacher most certain.

    Args:
        probabilities: float [N, C]; rows of zeros, which have no answer, are not chosen.
        shares: float [C], adding up to 1.
        trust: "confidence", by the class's probability; "entropy", by how little the distribution is spread.
    """
    certain, answered = certainty(probabilities, trust), probabilities.sum(1) > 0
    likeliest, chosen = np.where(answered, probabilities.argmax(1), -1), []
    for label, share in enumerate(shares):
        rows = np.flatnonzero(likeliest == label)
        order = np.argsort(-certain[rows], kind="stable")
        chosen.append(rows[order[: round(share * count)]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def certainty(probabilities: np.ndarray, trust: str) -> np.ndarray:
    """How certain answers are, float64 [N]: the largest probability, or minus the entropy in nats."""
    return probabilities.max(1) if trust == "confidence" else -entropy(probabilities)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Entropies in nats, float64 [N], of float [N, C]."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return -(probabilities * logs).sum(1)


def task_lengths(texts: Sequence[str], passages: Sequence[str]) -> np.ndarray:
    """After how many characters each passage ends, int64 [M], so that passages are as long as texts of the task.

    The lengths are quantiles of the texts' numbers of words, spread over the passages in an order that depends on their
    number alone. A passage that is shorter stays whole; one that is cut ends with a word, its beginning is kept.
    """
    words = np.sort([count_words(text) for text in texts])
    places = (np.random.default_rng(0).permutation(len(passages)) + 0.5) / max(1, len(passages))
    wanted = np.quantile(words, places, method="inverted_cdf").astype(int)
    ends = [end_of_words(text, max(1, count)) for text, count in zip(passages, wanted, strict=True)]
    return np.array(ends, dtype=np.int64)
