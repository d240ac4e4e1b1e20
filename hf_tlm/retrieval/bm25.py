"""BM25 top-K: one analyser, two engines behind one interface, and one exact order of the results.

The score of a document is the float64 sum over the query's tokens (a repeated token counts each time), rounded to
float32. Documents are ordered by score, highest first, then by tie key, smallest first. Rounding makes sums equal that
differ only in the order of their terms, so engines agree and ties do not depend on the arithmetic. A document is a hit
only if it shares a token with the query.

Variants and their names: Kamphuis et al. 2020, "Which BM25 do you mean?"; Lu 2024, "BM25S".
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import rank_bm25

from hf_tlm.files import HfTlmError

VARIANTS = {
    "bm25s": ("lucene", "robertson", "atire", "bm25l", "bm25+"),
    "rank_bm25": ("lucene", "okapi", "bm25l", "bm25+"),
}
DEFAULT_DELTA = {"bm25l": 0.5, "bm25+": 1.0}
BATCH_BYTES = 64 * 2**20
MAX_BATCH = 256  # queries: enough to keep all cores busy, few enough for the progress bar to move

_WORD = re.compile(r"\w\w+")

# Documents int32 [n] and scores float32 [n] of one query, best first; n <= K.
Hits = tuple[np.ndarray, np.ndarray]
NO_HITS: Hits = (np.empty(0, np.int32), np.empty(0, np.float32))


class RetrievalError(HfTlmError):
    """Queries, settings or a subset that cannot be used."""


@dataclass(frozen=True)
class Bm25Settings:
    """What a BM25 score depends on besides the texts.

    Args:
        variant: see VARIANTS for what each engine offers. "lucene" is Lucene's and so Elasticsearch's.
        k1: saturation of the term frequency, above 0.
        b: strength of the length normalisation, 0 to 1.
        delta: lower bound of bm25l and bm25+ for a term that occurs; None: 0.5 for bm25l, 1.0 for bm25+.
        stopwords: "en" drops Lucene's 33 English stop words from queries and documents, None keeps every word.

    Raises:
        RetrievalError: a value out of range, an unknown variant, or a delta for a variant that has none.
    """

    variant: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    delta: float | None = None
    stopwords: str | None = "en"

    def __post_init__(self):
        if not any(self.variant in variants for variants in VARIANTS.values()):
            raise RetrievalError(f"There is no BM25 variant {self.variant!r}. {_offers()}")
        if not (self.k1 > 0 and math.isfinite(self.k1)):
            raise RetrievalError(f"k1 must be a finite number above 0 (usual: 1.2 to 2); received {self.k1!r}.")
        if not 0 <= self.b <= 1:
            raise RetrievalError(f"b must lie between 0 and 1 (usual: 0.75); received {self.b!r}.")
        if self.delta is not None:
            if self.variant not in DEFAULT_DELTA:
                raise RetrievalError(
                    f"delta belongs to the variants {', '.join(DEFAULT_DELTA)}; {self.variant!r} has none, but got "
                    f"{self.delta!r}. Leave it out."
                )
            if not (self.delta >= 0 and math.isfinite(self.delta)):
                raise RetrievalError(f"delta must be a finite number, 0 or above; received {self.delta!r}.")
        if self.stopwords not in ("en", None):
            raise RetrievalError(f'stopwords must be "en" or None (keep every word); received {self.stopwords!r}.')

    @property
    def used_delta(self) -> float | None:
        """`delta`, or the variant's default; None for a variant without one."""
        return DEFAULT_DELTA.get(self.variant) if self.delta is None else self.delta

    @property
    def stopword_set(self) -> frozenset[str]:
        from bm25s.stopwords import STOPWORDS_EN

        return frozenset(STOPWORDS_EN) if self.stopwords == "en" else frozenset()


def analyze(text: str, stopwords: frozenset[str] = frozenset()) -> list[str]:
    """Tokens of a query or a document: lower case, runs of two or more word characters, stop words dropped."""
    return [word for word in _WORD.findall(text.lower()) if word not in stopwords]


@dataclass
class TokenizedCorpus:
    """Documents as token ids in one array, 4 bytes a token. Iteration gives one list of ids per document.

    ids: int32 [tokens]; offsets: int64 [N + 1], where documents begin and end; vocabulary: token -> id.
    """

    ids: np.ndarray
    offsets: np.ndarray
    vocabulary: dict[str, int]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for start, end in pairwise(self.offsets):
            yield self.ids[start:end].tolist()


def tokenize_corpus(texts: Iterable[str], stopwords: frozenset[str] = frozenset()) -> TokenizedCorpus:
    """Tokenise a stream of documents; only ids and the vocabulary are kept."""
    vocabulary: defaultdict[str, int] = defaultdict()
    vocabulary.default_factory = vocabulary.__len__
    ids, offsets = array("i"), array("q", [0])
    for text in texts:
        ids.extend(map(vocabulary.__getitem__, analyze(text, stopwords)))
        offsets.append(len(ids))
    vocabulary.default_factory = None
    return TokenizedCorpus(np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64), vocabulary)


def check_backend(backend: str, settings: Bm25Settings) -> None:
    """Raise RetrievalError unless there is such an engine and it has the variant."""
    if backend not in BACKENDS:
        raise RetrievalError(f"There is no BM25 engine {backend!r}; expected one of {', '.join(BACKENDS)}.")
    if settings.variant not in VARIANTS[backend]:
        raise RetrievalError(f"{backend} has no BM25 variant {settings.variant!r}. {_offers()}")


def search(
    queries: Sequence[Sequence[str]],
    corpus: TokenizedCorpus,
    top_k: int,
    *,
    backend: str = "bm25s",
    settings: Bm25Settings | None = None,
    tie_key: np.ndarray | None = None,
) -> Iterator[Hits]:
    """The hits of every query, in the order of the queries; memory stays bounded whatever their number.

    Args:
        queries: tokens of each query, from `analyze` with the stop words of the corpus.
        top_k: K; larger than the corpus means the whole corpus.
        tie_key: int [N], distinct; among equal scores the smaller comes first. Default: order of the documents.

    Raises:
        RetrievalError: empty corpus, top_k below 1, unknown engine, or a variant which the engine lacks.
    """
    settings = settings or Bm25Settings()
    check_backend(backend, settings)
    if top_k < 1:
        raise RetrievalError(f"top_k must be at least 1; received {top_k}.")
    if len(corpus) == 0:
        raise RetrievalError("The corpus is empty: there is nothing to retrieve.")
    if tie_key is None:
        tie_key = np.arange(len(corpus))
    known = [[corpus.vocabulary[token] for token in query if token in corpus.vocabulary] for query in queries]
    if not any(known):
        return iter([NO_HITS] * len(known))
    return BACKENDS[backend](known, corpus, min(top_k, len(corpus)), settings, tie_key)


def _search_bm25s(
    queries: list[list[int]], corpus: TokenizedCorpus, top_k: int, settings: Bm25Settings, tie_key: np.ndarray
) -> Iterator[Hits]:
    """bm25s: every score precomputed in a sparse matrix; numba adds up the columns of a query's tokens."""
    import bm25s
    import numba
    from bm25s.tokenization import Tokenized

    engine = bm25s.BM25(
        method=settings.variant,
        k1=settings.k1,
        b=settings.b,
        delta=settings.used_delta,
        dtype="float64",
        backend="numba",
        csc_backend="scipy",
    )
    engine.index(Tokenized(corpus, corpus.vocabulary), create_empty_token=False, show_progress=False)
    indices, indptr = engine.scores["indices"], engine.scores["indptr"]

    size = min(MAX_BATCH, max(1, BATCH_BYTES // (8 * (top_k + 1))))
    for start in range(0, len(queries), size):
        batch = queries[start : start + size]
        known = [query for query in batch if query]
        if known and top_k < len(corpus):
            # One more than K shows whether the cut falls inside a tie, where bm25s keeps arbitrary documents.
            found = engine.retrieve(known, k=top_k + 1, show_progress=False, n_threads=numba.config.NUMBA_NUM_THREADS)
            rows = zip(found.documents, found.scores.astype(np.float32), strict=True)
        else:
            rows = ((None, None) for _ in known)
        for query in batch:
            if not query:
                yield NO_HITS
                continue
            documents, scores = next(rows)
            if documents is not None and scores[top_k - 1] > scores[top_k]:
                # Every variant here adds something above or equal to 0 for a shared token and the same constant for
                # all others: what beats the (K+1)-th shares a token.
                documents, scores = documents[:top_k], scores[:top_k]
            else:
                shares = np.zeros(len(corpus), bool)
                for token in set(query):
                    shares[indices[indptr[token] : indptr[token + 1]]] = True
                documents = np.flatnonzero(shares)
                scores = engine.get_scores_from_ids(query)[documents].astype(np.float32)
            yield _best(documents, scores, top_k, tie_key)


def _search_rank_bm25(
    queries: list[list[int]], corpus: TokenizedCorpus, top_k: int, settings: Bm25Settings, tie_key: np.ndarray
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


def _offers() -> str:
    return "Variants: " + "; ".join(f"{name}: {', '.join(variants)}" for name, variants in VARIANTS.items()) + "."
