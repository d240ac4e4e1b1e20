"""BM25 in process: bm25s as the engine, rank_bm25 as the readable reference, over the same tokens.

Both give the exact top K of every query, ordered by score and then by passage id, so that the result is a function of
the corpus and the settings alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm.auto import tqdm

from hf_tlm.retrieval.queries import RetrievalError

# Lucene's English stop words, Elasticsearch's default list.
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
_WORD = re.compile(r"\w\w+")
_QUERY_BATCH_BYTES = 64 << 20

Hits = Iterator[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Bm25Settings:
    """BM25's parameters; the defaults are Elasticsearch's, which the paper used.

    variant: `lucene`, `robertson`, `atire`, `bm25l`, `bm25+` (bm25s); `lucene`, `okapi`, `bm25l`, `bm25+` (rank_bm25).
        rank_bm25's `okapi` has an idf of its own, floored where negative, and agrees with none of bm25s's.
    delta: of `bm25l` and `bm25+`.
    stopwords: `en` drops English stop words from passages and queries; None keeps every word.
    """

    variant: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    delta: float = 1.0
    stopwords: str | None = "en"

    def __post_init__(self):
        if self.k1 < 0 or not 0 <= self.b <= 1 or self.delta < 0:
            raise RetrievalError(f"BM25 needs k1 >= 0, 0 <= b <= 1 and delta >= 0; received {self}.")
        if self.stopwords not in (None, "en"):
            raise RetrievalError(f"stopwords must be 'en' or None; received {self.stopwords!r}.")


def analyze(text: str, settings: Bm25Settings) -> list[str]:
    """Lower-cased words of two characters or more, without stop words: the terms of a passage or a query."""
    words = _WORD.findall(text.lower())
    return words if settings.stopwords is None else [word for word in words if word not in STOP_WORDS]


def _bm25s_hits(
    passages: Iterable[str], queries: Sequence[Sequence[str]], top_k: int, settings: Bm25Settings, num_passages: int
) -> Hits:
    import bm25s

    vocabulary: dict[str, int] = {}
    ids: list[np.ndarray] = []
    for text in tqdm(passages, total=num_passages, desc="Tokenising the corpus", unit=" passages"):
        terms = [vocabulary.setdefault(term, len(vocabulary)) for term in analyze(text, settings)]
        ids.append(np.array(terms, dtype=np.int32))
    engine = bm25s.BM25(
        method=settings.variant, k1=settings.k1, b=settings.b, delta=settings.delta, backend="numba"
    )
    engine.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    del ids
    known = [[vocabulary[term] for term in query if term in vocabulary] for query in queries]
    # One more than asked for tells whether the last place is tied with a passage outside.
    asked = min(top_k + 1, num_passages)
    batch_size = max(1, _QUERY_BATCH_BYTES // (8 * asked))
    absent = engine.nonoccurrence_array
    with tqdm(total=len(known), desc="Searching", unit=" queries") as bar:
        for start in range(0, len(known), batch_size):
            batch = known[start : start + batch_size]
            searched = [query for query in batch if query]
            results = iter(())
            if searched:
                found = engine.retrieve(searched, k=asked, sorted=True, show_progress=False, n_threads=0)
                results = zip(found.documents, found.scores, strict=True)
            for query in batch:
                bar.update()
                if not query:
                    yield _NO_HITS
                    continue
                documents, scores = next(results)
                if asked > top_k and scores[top_k - 1] == scores[top_k]:
                    scores = engine.get_scores_from_ids(query)
                    documents = np.arange(num_passages)
                # bm25l and bm25+ give every passage something for each term, also for those it lacks.
                floor = 0.0 if absent is None else float(absent[query].sum())
                yield _top(documents, scores, top_k, scores > floor + 1e-6 * (1 + floor) * (floor > 0))


def _rank_bm25_hits(
    passages: Iterable[str], queries: Sequence[Sequence[str]], top_k: int, settings: Bm25Settings, num_passages: int
) -> Hits:
    import rank_bm25

    class Lucene(rank_bm25.BM25Okapi):
        """rank_bm25's formula with Lucene's idf, which is never negative, and without the constant factor k1 + 1."""

        def _calc_idf(self, nd):
            self.idf = {
                word: math.log(1 + (self.corpus_size - freq + 0.5) / (freq + 0.5)) / (self.k1 + 1)
                for word, freq in nd.items()
            }

    documents = [analyze(text, settings) for text in tqdm(passages, total=num_passages, desc="Tokenising the corpus")]
    classes = {
        "lucene": (Lucene, {}),
        "okapi": (rank_bm25.BM25Okapi, {}),
        "bm25l": (rank_bm25.BM25L, {"delta": settings.delta}),
        "bm25+": (rank_bm25.BM25Plus, {"delta": settings.delta}),
    }
    make, extra = classes[settings.variant]
    engine = make(documents, k1=settings.k1, b=settings.b, **extra)
    everything = np.arange(num_passages)
    for query in tqdm(queries, desc="Searching", unit=" queries"):
        terms = set(query)
        hit = np.fromiter((not terms.isdisjoint(words) for words in engine.doc_freqs), bool, num_passages)
        yield _top(everything, engine.get_scores(query), top_k, hit)


_NO_HITS = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))


def _top(documents: np.ndarray, scores: np.ndarray, top_k: int, hit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best `top_k` hits, by score, then by position."""
    documents, scores = documents[hit].astype(np.int64), scores[hit]
    if len(documents) > 4 * top_k:
        # Everything that scores at least the K-th value: enough to order exactly.
        kth = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        documents, scores = documents[scores >= kth], scores[scores >= kth]
    order = np.lexsort((documents, -scores))[:top_k]
    return documents[order], scores[order].astype(np.float32)


BACKENDS: dict[str, tuple[Callable[..., Hits], tuple[str, ...]]] = {
    "bm25s": (_bm25s_hits, ("lucene", "robertson", "atire", "bm25l", "bm25+")),
    "rank_bm25": (_rank_bm25_hits, ("lucene", "okapi", "bm25l", "bm25+")),
}


def search(
    passages: Iterable[str],
    num_passages: int,
    queries: Sequence[Sequence[str]],
    top_k: int,
    settings: Bm25Settings,
    backend: str = "bm25s",
) -> Hits:
    """The exact top K of each query.

    Args:
        passages: texts in the order of their ids, which breaks ties.
        queries: terms, from `analyze`.

    Yields:
        For each query (positions int64 [k], scores float32 [k]), best first; k <= top_k. Only passages that share a
        term with the query are hits.

    Raises:
        RetrievalError: an unknown backend, or a variant it does not have.
    """
    if backend not in BACKENDS:
        raise RetrievalError(f"The BM25 backends are {', '.join(BACKENDS)}; received {backend!r}.")
    function, variants = BACKENDS[backend]
    if settings.variant not in variants:
        have = "; ".join(f"{name} has {', '.join(names)}" for name, (_, names) in BACKENDS.items())
        raise RetrievalError(f"{backend} has no BM25 variant {settings.variant!r}: {have}.")
    return function(passages, queries, top_k, settings, num_passages)
