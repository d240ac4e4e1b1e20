"""Engines of other packages behind the search of our own index: bm25s to compare with, rank_bm25 as the reference."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba
import numpy as np
import rank_bm25

from hf_tlm.retrieval.engines.bm25.tokenize import TokenizedTexts
from hf_tlm.retrieval.hits import NO_HITS, Hits
from hf_tlm.retrieval.settings import Bm25Settings, check_engine
from hf_tlm.retrieval.texts import RetrievalError, load_bm25s
from hf_tlm.utils.options import check_numbers

BATCH_BYTES = 64 * 2**20
MAX_BATCH = 256  # queries: enough to keep all cores busy, few enough for the progress bar to move


def search(
    queries: TokenizedTexts,
    corpus: TokenizedTexts,
    top_k: int,
    *,
    backend: str = "bm25s",
    settings: Bm25Settings | None = None,
    tie_key: np.ndarray | None = None,
) -> Iterator[Hits]:
    """The hits of every query, in the order of the queries.

    Args:
        queries, corpus: from `tokenize_texts` with the same analyser.
        top_k: K; larger than the corpus means the whole corpus.
        tie_key: int [N], distinct; among equal scores the smaller comes first. Default: order of the documents.

    Raises:
        RetrievalError: empty corpus, top_k below 1, unknown engine, or a variant which the engine lacks.
    """
    settings = settings or Bm25Settings()
    check_engine(backend, settings)
    check_numbers(RetrievalError, top_k=top_k)
    if len(corpus) == 0:
        raise RetrievalError("The corpus is empty: there is nothing to retrieve.")
    if tie_key is None:
        tie_key = np.arange(len(corpus))
    ids = {term: number for number, term in enumerate(corpus.vocabulary)}
    known = [[ids[term] for term in map(queries.vocabulary.__getitem__, query) if term in ids] for query in queries]
    if not any(known):
        return iter([NO_HITS] * len(known))
    return BACKENDS[backend](known, corpus, min(top_k, len(corpus)), settings, tie_key)


@contextmanager
def _torch_threads_kept():
    """Restore torch's number of threads after the block.

    The parallel loops of numba set OpenMP's number of threads, which is torch's too, and leave it so.
    """
    torch = sys.modules.get("torch")
    threads = torch and torch.get_num_threads()
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(threads)


def _search_bm25s(
    queries: list[list[int]], corpus: TokenizedTexts, top_k: int, settings: Bm25Settings, tie_key: np.ndarray
) -> Iterator[Hits]:
    """bm25s: every score precomputed in a sparse matrix; numba adds up the columns of a query's tokens."""
    bm25s = load_bm25s()
    engine = bm25s.BM25(
        method=settings.variant,
        k1=settings.k1,
        b=settings.b,
        delta=settings.used_delta,
        dtype="float64",
        backend="numba",
        csc_backend="scipy",
    )
    vocabulary = {term: number for number, term in enumerate(corpus.vocabulary)}
    engine.index(bm25s.tokenization.Tokenized(corpus, vocabulary), create_empty_token=False, show_progress=False)
    indices, indptr = engine.scores["indices"], engine.scores["indptr"]

    size = min(MAX_BATCH, max(1, BATCH_BYTES // (8 * (top_k + 1))))
    for start in range(0, len(queries), size):
        batch = queries[start : start + size]
        known = [query for query in batch if query]
        if known and top_k < len(corpus):
            # One more than K shows whether the cut falls inside a tie, where bm25s keeps arbitrary documents.
            threads = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # Numba sets its options as it is imported.
            with _torch_threads_kept():
                found = engine.retrieve(known, k=top_k + 1, show_progress=False, n_threads=threads)
            rows: Iterator[Hits | None] = zip(found.documents, found.scores.astype(np.float32), strict=True)
        else:
            rows = (None for _ in known)
        for query in batch:
            if not query:
                yield NO_HITS
                continue
            row = next(rows)
            if row is not None and row[1][top_k - 1] > row[1][top_k]:
                # Every variant here adds something above or equal to 0 for a shared token and the same constant for
                # all others: what beats the (K+1)-th shares a token.
                documents, scores = row[0][:top_k], row[1][:top_k]
            else:
                shares = np.zeros(len(corpus), bool)
                for token in set(query):
                    shares[indices[indptr[token] : indptr[token + 1]]] = True
                documents = np.flatnonzero(shares)
                scores = engine.get_scores_from_ids(query)[documents].astype(np.float32)
            yield _best(documents, scores, top_k, tie_key)


def _search_rank_bm25(
    queries: list[list[int]], corpus: TokenizedTexts, top_k: int, settings: Bm25Settings, tie_key: np.ndarray
) -> Iterator[Hits]:
    """rank_bm25: slow and readable, for tests and small corpora. Every document is scored for every query."""
    delta = {} if settings.used_delta is None else {"delta": settings.used_delta}
    engine = RANK_BM25[settings.variant](corpus, k1=settings.k1, b=settings.b, **delta)
    for query in queries:
        tokens = set(query)
        documents = np.flatnonzero([not tokens.isdisjoint(counts) for counts in engine.doc_freqs])
        scores = engine.get_scores(query)[documents].astype(np.float32)
        yield _best(documents, scores, top_k, tie_key)


class LuceneBM25(rank_bm25.BM25Okapi):
    """Lucene's idf, ln(1 + (N - df + 0.5) / (df + 0.5)), and no factor k1 + 1, which BM25Okapi multiplies by later."""

    def _calc_idf(self, nd):
        for token, df in nd.items():
            self.idf[token] = math.log(1 + (self.corpus_size - df + 0.5) / (df + 0.5)) / (self.k1 + 1)


class BM25L(rank_bm25.BM25L):
    """BM25L as in bm25s and Kamphuis et al.; rank_bm25's own multiplies by the term frequency once too often."""

    def get_scores(self, query):
        norm = 1 - self.b + self.b * np.array(self.doc_len) / self.avgdl
        score = np.zeros(self.corpus_size)
        for token in query:
            c = np.array([counts.get(token, 0) for counts in self.doc_freqs]) / norm
            score += self.idf.get(token, 0) * (self.k1 + 1) * (c + self.delta) / (self.k1 + c + self.delta)
        return score


# rank_bm25's constructors ignore k1 and b unless they are passed (its own default for k1 is 1.5).
RANK_BM25 = {"lucene": LuceneBM25, "okapi": rank_bm25.BM25Okapi, "bm25l": BM25L, "bm25+": rank_bm25.BM25Plus}
BACKENDS: dict[str, Callable[..., Iterator[Hits]]] = {"bm25s": _search_bm25s, "rank_bm25": _search_rank_bm25}


def _best(documents: np.ndarray, scores: np.ndarray, top_k: int, tie_key: np.ndarray) -> Hits:
    """The K best of some candidates by (score descending, tie key ascending)."""
    if len(documents) > top_k:
        enough = scores >= np.partition(scores, -top_k)[-top_k]
        documents, scores = documents[enough], scores[enough]
    order = np.lexsort((tie_key[documents], -scores))[:top_k]
    return documents[order].astype(np.int32), scores[order]
