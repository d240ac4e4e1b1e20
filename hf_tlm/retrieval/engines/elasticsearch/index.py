"""A corpus into an index of an Elasticsearch cluster, once. Tested against a loopback server, as `elastic` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datasets import Dataset
from tqdm.auto import tqdm

from hf_tlm.retrieval.engines.elasticsearch.client import (
    BACKOFF,
    MAX_BACKOFF,
    RETRIED,
    STAMP,
    connect,
    read_layout,
    reason_of,
    with_retries,
)
from hf_tlm.retrieval.settings import Bm25Settings, ElasticSettings, check_elastic
from hf_tlm.retrieval.texts import RetrievalError

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

STAMP_VERSION = 1
BULK_ROWS, BULK_BYTES = 500, 10 << 20  # of one _bulk request


def index_corpus(
    dataset: Dataset,
    settings: ElasticSettings,
    bm25: Bm25Settings,
    *,
    corpus_name: str,
    fingerprint: str,
    progress: bool = True,
) -> int:
    """Put a corpus into an index, once; the number of its passages.

    The index carries the corpus's fingerprint and these settings, and at the end a mark that it is complete. If it is
    there, complete and the same, nothing is done; if its building was interrupted, it is continued, and passages that
    are in already stay as they are.

    Args:
        dataset: string columns id, text, source. An id becomes the `_id`, and a keyword field that breaks ties.

    Raises:
        RetrievalError: an index of this name with another corpus or other settings; a passage that the cluster does not
            take, with its reason; passages that are missing or too many in the end (repeated ids); see `connect`.
    """
    check_elastic(bm25)
    fields = {
        "id_field": settings.id_field or "id",
        "text_field": settings.text_field,
        "source_field": settings.source_field,
    }
    if len(set(fields.values())) < len(fields) or any("." in name for name in fields.values()):
        raise RetrievalError(f"The fields of a new index need three different names without dots; received {fields}.")
    stamp = {
        "version": STAMP_VERSION,
        "corpus_name": corpus_name,
        "fingerprint": fingerprint,
        "settings": {"k1": bm25.k1, "b": bm25.b, "stopwords": bm25.stopwords, **fields},
        "complete": False,
    }
    with connect(settings) as client:
        exists = with_retries(lambda: client.indices.exists(index=settings.index), settings, drops=False)
        if not exists:
            _create(client, settings, bm25, stamp)
        found = _same(read_layout(client, settings).stamp, stamp, settings)
        if not found["complete"]:
            bar = tqdm(total=len(dataset), desc="Indexing the corpus", unit=" passages", disable=None if progress else True)
            with bar:
                for rows in dataset.iter(batch_size=BULK_ROWS):
                    _bulk(client, rows, fields, settings)
                    bar.update(len(rows["id"]))
            interval = {"index": {"refresh_interval": None}}
            with_retries(lambda: client.indices.put_settings(index=settings.index, settings=interval), settings)
            with_retries(lambda: client.indices.refresh(index=settings.index), settings)
        count = with_retries(lambda: client.count(index=settings.index), settings)["count"]
        if count != len(dataset):
            raise RetrievalError(
                f"The index {settings.index!r} holds {count} passages, the corpus {len(dataset)}. Ids repeat in the corpus, "
                "or something else writes to the index; delete it and index the corpus again."
            )
        if not found["complete"]:
            meta = {STAMP: {**stamp, "complete": True}}
            with_retries(lambda: client.indices.put_mapping(index=settings.index, meta=meta), settings)
    return count


def _create(client: Elasticsearch, settings: ElasticSettings, bm25: Bm25Settings, stamp: dict[str, Any]) -> None:
    filters = ["lowercase", "hf_tlm_storable", *(["hf_tlm_stop"] if bm25.stopwords else [])]
    analysis = {
        # Python's \w\w+: letters, numbers and the underscore.
        "tokenizer": {"hf_tlm_words": {"type": "pattern", "pattern": r"[\p{L}\p{N}_]{2,}", "group": 0}},
        "filter": {
            # Lucene refuses a passage with a term of more than 32,766 bytes.
            "hf_tlm_storable": {"type": "length", "max": 8191},
            "hf_tlm_stop": {"type": "stop", "stopwords": "_english_"},
        },
        "analyzer": {"hf_tlm": {"type": "custom", "tokenizer": "hf_tlm_words", "filter": filters}},
    }
    options = {
        "index": {
            "similarity": {"hf_tlm": {"type": "BM25", "k1": bm25.k1, "b": bm25.b}},
            "analysis": analysis,
            "refresh_interval": "-1",  # until all passages are in
        }
    }
    names = stamp["settings"]
    mappings = {
        "_meta": {STAMP: stamp},
        "dynamic": "strict",
        "properties": {
            names["id_field"]: {"type": "keyword"},
            names["text_field"]: {"type": "text", "analyzer": "hf_tlm", "similarity": "hf_tlm", "index_options": "freqs"},
            names["source_field"]: {"type": "keyword"},
        },
    }

    def create():
        # 400: it exists, made by another process since we looked, or by this one before an answer was lost.
        answer = client.options(ignore_status=400).indices.create(index=settings.index, settings=options, mappings=mappings)
        if "error" in answer and "resource_already_exists_exception" not in reason_of(answer.body):
            raise RetrievalError(f"Elasticsearch does not create the index {settings.index!r}: {reason_of(answer.body)}.")

    with_retries(create, settings, drops=False)


def _same(found: dict[str, Any] | None, stamp: dict[str, Any], settings: ElasticSettings) -> dict[str, Any]:
    """What was found, or RetrievalError unless the index is one of ours with the same corpus and settings."""
    advice = "Choose another index name, or delete that index."
    if found is None:
        raise RetrievalError(
            f"The index {settings.index!r} exists and was not made by hf_tlm. Retrieve from it as it is, without indexing. "
            + advice
        )
    if found["version"] != stamp["version"]:
        raise RetrievalError(f"The index {settings.index!r} was made by another version of hf_tlm. {advice}")
    if found["fingerprint"] != stamp["fingerprint"]:
        raise RetrievalError(
            f"The index {settings.index!r} holds another corpus: {found['corpus_name']} ({found['fingerprint']}) instead of "
            f"{stamp['corpus_name']} ({stamp['fingerprint']}). {advice}"
        )
    theirs, ours = found["settings"], stamp["settings"]
    if other := [
        f"{name} {theirs.get(name)!r} instead of {ours[name]!r}" for name in ours if theirs.get(name) != ours[name]
    ]:
        raise RetrievalError(f"The index {settings.index!r} was made with other settings: {', '.join(other)}. {advice}")
    return found


def _bulk(client: Elasticsearch, rows: dict[str, list], fields: dict[str, str], settings: ElasticSettings) -> None:
    from elasticsearch.helpers import streaming_bulk

    actions = [
        {
            "_op_type": "create",
            "_id": identifier,
            "_source": dict(zip(fields.values(), (identifier, text, source), strict=True)),
        }
        for identifier, text, source in zip(rows["id"], rows["text"], rows["source"], strict=True)
    ]

    def send():
        results = streaming_bulk(
            client,
            actions,
            index=settings.index,
            chunk_size=BULK_ROWS,
            max_chunk_bytes=BULK_BYTES,
            raise_on_error=False,
            max_retries=settings.max_retries,
            initial_backoff=BACKOFF,
            max_backoff=MAX_BACKOFF,
            retry_on_status=RETRIED,
        )
        for created, result in results:
            item = result["create"]
            # 409: it is there already, from an earlier run or from a request whose answer was lost.
            if not created and item["status"] != 409:
                raise RetrievalError(
                    f"Elasticsearch did not take passage {item['_id']!r}: {item['status']}, {reason_of(item['error'])}. "
                    "What is indexed stays; run the same again to continue."
                )

    with_retries(send, settings, statuses=())  # streaming_bulk itself waits out overload; lost connections are left to us
