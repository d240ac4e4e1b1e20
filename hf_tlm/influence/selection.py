"""Selection of a subset's rows from scores: influence (ISS, section 3.3) or n-grams (DSIR, Xie et al., NeurIPS 2023).

Shapes: N passages, T task batches, G groups of B_p consecutive passages, C classes.

DSIR: a text is a bag of unigrams and bigrams, each hashed into one of 10,000 buckets. With bucket frequencies p (task) and
q (subset), the log importance weight of a passage is the sum over its n-grams of log p - log q; passages are drawn without
replacement in proportion to their weights, by the Gumbel top-n trick (section 3 and algorithm 1 of
https://arxiv.org/abs/2302.03169). docs/explanation/differences.md lists how the authors' package, `data-selection` 1.0.3,
differs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash

from hf_tlm.errors import InfluenceError
from hf_tlm.utils.texts import UNSPACED_SET

logger = logging.getLogger(__name__)

# Number of values in a block of columns, 8 bytes each; a few arrays of this size are in memory at a time.
BLOCK_VALUES = 1 << 22
UNRANKED = np.iinfo(np.int32).max
NUM_BUCKETS = 10_000
# Words and runs of punctuation, as the authors' package splits texts; in scripts without spaces every letter is a token.
_TOKEN = re.compile(rf"[{UNSPACED_SET}]|[^\W{UNSPACED_SET}]+|[^\w\s{UNSPACED_SET}]+")


class Scores(Protocol):
    """Influence of N passages on T task batches: an array, or `ScoreFiles`. A passage without a score has only NaN."""

    shape: tuple[int, int]

    def __getitem__(self, key: tuple[slice, slice]) -> np.ndarray:
        """Return the columns `scores[:, start:stop]`, float [N, stop - start]."""


@dataclass
class Selection:
    """The selected passages, in the subset's order.

    rows: int64 [n], ascending. rank: int32 [n], the best rank of the passage's group over task batches, from 1. influence:
    float32 [n], mean over task batches of the passage's own score. unscored: number of passages of the subset without a
    score. not_finite: number of passages with a score that is infinite, or NaN for some task batches.
    """

    rows: np.ndarray
    rank: np.ndarray
    influence: np.ndarray
    unscored: int
    not_finite: int


@dataclass
class _Ranking:
    """The ranks and sums that one pass over the scores computes.

    best: int32 [C, G], a group's best rank over the task batches of a class, UNRANKED without a score. total: float64
    [C, G], the sum of the group's scores over these task batches. influence: float64 [N], NaN if the score of any task
    batch is missing or not finite. empty: bool [N], True if the passage has no score of any task batch.
    """

    best: np.ndarray
    total: np.ndarray
    influence: np.ndarray
    empty: np.ndarray


@dataclass
class PassageScores:
    """One score for each passage; a selection keeps the passages with the highest.

    values: float [N], NaN for a passage without a score. classes: int [N], the class of each passage, for `balance`.
    about: JSON values that describe the scores in the manifest.
    """

    values: np.ndarray
    classes: np.ndarray
    about: dict[str, Any]


def best_rows(values: np.ndarray, size: int, classes: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of the `size` highest values, int64 [size], ascending.

    Of equal values the earlier row is kept. Rows with NaN are never returned.

    Args:
        values: float [N].
        classes: int [N]: if given, classes take turns, each with its best remaining row; within a turn the higher values
            come first, and a class without remaining rows is skipped.

    Raises:
        InfluenceError: fewer than `size` rows have a value.
    """
    order = np.argsort(-values, kind="stable")
    order = order[~np.isnan(values[order])]
    if len(order) < size:
        raise InfluenceError(
            f"{size:,} passages were asked for, and {len(order):,} of {len(values):,} have a score. Ask for fewer."
        )
    if classes is not None:
        turn, of = np.zeros(len(order), np.int64), classes[order]
        for label in np.unique(of):
            turn[of == label] = np.arange((of == label).sum())
        order = order[np.argsort(turn, kind="stable")]
    return np.sort(order[:size])


def select_rows(
    scores: Scores,
    *,
    corpus_batch_size: int = 1,
    top_k: int | None = None,
    num_passages: int | None = None,
    classes: Sequence[int] | None = None,
    weights: np.ndarray | None = None,
) -> Selection:
    """Select the most influential passages; passages without a score or with one that is not finite are never selected.

    Each task batch ranks all groups, from 1, by the sum of their members' scores or by their weighted mean; of equal groups
    the earlier is first.

    Args:
        corpus_batch_size: B_p, consecutive passages that are ranked and selected together; the last group may be smaller.
        top_k: select the union of the `top_k` passages that each task batch ranks first, in complete groups (rounded up).
        num_passages: select this many passages instead. Groups are ordered by their best rank over task batches, then their
            mean score, then their position; the last group is truncated.
        classes: int [T], the class of each task batch: classes take turns, each with its next group, so that all have equal
            shares of `num_passages`.
        weights: float or int [N]: rank a group by the mean of its members' scores, weighted by these. Weighted by masked
            tokens (`InfluenceScorer.masked_tokens`), it is the influence of the mean loss over all masked tokens of a group.

    Raises:
        InfluenceError: no passage has a finite score, fewer than `num_passages` have one, or not exactly one of `top_k` and
            `num_passages` is given.
    """
    if (top_k is None) == (num_passages is None):
        raise InfluenceError(f"Pass either top_k or num_passages; received {top_k} and {num_passages}.")
    if isinstance(scores, list):
        scores = np.asarray(scores, np.float32)
    passages, task_batches = scores.shape
    group_of = np.arange(passages) // corpus_batch_size
    of_batch = np.unique(np.zeros(task_batches, int) if classes is None else np.asarray(classes), return_inverse=True)[1]
    ranking = _rank(scores, corpus_batch_size, of_batch, weights)
    scored = ~np.isnan(ranking.influence)
    unscored, not_finite = int(ranking.empty.sum()), int((~scored & ~ranking.empty).sum())
    if not scored.any():
        raise InfluenceError(
            f"None of the {passages:,} passages has a score: either no passage has a token that can be masked, or the score "
            "model's gradients are not finite. Check the texts and the score model."
        )
    if not_finite:
        logger.warning(
            "%s of %s passages have scores that are not finite, and are skipped: their gradients exceed the range of the "
            "score model's precision. float32 (without --bf16) may give fewer.",
            f"{not_finite:,}",
            f"{passages:,}",
        )
    best = ranking.best.min(axis=0)
    if top_k is not None:
        chosen = scored & (best <= -(-top_k // corpus_batch_size))[group_of]
    else:
        assert num_passages is not None
        if num_passages > scored.sum():
            raise InfluenceError(
                f"{num_passages:,} passages were asked for, and {scored.sum():,} of {passages:,} have a score; without a "
                f"token that can be masked: {unscored:,}, with a score that is not finite: {not_finite:,}. Ask for fewer."
            )
        chosen = _fill(ranking, scored, corpus_batch_size, num_passages)
    rows = np.flatnonzero(chosen)
    return Selection(rows, best[group_of[rows]], ranking.influence[rows].astype(np.float32), unscored, not_finite)


def _rank(scores: Scores, group_size: int, of_batch: np.ndarray, weights: np.ndarray | None) -> _Ranking:
    """Rank groups in one pass over blocks of columns. of_batch: int [T], the class of each task batch, 0 .. C-1."""
    passages, task_batches = scores.shape
    starts = np.arange(0, passages, group_size)
    shape = (of_batch.max() + 1, len(starts))
    ranking = _Ranking(np.full(shape, UNRANKED, np.int32), np.zeros(shape), np.zeros(passages), np.ones(passages, bool))
    width = max(1, BLOCK_VALUES // passages)
    for first in range(0, task_batches, width):
        block = np.array(scores[:, first : first + width], np.float64)
        ranking.empty &= np.isnan(block).all(axis=1)
        block[~np.isfinite(block)] = np.nan
        ranking.influence += block.sum(axis=1)
        groups = block
        if group_size > 1:
            is_scored = ~np.isnan(block)
            groups = np.where(is_scored, block, 0)
            if weights is None:
                groups = np.add.reduceat(groups, starts, axis=0)
            else:
                summed = np.add.reduceat(groups * weights[:, None], starts, axis=0)
                total = np.add.reduceat(is_scored * weights[:, None], starts, axis=0)
                groups = np.divide(summed, total, out=np.zeros_like(summed), where=total > 0)
            groups[~np.logical_or.reduceat(is_scored, starts, axis=0)] = np.nan
        for column, class_index in zip(groups.T, of_batch[first : first + width], strict=True):
            # argsort puts NaN last.
            order = np.argsort(-column, kind="stable")[: len(starts) - np.isnan(column).sum()]
            rank = np.full(len(starts), UNRANKED, np.int32)
            rank[order] = np.arange(1, len(order) + 1)
            np.minimum(ranking.best[class_index], rank, out=ranking.best[class_index])
            ranking.total[class_index] += column
    ranking.influence /= task_batches
    return ranking


def _fill(ranking: _Ranking, scored: np.ndarray, group_size: int, num_passages: int) -> np.ndarray:
    """Return a mask of the selected passages, bool [N]: classes add their groups in turn until there are `num_passages`."""
    orders = [iter(np.lexsort((-total, best)).tolist()) for best, total in zip(ranking.best, ranking.total, strict=True)]
    taken = np.zeros(ranking.best.shape[1], bool)
    chosen = np.zeros(len(scored), bool)
    missing = num_passages
    while missing:
        for order in orders:
            group = next((group for group in order if not taken[group]), None)
            if group is None:
                continue
            taken[group] = True
            first = group * group_size
            members = first + np.flatnonzero(scored[first : first + group_size])[:missing]
            chosen[members] = True
            missing -= len(members)
    return chosen


def ngram_buckets(text: str, num_buckets: int = NUM_BUCKETS) -> np.ndarray:
    """Return the bucket of every unigram and bigram of the lower-cased text, int64 [n-grams]."""
    words = _TOKEN.findall(text.lower())
    ngrams = [*words, *map(" ".join, zip(words, words[1:], strict=False))]
    hashes = [xxhash.xxh3_64_intdigest(ngram.encode("utf-8", "surrogatepass")) for ngram in ngrams]
    return (np.array(hashes, np.uint64) % num_buckets).astype(np.int64)


def log_frequencies(texts: Iterable[str]) -> np.ndarray:
    """Return the log of each bucket's share of the texts' n-grams, with one added to every count, float64 [buckets]."""
    counts = np.ones(NUM_BUCKETS)
    for text in texts:
        counts += np.bincount(ngram_buckets(text), minlength=NUM_BUCKETS)
    return np.log(counts / counts.sum())


def log_importance_weights(task_texts: Iterable[str], passages: Iterable[str]) -> np.ndarray:
    """Return the log importance weights of passages, float64 [N].

    A weight is log p(passage) under the n-gram frequencies of the task minus that under those of all passages; 0 without
    n-grams.

    Args:
        passages: iterated twice, so a list or a dataset column rather than a generator.
    """
    log_ratio = log_frequencies(task_texts) - log_frequencies(passages)
    return np.array([log_ratio[ngram_buckets(text)].sum() for text in passages])


def resample(log_weights: np.ndarray, ids: Sequence[str], size: int, seed: int = 0) -> np.ndarray:
    """Draw rows without replacement in proportion to exp(log_weights); return them ascending, int64 [size].

    A passage's random number is a hash of seed and id, so it does not depend on the other passages and their order.
    """
    bits = np.array([xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), seed=seed) for name in ids], np.uint64)
    uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53
    keys = log_weights - np.log(-np.log(uniform))
    return np.sort(np.argsort(-keys, kind="stable")[:size])
