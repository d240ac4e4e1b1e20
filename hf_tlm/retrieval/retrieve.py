"""Retrieval of a Subset for a task: the union of the top-K passages of all training examples (TLM, section 3.2)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, NamedSplit, Value
from datasets.table import InMemoryTable
from tqdm.auto import tqdm

from hf_tlm.corpora.corpus import Corpus
from hf_tlm.retrieval.bm25.files import order_of_ids
from hf_tlm.retrieval.engine import RetrievalRequest, count_sources, search_corpus, search_elastic, search_shards
from hf_tlm.retrieval.filters import Decontaminator, check_deduplication, held_out_texts, near_duplicates
from hf_tlm.retrieval.hits import RetrievalResult
from hf_tlm.retrieval.settings import RETRIEVERS, Bm25Settings, ElasticSettings, Sharding, check_elastic, check_engine
from hf_tlm.retrieval.subset import Subset
from hf_tlm.retrieval.subset_files import COLUMNS, FORMAT, FORMAT_VERSION, METHOD_FIELDS
from hf_tlm.retrieval.texts import RetrievalError, build_queries, check_query_mode, example_texts
from hf_tlm.tasks.spec import Task, check_task
from hf_tlm.utils.arrow_files import cache_folder
from hf_tlm.utils.options import check_numbers, to_python
from hf_tlm.utils.texts import script_of
from hf_tlm.version import __version__

logger = logging.getLogger(__name__)

NAMED_EXAMPLES = 10
READ_ROWS = 1000
PACKAGES = ("numpy", "numba", "datasets", "bm25s", "rank_bm25")


def default_top_k(num_train: int) -> int:
    """Return the paper's K: 5000 for a task of fewer than 5K training examples, 50 for more than 100K, else 500."""
    if num_train < 5_000:
        return 5_000
    return 50 if num_train > 100_000 else 500


def retrieve(
    task: Task,
    corpus: Corpus | None,
    *,
    retriever: str = "bm25",
    top_k: int | None = None,
    query_mode: str = "text",
    max_query_terms: int | None = None,
    settings: Bm25Settings | None = None,
    decontaminate: bool = True,
    deduplicate: float | None = None,
    seed: int = 0,
    num_passages: int | None = None,
    index_dir: str | None = None,
    num_threads: int | None = None,
    query_batch_size: int | None = None,
    sharding: Sharding | None = None,
    elastic: ElasticSettings | None = None,
    cache_dir: str | None = None,
) -> Subset:
    """Retrieve the passages of a corpus that resemble a task's training examples, or draw random passages.

    BM25: each training example is a query, and the subset is the union of the K best passages of every query. Each passage
    keeps its best rank, its best score, the number of queries that hit it, and the query that gave the best rank (of
    several, the one with the highest score, then the first). The result depends only on texts and ids, not on the order of
    the corpus, the engine, threads or shards. Labels are never read.

    Args:
        corpus: None only for "elasticsearch", whose existing index is then searched.
        retriever: "bm25" (ours: exact, index on disk), "bm25s", "rank_bm25" (slow, for reference), "sharded" (a corpus
            larger than one machine), "elasticsearch", or "random", the baseline of Table 3.
        top_k: K; None: `default_top_k` of the training split.
        query_mode: see `build_queries`.
        max_query_terms: maximum number of terms kept of each query, those with the highest idf.
        settings: BM25's variant and parameters.
        decontaminate: leave out passages that contain validation or test texts of the task; see `Decontaminator`.
        deduplicate: leave out passages whose 5-grams have this Jaccard similarity or more with those of a better passage.
        seed, num_passages: for "random": draw num_passages distinct passages uniformly.
        index_dir: directory of the index of "bm25"; None: one in the cache, named by the corpus's fingerprint. An index
            built from some of the corpus's files is extended with the others.
        num_threads, query_batch_size: for "bm25"; see `Index.search`.
        sharding, elastic: settings of the retrievers "sharded" and "elasticsearch".
        cache_dir: directory of the corpus, its indexes and work in progress; None: the cache of `datasets`.

    Raises:
        RetrievalError: corpus is a `Dataset`; unknown retriever, mode or variant; a number below 1; duplicate passage
            ids; every query is empty; no query shares a word with any passage; num_passages is missing, larger than the
            corpus, or given to BM25; the index in index_dir is of another corpus or damaged; no passage is left.
        CorpusError: the corpus is empty or cannot be read.
        TaskError: the task is neither classification nor regression; other kinds have no texts of their own to query with.
    """
    check_task(task, "Retrieval", "classification", "regression")
    if corpus is not None and not hasattr(corpus, "to_dataset"):
        raise RetrievalError(
            f"corpus: expected a Corpus; received a {type(corpus).__name__}. Pass hf_tlm.load_corpus(corpus)."
        )
    settings = settings or Bm25Settings()
    # Convert to Python numbers: the manifest is JSON.
    top_k, max_query_terms, num_passages, seed, deduplicate = map(
        to_python, (top_k, max_query_terms, num_passages, seed, deduplicate)
    )
    is_default_k = top_k is None
    top_k = default_top_k(len(task.train)) if top_k is None else top_k
    check_numbers(RetrievalError, top_k=top_k, max_query_terms=max_query_terms)
    check_numbers(RetrievalError, seed=seed, num_threads=num_threads, query_batch_size=query_batch_size)
    _check_arguments(retriever, query_mode, settings, max_query_terms, num_passages, corpus, elastic, index_dir)
    if deduplicate is not None:
        check_deduplication(deduplicate)
    folder = cache_folder(cache_dir)
    decontaminator = Decontaminator(held_out_texts(task)) if decontaminate else None

    method: dict[str, Any]
    repeated: list[str] | None = None
    if retriever == "random":
        assert corpus is not None and num_passages is not None  # Checked above.
        result, leaked, repeated = _draw_passages(
            corpus.to_dataset(str(folder)), num_passages, seed, decontaminator, deduplicate
        )
        result.counts["bad_files"] = list(corpus.bad_files)
        method = {"seed": seed, "num_passages": num_passages}
    else:
        query_ids = task.train["id"][:]
        texts = example_texts(task.train)
        if elastic is None and settings.script is None:  # An Elasticsearch index splits words itself.
            settings = replace(settings, script=script_of(texts))
        queries = build_queries(texts, query_mode, script=settings.script)
        search = RetrievalRequest(
            task.name, query_ids, queries, top_k, settings, max_query_terms, folder, index_dir, num_threads, query_batch_size
        )
        result = _search(retriever, search, corpus, sharding, elastic)
        # An index that hf_tlm did not create has its own analyzer.
        foreign_index = retriever == "elasticsearch" and result.counts["fingerprint"] is None
        result.counts = _add_query_counts(result, search, str.split if foreign_index else settings.analyzer)
        _warn_of_no_hits(result.counts)
        _warn_of_a_large_union(result, top_k, is_default_k)
        result, leaked = _remove_leaks(result, decontaminator)
        result.columns["best_query"] = [query_ids[query] for query in result.columns["best_query"]]
        if deduplicate is not None:
            result, repeated = _remove_duplicates(result, deduplicate)
        method = {"query_mode": query_mode, **_search_fields(search, result.counts["passages"], foreign_index)}
    if len(result.passages) == 0:
        raise RetrievalError(
            f"No passage is left for {task.name}: all passages found ({len(leaked):,}) contain held-out texts."
        )
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "corpus": _corpus_entry(corpus, elastic, result.counts),
        "task": {"name": task.name, "fingerprint": task.fingerprint, "split": "train"},
        "retriever": retriever,
        **dict.fromkeys(METHOD_FIELDS),
        **method,
        "decontamination": None
        if decontaminator is None
        else {**decontaminator.settings, "passages": len(leaked), "ids": leaked},
        "deduplication": None
        if repeated is None
        else {"threshold": deduplicate, "passages": len(repeated), "ids": sorted(repeated)},
        "counts": {**result.counts, "union": len(result.passages)},
        "versions": {"hf_tlm": __version__, **{name: version(name) for name in PACKAGES}},
    }
    return Subset(_build_dataset(result, manifest), manifest)


def _search(retriever: str, search: RetrievalRequest, corpus, sharding, elastic) -> RetrievalResult:
    """Run the search with the engine that `retriever` names."""
    if elastic is not None:
        return search_elastic(search, corpus, elastic)
    if retriever == "sharded":
        return search_shards(search, corpus, sharding or Sharding())
    return search_corpus(retriever, search, corpus)


def _search_fields(search: RetrievalRequest, passages: int, foreign_index: bool) -> dict[str, Any]:
    """Return the manifest's fields that describe a search.

    Args:
        passages: number of passages of the corpus.
        foreign: whether the Elasticsearch index was not created by hf_tlm, and so has its own analyzer.
    """
    settings = search.settings
    return {
        "max_query_terms": search.max_query_terms,
        "top_k": min(search.top_k, passages),
        "top_k_requested": search.top_k,
        "variant": settings.variant,
        "k1": settings.k1,
        "b": settings.b,
        "delta": settings.used_delta,
        "stopwords": None if foreign_index else settings.stopwords,
        "stemmer": settings.stemmer,
        **({"script": settings.script} if settings.script else {}),
        **({"analyzed_by": "the index's"} if foreign_index else {}),
    }


def _add_query_counts(
    result: RetrievalResult, search: RetrievalRequest, analyzer: Callable[[str], list[str]]
) -> dict[str, Any]:
    """Return the counts with the numbers of queries, of queries without a term, and of queries without hits."""
    empty = [identifier for identifier, text in zip(search.query_ids, search.queries, strict=True) if not analyzer(text)]
    return {
        "queries": len(search.queries),
        "empty_queries": len(empty),
        "first_empty_queries": empty[:NAMED_EXAMPLES],
        **result.counts,
        "queries_without_hits": len(result.without_hits),
        "first_queries_without_hits": [search.query_ids[query] for query in result.without_hits[:NAMED_EXAMPLES]],
    }


def _warn_of_no_hits(counts: dict[str, Any]) -> None:
    """Warn if most queries found nothing: the passages of the others then say little about the task."""
    num_without_hits = counts["empty_queries"] + counts["queries_without_hits"]
    if 2 * num_without_hits > counts["queries"]:
        logger.warning(
            "%s of the %s training texts match no passage: they have no word in common with the corpus. Check that the "
            "corpus is in the task's language.",
            *(f"{num_without_hits:,}", f"{counts['queries']:,}"),
        )


def _warn_of_a_large_union(result: RetrievalResult, top_k: int, is_default_k: bool) -> None:
    """Warn if the subset is more than half of the corpus, and name the largest K that gives at most half."""
    passages = result.counts["passages"]
    if 2 * len(result.passages) <= passages:
        return
    ranks = np.sort(np.asarray(result.columns["rank"]))
    # For any K, the union is the passages whose best rank is at most K.
    fitting_k = int(ranks[passages // 2]) - 1
    logger.warning(
        "top_k %s%s selects %s of the %s passages of the corpus. %s If the corpus is the task's own unlabelled texts, this "
        "may be what you want.",
        f"{top_k:,}",
        ", the paper's default for a task of this size," * is_default_k,
        f"{len(result.passages):,}",
        f"{passages:,}",
        f"--top_k {fitting_k} selects at most half of them."
        if fitting_k
        else "Even --top_k 1 selects more than half of them: use a larger corpus.",
    )


def _remove_leaks(result: RetrievalResult, decontaminator: Decontaminator | None) -> tuple[RetrievalResult, list[str]]:
    """Remove the passages that contain held-out texts; return the rest, and the sorted ids of the removed ones."""
    if decontaminator is None:
        return result, []
    texts = tqdm(_iterate_texts(result.passages), total=len(result.passages), desc="Decontaminating", unit=" passages")
    leaks = np.array([leak is not None for leak in decontaminator.leaks(texts)], bool)
    return result.select(np.flatnonzero(~leaks)), sorted(result.passages.select(np.flatnonzero(leaks))["id"][:])


def _remove_duplicates(result: RetrievalResult, threshold: float) -> tuple[RetrievalResult, list[str]]:
    """Remove near-duplicates of better passages; return the rest, and the ids of the removed ones."""
    repeats = near_duplicates(result.passages["text"][:], threshold=threshold)
    return result.select(np.flatnonzero(repeats < 0)), result.passages.select(np.flatnonzero(repeats >= 0))["id"][:]


def _draw_passages(
    passages: Dataset, num_passages: int, seed: int, decontaminator: Decontaminator | None, deduplicate: float | None
) -> tuple[RetrievalResult, list[str], list[str] | None]:
    """Draw passages without replacement.

    A passage that contains held-out texts, or nearly repeats an earlier one, is replaced by another draw.

    Returns:
        The passages; the sorted ids of those replaced for held-out texts; and the ids of the near-duplicates replaced, None
        if deduplicate is None.

    Raises:
        RetrievalError: an id occurs twice, or the corpus has too few distinct passages.
    """
    order_of_ids(pa.array(passages["id"][:]))
    if num_passages > len(passages):
        raise RetrievalError(f"Cannot draw {num_passages} distinct passages: the corpus has {len(passages)}.")
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(passages), size=num_passages, replace=False)
    rows = np.empty(0, np.int64)
    leaked: list[str] = []
    repeated: list[str] = []
    is_available = np.ones(len(passages), bool)
    while True:
        is_available[drawn] = False
        clean, new_ids = _remove_leaks(RetrievalResult(passages.select(drawn), {"row": drawn}, {}), decontaminator)
        rows, leaked = np.concatenate([rows, clean.columns["row"]]), leaked + new_ids
        if deduplicate is not None:
            distinct, new_ids = _remove_duplicates(RetrievalResult(passages.select(rows), {"row": rows}, {}), deduplicate)
            rows, repeated = distinct.columns["row"], repeated + new_ids
        if len(rows) == num_passages:
            break
        if not is_available.any():
            raise RetrievalError(
                f"Cannot draw {num_passages} distinct passages: of {len(passages)} passages, {len(leaked)} contain held-out "
                "texts" + ("." if deduplicate is None else f", and {len(repeated)} nearly repeat others.")
            )
        drawn = rng.permutation(np.flatnonzero(is_available))[: num_passages - len(rows)]
    columns = {
        "rank": np.arange(1, num_passages + 1, dtype=np.int32),
        "score": np.array([None] * num_passages),
        "n_queries": np.zeros(num_passages, np.int32),
        "best_query": np.array([None] * num_passages),
    }
    counts: dict[str, Any] = {"queries": 0, "empty_queries": 0, "queries_without_hits": 0}
    counts |= {"passages": len(passages), "sources": count_sources(passages)}
    result = RetrievalResult(passages.select(rows), columns, counts)
    return result, sorted(leaked), None if deduplicate is None else repeated


def _check_arguments(retriever, query_mode, settings, max_query_terms, num_passages, corpus, elastic, index_dir) -> None:
    """Check the arguments of `retrieve` before the corpus is read, or raise a RetrievalError."""
    if retriever not in RETRIEVERS:
        raise RetrievalError(f"retriever must be one of {', '.join(RETRIEVERS)}; received {retriever!r}.")
    if (elastic is not None) != (retriever == "elasticsearch"):
        raise RetrievalError(
            f"elastic: expected ElasticSettings for the retriever elasticsearch, and None for others; received {elastic} "
            f"with {retriever!r}."
        )
    if index_dir is not None and retriever != "bm25":
        raise RetrievalError(f"index_dir is only for the retriever bm25; received it with {retriever}. Remove index_dir.")
    if retriever == "random":
        if num_passages is None:
            raise RetrievalError("random retrieval needs num_passages, the size of the subset.")
        check_numbers(RetrievalError, num_passages=num_passages)
    elif num_passages is not None:
        raise RetrievalError(f"num_passages is only for random retrieval; {retriever} uses top_k. Remove num_passages.")
    else:
        check_query_mode(query_mode)
        if retriever == "elasticsearch":
            check_elastic(settings, max_query_terms)
        else:
            check_engine("bm25" if retriever == "sharded" else retriever, settings)
    if corpus is None and retriever != "elasticsearch":
        raise RetrievalError(f"{retriever} retrieval needs a corpus; only elasticsearch works without one.")


def _corpus_entry(corpus: Corpus | None, elastic: ElasticSettings | None, counts: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest's entry of the corpus, and remove "fingerprint" from the counts."""
    fingerprint = counts.pop("fingerprint", None)
    if corpus is None:
        assert elastic is not None  # Only elasticsearch works without a corpus.
        return {"name": elastic.index, "fingerprint": fingerprint, "size": counts["passages"]}
    cut = {} if corpus.max_words is None else {"passage_words": corpus.max_words}
    return {"name": corpus.name, "fingerprint": corpus.fingerprint, "size": counts["passages"], **cut}


def _build_dataset(result: RetrievalResult, manifest: dict[str, Any]) -> Dataset:
    """Build the subset's dataset in memory: the passages and their columns of the search."""
    schema = Features({name: Value(kind) for name, kind in COLUMNS.items()}).arrow_schema
    texts = result.passages.select_columns(["id", "text", "source"]).with_format("arrow")
    # Read in chunks: one string column of more than 2 GiB would overflow Arrow's offsets.
    table = pa.concat_tables([texts[start : start + READ_ROWS] for start in range(0, len(texts), READ_ROWS)])
    for name, values in result.columns.items():
        table = table.append_column(name, pa.array(values, schema.field(name).type))
    # Without this, `datasets` would pickle the whole table to compute a fingerprint.
    fingerprint = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:16]
    return Dataset(InMemoryTable(table.cast(schema)), split=NamedSplit("train"), fingerprint=fingerprint)


def _iterate_texts(passages: Dataset) -> Iterator[str]:
    """Iterate over the texts in batches, so that they need not all fit in memory."""
    for batch in passages.select_columns("text").iter(batch_size=READ_ROWS):
        yield from batch["text"]
