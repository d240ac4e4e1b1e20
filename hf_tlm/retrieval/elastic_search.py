"""Retrieval from an Elasticsearch cluster that already holds the corpus, or that `index_corpus` has added it to.

Scores are Lucene's BM25 with k1 and b of the index, and term statistics over all shards (`dfs_query_then_fetch`). They
differ from our own "lucene" variant only in that Lucene stores lengths in one byte (exact below 40 terms, then within an
eighth), computes in float32 and still counts deleted passages, and that an index not created by hf_tlm has its own analyzer.

Tested with the official client against a loopback server that answers like Elasticsearch (tests/support/elastic_server.py),
not against a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from hf_tlm.retrieval.bm25.files import order_of_ids
from hf_tlm.retrieval.elastic_index import (
    RETRIED,
    STAMP,
    Layout,
    Unfinished,
    connect,
    read_layout,
    reason_of,
    with_retries,
)
from hf_tlm.retrieval.hits import RetrievalResult, union_of
from hf_tlm.retrieval.settings import Bm25Settings, ElasticSettings, check_elastic
from hf_tlm.retrieval.texts import RetrievalError

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

FETCH_ROWS = 500
# Fields requested of a response. An item without hits keeps its status, so items stay aligned with queries.
FOUND = "hits.hits._id,hits.hits._score,hits.hits.fields,status,error,timed_out,_shards".split(",")
FILTER = [*(f"responses.{path}" for path in FOUND), "error", "status"]


def search(
    queries: Sequence[str],
    top_k: int,
    settings: ElasticSettings,
    bm25: Bm25Settings,
    *,
    query_ids: Sequence[str] | None = None,
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Search the index and yield the hits of each query, in the order of the queries.

    If the index has a keyword field with the ids, ties at rank K are broken by id as well; otherwise the cluster decides
    which of several equally good passages is the last.

    Yields:
        (ids, scores float32) of at most top_k passages, ordered by score descending, then id.

    Raises:
        RetrievalError: the cluster does not support the settings, or the index has others; top_k is above the index's
            max_result_window; the index is incomplete; a query fails (the message has its number from 1, its id if query_ids
            are given, and the reason).
    """
    check_elastic(bm25)
    with connect(settings) as client:
        layout = read_layout(client, settings)
        _check_layout(layout, top_k, settings, bm25)
        names = [f"{number} ({name})" for number, name in enumerate(query_ids or [], start=1)]
        names = names or [str(number + 1) for number in range(len(queries))]
        for start in range(0, len(queries), settings.batch_size):
            batch = slice(start, start + settings.batch_size)
            yield from _search_batch(client, queries[batch], names[batch], top_k, settings, layout)


def _check_layout(layout: Layout, top_k: int, settings: ElasticSettings, bm25: Bm25Settings) -> None:
    """Check that the index can be searched with these settings, or raise a RetrievalError."""
    index = settings.index
    if top_k > layout.max_result_window:
        raise RetrievalError(
            f"top_k is {top_k}, but the index {index!r} returns at most {layout.max_result_window} passages per query. "
            f"Lower top_k, or raise the index's setting index.max_result_window to {top_k} (this needs more memory)."
        )
    expected = {"type": "BM25", "k1": bm25.k1, "b": bm25.b}
    if layout.similarity != expected:
        raise RetrievalError(
            f"The index {index!r} scores with {layout.similarity}, but the settings have {expected}. In Elasticsearch these "
            "values belong to the index: use those of this index, or create another index with yours."
        )
    if layout.stamp is None:
        return
    if not layout.stamp["complete"]:
        raise RetrievalError(f"The index {index!r} is not complete: indexing was interrupted. Index the corpus again.")
    if (stopwords := layout.stamp["settings"]["stopwords"]) != bm25.stopwords:
        raise RetrievalError(f"The index {index!r} was created with stopwords={stopwords!r}, not {bm25.stopwords!r}.")


def _search_batch(
    client: Elasticsearch, texts: Sequence[str], names: list[str], top_k: int, settings: ElasticSettings, layout: Layout
) -> list[tuple[list[str], np.ndarray]]:
    """Send one `_msearch` request, and further ones for its queries that failed for a temporary reason."""
    body: dict[str, Any] = {"size": top_k, "_source": False, "track_total_hits": False}
    if layout.id_field is not None:
        # Read ids from doc values: no stored fields have to be loaded for every hit, and ties can be sorted.
        body |= {"stored_fields": "_none_", "docvalue_fields": [layout.id_field]}
        body["sort"] = [{"_score": "desc"}, {layout.id_field: "asc"}]
    hits: dict[int, tuple[list[str], np.ndarray]] = {}

    def send() -> None:
        pending = [index for index in range(len(texts)) if index not in hits]
        searches: list[dict[str, Any]] = []
        for index in pending:
            # The same preference routes all requests to the same shard copies: the statistics of copies may differ.
            query = {"match": {settings.text_field: {"query": texts[index]}}}
            searches += [{"preference": STAMP}, {**body, "query": query}]
        response = client.msearch(
            index=settings.index, searches=searches, search_type="dfs_query_then_fetch", filter_path=FILTER
        )
        retry_reason = None
        for index, item in zip(pending, response["responses"], strict=True):
            problem, temporary = _find_problem(item)
            if problem is None:
                hits[index] = _parse_hits(item, layout.id_field, settings.index)
            elif temporary:
                retry_reason = retry_reason or _query_error(names[index], problem)
            else:
                raise RetrievalError(_query_error(names[index], problem))
        if retry_reason:
            raise Unfinished(retry_reason)

    with_retries(send, settings)
    return [hits[index] for index in range(len(texts))]


def _find_problem(item: dict[str, Any]) -> tuple[str | None, bool]:
    """Return the problem of one response, or None, and whether it is temporary.

    Hits of only some of the shards are a problem too.
    """
    if "error" in item:
        reason = reason_of(item["error"])
        return f"{item.get('status')}, {reason}", item.get("status") in RETRIED
    if item.get("timed_out"):
        return "the search ran out of time", True
    shards = item.get("_shards", {})
    if shards.get("failed"):
        return f"{shards['failed']} of {shards.get('total')} shards failed: {reason_of(shards.get('failures'))}", True
    return None, False


def _query_error(name: str, problem: str) -> str:
    """Return the error message for a query that failed."""
    message = f"Query number {name} failed in the cluster: {problem}."
    if any(sign in problem for sign in ("maxClauseCount", "_clauses", "too many clauses")):
        message += (
            " The query has more terms than the cluster accepts. Shorten the queries (query_mode='rake', or a cap on the "
            "length of the task's texts), or give the nodes a larger heap, from which Elasticsearch computes this limit."
        )
    return message


def _parse_hits(item: dict[str, Any], id_field: str | None, index: str) -> tuple[list[str], np.ndarray]:
    """Return the ids and scores of one response, ordered by score descending, then id.

    Raises:
        RetrievalError: a passage has no id in `id_field`.
    """
    hits = item.get("hits", {}).get("hits", [])
    if id_field is not None and not all(hit.get("fields") for hit in hits):
        raise RetrievalError(
            f"A passage of index {index!r} has no value in id_field {id_field!r}: it lacks the field, or its value is "
            "longer than the mapping's ignore_above. Pass another id_field, or remove id_field to use _id."
        )
    ids = [hit["_id"] if id_field is None else hit["fields"][id_field][0] for hit in hits]
    scores = np.array([hit["_score"] for hit in hits], np.float32)
    order = sorted(range(len(ids)), key=lambda hit: (-scores[hit], ids[hit]))
    return [ids[hit] for hit in order], scores[order]


def fetch(ids: Sequence[str], settings: ElasticSettings) -> list[dict[str, str]]:
    """Fetch passages as {"id", "text", "source"}, in the order of the `ids`, which `search` returned.

    Raises:
        RetrievalError: a passage does not exist any more, exists twice, or has no text.
    """
    rows: list[dict[str, str]] = []
    with connect(settings) as client:
        layout = read_layout(client, settings)
        for start in range(0, len(ids), FETCH_ROWS):
            batch = list(ids[start : start + FETCH_ROWS])
            documents = _fetch_batch(client, batch, settings, layout)
            for identifier in batch:
                document = documents.get(identifier, {})
                text = _field_value(document, layout.text_path)
                if not isinstance(text, str):
                    raise RetrievalError(
                        f"Passage {identifier!r} of index {settings.index!r} has no text under {layout.text_path!r} any "
                        "more, or a value that is not a string. Do not change the index during retrieval."
                    )
                source = layout.source_path and _field_value(document, layout.source_path)
                rows.append({"id": identifier, "text": text, "source": str(source or settings.index)})
    return rows


def _fetch_batch(client: Elasticsearch, ids: list[str], settings: ElasticSettings, layout: Layout) -> dict[str, dict]:
    """Fetch passages by their ids; return id -> `_source` of those that exist."""
    paths = [layout.text_path, *([layout.source_path] if layout.source_path else [])]
    documents: dict[str, dict] = {}

    def get():
        pending = [identifier for identifier in ids if identifier not in documents]
        retry_reason = None
        for document in client.mget(index=settings.index, ids=pending, source_includes=paths)["docs"]:
            if "error" in document:
                retry_reason = f"Passage {document['_id']!r} cannot be read: {reason_of(document['error'])}."
            else:
                documents[document["_id"]] = document.get("_source", {})
        if retry_reason:
            raise Unfinished(retry_reason)

    def find():
        query = {"terms": {settings.id_field: ids}}
        size = min(len(ids) + 1, layout.max_result_window)
        response = client.search(
            index=settings.index, query=query, size=size, source=paths, docvalue_fields=[settings.id_field]
        )
        problem, _ = _find_problem(response.body)
        if problem:
            raise Unfinished(f"Passages cannot be read: {problem}.")
        hits = response["hits"]["hits"]
        documents.update((hit["fields"][settings.id_field][0], hit.get("_source", {})) for hit in hits)
        if len(documents) < len(hits):
            raise RetrievalError(
                f"id_field {settings.id_field!r} of index {settings.index!r} has the same id more than once."
            )

    with_retries(get if settings.id_field is None else find, settings)
    return documents


def _field_value(document: dict[str, Any], path: str) -> Any:
    """Return a field of `_source`, in which the path "a.b" may be one key or two nested ones."""
    if path in document or "." not in path:
        return document.get(path)
    head, _, rest = path.partition(".")
    inner = document.get(head)
    return _field_value(inner, rest) if isinstance(inner, dict) else None


def retrieve_elastic(
    query_ids: Sequence[str],
    queries: Sequence[str],
    top_k: int,
    settings: ElasticSettings,
    bm25: Bm25Settings,
    *,
    max_query_terms: int | None = None,
) -> RetrievalResult:
    """Retrieve the union of the top_k passages of every query from the cluster.

    Args:
        query_ids: ids of the queries for error messages.
        max_query_terms: must be None, because the cluster analyzes the queries.

    Returns:
        The passages. `without_hits` has all queries that found nothing, empty ones too; the counts have the `fingerprint` of
        the corpus that `index_corpus` indexed, None for an index not created by hf_tlm.

    Raises:
        RetrievalError: see `check_elastic` and `search`; or no query found a passage.
    """
    check_elastic(bm25, max_query_terms)
    positions: dict[str, int] = {}
    hits = (
        (np.array([positions.setdefault(identifier, len(positions)) for identifier in ids], np.int64), scores)
        for ids, scores in search(queries, top_k, settings, bm25, query_ids=query_ids)
    )
    union, without_hits = union_of(hits, len(queries))
    if not positions:
        raise RetrievalError(
            f"None of the {len(queries)} queries finds a passage in index {settings.index!r}. Check that task and corpus "
            f"are in the same language and that text_field ({settings.text_field!r}) is the right one."
        )
    with connect(settings) as client:
        stamp = read_layout(client, settings).stamp
        passages = with_retries(lambda: client.count(index=settings.index), settings)["count"]
    counts = {"fingerprint": stamp["fingerprint"] if stamp else None, "passages": passages}
    ids = list(positions)
    rows = union.order(order_of_ids(pa.array(ids)))
    dataset = Dataset.from_list(fetch([ids[row] for row in rows], settings))
    return RetrievalResult(dataset, union.columns(rows), counts, without_hits)
