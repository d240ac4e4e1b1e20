"""SQuAD's exact match and F1, as the official evaluation script of version 2.0 defines them, and its null threshold."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

import datasets
import numpy as np

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics.labels import TaskMetric

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation and English articles, its words separated by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction equals a reference after `normalize_answer`, else 0."""
    return float(normalize_answer(prediction) in _normalize_references(references))


def answer_f1(prediction: str, references: Sequence[str]) -> float:
    """Return the best word F1 of the prediction over the references; "no answer" matches "no answer" only."""
    return max(_f1(normalize_answer(prediction).split(), gold.split()) for gold in _normalize_references(references))


def _normalize_references(references: Sequence[str]) -> list[str]:
    """Return the normalised references that are not empty; if there are none, a single empty answer."""
    return [text for reference in references if (text := normalize_answer(reference))] or [""]


def _f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold))


class SquadF1(TaskMetric):
    """F1 and exact match of answers: the best value over the references of a question, averaged over the questions.

    If some questions are unanswerable, both are also given for answerable and unanswerable questions separately:
    `has_answer_f1`, `has_answer_exact_match`, `no_answer_f1`, `no_answer_exact_match`. The script of version 1.1 differs
    only where a reference consists of nothing but articles and punctuation.
    """

    name = "squad_f1"
    description = "Mean F1 of the words of predicted and reference answers; exact_match, the share of equal answers."
    inputs = 'predictions: answers [N], "" for none. references: lists of answers [N], empty for an unanswerable question.'
    feature = datasets.Value("string")
    reference_feature = datasets.List(datasets.Value("string"))
    reference_url = "https://rajpurkar.github.io/SQuAD-explorer/"
    citation = """@inproceedings{rajpurkar2018know,
  title = {Know What You Don't Know: Unanswerable Questions for {SQuAD}},
  author = {Rajpurkar, Pranav and Jia, Robin and Liang, Percy},
  booktitle = {Proceedings of the 56th Annual Meeting of the Association for Computational Linguistics},
  year = {2018}
}"""

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references, strict=True))
        f1 = np.array([answer_f1(*pair) for pair in pairs])
        exact = np.array([exact_match(*pair) for pair in pairs])
        scores = {self.name: float(f1.mean()), "exact_match": float(exact.mean())}
        answerable = np.array([len(texts) > 0 for texts in references])
        if not answerable.all():
            for group, rows in (("has_answer", answerable), ("no_answer", ~answerable)):
                if rows.any():
                    scores |= {f"{group}_f1": float(f1[rows].mean()), f"{group}_exact_match": float(exact[rows].mean())}
        return scores


def best_threshold(
    null_scores: Sequence[float] | np.ndarray,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    score: str = "f1",
) -> tuple[float, float]:
    """Return the threshold for SQuAD 2.0 that is best on these questions: answer where null score <= threshold.

    Of equally good thresholds the one with the fewest answers is returned, as in the official script; answering no
    question at all is one of the candidates. The script returns the null score of a question. This function returns a
    number above it, by half the distance to the null score of the next question and by 1 at most, so that rounding on
    another device or in another batch changes no answer.

    Args:
        null_scores: [N], larger where "no answer" is more likely: e.g. score of no answer minus score of the best answer.
        predictions: [N], the best answer to each question, whether or not it will be given.
        references: [N], the reference answers to each question, empty for an unanswerable one.
        score: "f1" or "exact_match".

    Returns:
        The threshold, and the mean score that it gives.

    Raises:
        HfTlmError: unknown score, no questions, lists of different lengths, or a null score that is not finite.
    """
    scorers = {"f1": answer_f1, "exact_match": exact_match}
    if score not in scorers:
        raise HfTlmError(f"score must be {' or '.join(scorers)}; received {score!r}.")
    if not len(null_scores) == len(predictions) == len(references) > 0:
        raise HfTlmError(
            "A threshold needs a null score, an answer and references for each question, and at least one question; "
            f"received {len(null_scores)}, {len(predictions)} and {len(references)}."
        )
    nulls = np.asarray(null_scores, float)
    if not np.isfinite(nulls).all():
        raise HfTlmError(f"{(~np.isfinite(nulls)).sum()} of {len(nulls)} null scores are not finite: training has diverged.")
    pairs = list(zip(predictions, references, strict=True))
    answered = np.array([scorers[score](*pair) for pair in pairs])
    silent = np.array([scorers[score]("", texts) for texts in references])
    order = np.argsort(nulls, kind="stable")
    # totals[i]: the summed score if the first i questions in this order are answered and the others are not.
    totals = silent.sum() + np.concatenate([[0.0], np.cumsum((answered - silent)[order])])
    edges = np.concatenate([[-np.inf], nulls[order], [np.inf]])
    # Questions with equal null scores are answered together.
    possible = edges[1:] != edges[:-1]
    best = np.flatnonzero(possible)[np.argmax(totals[possible].round(9))]
    return _choose_between(float(edges[best]), float(edges[best + 1])), float(totals[best] / len(nulls))


def _choose_between(low: float, high: float) -> float:
    """Return a number in [low, high), away from both ends where possible; low may be -inf, high inf."""
    if low == -math.inf:
        return min(high - 1, math.nextafter(high, low))  # A very large float minus 1 is the same float.
    middle = min(low + 1, low / 2 + high / 2)
    return middle if middle < high else low  # Between adjacent floats the middle may round up to high.
