"""Where hits come from: every engine takes queries and gives the union of their top K, in the order of a subset."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets

from hf_tlm.corpora.corpus import Corpus, Part
from hf_tlm.retrieval.engines import packages as backends
from hf_tlm.retrieval.engines.bm25.build import tell_of_compiling
from hf_tlm.retrieval.engines.bm25.files import META_FILE, ChangedIndexError, order_of_ids
from hf_tlm.retrieval.engines.bm25.index import Index
from hf_tlm.retrieval.engines.bm25.tokenize import TokenizedTexts, tokenize_texts
from hf_tlm.retrieval.hits import RetrievalResult, union_of
from hf_tlm.retrieval.settings import Bm25Settings, ElasticSettings, Sharding
from hf_tlm.retrieval.texts import RetrievalError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetrievalRequest:
    """What every engine is asked.

    query_ids, queries: the training examples and their query texts; folder: where indexes and work in progress are kept;
    index_dir: a folder for this corpus's index that the user chose.
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
        """Names a search and whatever else its work in progress depends on."""
        asked = [self.queries, self.top_k, self.settings.to_dict(), self.max_query_terms, *map(str, more)]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    def tokenize(self) -> TokenizedTexts:
        """The queries' terms; a RetrievalError where there is not one."""
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
                    else "take a random subset (--retriever random): no query has a word of two letters or digits."
                )
            )
        if len(empty):
            logger.warning("%d of %d queries are empty, first: %s.", len(empty), len(tokenized), self.query_ids[empty[0]])
        return tokenized

    def check_found(self, found: int, passages: int) -> None:
        """Raise RetrievalError unless something was found."""
        if found == 0:
            raise RetrievalError(
                f"None of the {len(self.queries)} queries of {self.name} shares a word with any of the {passages} "
                "passages. Check that task and corpus are in the same language and that the right columns are read."
            )


def search_corpus(engine: str, search: RetrievalRequest, corpus: Corpus) -> RetrievalResult:
    """Our own index, or an engine of another package, over a corpus on this machine."""
    tell_of_compiling()
    queries = search.tokenize()
    passages, index = _indexed(search, corpus) if engine == "bm25" else (corpus.to_dataset(str(search.folder)), None)
    if search.top_k > len(passages):
        logger.warning("top_k %d is larger than the corpus: K = %d, all of it.", search.top_k, len(passages))
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
        asked = queries
        if search.max_query_terms is not None:
            asked = rarest_terms(queries, tokenized, search.max_query_terms)
        hits = backends.search(asked, tokenized, search.top_k, backend=engine, settings=search.settings, tie_key=order)
    union, without_hits = union_of(hits, len(search.queries), len(passages))
    rows = union.order(order)
    search.check_found(len(rows), len(passages))
    without_hits = [number for number in without_hits if queries.offsets[number] < queries.offsets[number + 1]]
    counts = {
        "passages": len(passages),
        "sources": count_sources(passages),
        "bad_files": list(corpus.bad_files),
    }
    return RetrievalResult(passages.select(rows), union.columns(rows), counts, without_hits)


def search_shards(search: RetrievalRequest, corpus: Corpus, sharding: Sharding) -> RetrievalResult:
    """A corpus larger than one machine."""
    from hf_tlm.retrieval.engines.sharded.sharded import retrieve_sharded

    found = retrieve_sharded(
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
    search.check_found(len(found.passages), found.counts["passages"])
    return found


def search_elastic(search: RetrievalRequest, corpus: Corpus | None, elastic: ElasticSettings) -> RetrievalResult:
    """A cluster's index; made from the corpus if one is given and the index is not there."""
    from hf_tlm.retrieval.engines.elasticsearch.index import index_corpus
    from hf_tlm.retrieval.engines.elasticsearch.search import retrieve_elastic

    counts: dict[str, Any] = {}
    if corpus is not None:
        passages = corpus.to_dataset(str(search.folder))
        index_corpus(passages, elastic, search.settings, corpus_name=corpus.name, fingerprint=corpus.fingerprint)
        counts = {"sources": count_sources(passages), "bad_files": list(corpus.bad_files)}
    found = retrieve_elastic(
        search.query_ids,
        search.queries,
        search.top_k,
        elastic,
        search.settings,
        max_query_terms=search.max_query_terms,
    )
    # Those that are empty are counted as such by whoever asked.
    analyzer = search.settings.analyzer if found.counts["fingerprint"] else str.split
    without_hits = [number for number in found.without_hits if analyzer(search.queries[number])]
    return replace(found, counts=counts | found.counts, without_hits=without_hits)


def rarest_terms(queries: TokenizedTexts, corpus: TokenizedTexts, max_query_terms: int) -> TokenizedTexts:
    """Every query with only its terms that occur in the fewest passages, at most so many (then the first)."""
    owner = np.repeat(np.arange(len(corpus)), np.diff(corpus.offsets))
    in_passages = np.unique(owner * max(len(corpus.vocabulary), 1) + corpus.ids) % max(len(corpus.vocabulary), 1)
    frequencies = dict(zip(corpus.vocabulary, np.bincount(in_passages, minlength=len(corpus.vocabulary)), strict=True))
    frequency = np.array([frequencies.get(term, 0) for term in queries.vocabulary])
    kept = []
    for query in queries:
        known = dict.fromkeys(term for term in query if frequency[term])
        chosen = set(sorted(known, key=frequency.__getitem__)[:max_query_terms])
        kept.append([term for term in query if term in chosen])
    offsets = np.concatenate([[0], np.cumsum([len(query) for query in kept])])
    return TokenizedTexts(np.array([term for query in kept for term in query], np.int32), offsets, queries.vocabulary)


def count_sources(passages: Dataset) -> dict[str, int]:
    """Passages per source, most first."""
    counted = pc.value_counts(passages.with_format("arrow").data.column("source")).to_pylist()
    return {entry["values"]: entry["counts"] for entry in sorted(counted, key=lambda e: (-e["counts"], e["values"]))}


def _indexed(search: RetrievalRequest, corpus: Corpus) -> tuple[Dataset, Index]:
    """The corpus and its index, row by row the same passages; a chosen index that lacks new files is extended by them."""
    passages = corpus.to_dataset(str(search.folder))
    parts = {part.fingerprint: part for part in corpus.parts if part.name not in corpus.bad_files}
    fingerprint = corpus.fingerprint
    if corpus.bad_files:  # Another time they may be readable.
        fingerprint += "-without-" + hashlib.sha256("\n".join(corpus.bad_files).encode()).hexdigest()[:8]
    analyzer = search.settings.analyzer
    name = f"index-{fingerprint}-{analyzer.stopwords or 'all'}-{analyzer.stemmer or 'words'}"
    name += f"-{analyzer.script}" if analyzer.script else ""
    directory = Path(search.index_dir or search.folder / name)
    if search.index_dir is not None and (directory / META_FILE).exists():
        _extend(directory, parts, fingerprint, corpus.name, search)
    index = Index.open_or_build(
        directory,
        passages,
        corpus_name=corpus.name,
        fingerprint=fingerprint,
        analyzer=analyzer,
        parts=list(parts),
        num_threads=search.num_threads,
    )
    # An index that was built of the corpus as a whole has its order.
    if index.parts not in (list(parts), [fingerprint]):
        passages = _concatenated([parts[part] for part in index.parts], search.folder)
    return passages, index


def _extend(
    directory: Path, parts: Mapping[str, Part], fingerprint: str, corpus_name: str, search: RetrievalRequest
) -> None:
    """Have an index hold all these parts if it holds some of them; what other processes add meanwhile is not added again."""
    while True:
        index = Index.load(directory, analyzer=search.settings.analyzer)
        if not set(index.parts) < set(parts):
            return
        new = [part for part in parts if part not in index.parts]
        rows = _concatenated([parts[part] for part in new], search.folder)
        with contextlib.suppress(ChangedIndexError):
            index.extend(rows, fingerprint=fingerprint, corpus_name=corpus_name, parts=new, num_threads=search.num_threads)


def _concatenated(parts: Sequence[Part], folder: Path) -> Dataset:
    return concatenate_datasets([part.to_dataset(str(folder)) for part in parts])
