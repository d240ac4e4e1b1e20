"""DSIR: passages resampled by how much more likely their n-grams are in the task's texts (Xie et al., NeurIPS 2023).

A text is a bag of unigrams and bigrams, each hashed into one of 10,000 buckets. With bucket frequencies p (task) and q
(subset), the log importance weight of a passage is the sum over its n-grams of log p - log q; passages are drawn without
replacement in proportion to their weights, by the Gumbel top-n trick (section 3 and algorithm 1 of
https://arxiv.org/abs/2302.03169).

The weights of the authors' package, `data-selection` 1.0.3, are the same once its smoothing, hash and splitting are. What
differs:

- Smoothing: it adds 1e-8 to every frequency. The task's texts are few, and an n-gram that they lack then has log p = -18.4
  where log q is some -10: the weights are little but the number of such n-grams. Here one is added to every count.
- Hash: SHA-256; here XXH3, of a tenth of the time. Other n-grams share a bucket.
- Splitting: the pattern is the same; nltk 3.10 matches it by `regex`, to which a combining mark is part of a word. Here, as
  in earlier versions, it is Python's `re`, to which it is punctuation.
- What p and q are counted on: the task's texts and the first 10^9 n-grams of the passages; here all of both.
- Minimum length: it never draws a passage of fewer than 100 words; here any may be drawn, as by the other methods: the
  passages are those of a subset, and a fraction is one of all of them.
- Random numbers: those of numpy's global generator; here a hash of seed and id, so that a selection can be made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

NUM_BUCKETS = 10_000
# Words, and runs of punctuation between them, as the authors' package splits texts.
_TOKEN = re.compile(r"\w+|[^\w\s]+")


def ngram_buckets(text: str, num_buckets: int = NUM_BUCKETS) -> np.ndarray:
    """int64 [n-grams]: the bucket of every unigram and bigram of the lower-cased text."""
    words = _TOKEN.findall(text.lower())
    ngrams = [*words, *map(" ".join, zip(words, words[1:], strict=False))]
    hashes = [xxhash.xxh3_64_intdigest(ngram.encode("utf-8", "surrogatepass")) for ngram in ngrams]
    return (np.array(hashes, np.uint64) % num_buckets).astype(np.int64)


def log_frequencies(texts: Iterable[str], num_buckets: int = NUM_BUCKETS) -> np.ndarray:
    """float64 [buckets]: log of the share of the texts' n-grams in each bucket, one added to every count."""
    counts = np.ones(num_buckets)
    for text in texts:
        counts += np.bincount(ngram_buckets(text, num_buckets), minlength=num_buckets)
    return np.log(counts / counts.sum())


def log_importance_weights(task_texts: Iterable[str], passages: Iterable[str], num_buckets: int = NUM_BUCKETS) -> np.ndarray:
    """float64 [N]: log p(passage) under the task's n-grams minus the same under those of all passages; 0 without n-grams.

    Args:
        passages: iterated twice, so a list or a dataset column rather than a generator.
    """
    log_ratio = log_frequencies(task_texts, num_buckets) - log_frequencies(passages, num_buckets)
    return np.array([log_ratio[ngram_buckets(text, num_buckets)].sum() for text in passages])


def resample(log_weights: np.ndarray, ids: Sequence[str], size: int, seed: int = 0) -> np.ndarray:
    """int64 [size]: rows drawn without replacement in proportion to exp(log_weights), ascending.

    A passage's random number is a hash of seed and id: the same whatever the other passages and their order.
    """
    bits = np.array([xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), seed=seed) for name in ids], np.uint64)
    uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53
    keys = log_weights - np.log(-np.log(uniform))
    return np.sort(np.argsort(-keys, kind="stable")[:size])
