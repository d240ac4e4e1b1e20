"""Elasticsearch through its official client, against a loopback server that answers like it (elastic_server.py)."""

import logging
import math
import re
import sys
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset

pytest.importorskip("elasticsearch", reason="the extra [elastic] is not installed")

from hf_tlm.retrieval import RetrievalError
from hf_tlm.retrieval.elastic_index import connect, index_corpus
from hf_tlm.retrieval.elastic_search import fetch, retrieve_elastic, search
from hf_tlm.retrieval.settings import Bm25Settings, ElasticSettings
from hf_tlm.retrieval.texts import Analyzer
from support.elastic_server import ElasticServer, Failure

BM25 = Bm25Settings()
KEY = "VnVhQ2ZHY0JDZGJrUW0tZTVhT3g6dWkybHAyYXhUTm1zeWFrdzl0dk5udw=="
TEXT, KEYWORD = {"type": "text"}, {"type": "keyword"}
OVERLOAD = Failure(429, "es_rejected_execution_exception", "rejected execution of coordinating operation")
UNAVAILABLE = Failure(503, "no_shard_available_action_exception", "all shards failed")
REFUSED = Failure(400, "query_shard_exception", "failed to create query")


@pytest.fixture
def server():
    with ElasticServer() as server:
        yield server


@pytest.fixture
def settings(server):
    return ElasticSettings(server.url, "corpus")


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The seconds that were to be slept; nothing sleeps."""
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("ELASTICSEARCH_API_KEY", raising=False)


@pytest.fixture
def dataset(passages):
    return rows(passages)


@pytest.fixture
def indexed(server, settings, dataset):
    index(dataset, settings)
    server.requests.clear()
    return settings


def rows(passages):
    return Dataset.from_dict({"id": list(passages), "text": list(passages.values()), "source": ["toy"] * len(passages)})


def index(dataset, settings, bm25=BM25, **options):
    options = {"corpus_name": "toy", "fingerprint": "f1", **options}
    return index_corpus(dataset, settings, bm25, progress=False, **options)


def exhaustive(queries, passages, top_k, bm25=BM25):
    """Yield (ids, scores) of each query by the formula."""
    analyzer = bm25.analyzer
    counts = {key: Counter(analyzer(text)) for key, text in passages.items()}
    mean = np.mean([count.total() for count in counts.values()])
    df = Counter(term for count in counts.values() for term in count)
    for query in queries:
        scores = {}
        for key, count in counts.items():
            norm = bm25.k1 * (1 - bm25.b + bm25.b * count.total() / mean)
            for term in analyzer(query):
                if count[term]:
                    idf = math.log(1 + (len(counts) - df[term] + 0.5) / (df[term] + 0.5))
                    scores[key] = scores.get(key, 0) + idf * count[term] / (count[term] + norm)
        best = sorted(scores, key=lambda key: (-np.float32(scores[key]), key))[:top_k]
        yield best, np.array([scores[key] for key in best], np.float32)


def assert_equal_hits(found, expected):
    found, expected = list(found), list(expected)
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert [scores.tolist() for _, scores in found] == [scores.tolist() for _, scores in expected]
    assert all(scores.dtype == np.float32 for _, scores in found)


def failing_times(number, failure):
    """Return a function that returns a failure the given number of times, and then None."""
    left = [number]

    def fail(*_):
        left[0] -= 1
        return failure if left[0] >= 0 else None

    return fail


# Indexing.


def test_corpus_is_indexed_once(server, settings, dataset, passages):
    assert index(dataset, settings) == len(passages)
    created = server.indices["corpus"]
    assert created["visible"] == {key: {"id": key, "text": text, "source": "toy"} for key, text in passages.items()}
    assert created["mappings"]["_meta"]["hf_tlm"]["complete"] is True
    assert created["mappings"]["_meta"]["hf_tlm"]["fingerprint"] == "f1"
    assert created["settings"]["index"]["similarity"] == {"hf_tlm": {"type": "BM25", "k1": "1.2", "b": "0.75"}}
    assert created["settings"]["index"]["refresh_interval"] is None

    server.requests.clear()
    assert index(dataset, settings) == len(passages)
    assert not server.paths("_bulk")


@pytest.mark.parametrize("stopwords", ["en", None])
def test_analyzer_of_the_index_equals_ours(server, settings, dataset, stopwords):
    index(dataset, settings, Bm25Settings(stopwords=stopwords))
    analysis = server.indices["corpus"]["settings"]["index"]["analysis"]
    filters = analysis["analyzer"]["hf_tlm"]["filter"]
    assert filters[0] == "lowercase" and ("hf_tlm_stop" in filters) == (stopwords == "en")
    # Java's classes of letters and numbers as a Python pattern.
    pattern = analysis["tokenizer"]["hf_tlm_words"]["pattern"].replace(r"\p{L}\p{N}_", r"\w")
    text = "The kinase-2 inhibitor of a Größe, naïve x 42 snake_case №5 ½cup"
    assert re.findall(pattern, text.lower()) == Analyzer(None)(text)


def test_bulk_requests_have_a_maximum_size(server, settings):
    assert index(rows({f"p{number}": "some words" for number in range(1201)}), settings) == 1201
    assert len(server.paths("_bulk")) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "f2"}, r"another corpus: toy \(f1\) instead of toy \(f2\)"),
        ({"bm25": Bm25Settings(k1=2.0)}, "k1 1.2 instead of 2.0"),
        ({"bm25": Bm25Settings(stopwords=None)}, "stopwords 'en' instead of None"),
    ],
)
def test_index_of_another_corpus_or_setting_is_refused(server, indexed, dataset, change, message):
    with pytest.raises(RetrievalError, match=message + ".*Choose another index name"):
        index(dataset, indexed, **change)
    assert not server.paths("_bulk")


def test_index_not_created_by_hf_tlm_is_not_written_to(server, settings, dataset):
    server.add("corpus", {"1": {"text": "mine"}}, {"text": TEXT})
    with pytest.raises(RetrievalError, match="was not created by hf_tlm"):
        index(dataset, settings)
    assert server.indices["corpus"]["documents"] == {"1": {"text": "mine"}}


def test_interrupted_build_is_incomplete_and_continued(server, settings, dataset, passages, monkeypatch):
    monkeypatch.setattr("hf_tlm.retrieval.elastic_index.BULK_ROWS", 2)

    server.fail = lambda method, path: "drop" if path.endswith("_bulk") and len(server.paths("_bulk")) >= 2 else None
    with pytest.raises(RetrievalError, match="Cannot reach Elasticsearch"):
        index(dataset, settings)
    assert len(server.indices["corpus"]["documents"]) == 2
    with pytest.raises(RetrievalError, match="not complete"):
        list(search(["kinase"], 2, settings, BM25))

    server.fail = lambda *_: None
    assert index(dataset, settings) == len(passages)
    assert_equal_hits(search(["kinase"], 9, settings, BM25), exhaustive(["kinase"], passages, 9))


def test_indexing_is_retried_after_overload_and_lost_connections(server, settings, dataset, passages, waits):
    bulk = failing_times(2, OVERLOAD)
    server.fail = lambda method, path: bulk() if path.endswith("_bulk") else None
    items = failing_times(3, OVERLOAD)
    server.fail_item = lambda api, key: items() if api == "_bulk" else None
    index(dataset, settings)
    assert waits == [1, 2, 4]
    assert len(server.indices["corpus"]["visible"]) == len(passages)

    drops = failing_times(1, "drop")
    server.fail = lambda method, path: drops() if path.endswith("_bulk") else None
    assert index(dataset, replace(settings, index="second")) == len(passages)


def test_repeated_request_after_a_lost_response_is_no_error(server, settings, dataset, passages):
    document = {"id": "p1", "text": passages["p1"], "source": "toy"}
    server.fail_item = lambda api, key: server.indices["corpus"]["documents"].setdefault("p1", document) and None
    assert index(dataset, settings) == len(passages)


def test_two_simultaneous_builders_create_one_index(server, settings, dataset, passages):
    def other(method, path):
        if (method, path) == ("PUT", "/corpus"):
            server.fail = lambda *_: None
            index(dataset, settings)

    server.fail = other  # Another builder creates the index after this one has found none.
    assert index(dataset, settings) == len(passages)
    assert len(server.paths("_bulk")) == 1


def test_rejected_passage_is_named(server, settings, dataset):
    refused = Failure(400, "document_parsing_exception", "immense term")
    server.fail_item = lambda api, key: refused if key == "p2" else None
    with pytest.raises(RetrievalError, match="passage 'p2': 400, document_parsing_exception: immense term"):
        index(dataset, settings)
    assert not server.indices["corpus"]["mappings"]["_meta"]["hf_tlm"]["complete"]


def test_lasting_overload_is_an_error(server, settings, dataset, waits):
    server.fail_item = lambda *_: OVERLOAD
    with pytest.raises(RetrievalError, match="passage 'p3': 429, es_rejected"):
        index(dataset, replace(settings, max_retries=3))
    assert waits == [1, 2, 4]


def test_repeated_ids_are_refused(settings):
    twice = Dataset.from_dict({"id": ["a", "a"], "text": ["one word", "two words"], "source": ["s", "s"]})
    with pytest.raises(RetrievalError, match="has 1 passages, but the corpus has 2"):
        index(twice, settings)


def test_fields_of_a_new_index_need_different_names(settings, dataset):
    with pytest.raises(RetrievalError, match="three different names"):
        index(dataset, replace(settings, source_field="text"))


# Searching.


@pytest.mark.parametrize("bm25", [BM25, Bm25Settings(k1=0.9, b=0.4, stopwords=None)])
@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("top_k", [1, 2, 10])
def test_hits_equal_the_exhaustive_reference(server, settings, dataset, passages, queries, bm25, batch_size, top_k):
    settings = replace(settings, batch_size=batch_size)
    index(dataset, settings, bm25)
    found = search(list(queries.values()), top_k, settings, bm25)
    assert_equal_hits(found, exhaustive(queries.values(), passages, top_k, bm25))
    assert len(server.paths("_msearch")) == math.ceil(len(queries) / batch_size)


def test_hits_of_random_passages_with_ties_equal_the_reference(server, settings):
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(15)]
    passages = {f"d{number:03}": " ".join(rng.choice(words, rng.integers(1, 5))) for number in rng.permutation(150)}
    queries = [" ".join(rng.choice(words, 4)) for _ in range(20)]
    index(rows(passages), settings)
    assert_equal_hits(search(queries, 7, settings, BM25), exhaustive(queries, passages, 7))


def test_search_requests_only_ids_and_scores(server, indexed):
    list(search(["kinase"], 2, indexed, BM25))
    (body,) = [body for _, path, _, body in server.requests if path.endswith("_msearch")]
    assert '"_source":false' in body and '"stored_fields":"_none_"' in body


def test_index_not_created_by_hf_tlm_is_searched(server, settings, passages):
    documents = {f"x{key}": {"body": text, "name": key, "venue": "toy"} for key, text in passages.items()}
    fields = {"body": TEXT, "name": {**TEXT, "fields": {"keyword": KEYWORD}}, "venue": KEYWORD}
    server.add("corpus", documents, fields)
    theirs = replace(settings, text_field="body", source_field="venue")
    plain = Bm25Settings(stopwords=None)
    queries = ["the kinase inhibitor", "enzymes bind"]

    expected = list(exhaustive(queries, passages, 9, plain))
    found = list(search(queries, 9, theirs, plain))
    assert [ids for ids, _ in found] == [[f"x{key}" for key in ids] for ids, _ in expected]
    assert fetch(["xp4", "xp1"], theirs) == [
        {"id": "xp4", "text": passages["p4"], "source": "toy"},
        {"id": "xp1", "text": passages["p1"], "source": "toy"},
    ]

    named = replace(theirs, id_field="name.keyword", source_field="nowhere")
    with pytest.raises(RetrievalError, match="'name' .* is not a keyword field"):
        list(search(queries, 9, replace(theirs, id_field="name"), plain))
    assert fetch(["p4"], replace(named)) == [{"id": "p4", "text": passages["p4"], "source": "corpus"}]


def test_alias_of_several_indices_needs_an_id_field(server, settings):
    for name, key in (("a", "1"), ("b", "2")):
        server.add(name, {"same": {"text": "one kinase", "key": key}}, {"text": TEXT, "key": KEYWORD})
    server.aliases["corpus"] = ["a", "b"]
    with pytest.raises(RetrievalError, match="refers to 2 indices"):
        list(search(["kinase"], 2, settings, BM25))
    by_key = replace(settings, id_field="key")
    assert [ids for ids, _ in search(["kinase"], 2, by_key, BM25)] == [["1", "2"]]
    assert [row["id"] for row in fetch(["2", "1"], by_key)] == ["2", "1"]

    server.indices["b"]["mappings"]["properties"]["text"] = {**TEXT, "similarity": "boolean"}
    with pytest.raises(RetrievalError, match="differ in fields or similarity"):
        list(search(["kinase"], 2, by_key, BM25))


def test_repeated_value_of_the_id_field_is_refused(server, settings):
    documents = {key: {"text": "kinase", "key": "k"} for key in ("1", "2")}
    server.add("corpus", documents, {"text": TEXT, "key": KEYWORD})
    with pytest.raises(RetrievalError, match="same id more than once"):
        fetch(["k"], replace(settings, id_field="key"))


def test_passage_without_a_value_of_the_id_field_is_refused(server, settings):
    server.add("corpus", {"1": {"text": "kinase", "key": "k"}, "2": {"text": "kinase"}}, {"text": TEXT, "key": KEYWORD})
    by_key = replace(settings, id_field="key")
    assert [ids for ids, _ in search(["kinase"], 1, by_key, BM25)] == [["k"]]
    with pytest.raises(RetrievalError, match="'corpus' has no value in id_field 'key': .* remove id_field to use _id"):
        list(search(["kinase"], 2, by_key, BM25))


@pytest.mark.parametrize(
    ("properties", "options", "message"),
    [
        ({"other": TEXT}, {}, "'text' of index 'corpus' is not mapped"),
        ({"text": KEYWORD}, {}, "is of type keyword; BM25 needs a field of type text"),
        ({"text": {**TEXT, "similarity": "boolean"}}, {}, "scores with .*boolean"),
        ({"text": TEXT}, {"similarity": {"default": {"type": "BM25", "b": "0.3"}}}, "'b': 0.3"),
        ({"text": {**TEXT, "norms": False}}, {}, "'b': 0.0"),
    ],
)
def test_fields_that_cannot_give_bm25_scores_are_refused(server, settings, properties, options, message):
    server.add("corpus", {}, properties, **options)
    with pytest.raises(RetrievalError, match=message):
        list(search(["kinase"], 2, settings, BM25))


def test_settings_other_than_those_of_the_index_are_refused(indexed):
    with pytest.raises(RetrievalError, match="'k1': 1.2.*'k1': 2.0"):
        list(search(["kinase"], 2, indexed, Bm25Settings(k1=2.0)))
    with pytest.raises(RetrievalError, match="created with stopwords='en', not None"):
        list(search(["kinase"], 2, indexed, Bm25Settings(stopwords=None)))


def test_top_k_above_the_result_window_is_refused(server, indexed):
    with pytest.raises(RetrievalError, match=r"top_k is 10001.*at most 10000.*index\.max_result_window to 10001"):
        list(search(["kinase"], 10_001, indexed, BM25))
    server.indices["corpus"]["settings"]["index"]["max_result_window"] = "20000"
    assert len(list(search(["kinase"], 10_001, indexed, BM25))) == 1


def test_only_failed_queries_are_retried(server, indexed, passages, queries, waits):
    failures = {queries["q3"]: failing_times(2, UNAVAILABLE), queries["q5"]: failing_times(1, OVERLOAD)}
    server.fail_item = lambda api, text: failures[text]() if text in failures else None
    assert_equal_hits(search(list(queries.values()), 3, indexed, BM25), exhaustive(queries.values(), passages, 3))
    bodies = [body for _, path, _, body in server.requests if path.endswith("_msearch")]
    assert [body.count('"match"') for body in bodies] == [5, 2, 1]
    assert waits == [1, 2]


@pytest.mark.parametrize(
    ("half", "message"),
    [
        ({"timed_out": True}, "out of time"),
        ({"_shards": {"total": 2, "failed": 1, "failures": [{"reason": {"type": "t", "reason": "r"}}]}}, "1 of 2 shards"),
    ],
)
def test_partial_response_is_retried(server, indexed, passages, half, message):
    server.fail_item = failing_times(1, half)
    assert_equal_hits(search(["kinase"], 3, indexed, BM25), exhaustive(["kinase"], passages, 3))
    server.fail_item = lambda *_: half
    with pytest.raises(RetrievalError, match=message + r".*\(Tried 6 times\.\)"):
        list(search(["kinase"], 3, indexed, BM25))


def test_query_that_keeps_failing_is_named(server, indexed, queries, waits):
    server.fail_item = lambda api, text: REFUSED if text == queries["q4"] else None
    with pytest.raises(RetrievalError, match=r"Query number 4 failed in the cluster: 400, query_shard_exception: failed"):
        list(search(list(queries.values()), 3, indexed, BM25))
    with pytest.raises(RetrievalError, match=r"Query number 4 \(q4\) failed"):
        retrieve_elastic(list(queries), list(queries.values()), 3, indexed, BM25)
    assert not waits

    server.fail_item = lambda api, text: UNAVAILABLE if text == queries["q4"] else None
    with pytest.raises(RetrievalError, match=r"Query number 4 failed .*503.*\(Tried 3 times\.\)"):
        list(search(list(queries.values()), 3, replace(indexed, max_retries=2, batch_size=2), BM25))
    assert waits == [1, 2]


def test_query_with_too_many_terms_is_refused(server, indexed):
    server.max_clause_count = 3
    with pytest.raises(RetrievalError, match="Query number 2 .*maxClauseCount is set to 3.* more terms than .*rake"):
        list(search(["kinase", "kinase receptor inhibitor enzyme"], 3, indexed, BM25))


# Fetching and the union.


def test_fetch_requests_only_the_given_ids(server, indexed, passages, monkeypatch, waits):
    monkeypatch.setattr("hf_tlm.retrieval.elastic_search.FETCH_ROWS", 2)
    failures = failing_times(1, UNAVAILABLE)
    server.fail_item = lambda api, key: failures() if key == "p5" else None
    assert fetch(["p5", "p1", "p3"], indexed) == [
        {"id": key, "text": passages[key], "source": "toy"} for key in ("p5", "p1", "p3")
    ]
    bodies = [body for _, path, _, body in server.requests if path.endswith("_mget")]
    assert bodies == ['{"ids":["p5","p1"]}', '{"ids":["p5"]}', '{"ids":["p3"]}'] and waits == [1]
    assert fetch([], indexed) == []
    with pytest.raises(RetrievalError, match="'gone' of index 'corpus' has no text"):
        fetch(["p1", "gone"], indexed)


def test_union_of_hits_has_best_rank_query_and_score(indexed, passages, queries):
    retrieved = retrieve_elastic(list(queries), list(queries.values()), 2, indexed, BM25)
    seen = {}
    for query, (ids, scores) in enumerate(exhaustive(queries.values(), passages, 2)):
        for rank, (key, score) in enumerate(zip(ids, scores, strict=True), start=1):
            seen.setdefault(key, []).append((rank, -score, query))
    best = {key: (min(hits)[0], min(score for _, score, _ in hits), key) for key, hits in seen.items()}
    assert retrieved.passages["id"][:] == sorted(seen, key=best.__getitem__)
    assert retrieved.passages["text"][:] == [passages[key] for key in retrieved.passages["id"][:]]
    columns = (retrieved.columns[name].tolist() for name in ("rank", "best_query", "n_queries", "score"))
    for key, *values in zip(retrieved.passages["id"][:], *columns, strict=True):
        rank, _, query = min(seen[key])
        assert values == [rank, query, len(seen[key]), -best[key][1]]
    assert retrieved.counts == {"fingerprint": "f1", "passages": len(passages)} and len(retrieved.without_hits) == 2
    nothing = [not hits[0] for hits in exhaustive(queries.values(), passages, 2)]
    assert retrieved.without_hits == [number for number, none in enumerate(nothing) if none]


def test_queries_without_any_hits_are_refused(indexed):
    with pytest.raises(RetrievalError, match="None of the 2 queries finds a passage"):
        retrieve_elastic(["a", "b"], ["zebra", "quagga"], 2, indexed, BM25)


# Unsupported options, and failures of the cluster.


def test_unsupported_settings_are_refused_before_any_request(server, settings, dataset):
    for bm25 in (Bm25Settings(variant="robertson"), Bm25Settings(variant="bm25+")):
        with pytest.raises(RetrievalError, match="Lucene's BM25 only"):
            index(dataset, settings, bm25)
        with pytest.raises(RetrievalError, match="Lucene's BM25 only"):
            list(search(["kinase"], 2, settings, bm25))
    pytest.importorskip("Stemmer")
    with pytest.raises(RetrievalError, match="Remove the stemmer"):
        list(search(["kinase"], 2, settings, Bm25Settings(stemmer="english")))
    with pytest.raises(RetrievalError, match=r"max_query_terms \(20\)"):
        retrieve_elastic(["q"], ["kinase"], 2, settings, BM25, max_query_terms=20)
    assert not server.requests


def test_invalid_connection_settings_are_refused():
    with pytest.raises(RetrievalError, match="API key") as caught:
        ElasticSettings("https://elastic:secret@host:9200", "corpus")
    assert "secret" not in str(caught.value)
    for url in ("localhost:9200", "http://localhost", "ftp://host:21", "http://host:port"):
        with pytest.raises(RetrievalError, match="scheme, host and port"):
            ElasticSettings(url, "corpus")
    for change in ({"batch_size": 0}, {"max_retries": -1}, {"timeout": 0}):
        with pytest.raises(RetrievalError, match=next(iter(change))):
            ElasticSettings(index="corpus", **change)
    with pytest.raises(RetrievalError, match="Pass the name of the index"):
        list(search(["kinase"], 2, ElasticSettings(), BM25))
    with pytest.raises(RetrievalError, match="no certificate file"):
        list(search(["kinase"], 2, ElasticSettings(index="corpus", ca_certs="nowhere.crt"), BM25))


def test_missing_client_is_reported_with_its_extra(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "elasticsearch", None)
    with pytest.raises(RetrievalError, match=r"pip install 'hf-tlm\[elastic\]'"):
        list(search(["kinase"], 2, settings, BM25))


def test_unreachable_cluster_is_refused(waits):
    with pytest.raises(RetrievalError, match="Cannot reach Elasticsearch at http://127.0.0.1:9.*cluster is running"):
        list(search(["kinase"], 2, ElasticSettings("http://127.0.0.1:9", "corpus"), BM25))
    assert not waits


def test_lost_connection_is_retried(server, indexed, passages, waits):
    drops = failing_times(2, "drop")
    server.fail = lambda method, path: drops() if path.endswith("_msearch") else None
    assert_equal_hits(search(["kinase"], 3, indexed, BM25), exhaustive(["kinase"], passages, 3))
    assert waits == [1, 2]


def test_timeout_is_retried_and_reported(server, indexed, monkeypatch):
    gate = threading.Event()
    server.fail = lambda method, path: gate.wait(2) and None if path.endswith("_msearch") else None
    with pytest.raises(RetrievalError, match=r"did not answer within 0\.05 seconds.*\(Tried 2 times\.\)"):
        list(search(["kinase"], 3, replace(indexed, timeout=0.05, max_retries=1), BM25))
    gate.set()


def test_lasting_503_is_retried_and_reported(server, indexed, waits):
    server.fail = lambda method, path: UNAVAILABLE if path.endswith("_msearch") else None
    with pytest.raises(RetrievalError, match=r"answered 503: no_shard_available.*\(Tried 6 times\.\)"):
        list(search(["kinase"], 3, indexed, BM25))
    assert waits == [1, 2, 4, 8, 16]


def test_missing_index_is_refused(server, settings):
    for call in (lambda: list(search(["kinase"], 2, settings, BM25)), lambda: fetch(["p1"], settings)):
        with pytest.raises(RetrievalError, match="There is no index 'corpus' at .*index_corpus"):
            call()


def test_failed_tls_connection_is_reported(server, indexed):
    secure = replace(indexed, url=indexed.url.replace("http:", "https:"))
    with pytest.raises(RetrievalError, match="No secure connection to https:.*ca_certs"):
        list(search(["kinase"], 2, secure, BM25))


def test_other_product_or_version_is_refused(server, indexed):
    server.version = 7
    with pytest.raises(RetrievalError, match="does not support this version of the client.*elasticsearch>=8,<9"):
        list(search(["kinase"], 2, indexed, BM25))
    server.version, server.product = 9, "Something"
    with pytest.raises(RetrievalError, match="is not Elasticsearch"):
        list(search(["kinase"], 2, indexed, BM25))


def test_api_key_is_read_from_the_environment_and_never_shown(server, indexed, passages, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    server.api_key = KEY
    messages = []
    with pytest.raises(RetrievalError, match="asks for an API key: set ELASTICSEARCH_API_KEY"):
        list(search(["kinase"], 2, indexed, BM25))

    monkeypatch.setenv("MY_KEY", KEY + "\n")  # With a line break, as if read from a file.
    mine = replace(indexed, api_key_env="MY_KEY")
    assert_equal_hits(search(["kinase"], 2, mine, BM25), exhaustive(["kinase"], passages, 2))
    retrieve_elastic(["q"], ["kinase"], 2, mine, BM25)
    messages += [caplog.text]

    server.api_key = "another"  # The server then repeats the given key in its error.
    with pytest.raises(RetrievalError, match="did not accept the API key in MY_KEY") as caught:
        list(search(["kinase"], 2, mine, BM25))
    messages += [str(caught.value)]
    server.api_key = None
    server.fail = lambda *_: Failure(403, "security_exception", f"action is unauthorized for API key {KEY}")
    with pytest.raises(RetrievalError, match="lacks a privilege for index 'corpus'.*view_index_metadata") as caught:
        list(search(["kinase"], 2, mine, BM25))
    messages += [str(caught.value)]
    server.fail = lambda *_: Failure(400, "odd", KEY)
    with pytest.raises(RetrievalError, match=r"answered 400: odd: \*\*\*") as caught:
        list(search(["kinase"], 2, mine, BM25))
    messages += [str(caught.value)]

    monkeypatch.setenv("MY_KEY", "two words")
    with pytest.raises(RetrievalError, match="value of MY_KEY is not an encoded API key") as caught:
        list(search(["kinase"], 2, mine, BM25))
    messages += [str(caught.value), repr(mine), str(connect(replace(mine, api_key_env="NONE")))]
    out, err = capfd.readouterr()
    assert not [text for text in (*messages, out, err) if KEY in text or "two words" in text]
