import itertools
import math

import bm25s
import numpy as np
import pytest
import rank_bm25
import torch
from datasets import Dataset

from hf_tlm.retrieval import Analyzer, Bm25Settings, Index, RetrievalError, tokenize_texts
from hf_tlm.retrieval.engine import MAX_BATCH, RANK_BM25, search_package
from hf_tlm.retrieval.settings import VARIANTS, check_engine

KEEP = Analyzer(stopwords=None)
PACKAGES = ("bm25s", "rank_bm25")

WORDS = [f"w{number}" for number in range(30)]


def reference(query, documents, variant, k1=1.2, b=0.75, delta=None):
    """Score one query against every document by the printed formulas of BM25: (float64 scores, shares a token)."""
    n, mean = len(documents), sum(map(len, documents)) / len(documents)
    scores, shares = np.zeros(n), np.zeros(n, bool)
    for token in query:
        df = sum(token in document for document in documents)
        if df == 0:
            continue
        tf = np.array([document.count(token) for document in documents], dtype=np.float64)
        norm = 1 - b + b * np.array([len(document) for document in documents]) / mean
        lucene = math.log(1 + (n - df + 0.5) / (df + 0.5))
        plus = math.log((n + 1) / df) * ((k1 + 1) * tf / (k1 * norm + tf) + (1.0 if delta is None else delta))
        c = tf / norm + (0.5 if delta is None else delta)
        scores += {
            "lucene": lucene * tf / (k1 * norm + tf),
            "robertson": max(0.0, math.log((n - df + 0.5) / (df + 0.5))) * tf / (k1 * norm + tf),
            "atire": math.log(n / df) * (k1 + 1) * tf / (k1 * norm + tf),
            "bm25l": math.log((n + 1) / (df + 0.5)) * (k1 + 1) * c / (k1 + c),
            "bm25+": plus,
        }[variant]
        shares |= tf > 0
    return scores, shares


def random_texts(seed, num_documents=60, num_queries=12):
    """Return documents with repeats, duplicates and empty ones; queries with repeated, unknown and no words."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(WORDS) + 1)
    draw = lambda size: list(rng.choice(WORDS, size=size, p=weights / weights.sum()))  # noqa: E731
    documents = [draw(rng.integers(0, 12)) for _ in range(num_documents)]
    documents[1], documents[5] = [], documents[4]
    documents[-10:] = documents[:10]
    queries = [draw(rng.integers(1, 6)) for _ in range(num_queries)]
    queries[0], queries[1], queries[2] = [], ["unknown"], [WORDS[0], WORDS[0], WORDS[7], "unknown"]
    return documents, queries


def tokenized(documents):
    return tokenize_texts([" ".join(document) for document in documents], KEEP)


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """Return a function that searches with any engine, including the index of this package."""
    folders = itertools.count()

    def search(queries, documents, top_k, *, backend="bm25", settings=None, tie_key=None):
        settings = Bm25Settings(**{**vars(settings or Bm25Settings()), "stopwords": None})
        queries = tokenized(queries)
        if backend != "bm25":
            corpus = tokenized(documents)
            return search_package(queries, corpus, top_k, backend=backend, settings=settings, tie_key=tie_key)
        key = range(len(documents)) if tie_key is None else tie_key
        texts = {"id": [f"{number:09}" for number in key], "text": [" ".join(document) for document in documents]}
        folder = tmp_path_factory.mktemp("index") / str(next(folders))
        about = {"corpus_name": "toy", "fingerprint": "0", "analyzer": KEEP, "progress": False}
        return Index.build(folder, Dataset.from_dict(texts), **about).search(queries, top_k, settings=settings)

    return search


def reference_hits(query, documents, top_k, settings):
    scores, shares = reference(query, documents, settings.variant, settings.k1, settings.b, settings.used_delta)
    scores = scores.astype(np.float32)
    order = sorted(np.flatnonzero(shares), key=lambda document: (-scores[document], document))[:top_k]
    return np.array(order, int), scores


def assert_same_up_to_ties(hits, expected, scores, rtol=1e-5):
    """Check that scores are equal at each rank, and that each document has the score of its rank."""
    documents, found_scores = hits
    assert len(documents) == len(expected) == len(set(documents.tolist()))
    np.testing.assert_allclose(found_scores, scores[expected], rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(scores[documents], scores[expected], rtol=rtol, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backend,variant", [(b, v) for b in VARIANTS for v in VARIANTS[b] if v != "okapi"])
def test_every_engine_and_variant_equals_the_exhaustive_reference(backend, variant, seed, search):
    documents, queries = random_texts(seed)
    for top_k in (1, 7, len(documents) - 1, len(documents), 1000):
        settings = Bm25Settings(variant, k1=0.9 + seed, b=0.4 + 0.2 * seed)
        results = list(search(queries, documents, top_k, backend=backend, settings=settings))
        assert len(results) == len(queries)
        for query, found in zip(queries, results, strict=True):
            expected, scores = reference_hits(query, documents, top_k, settings)
            assert_same_up_to_ties(found, expected, scores)
            # The order within ties is fixed too: the same documents at the same ranks.
            np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("variant", ["lucene", "bm25l", "bm25+"])
def test_bm25s_and_rank_bm25_agree(variant, seed, search):
    documents, queries = random_texts(seed + 10, num_documents=80)
    settings = Bm25Settings(variant)
    for top_k in (3, 20):
        both = [search(queries, documents, top_k, backend=name, settings=settings) for name in PACKAGES]
        for (first, first_scores), (second, second_scores) in zip(*both, strict=True):
            np.testing.assert_array_equal(first, second)
            np.testing.assert_allclose(first_scores, second_scores, rtol=1e-6)


def test_number_of_torch_threads_is_kept(search):
    """Numba's parallel loops set the number of OpenMP threads, which torch shares: later results would differ."""
    documents, queries = random_texts(0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 2)
        list(search(queries, documents, 3, backend="bm25s"))
        assert torch.get_num_threads() == before + 2
    finally:
        torch.set_num_threads(before)


def test_okapi_differs_if_a_word_is_in_most_documents(search):
    documents = [["common", "rare"], ["common"], ["common", "other"], ["rare", "other", "other"]]
    query, corpus = ["common", "rare"], documents
    okapi, lucene = (
        next(search([query], corpus, 4, backend="rank_bm25", settings=Bm25Settings(variant)))
        for variant in ("okapi", "lucene")
    )
    engine = rank_bm25.BM25Okapi(documents, k1=1.2, b=0.75)
    np.testing.assert_allclose(okapi[1], engine.get_scores(query)[okapi[0]], rtol=1e-6)
    ratio = dict(zip(*okapi, strict=True))
    assert any(abs(score / 2.2 - ratio[document] / 2.2) > 1e-3 for document, score in zip(*lucene, strict=True))


def test_rank_bm25_receives_k1_b_and_delta():
    for variant, model in RANK_BM25.items():
        delta = {} if Bm25Settings(variant).used_delta is None else {"delta": 0.3}
        engine = model([["a", "b"], ["a"]], k1=1.7, b=0.2, **delta)
        assert (engine.k1, engine.b) == (1.7, 0.2)


CHANGES = [{"k1": 2.0}, {"b": 0.1}, {"variant": "bm25l", "delta": 2.0}, {"variant": "bm25+", "delta": 0.1}]


@pytest.mark.parametrize("changed", CHANGES + [{"variant": "bm25l"}, {"variant": "bm25+"}])
@pytest.mark.parametrize("backend", list(VARIANTS))
def test_every_setting_changes_the_scores(backend, changed, search):
    settings = Bm25Settings(**changed)
    plain = Bm25Settings(changed["variant"]) if "delta" in changed else Bm25Settings()
    documents, queries = random_texts(3)
    first, second = (list(search(queries, documents, 50, backend=backend, settings=s)) for s in (plain, settings))
    assert any(sorted(a[1]) != sorted(b[1]) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("backend", list(VARIANTS))
def test_ties_at_the_cut_go_to_the_smallest_key(backend, search):
    documents = [["same", "words"]] * 40 + [["same", "same"]] + [["nothing"]] * 60
    key = np.random.default_rng(0).permutation(len(documents))
    ((found, _),) = search([["same"]], documents, 11, backend=backend, tie_key=key)
    assert found[0] == 40
    assert key[found[1:]].tolist() == sorted(key[:40])[:10]


@pytest.mark.parametrize("backend", list(VARIANTS))
def test_equal_sums_in_another_order_are_ties(backend, search):
    # a and b have the same weight, so both documents have the same score, but sum it in a different order.
    documents = [["b", "c", "d", "e"], ["a", "c", "d", "e"], ["c"], ["d", "d"], ["e", "c"], ["x"]]
    documents = [[f"{word}{word}" for word in document] for document in documents]
    for query in (["aa", "cc", "dd", "ee", "bb"], ["bb", "cc", "dd", "ee", "aa"]):
        for variant in VARIANTS[backend]:
            ((found, scores),) = search([query], documents, 2, backend=backend, settings=Bm25Settings(variant))
            assert found.tolist() == [0, 1] and scores[0] == scores[1]


@pytest.mark.parametrize("backend,variant", [(b, v) for b in VARIANTS for v in VARIANTS[b]])
def test_only_passages_that_share_a_word_are_hits(backend, variant, search):
    # "every" is in all documents: robertson and atire give it no weight, okapi a floor; the documents still share it.
    documents = [["every", "one"], ["every", "two"], ["every", "two", "three"]]
    settings = Bm25Settings(variant)
    corpus = [*documents, []]
    everything, two, nothing, unknown = search(
        [["every"], ["two", "nowhere"], [], ["nowhere"]], corpus, 4, backend=backend, settings=settings
    )
    assert sorted(everything[0]) == [0, 1, 2]
    assert sorted(two[0]) == [1, 2]
    assert len(nothing[0]) == len(unknown[0]) == 0


def test_queries_or_corpus_without_known_words_have_no_hits(search):
    for backend in VARIANTS:
        assert [len(hits[0]) for hits in search([["x"], []], [["aa"], []], 1, backend=backend)] == [0, 0]
        assert [len(hits[0]) for hits in search([["x"]], [[], []], 1, backend=backend)] == [0]


def test_results_do_not_depend_on_batches(search):
    documents, queries = random_texts(5)
    many = queries * (MAX_BATCH // len(queries) + 2)
    for number, found in enumerate(search(many, documents, 5)):
        (alone,) = search([many[number]], documents, 5) if number % 50 == 0 else (found,)
        np.testing.assert_array_equal(found[0], alone[0])
        np.testing.assert_array_equal(found[1], alone[1])


def test_analyzer_equals_that_of_bm25s():
    texts = ["The QUICK brown-fox's 2 e-mails, it's naïve; Straße_1 x", "", "a I ?", "Ελληνικά и русский 中文字"]
    for stopwords in ("en", None):
        ours = [Analyzer(stopwords)(text) for text in texts]
        theirs = bm25s.tokenize(texts, stopwords=stopwords or [], return_ids=False, show_progress=False)
        assert ours == theirs
    assert Bm25Settings().analyzer("the fox") == ["fox"]
    assert Bm25Settings(stopwords=None).analyzer("the fox") == ["the", "fox"]


def test_tokenized_texts_keep_their_terms():
    corpus = tokenize_texts(["b a b", "", "zz aa bb aa"], KEEP)
    assert [[corpus.vocabulary[token] for token in document] for document in corpus] == [[], [], ["zz", "aa", "bb", "aa"]]
    assert len(corpus) == 3 and corpus.ids.dtype == np.int32


@pytest.mark.parametrize(
    "settings", [{"k1": 0}, {"k1": -1.0}, {"k1": math.inf}, {"b": 1.1}, {"b": -0.1}, {"variant": "tfidf"},
                 {"variant": "bm25l", "delta": -1}, {"delta": 0.5}, {"stopwords": "de"}]
)  # fmt: skip
def test_invalid_settings_are_refused(settings):
    with pytest.raises(RetrievalError, match=str(next(reversed(settings.values())))):
        Bm25Settings(**settings)


def test_default_deltas_of_variants():
    assert [Bm25Settings(variant).used_delta for variant in ("lucene", "bm25l", "bm25+")] == [None, 0.5, 1.0]


def test_unsupported_variant_is_refused_with_the_supported_ones(search):
    for backend, variant in (("bm25s", "okapi"), ("rank_bm25", "atire")):
        with pytest.raises(RetrievalError, match=f"{backend} has no .*{variant}.*bm25s: lucene.*rank_bm25: .*okapi"):
            search([["aa"]], [["aa"]], 1, backend=backend, settings=Bm25Settings(variant))


def test_invalid_search_is_refused_before_any_work(search):
    with pytest.raises(RetrievalError, match="expected one of bm25, bm25s, rank_bm25; received 'lucene'"):
        check_engine("lucene", Bm25Settings())
    texts = tokenize_texts(["aa"], KEEP)
    for backend in ("bm25", "lucene"):  # The index of this package is not one of the others.
        with pytest.raises(RetrievalError, match=f"expected one of bm25s, rank_bm25; received '{backend}'.*Index.search"):
            search_package(texts, texts, 1, backend=backend)
    for backend in VARIANTS:
        with pytest.raises(RetrievalError, match="top_k: expected"):
            search([["aa"]], [["aa"]], 0, backend=backend)
        with pytest.raises(RetrievalError, match="corpus is empty|no passage"):
            search([["aa"]], [], 1, backend=backend)
