"""Which passages a teacher is trusted on, and how much of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

# A mark that so many of the task's texts have, and hardly any passage.
OFTEN, HARDLY = 0.5, 0.01
_MARK = re.compile(r"([^\w\s])\1+|</?\w+>|\[/?\w+\]|[@$#]\w+[@$#]")
_WORD = re.compile(r"\S+")


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
    words = np.sort([len(text.split()) for text in texts])
    places = (np.random.default_rng(0).permutation(len(passages)) + 0.5) / max(1, len(passages))
    wanted = np.quantile(words, places, method="inverted_cdf").astype(int)
    return np.array([_end(text, count) for text, count in zip(passages, wanted, strict=True)], dtype=np.int64)


def _end(text: str, words: int) -> int:
    for number, word in enumerate(_WORD.finditer(text), 1):
        if number == max(1, words):
            return word.end()
    return len(text)


def marks_without_passages(texts: Sequence[str], passages: Sequence[str]) -> list[str]:
    """List the marks that the task's texts often have and passages hardly ever.

    More than half of the texts have it, and less than one of a hundred passages: where a label depends on it, as on marked
    entities, the teacher cannot know that of a passage.
    """
    counts = Counter(mark for text in texts for mark in _marks(text))
    often = {mark for mark, count in counts.items() if count > OFTEN * len(texts)}
    there = Counter(mark for text in passages for mark in _marks(text) & often) if often else Counter()
    return sorted(mark for mark in often if there[mark] < HARDLY * len(passages))


def _marks(text: str) -> set[str]:
    """What marks entities: <<, [[ and other such runs, <e1>, [E1], @GENE$."""
    return {found[0] for found in _MARK.finditer(text)}
