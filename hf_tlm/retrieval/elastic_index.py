"""Indexes of an Elasticsearch cluster: the connection, error messages, reading an index's layout, indexing a corpus.

The API key is read from the environment when a client is created; no object here stores it, and no message shows it.
Tested against a loopback server; see `elastic_search`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from datasets import Dataset
from tqdm.auto import tqdm

from hf_tlm.retrieval.settings import Bm25Settings, ElasticSettings, check_elastic
from hf_tlm.retrieval.texts import RetrievalError

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

T = TypeVar("T")

INSTALL = "pip install 'hf-tlm[elastic]'"
RETRIED = (408, 429, 502, 503, 504)
BACKOFF, MAX_BACKOFF = 1.0, 60.0  # Seconds before the first retry, doubled each time, and their maximum.
STAMP = "hf_tlm"  # Key of our entry in an index's _meta.
DEFAULT_WINDOW = 10_000  # Elasticsearch's index.max_result_window
DEFAULT_SIMILARITY = {"type": "BM25", "k1": 1.2, "b": 0.75}
STAMP_VERSION = 1
BULK_ROWS, BULK_BYTES = 500, 10 << 20  # Limits of one _bulk request.


class Unfinished(Exception):
    """Raised when part of a request failed for a temporary reason and should be retried."""


def connect(settings: ElasticSettings) -> Elasticsearch:
    """Create a client; it sends nothing to the cluster yet. Close it after use.

    Raises:
        RetrievalError: the package is missing, no index is named, the API key is malformed, or there is no such certificate
            file.
    """
    try:
        from elasticsearch import Elasticsearch
    except ImportError as error:
        raise RetrievalError(f"Retrieval from Elasticsearch needs its client ({error}): {INSTALL}.") from error
    if not settings.index:
        raise RetrievalError("Pass the name of the index that has the passages (index=...).")
    key = settings.api_key
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise RetrievalError(
            f"The value of {settings.api_key_env} is not an encoded API key: it has blanks or characters that are not "
            "printable ASCII."
        )
    options: dict[str, Any] = {"request_timeout": settings.timeout, "max_retries": 0, "retry_on_timeout": False}
    if key:
        options["api_key"] = key
    if settings.ca_certs is not None:
        if not os.path.isfile(settings.ca_certs):
            raise RetrievalError(f"There is no certificate file {settings.ca_certs} (ca_certs).")
        options["ca_certs"] = settings.ca_certs
    return Elasticsearch(settings.url, **options)


def index_corpus(
    dataset: Dataset,
    settings: ElasticSettings,
    bm25: Bm25Settings,
    *,
    corpus_name: str,
    fingerprint: str,
    progress: bool = True,
) -> int:
    """Index a corpus in the cluster, unless that was done before, and return its number of passages.

    The index stores the corpus's fingerprint, these settings, and finally a mark that it is complete. If a complete index of
    the same corpus and settings exists, nothing is done; if indexing was interrupted, it continues, and passages indexed
    before stay as they are.

    Args:
        dataset: string columns id, text, source. An id becomes the `_id`, and a keyword field that breaks ties.
        corpus_name, fingerprint: identify the corpus.
        progress: show a progress bar.

    Raises:
        RetrievalError: the index has another corpus or other settings; the cluster rejects a passage (the message has its
            reason); in the end passages are missing or too many (repeated ids); see `connect`.
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
            _create_index(client, settings, bm25, stamp)
        stored_stamp = _check_stamp(read_layout(client, settings).stamp, stamp, settings)
        if not stored_stamp["complete"]:
            bar = tqdm(total=len(dataset), desc="Indexing the corpus", unit=" passages", disable=None if progress else True)
            with bar:
                for rows in dataset.iter(batch_size=BULK_ROWS):
                    _index_batch(client, rows, fields, settings)
                    bar.update(len(rows["id"]))
            interval = {"index": {"refresh_interval": None}}
            with_retries(lambda: client.indices.put_settings(index=settings.index, settings=interval), settings)
            with_retries(lambda: client.indices.refresh(index=settings.index), settings)
        count = with_retries(lambda: client.count(index=settings.index), settings)["count"]
        if count != len(dataset):
            raise RetrievalError(
                f"The index {settings.index!r} has {count:,} passages, but the corpus has {len(dataset):,}. Ids repeat in "
                "the corpus, or another program writes to the index. Delete the index and index the corpus again."
            )
        if not stored_stamp["complete"]:
            meta = {STAMP: {**stamp, "complete": True}}
            with_retries(lambda: client.indices.put_mapping(index=settings.index, meta=meta), settings)
    return count


@dataclass(frozen=True)
class Layout:
    """The layout of an index: its fields, similarity and limits, as its mapping and settings describe them.

    id_field: a keyword field with the ids, to break ties by; None: only `_id`, which cannot be used for sorting.
    text_path, source_path: paths of the two fields in a document's `_source`; source_path None: there is no source.
    similarity: type, k1 and b of the text field.
    stamp: metadata that index_corpus wrote; None for an index not created by hf_tlm.
    """

    id_field: str | None
    text_path: str
    source_path: str | None
    max_result_window: int
    similarity: dict[str, Any]
    stamp: dict[str, Any] | None


def read_layout(client: Elasticsearch, settings: ElasticSettings) -> Layout:
    """Read the layout of the index, or the common layout of all indices behind an alias.

    Raises:
        RetrievalError: there is no such index, the indices differ, or a field cannot be used.
    """
    # Do not retry lost connections: a refused one is usually a wrong address, for which waiting does not help.
    response = with_retries(lambda: client.indices.get(index=settings.index), settings, drops=False)
    if not response.body:
        raise RetrievalError(f"There is no index {settings.index!r} at {settings.url}. Check the name.")
    layouts = [_parse_layout(name, description, settings) for name, description in response.body.items()]
    if any(layout != layouts[0] for layout in layouts):
        raise RetrievalError(
            f"The indices behind {settings.index!r} differ in fields or similarity: {', '.join(response.body)}."
        )
    if len(layouts) > 1 and settings.id_field is None:
        raise RetrievalError(
            f"{settings.index!r} refers to {len(layouts)} indices, in which an _id may repeat. Pass id_field, a keyword "
            "field whose ids are unique across these indices."
        )
    return layouts[0]


def with_retries(
    call: Callable[[], T], settings: ElasticSettings, *, statuses: Collection[int] = RETRIED, drops: bool = True
) -> T:
    """Return `call()`, retried with exponential back-off after temporary errors.

    Retried are timeouts, responses with one of `statuses`, Unfinished and, if `drops`, lost connections.

    Raises:
        RetrievalError: the last attempt failed, or the error is not temporary; the message says what to do.
    """
    from elasticsearch import ApiError, ConnectionTimeout, SSLError, TransportError
    from elasticsearch import ConnectionError as Dropped

    reason: Exception
    for attempt in range(settings.max_retries + 1):
        if attempt:
            time.sleep(min(MAX_BACKOFF, BACKOFF * 2 ** (attempt - 1)))
        try:
            return call()
        except Unfinished as error:
            reason, temporary = error, True
        except ApiError as error:
            reason, temporary = error, error.status_code in statuses
        except TransportError as error:
            dropped = isinstance(error, Dropped) and not isinstance(error, SSLError)
            reason, temporary = error, isinstance(error, ConnectionTimeout) or (drops and dropped)
        if not temporary:
            break
    raise RetrievalError(explain(reason, settings, attempt)) from reason


def explain(error: Exception, settings: ElasticSettings, repetitions: int = 0) -> str:
    """Explain an error and what to do about it; the API key is masked, even if the server repeats it."""
    from elasticsearch import ApiError, ConnectionTimeout, SSLError, UnsupportedProductError
    from elasticsearch import ConnectionError as Dropped

    url, index, key = settings.url, settings.index, settings.api_key
    name = settings.api_key_env
    if isinstance(error, Unfinished):
        message = str(error)
    elif isinstance(error, UnsupportedProductError):
        message = f"The server at {url} is not Elasticsearch 8 or later (other products are not supported)."
    elif isinstance(error, SSLError):
        message = (
            f"No secure connection to {url}: {error.message}. Check that the port accepts https. If the cluster has its own "
            "certificate authority, pass its certificate as ca_certs."
        )
    elif isinstance(error, ConnectionTimeout):
        message = f"{url} did not answer within {settings.timeout:g} seconds. Raise timeout, or lower batch_size or top_k."
    elif isinstance(error, Dropped):
        message = f"Cannot reach Elasticsearch at {url}: {error.message}. Check the URL and that the cluster is running."
    elif not isinstance(error, ApiError):
        message = f"The request to {url} failed: {error}."
    elif error.status_code == 401:
        problem = f"did not accept the API key in {name}" if key else f"asks for an API key: set {name} in the environment"
        message = f"{url} {problem}."
    elif error.status_code == 403:
        message = (
            f"The API key in {name} lacks a privilege for index {index!r}: {reason_of(error.body)}. Retrieval needs the "
            "privileges read and view_index_metadata; indexing also needs create_index, write and manage."
        )
    elif error.status_code == 404:
        message = f"There is no index {index!r} at {url}. Check the name, or create the index with index_corpus."
    elif error.status_code == 413:
        message = f"The request is too large for {url}. Lower batch_size ({settings.batch_size})."
    elif "media_type_header_exception" in reason_of(error.body):
        message = (
            f"The cluster at {url} does not support this version of the client: {reason_of(error.body)}. Install the "
            "client of the server's major version: pip install 'elasticsearch>=8,<9' for Elasticsearch 8."
        )
    else:
        message = f"Elasticsearch at {url} answered {error.status_code}: {reason_of(error.body)}."
    if repetitions:
        message += f" (Tried {repetitions + 1} times.)"
    return message.replace(key, "***") if key else message


def reason_of(body: Any) -> str:
    """Return the types and reasons in an error response of Elasticsearch, outermost first, without repetitions."""
    reasons: dict[str, None] = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            words = [str(node[name]) for name in ("type", "reason") if isinstance(node.get(name), str)]
            if words:
                reasons[": ".join(words)] = None
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(body)
    return "; ".join(reasons) or str(body)


def _parse_layout(name: str, description: dict[str, Any], settings: ElasticSettings) -> Layout:
    """Read the layout from one index's mapping and settings, or raise a RetrievalError if a field cannot be used."""
    mapping, options = description.get("mappings", {}), description.get("settings", {}).get("index", {})
    properties, stamp = mapping.get("properties", {}), mapping.get("_meta", {}).get(STAMP)
    text = _find_field(properties, settings.text_field)
    if text is None or text[0].get("type") != "text":
        kind = "is not mapped" if text is None else f"is of type {text[0].get('type')}"
        raise RetrievalError(
            f"text_field {settings.text_field!r} of index {name!r} {kind}; BM25 needs a field of type text."
        )
    if settings.id_field is not None:
        field = _find_field(properties, settings.id_field)
        if field is None or field[0].get("type") != "keyword" or field[0].get("doc_values") is False:
            raise RetrievalError(
                f"id_field {settings.id_field!r} of index {name!r} is not a keyword field with doc values. Pass a keyword "
                f"field (often a subfield, such as {settings.id_field}.keyword), or remove id_field to use _id."
            )
    source = _find_field(properties, settings.source_field)
    declared = options.get("similarity", {})
    chosen = text[0].get("similarity", "default")
    similarity = {**DEFAULT_SIMILARITY, **declared.get(chosen, {} if chosen in ("default", "BM25") else {"type": chosen})}
    if text[0].get("norms") is False:
        similarity["b"] = 0  # Without norms Lucene treats every length as the mean.
    return Layout(
        id_field=settings.id_field or (stamp or {}).get("settings", {}).get("id_field"),
        text_path=text[1],
        source_path=source and source[1],
        max_result_window=int(options.get("max_result_window", DEFAULT_WINDOW)),
        similarity={"type": similarity["type"], "k1": float(similarity["k1"]), "b": float(similarity["b"])},
        stamp=stamp,
    )


def _find_field(properties: dict[str, Any], path: str) -> tuple[dict[str, Any], str] | None:
    """Return (mapping, path in _source) of a field, or None if it does not exist; a multi-field has its parent's path."""
    head, _, rest = path.partition(".")
    field = properties.get(head)
    if field is None or not rest:
        return field and (field, head)
    if rest in field.get("fields", {}):
        return field["fields"][rest], head
    inner = _find_field(field.get("properties", {}), rest)
    return inner and (inner[0], f"{head}.{inner[1]}")


def _create_index(client: Elasticsearch, settings: ElasticSettings, bm25: Bm25Settings, stamp: dict[str, Any]) -> None:
    """Create the index with an analyzer like our `Analyzer`, BM25 similarity and the stamp."""
    filters = ["lowercase", "hf_tlm_storable", *(["hf_tlm_stop"] if bm25.stopwords else [])]
    analysis = {
        # Python's \w\w+: letters, numbers and the underscore.
        "tokenizer": {"hf_tlm_words": {"type": "pattern", "pattern": r"[\p{L}\p{N}_]{2,}", "group": 0}},
        "filter": {
            # Lucene rejects a passage with a term of more than 32,766 bytes.
            "hf_tlm_storable": {"type": "length", "max": 8191},
            "hf_tlm_stop": {"type": "stop", "stopwords": "_english_"},
        },
        "analyzer": {"hf_tlm": {"type": "custom", "tokenizer": "hf_tlm_words", "filter": filters}},
    }
    options = {
        "index": {
            "similarity": {"hf_tlm": {"type": "BM25", "k1": bm25.k1, "b": bm25.b}},
            "analysis": analysis,
            "refresh_interval": "-1",  # No refresh until all passages are indexed.
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
        # 400: the index exists, created by another process meanwhile, or by this one if the response was lost.
        response = client.options(ignore_status=400).indices.create(
            index=settings.index, settings=options, mappings=mappings
        )
        if "error" in response and "resource_already_exists_exception" not in reason_of(response.body):
            raise RetrievalError(f"Elasticsearch did not create the index {settings.index!r}: {reason_of(response.body)}.")

    with_retries(create, settings, drops=False)


def _check_stamp(stored: dict[str, Any] | None, stamp: dict[str, Any], settings: ElasticSettings) -> dict[str, Any]:
    """Check that an existing index has our stamp with the same corpus and settings; return the stamp found.

    Raises:
        RetrievalError: it does not.
    """
    advice = "Choose another index name, or delete this index."
    if stored is None:
        raise RetrievalError(
            f"The index {settings.index!r} exists and was not created by hf_tlm. To search this index, pass no corpus. "
            "To index the corpus, choose another index name, or delete this index."
        )
    if stored["version"] != stamp["version"]:
        raise RetrievalError(f"The index {settings.index!r} was created by another version of hf_tlm. {advice}")
    if stored["fingerprint"] != stamp["fingerprint"]:
        raise RetrievalError(
            f"The index {settings.index!r} holds another corpus: {stored['corpus_name']} ({stored['fingerprint']}) instead "
            f"of {stamp['corpus_name']} ({stamp['fingerprint']}). {advice}"
        )
    theirs, ours = stored["settings"], stamp["settings"]
    if other := [
        f"{name} {theirs.get(name)!r} instead of {ours[name]!r}" for name in ours if theirs.get(name) != ours[name]
    ]:
        raise RetrievalError(f"The index {settings.index!r} was created with other settings: {', '.join(other)}. {advice}")
    return stored


def _index_batch(client: Elasticsearch, rows: dict[str, list], fields: dict[str, str], settings: ElasticSettings) -> None:
    """Index a batch of passages; those that exist already are left unchanged."""
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
            # 409: it exists already, from an earlier run or from a request whose response was lost.
            if not created and item["status"] != 409:
                raise RetrievalError(
                    f"Elasticsearch rejected passage {item['_id']!r}: {item['status']}, {reason_of(item['error'])}. "
                    "The passages indexed so far are kept; repeat the same run to continue."
                )

    with_retries(send, settings, statuses=())  # streaming_bulk itself retries on overload, but not after lost connections.
