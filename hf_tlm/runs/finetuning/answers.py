"""The best answers over all windows of every question, by exact search with numpy.

Shapes: W windows, S positions, T tokens of the context in a window, L answer length, N examples, A answers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset

from hf_tlm.runs.finetuning.features import ragged

if TYPE_CHECKING:
    from hf_tlm.runs.finetuning.arguments import FinetuneArguments

NOTHING = 1e6  # The odds of no answer where a context has no word: beyond any threshold, and a number that JSON has.
SPANS = 1 << 20  # How many are looked at together.


@dataclass(frozen=True)
class Answers:
    """Answers of all examples, those of one together, its best first.

    bounds: int64 [N + 1], where the answers of each example begin.
    scores, begins, ends: [A], start logit + end logit, and the characters of the context, of each.
    null: float [N], start + end of [CLS], the lowest of all windows.
    odds: float [N], null less the best score (`NOTHING` without an answer): where it is large there is no answer.
    """

    bounds: np.ndarray
    scores: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    null: np.ndarray
    odds: np.ndarray

    def of(self, example: int) -> slice:
        """Where the answers of an example are."""
        return slice(int(self.bounds[example]), int(self.bounds[example + 1]))

    def best(self, example: int, context: str) -> str:
        """The text of the best answer; "" where the context has no word."""
        answers = self.of(example)
        return self.text(answers.start, context) if answers.stop > answers.start else ""

    def text(self, answer: int, context: str) -> str:
        """The slice of the context, with the marks that combine with its last character: many tokenizers drop them."""
        end = self.ends[answer]
        while end < len(context) and unicodedata.combining(context[end]):
            end += 1
        return context[self.begins[answer] : end]


def search(outputs: tuple[np.ndarray, ...], features: Dataset, num_examples: int, args: FinetuneArguments) -> Answers:
    """Find the `n_best` different answers of every example.

    They are those with the highest start + end logits within one window's context, of at most `max_answer_length` tokens.

    Args:
        outputs: start and end logits, float [W, S] each.
        features: see `question_answering.encode`.
    """
    starts, ends = outputs[:2]
    columns = features.select_columns(["example", "cls"]).with_format("numpy")[:]
    example, cls = columns["example"], columns["cls"]
    null = np.full(num_examples, np.inf)
    windows = np.arange(len(features))
    np.minimum.at(null, example, starts[windows, cls].astype(np.float64) + ends[windows, cls])
    parts = list(_best_of_windows(starts, ends, features, args.max_answer_length, args.n_best))
    window, score, begin, end = (np.concatenate(part) for part in zip(*parts, strict=True))
    owner = example[window]
    # Of equal answers, which windows have in common, the best one; then the best answers of each example.
    order = np.lexsort((-score, end, begin, owner))
    new = np.append(True, np.any(np.diff([each[order] for each in (owner, begin, end)]) != 0, axis=0))[: len(order)]
    order = order[new]
    order = order[np.lexsort((end[order], begin[order], -score[order], owner[order]))]
    rank = np.arange(len(order)) - np.searchsorted(owner[order], owner[order])
    order = order[rank < args.n_best]
    bounds = np.searchsorted(owner[order], np.arange(num_examples + 1))
    score, found = score[order].astype(np.float64), np.diff(bounds) > 0
    odds = np.full(num_examples, NOTHING)
    odds[found] = null[found] - score[bounds[:-1][found]]
    return Answers(bounds, score, begin[order], end[order], null, odds)


def _best_of_windows(
    starts: np.ndarray, ends: np.ndarray, features: Dataset, max_length: int, n_best: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Window, score, first and last character of each window's best answers, some windows at a time."""
    first = features.select_columns("first").with_format("numpy")[:]["first"]
    begins, bounds = ragged(features, "begins")
    finishes, _ = ragged(features, "ends")
    widest = int(np.diff(bounds).max())
    length = min(max_length, widest)
    step = max(1, SPANS // max(1, length * widest))
    for low in range(0, len(features) if widest else 0, step):
        window = np.arange(low, min(low + step, len(features)))[:, None]
        token = np.arange(widest)
        inside = token < np.diff(bounds)[window]
        character = np.minimum(bounds[window] + token, len(begins) - 1)
        # A token of white space alone begins and ends no answer.
        usable = inside & (begins[character] < finishes[character])
        place = np.minimum(first[window] + token, starts.shape[1] - 1)
        start = np.where(usable, starts[window, place], -np.inf)
        end = np.where(usable, ends[window, place], -np.inf)
        scores = np.full((len(window), length, widest), -np.inf, dtype=np.float32)
        for longer in range(length):
            scores[:, longer, : widest - longer] = start[:, : widest - longer] + end[:, longer:]
        flat = scores.reshape(len(window), -1)
        count = min(n_best, flat.shape[1])
        best = np.argpartition(flat, -count, axis=1)[:, -count:]
        score = np.take_along_axis(flat, best, axis=1)
        further, token = divmod(best, widest)
        kept = np.isfinite(score)
        row = np.nonzero(kept)[0]
        at = bounds[window[row, 0]] + token[kept]
        yield window[row, 0], score[kept], begins[at], finishes[at + further[kept]]
    # So that there is something to join where no context has a token.
    yield np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64)
