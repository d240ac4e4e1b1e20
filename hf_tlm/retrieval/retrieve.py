"""Task + corpus -> Subset: the union of the top-K passages of every training example (TLM, section 3.2)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.retrieval.bm25 import (
    BACKENDS,
    Bm25Settings,
    RetrievalError,
    analyze,
    check_backend,
    search,
    tokenize_corpus,
)
from hf_tlm.retrieval.queries import build_queries, check_query_mode, example_texts
from hf_tlm.retrieval.subset import COLUMNS, FORMAT, FORMAT_VERSION, Subset
from hf_tlm.version import __version__

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_tlm.corpora import Corpus
    from hf_tlm.tasks import Task

logger = logging.getLogger(__name__)

RETRIEVERS = (*BACKENDS, "random")
READ_ROWS = 1000
NAMED_EXAMPLES = 10
METHOD_FIELDS = "query_mode top_k top_k_requested variant k1 b delta stopwords seed num_passages".split()
PACKAGES = ("bm25s", "rank_bm25", "datasets", "numpy")


def default_top_k(num_train: int) -> int:
    """The paper's K: 5000 for a task of fewer than 5K training examples, 50 for more than 100K, else 500."""
    if num_train < 5_000:
        return 5_000
    return 50 if num_train > 100_000 else 500


def retrieve(
    task: Task,
    corpus: Corpus,
    *,
    retriever: str = "bm25s",
    top_k: int | None = None,
    query_mode: str = "text",
    settings: Bm25Settings | None = None,
    seed: int = 0,
    num_passages: int | None = None,
    cache_dir: str | None = None,
) -> Subset:
    """The passages of a corpus that resemble a task's training examples, or as many random ones.

    BM25: each training example is a query, its K best passages are taken, and the subset is their union. Each passage
    keeps its best rank, its best score, how many queries hit it, and the query that gave the best rank (of several,
    the one with the highest score, then the first). The result depends on texts and ids only, not on the order of the
    corpus. Labels are never read.

    Args:
        retriever: "bm25s", "rank_bm25" (slow, for reference), or "random", which is the baseline of Table 3.
        top_k: K; None: `default_top_k` of the training split.
        query_mode: see `build_queries`.
        settings: BM25's variant and parameters.
        seed, num_passages: of "random": num_passages distinct passages, uniformly.
        cache_dir: where the corpus is kept as Arrow; None: the cache of `datasets`.

    Raises:
        RetrievalError: unknown retriever, mode or variant; top_k below 1; duplicate passage ids; every query empty; no
            query shares a word with any passage; num_passages missing, or larger than the corpus, or given to BM25.
        CorpusError: the corpus is empty or cannot be read.
    """
    settings = settings or Bm25Settings()
    top_k = default_top_k(len(task.train)) if top_k is None else top_k
    _check_arguments(retriever, top_k, query_mode, settings, num_passages)

    passages = corpus.to_dataset(cache_dir)
    order = _order_of_ids(passages)
    if retriever == "random":
        found = _random(len(passages), num_passages, seed)
        method = {"seed": seed, "num_passages": num_passages}
    else:
        if top_k > len(passages):
            logger.warning("top_k %d is larger than the corpus: K = %d, all of it.", top_k, len(passages))
        found = _bm25(task, passages, retriever, top_k, query_mode, settings, order)
        method = {
            "query_mode": query_mode,
            "top_k": min(top_k, len(passages)),
            "top_k_requested": top_k,
            "variant": settings.variant,
            "k1": settings.k1,
            "b": settings.b,
            "delta": settings.used_delta,
            "stopwords": settings.stopwords,
        }
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint, "size": len(passages)},
        "task": {"name": task.name, "fingerprint": task.fingerprint, "split": "train"},
        "retriever": retriever,
        **dict.fromkeys(METHOD_FIELDS),
        **method,
        "counts": {**found.counts, "passages": len(passages), "union": len(found.rows)},
        "versions": {"hf_tlm": __version__, **{name: version(name) for name in PACKAGES}},
    }
    return Subset(_dataset(passages, found, manifest), manifest)


@dataclass
class _Found:
    """rows: indices into the corpus, in the order of the subset; columns: arrays of the same length."""

    rows: np.ndarray
    columns: dict[str, Any]
    counts: dict[str, Any]


class _Union:
    """What each of N passages got from the queries seen so far."""

    def __init__(self, num_passages: int):
        self.best_rank = np.full(num_passages, np.iinfo(np.int32).max, np.int32)
        self.score_at_best_rank = np.full(num_passages, -np.inf, np.float32)
        self.best_score = np.full(num_passages, -np.inf, np.float32)
        self.best_query = np.full(num_passages, -1, np.int32)
        self.n_queries = np.zeros(num_passages, np.int32)

    def add(self, query: int, documents: np.ndarray, scores: np.ndarray) -> None:
        """The hits of one query, best first. Queries come in order, so a later one has to be strictly better."""
        ranks = np.arange(1, len(documents) + 1, dtype=np.int32)
        self.n_queries[documents] += 1
        self.best_score[documents] = np.maximum(self.best_score[documents], scores)
        known = self.best_rank[documents]
        better = (ranks < known) | ((ranks == known) & (scores > self.score_at_best_rank[documents]))
        documents = documents[better]
        self.best_rank[documents] = ranks[better]
        self.score_at_best_rank[documents] = scores[better]
        self.best_query[documents] = query


def _bm25(
    task: Task,
    passages: Dataset,
    backend: str,
    top_k: int,
    query_mode: str,
    settings: Bm25Settings,
    order: np.ndarray,
) -> _Found:
    from tqdm.auto import tqdm

    stopwords = settings.stopword_set
    query_ids = task.train["id"][:]
    queries = [analyze(query, stopwords) for query in build_queries(example_texts(task.train), query_mode)]
    empty = [identifier for identifier, query in zip(query_ids, queries, strict=True) if not query]
    if len(empty) == len(queries):
        raise RetrievalError(
            f"All {len(queries)} queries of {task.name} are empty once stop words and single characters are dropped. "
            "Check the task's text column, or keep stop words (stopwords=None)."
        )
    if empty:
        logger.warning("%d of %d queries are empty, first: %s.", len(empty), len(queries), empty[0])

    texts = tqdm(_texts(passages), total=len(passages), desc="Tokenising the corpus", unit=" passages")
    tokenized = tokenize_corpus(texts, stopwords)
    logger.info("Indexing %d passages, %d tokens.", len(tokenized), len(tokenized.ids))
    union, without_hits = _Union(len(passages)), 0
    hits = search(queries, tokenized, top_k, backend=backend, settings=settings, tie_key=order)
    for query, (documents, scores) in enumerate(tqdm(hits, total=len(queries), desc="Retrieving", unit=" queries")):
        union.add(query, documents, scores)
        without_hits += bool(queries[query]) and len(documents) == 0

    rows = np.flatnonzero(union.n_queries)
    if len(rows) == 0:
        raise RetrievalError(
            f"None of the {len(queries)} queries of {task.name} shares a word with any of the {len(passages)} "
            "passages. Check that task and corpus are in the same language and that the right columns are read."
        )
    rows = rows[np.lexsort((order[rows], -union.best_score[rows], union.best_rank[rows]))]
    columns = {
        "rank": union.best_rank[rows],
        "score": union.best_score[rows],
        "n_queries": union.n_queries[rows],
        "best_query": [query_ids[query] for query in union.best_query[rows]],
    }
    counts = {
        "queries": len(queries),
        "empty_queries": len(empty),
        "first_empty_queries": empty[:NAMED_EXAMPLES],
        "queries_without_hits": without_hits,
    }
    return _Found(rows, columns, counts)


def _random(num_rows: int, num_passages: int, seed: int) -> _Found:
    if num_passages > num_rows:
        raise RetrievalError(f"Cannot draw {num_passages} distinct passages: the corpus has {num_rows}.")
    rows = np.random.default_rng(seed).choice(num_rows, size=num_passages, replace=False)
    columns = {
        "rank": np.arange(1, num_passages + 1, dtype=np.int32),
        "score": [None] * num_passages,
        "n_queries": np.zeros(num_passages, np.int32),
        "best_query": [None] * num_passages,
    }
    return _Found(rows, columns, {"queries": 0, "empty_queries": 0, "queries_without_hits": 0})


def _check_arguments(retriever: str, top_k: int, query_mode: str, settings: Bm25Settings, num_passages: int | None) -> None:
    """Everything that can be refused before the corpus is read."""
    if retriever not in RETRIEVERS:
        raise RetrievalError(f"retriever must be one of {', '.join(RETRIEVERS)}; received {retriever!r}.")
    if retriever == "random":
        if num_passages is None or num_passages < 1:
            raise RetrievalError(f"random retrieval needs num_passages, at least 1; received {num_passages}.")
        return
    if num_passages is not None:
        raise RetrievalError(f"num_passages is for random retrieval; {retriever} takes top_k. Leave one out.")
    if top_k < 1:
        raise RetrievalError(f"top_k must be at least 1; received {top_k}.")
    check_query_mode(query_mode)
    check_backend(retriever, settings)


def _order_of_ids(passages: Dataset) -> np.ndarray:
    """int64 [N]: the place of each passage when sorted by id, the tie key.

    Raises:
        RetrievalError: an id occurs twice.
    """
    ids = passages["id"][:]
    by_id = sorted(range(len(ids)), key=ids.__getitem__)
    for first, second in zip(by_id, by_id[1:], strict=False):
        if ids[first] == ids[second]:
            raise RetrievalError(
                f"The passage id {ids[first]!r} occurs twice, in rows {first} and {second}. Ids must be unique."
            )
    order = np.empty(len(ids), np.int64)
    order[by_id] = np.arange(len(ids))
    return order


def _dataset(passages: Dataset, found: _Found, manifest: dict[str, Any]) -> Dataset:
    """The subset's rows of the corpus with their columns, in memory."""
    import pyarrow as pa
    from datasets import Dataset, Features, NamedSplit, Value
    from datasets.table import InMemoryTable

    schema = Features({name: Value(kind) for name, kind in COLUMNS.items()}).arrow_schema
    texts = passages.select_columns(["id", "text", "source"]).with_format("arrow")
    # In pieces: one gathered string column of more than 2 GiB would overflow Arrow's offsets.
    rows = found.rows.tolist()
    table = pa.concat_tables([texts[rows[start : start + READ_ROWS]] for start in range(0, len(rows), READ_ROWS)])
    for name, values in found.columns.items():
        table = table.append_column(name, pa.array(values, schema.field(name).type))
    # Without one, `datasets` would pickle the whole table to make a fingerprint.
    fingerprint = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:16]
    return Dataset(InMemoryTable(table.cast(schema)), split=NamedSplit("train"), fingerprint=fingerprint)


def _texts(passages: Dataset) -> Iterator[str]:
    for batch in passages.select_columns("text").iter(batch_size=READ_ROWS):
        yield from batch["text"]
