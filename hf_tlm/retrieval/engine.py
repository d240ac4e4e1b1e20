"""Retrieval engines: each takes queries and returns the union of their top-K passages, in the order of a subset.

Our own index, sharded retrieval and Elasticsearch are implemented in other modules. This one calls them, and implements
the engines of other packages: bm25s for comparison, rank_bm25 as the reference.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import rank_bm25
from datasets import Dataset, concatenate_datasets

from hf_tlm.corpora.corpus import Corpus, Part
from hf_tlm.retrieval.bm25.build import tell_of_compiling
from hf_tlm.retrieval.bm25.files import META_FILE, ChangedIndexError, order_of_ids
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import TokenizedTexts, tokenize_texts
from hf_tlm.retrieval.hits import NO_HITS, Hits, RetrievalResult, union_of
from hf_tlm.retrieval.settings import Bm25Settings, ElasticSettings, Sharding, check_engine
from hf_tlm.retrieval.texts import RetrievalError, load_bm25s
from hf_tlm.utils.options import check_numbers

logger = logging.getLogger(__name__)

BATCH_BYTES = 64 * 2**20
MAX_BATCH = 256  # Queries per batch: enough to keep all cores busy, few enough for the progress bar to move.


@dataclass(frozen=True)
class RetrievalRequest:
    """A retrieval request: the queries and settings that every engine receives.

    name: the task's name, for messages; query_ids, queries: the training examples and their query texts; folder: directory
    of indexes and work in progress; index_dir: directory that the user chose for this corpus's index.
    """

    name: str
    query_ids: Sequence[str]
    queries: Sequence[str]
    top_k: int
    settings: Bm25Settings
    max_query_terms: int | None
    folder: Path
    index_dir: str | None = None
    num_threads: int | None = None
    query_batch_size: int | None = None

    def digest(self, *more: Any) -> str:
        """Return a hash of the search, and of `more` values that its work in progress depends on."""
        fields = [self.queries, self.top_k, self.settings.to_dict(), self.max_query_terms, *map(str, more)]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]

    def tokenize(self) -> TokenizedTexts:
        """Tokenize the queries; raise a RetrievalError if all of them are empty, and warn if some are."""
        tokenized = tokenize_texts(self.queries, self.settings.analyzer)
        empty = np.flatnonzero(np.diff(tokenized.offsets) == 0)
        if len(empty) == len(tokenized):
            every_word = replace(self.settings.analyzer, stopwords=None)
            stopwords_alone = tokenize_texts(self.queries, every_word).offsets[-1] > 0
            raise RetrievalError(
                f"All {len(tokenized)} queries of {self.name} are empty once stop words and single characters are "
                "dropped. Check the task's text column, or "
                + (
                    "keep stop words (--keep_stopwords, stopwords=None in Python)."
                    if stopwords_alone
                    else "draw a random subset (--retriever random): no query has a word of two letters or digits."
                )
            )
        if len(empty):
            logger.warning("%d of %d queries are empty, first: %s.", len(empty), len(tokenized), self.query_ids[empty[0]])
        return tokenized

    def check_found(self, found: int, passages: int) -> None:
        """Check that at least one passage was found, or raise a RetrievalError."""
        if found == 0:
            raise RetrievalError(
                f"None of the {len(self.queries)} queries of {self.name} shares a word with any of the {passages} "
                "passages. Check that task and corpus are in the same language and that the right columns are read."
            )


def search_corpus(engine: str, search: RetrievalRequest, corpus: Corpus) -> RetrievalResult:
    """Search a corpus on this machine with our own index or with the engine of another package."""
    tell_of_compiling()
    queries = search.tokenize()
    passages, index = _open_index(search, corpus) if engine == "bm25" else (corpus.to_dataset(str(search.folder)), None)
    if search.top_k > len(passages):
        logger.warning("top_k %d is larger than the corpus: using K = %d, all of its passages.", search.top_k, len(passages))
    if index is not None:
        order = index.order
        hits = index.search(
            queries,
            search.top_k,
            settings=search.settings,
            max_query_terms=search.max_query_terms,
            num_threads=search.num_threads,
            query_batch_size=search.query_batch_size,
        )
    else:
        order = order_of_ids(pa.array(passages["id"][:]))
        tokenized = tokenize_texts(passages["text"][:], search.settings.analyzer)
        reduced = queries
        if search.max_query_terms is not None:
            reduced = rarest_terms(queries, tokenized, search.max_query_terms)
        hits = search_package(reduced, tokenized, search.top_k, backend=engine, settings=search.settings, tie_key=order)
    union, without_hits = union_of(hits, len(search.queries), len(passages))
    rows = union.order(order)
    search.check_found(len(rows), len(passages))
    without_hits = [query for query in without_hits if queries.offsets[query] < queries.offsets[query + 1]]
    counts = {
        "passages": len(passages),
        "sources": count_sources(passages),
        "bad_files": list(corpus.bad_files),
    }
    return RetrievalResult(passages.select(rows), union.columns(rows), counts, without_hits)


def search_shards(search: RetrievalRequest, corpus: Corpus, sharding: Sharding) -> RetrievalResult:
    """Search a corpus larger than one machine, shard by shard."""
    from hf_tlm.retrieval.sharded.sharded import retrieve_sharded

    result = retrieve_sharded(
        search.tokenize(),
        corpus,
        search.top_k,
        search.settings,
        work_dir=sharding.work_dir or search.folder / f"sharded-{corpus.fingerprint}-{search.digest(sharding)}",
        num_shards=sharding.num_shards,
        executor=sharding.executor,
        workers=sharding.workers,
        max_query_terms=search.max_query_terms,
        query_batch_size=search.query_batch_size,
        executor_options=sharding.options,
        cache_dir=str(search.folder),
    )
    search.check_found(len(result.passages), result.counts["passages"])
    return result


def search_elastic(search: RetrievalRequest, corpus: Corpus | None, elastic: ElasticSettings) -> RetrievalResult:
    """Search an index of an Elasticsearch cluster; build it first if a corpus is given and the index does not exist."""
    from hf_tlm.retrieval.elastic_index import index_corpus
    from hf_tlm.retrieval.elastic_search import retrieve_elastic

    counts: dict[str, Any] = {}
    if corpus is not None:
        passages = corpus.to_dataset(str(search.folder))
        index_corpus(passages, elastic, search.settings, corpus_name=corpus.name, fingerprint=corpus.fingerprint)
        counts = {"sources": count_sources(passages), "bad_files": list(corpus.bad_files)}
    result = retrieve_elastic(
        search.query_ids,
        search.queries,
        search.top_k,
        elastic,
        search.settings,
        max_query_terms=search.max_query_terms,
    )
    # The caller counts empty queries separately.
    analyzer = search.settings.analyzer if result.counts["fingerprint"] else str.split
    without_hits = [query for query in result.without_hits if analyzer(search.queries[query])]
    return replace(result, counts=counts | result.counts, without_hits=without_hits)


def search_package(
    queries: TokenizedTexts,
    corpus: TokenizedTexts,
    top_k: int,
    *,
    backend: str = "bm25s",
    settings: Bm25Settings | None = None,
    tie_key: np.ndarray | None = None,
) -> Iterator[Hits]:
    """Search with the engine of another package and return the hits of every query, in the order of the queries.

    Args:
        queries, corpus: from `tokenize_texts` with the same analyzer.
        top_k: K; larger than the corpus means all of it.
        backend: "bm25s" or "rank_bm25".
        tie_key: int [N], distinct; among equal scores the smaller comes first. Default: order of the documents.

    Raises:
        RetrievalError: the corpus is empty, top_k is below 1, the engine is unknown, or it lacks the variant.
    """
    settings = settings or Bm25Settings()
    if backend not in BACKENDS:
        raise RetrievalError(
            f"backend: expected one of {', '.join(BACKENDS)}; received {backend!r}. For our own index, use Index.search."
        )
    check_engine(backend, settings)
    check_numbers(RetrievalError, top_k=top_k)
    if len(corpus) == 0:
        raise RetrievalError("The corpus is empty: there is nothing to retrieve.")
    if tie_key is None:
        tie_key = np.arange(len(corpus))
    ids = {term: index for index, term in enumerate(corpus.vocabulary)}
    known_terms = [[ids[term] for term in map(queries.vocabulary.__getitem__, query) if term in ids] for query in queries]
    if not any(known_terms):
        return iter([NO_HITS] * len(known_terms))
    return BACKENDS[backend](known_terms, corpus, min(top_k, len(corpus)), settings, tie_key)


def rarest_terms(queries: TokenizedTexts, corpus: TokenizedTexts, max_query_terms: int) -> TokenizedTexts:
    """Reduce every query to its `max_query_terms` terms that occur in the fewest passages; of equally rare ones, the first.

    Terms that occur in no passage are dropped; a repeated term keeps all of its occurrences.
    """
    owner = np.repeat(np.arange(len(corpus)), np.diff(corpus.offsets))
    in_passages = np.unique(owner * max(len(corpus.vocabulary), 1) + corpus.ids) % max(len(corpus.vocabulary), 1)
    frequencies = dict(zip(corpus.vocabulary, np.bincount(in_passages, minlength=len(corpus.vocabulary)), strict=True))
    frequency = np.array([frequencies.get(term, 0) for term in queries.vocabulary])
    kept = []
    for query in queries:
        corpus_terms = dict.fromkeys(term for term in query if frequency[term])
        chosen = set(sorted(corpus_terms, key=frequency.__getitem__)[:max_query_terms])
        kept.append([term for term in query if term in chosen])
    offsets = np.concatenate([[0], np.cumsum([len(query) for query in kept])])
    return TokenizedTexts(np.array([term for query in kept for term in query], np.int32), offsets, queries.vocabulary)


def count_sources(passages: Dataset) -> dict[str, int]:
    """Count the passages of each source, the most frequent source first."""
    counted = pc.value_counts(passages.with_format("arrow").data.column("source")).to_pylist()
    return {entry["values"]: entry["counts"] for entry in sorted(counted, key=lambda e: (-e["counts"], e["values"]))}


def _open_index(search: RetrievalRequest, corpus: Corpus) -> tuple[Dataset, Index]:
    """Return the corpus as a dataset and its index, built if needed, with the passages in the same order.

    If the user chose the index's directory and its index lacks files of the corpus, it is extended with them.
    """
    passages = corpus.to_dataset(str(search.folder))
    parts = {part.fingerprint: part for part in corpus.parts if part.name not in corpus.bad_files}
    fingerprint = corpus.fingerprint
    if corpus.bad_files:  # They may be readable the next time, so this index must not be taken for the complete one.
        fingerprint += "-without-" + hashlib.sha256("\n".join(corpus.bad_files).encode()).hexdigest()[:8]
    analyzer = search.settings.analyzer
    name = f"index-{fingerprint}-{analyzer.stopwords or 'all'}-{analyzer.stemmer or 'words'}"
    name += f"-{analyzer.script}" if analyzer.script else ""
    directory = Path(search.index_dir or search.folder / name)
    if search.index_dir is not None and (directory / META_FILE).exists():
        _extend_index(directory, parts, fingerprint, corpus.name, search)
    index = Index.open_or_build(
        directory,
        passages,
        corpus_name=corpus.name,
        fingerprint=fingerprint,
        analyzer=analyzer,
        parts=list(parts),
        num_threads=search.num_threads,
    )
    # An extended index may have the parts in another order; one built as a single part has the corpus's order.
    if index.parts not in (list(parts), [fingerprint]):
        passages = _concatenate_parts([parts[part] for part in index.parts], search.folder)
    return passages, index


def _extend_index(
    directory: Path, parts: Mapping[str, Part], fingerprint: str, corpus_name: str, search: RetrievalRequest
) -> None:
    """Extend an index with the parts that it lacks, if it already holds some of these parts and no others.

    If another process changes the index meanwhile, load it again and add only what is still missing.
    """
    while True:
        index = Index.load(directory, analyzer=search.settings.analyzer)
        if not set(index.parts) < set(parts):
            return
        new = [part for part in parts if part not in index.parts]
        rows = _concatenate_parts([parts[part] for part in new], search.folder)
        with contextlib.suppress(ChangedIndexError):
            index.extend(rows, fingerprint=fingerprint, corpus_name=corpus_name, parts=new, num_threads=search.num_threads)


def _concatenate_parts(parts: Sequence[Part], folder: Path) -> Dataset:
    """Concatenate the passages of some parts, in this order."""
    return concatenate_datasets([part.to_dataset(str(folder)) for part in parts])


@contextmanager
def _keep_torch_threads():
    """Restore torch's number of threads after the block.

    numba's parallel loops set OpenMP's number of threads, which torch shares, and do not reset it.
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
    """Search with bm25s, which precomputes every score in a sparse matrix and adds up the columns of a query's tokens.

    numba does the adding.
    """
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
    vocabulary = {term: index for index, term in enumerate(corpus.vocabulary)}
    engine.index(bm25s.tokenization.Tokenized(corpus, vocabulary), create_empty_token=False, show_progress=False)
    indices, indptr = engine.scores["indices"], engine.scores["indptr"]

    size = min(MAX_BATCH, max(1, BATCH_BYTES // (8 * (top_k + 1))))
    for start in range(0, len(queries), size):
        batch = queries[start : start + size]
        non_empty = [query for query in batch if query]
        if non_empty and top_k < len(corpus):
            # K + 1 hits show whether the cut falls inside a tie, where bm25s keeps arbitrary documents.
            threads = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # Numba sets its options on import.
            with _keep_torch_threads():
                results = engine.retrieve(non_empty, k=top_k + 1, show_progress=False, n_threads=threads)
            rows: Iterator[Hits | None] = zip(results.documents, results.scores.astype(np.float32), strict=True)
        else:
            rows = (None for _ in non_empty)
        for query in batch:
            if not query:
                yield NO_HITS
                continue
            row = next(rows)
            if row is not None and row[1][top_k - 1] > row[1][top_k]:
                # Every variant here adds at least 0 for a shared token, and the same constant for all other documents:
                # a document that scores above the (K+1)-th shares a token.
                documents, scores = row[0][:top_k], row[1][:top_k]
            else:
                has_token = np.zeros(len(corpus), bool)
                for token in set(query):
                    has_token[indices[indptr[token] : indptr[token + 1]]] = True
                documents = np.flatnonzero(has_token)
                scores = engine.get_scores_from_ids(query)[documents].astype(np.float32)
            yield _select_best(documents, scores, top_k, tie_key)


def _search_rank_bm25(
    queries: list[list[int]], corpus: TokenizedTexts, top_k: int, settings: Bm25Settings, tie_key: np.ndarray
) -> Iterator[Hits]:
    """Search with rank_bm25, which scores every document for every query: slow and readable, for tests and small corpora."""
    delta = {} if settings.used_delta is None else {"delta": settings.used_delta}
    engine = RANK_BM25[settings.variant](corpus, k1=settings.k1, b=settings.b, **delta)
    for query in queries:
        tokens = set(query)
        documents = np.flatnonzero([not tokens.isdisjoint(counts) for counts in engine.doc_freqs])
        scores = engine.get_scores(query)[documents].astype(np.float32)
        yield _select_best(documents, scores, top_k, tie_key)


class LuceneBM25(rank_bm25.BM25Okapi):
    """Lucene's BM25: rank_bm25's BM25Okapi with the idf ln(1 + (N - df + 0.5) / (df + 0.5)).

    The idf is divided by k1 + 1, because Lucene lacks that factor and BM25Okapi multiplies by it later.
    """

    def _calc_idf(self, nd):
        for token, df in nd.items():
            self.idf[token] = math.log(1 + (self.corpus_size - df + 0.5) / (df + 0.5)) / (self.k1 + 1)


class BM25L(rank_bm25.BM25L):
    """BM25L as in bm25s and Kamphuis et al.; rank_bm25's own class multiplies by the term frequency once too often."""

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


def _select_best(documents: np.ndarray, scores: np.ndarray, top_k: int, tie_key: np.ndarray) -> Hits:
    """Return the K best candidates, ordered by (score descending, tie key ascending)."""
    if len(documents) > top_k:
        is_candidate = scores >= np.partition(scores, -top_k)[-top_k]
        documents, scores = documents[is_candidate], scores[is_candidate]
    order = np.lexsort((tie_key[documents], -scores))[:top_k]
    return documents[order].astype(np.int32), scores[order]
