"""The index against exhaustive scoring: every variant, corpus and K; and independence of the way it is computed."""

import math
from collections import Counter

import numpy as np
import pytest
import rank_bm25
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_tlm.retrieval import Bm25Settings, RetrievalError
from hf_tlm.retrieval.bm25 import tiles
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.hits import Statistics
from hf_tlm.retrieval.settings import VARIANTS
from hf_tlm.retrieval.texts import Analyzer

VARIANTS = VARIANTS["bm25"]
PLAIN = Analyzer(None)
HYPOTHESIS = {"derandomize": True, "deadline": None, "database": None}


class Reference:
    """Exhaustive BM25 scores by the printed formulas; okapi is that of rank_bm25."""

    def __init__(self, documents):
        self.documents, self.lengths = documents, np.array([len(document) for document in documents], np.float64)
        self.tf, self.known = {}, {}
        for number, document in enumerate(documents):
            for term, count in Counter(document).items():
                self.tf.setdefault(term, np.zeros(len(documents)))[number] = count

    def scores(self, query, *settings):
        key = (*query, *settings)
        if key not in self.known:
            self.known[key] = self._scores(query, *settings)
        return self.known[key]

    @np.errstate(invalid="ignore")  # rank_bm25 divides 0 by 0 for documents without tokens if b is 1.
    def _scores(self, query, variant, k1, b, delta):
        """Return (float64 [N] scores, bool [N] shares a token)."""
        n, shares, scores = len(self.documents), np.zeros(len(self.documents), bool), np.zeros(len(self.documents))
        okapi = rank_bm25.BM25Okapi(self.documents, k1=k1, b=b) if variant == "okapi" and self.tf else None
        # A document without tokens has length 0, so its norm would be 0 if b is 1; its score is never used.
        norm = np.where(self.lengths > 0, 1 - b + b * self.lengths / self.lengths.mean(), 1)
        for term, count in Counter(term for term in query if term in self.tf).items():
            tf, df = self.tf[term], np.count_nonzero(self.tf[term])
            shares |= tf > 0
            if variant == "lucene":
                score = math.log(1 + (n - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * norm)
            elif variant == "robertson":
                score = max(0, math.log((n - df + 0.5) / (df + 0.5))) * tf / (tf + k1 * norm)
            elif variant == "atire":
                score = math.log(n / df) * (k1 + 1) * tf / (tf + k1 * norm)
            elif variant == "bm25+":
                score = math.log((n + 1) / df) * (delta + (k1 + 1) * tf / (tf + k1 * norm))
            elif variant == "bm25l":
                c = tf / norm + delta
                score = math.log((n + 1) / (df + 0.5)) * (k1 + 1) * c / (k1 + c)
            else:
                score = okapi.get_scores([term])
            scores += count * score
        return scores, shares


def passage_ids(number, seed=0):
    """Return distinct ids in another order than the passages: code points of all lengths, prefixes, case."""
    names = [f"{'p' * (i % 3)}{i}" for i in range(number)]
    names[1:2], names[3:5] = ["P1"], ["é", "漢"][: len(names[3:5])]
    names[6:8] = ["\uffff", "\U00010000"][: len(names[6:8])]
    return [names[i] for i in np.random.default_rng(seed).permutation(number)]


def build(path, documents, ids, analyzer=PLAIN, **options):
    texts = [document if isinstance(document, str) else " ".join(document) for document in documents]
    dataset = Dataset.from_dict({"id": ids, "text": texts})
    options = {"corpus_name": "toy", "fingerprint": "f", "progress": False, **options}
    return Index.build(path, dataset, analyzer=analyzer, **options)


def search(index, queries, top_k, **options):
    options = {"settings": Bm25Settings(stopwords=None), **options}
    tokenized = tokenize_texts([" ".join(query) for query in queries], PLAIN)
    results = list(index.search(tokenized, top_k, **options))
    assert len(results) == len(queries)
    for documents, scores in results:
        assert documents.dtype == np.int32 and scores.dtype == np.float32 and len(documents) == len(scores)
    return results


def check_hits(hits, reference, ids, query, top_k, variant, k1, b, delta):
    """Check that hits are the K best of the reference up to float32 rounding, in the only correct order."""
    documents, scores = hits
    exact, shares = reference.scores(query, variant, k1, b, delta)
    assert len(documents) == min(top_k, np.count_nonzero(shares)) == len(set(documents.tolist()))
    assert shares[documents].all()
    np.testing.assert_allclose(scores, exact[documents], rtol=2e-7, atol=1e-9)
    keys = [(-score, ids[document]) for score, document in zip(scores.tolist(), documents.tolist(), strict=True)]
    assert keys == sorted(keys)
    if 0 < len(documents) < np.count_nonzero(shares):
        left = shares.copy()
        left[documents] = False
        assert exact[left].max() <= exact[documents[-1]] + 3e-7 * abs(exact[documents[-1]]) + 1e-9
        # Of passages with the same words, those with the first ids are hits.
        last = {}
        for document in documents:
            key = tuple(sorted(reference.documents[document]))
            last[key] = max(last.get(key, ""), ids[document])
        for document in np.flatnonzero(left):
            assert ids[document] > last.get(tuple(sorted(reference.documents[document])), "")


def assert_same_hits(first, second):
    assert len(first) == len(second)
    for (a, a_scores), (b, b_scores) in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a_scores.view(np.int32), b_scores.view(np.int32))


def by_id(results, ids):
    return [([ids[document] for document in documents], scores.tolist()) for documents, scores in results]


@pytest.fixture
def small_tiles(monkeypatch):
    """Set a small tile and sample, so that small corpora have several tiles and estimated thresholds."""

    def change(tile, sample=1 << 13):
        monkeypatch.setattr(tiles, "TILE", tile)
        monkeypatch.setattr(tiles, "SAMPLE", sample)

    return change


WORDS = ["aa", "bb", "cc", "dd", "ee", "ff"]


@st.composite
def cases(draw):
    vocabulary = WORDS[: draw(st.integers(1, len(WORDS)))]
    document = st.lists(st.sampled_from(vocabulary), max_size=10)
    documents = draw(st.lists(document, min_size=1, max_size=20)) * draw(st.integers(1, 4))
    query = st.lists(st.sampled_from([*vocabulary, vocabulary[0], "unknown"]), max_size=8)
    return {
        "documents": documents,
        "queries": draw(st.lists(query, min_size=1, max_size=4)),
        "top_k": draw(st.one_of(st.integers(1, 5), st.integers(1, 2 * len(documents) + 1))),
        "k1": draw(st.sampled_from([1.2, 1e-3, 0.5, 2.0, 100.0, 1e5])),
        "b": draw(st.sampled_from([0.75, 0.0, 0.3, 1.0])),
        "delta": draw(st.sampled_from([None, 0.0, 0.1, 3.0])),
        "tile": draw(st.sampled_from([1, 3, 16, 16_384])),
        "sample": draw(st.sampled_from([2, 8, 8_192])),
        "seed": draw(st.integers(0, 5)),
        "num_threads": draw(st.integers(1, 3)),
        "query_batch_size": draw(st.sampled_from([None, 1, 2])),
    }


@pytest.mark.slow
@settings(max_examples=60, **HYPOTHESIS)
@given(case=cases())
def test_every_variant_equals_exhaustive_scoring(case, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", case["tile"])
        patch.setattr(tiles, "SAMPLE", case["sample"])
        ids = passage_ids(len(case["documents"]), case["seed"])
        path = tmp_path_factory.mktemp("index") / "index"
        index = build(path, case["documents"], ids, num_threads=case["num_threads"])
        reference = Reference(case["documents"])
        for variant in VARIANTS:
            delta = case["delta"] if variant in ("bm25+", "bm25l") else None
            used = Bm25Settings(variant, case["k1"], case["b"], delta, stopwords=None)
            options = {name: case[name] for name in ("num_threads", "query_batch_size")}
            results = search(index, case["queries"], case["top_k"], settings=used, **options)
            for query, hits in zip(case["queries"], results, strict=True):
                check_hits(hits, reference, ids, query, case["top_k"], variant, used.k1, used.b, used.used_delta)


def zipf_corpus(number, seed=0, vocabulary=800, length=20):
    """Return documents with Zipf-distributed words, some empty or duplicate, and queries."""
    rng = np.random.default_rng(seed)
    names = np.array([f"w{i}" for i in range(vocabulary)])
    weights = 1 / np.arange(1, vocabulary + 1)
    draw = lambda size: names[rng.choice(vocabulary, size, p=weights / weights.sum())].tolist()  # noqa: E731
    documents = [draw(rng.integers(0, 2 * length)) for _ in range(number)]
    documents[number // 2 : number // 2 + number // 8] = documents[: number // 8]
    queries = [draw(size) for size in (1, 2, 5, 20, 20, 60, 200)]
    queries += [["w0"], ["w0", "w1", "w2"] * 3, ["w799", "w0"], [], ["nothing"], ["w5"] * 50 + ["w400"]]
    return documents, queries


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_tiles_equal_exhaustive_scoring(variant, tmp_path, small_tiles):
    small_tiles(256, 128)
    documents, queries = zipf_corpus(3000)
    ids = passage_ids(len(documents))
    index, reference = build(tmp_path / "index", documents, ids), Reference(documents)
    used = Bm25Settings(variant, stopwords=None)
    for top_k in (1, 10, 60, 700, 2999, 5000):
        for query, hits in zip(queries, search(index, queries, top_k, settings=used), strict=True):
            check_hits(hits, reference, ids, query, top_k, variant, used.k1, used.b, used.used_delta)


@pytest.mark.parametrize("k1,b", [(1e-6, 0.0), (1e-6, 1.0), (1e6, 0.0), (1e6, 1.0)])
def test_extreme_parameters_equal_exhaustive_scoring(k1, b, tmp_path, small_tiles):
    small_tiles(512, 100)
    documents, queries = zipf_corpus(1500, seed=1)
    ids = passage_ids(len(documents))
    index, reference = build(tmp_path / "index", documents, ids), Reference(documents)
    for variant in VARIANTS:
        used = Bm25Settings(variant, k1, b, stopwords=None)
        for query, hits in zip(queries, search(index, queries, 40, settings=used), strict=True):
            check_hits(hits, reference, ids, query, 40, variant, k1, b, used.used_delta)


def test_results_do_not_depend_on_threads_batches_tiles_or_order(tmp_path, small_tiles):
    documents, queries = zipf_corpus(700, seed=2)
    queries, ids = queries * 2, passage_ids(len(documents))
    expected = {}
    shuffled = np.random.default_rng(1).permutation(len(documents))
    layouts = [(16_384, 8_192, 1), (20, 5, 3), (256, 64, 2), (500, 150, 2), (100, 1, 1)]
    for number, (tile, sample, threads) in enumerate(layouts):
        small_tiles(tile, sample)
        index = build(tmp_path / str(number), documents, ids, num_threads=threads)
        order = shuffled.tolist()
        other_ids = [ids[i] for i in order]
        other = build(tmp_path / f"{number}-shuffled", [documents[i] for i in order], other_ids, num_threads=threads)
        for variant, top_k in (("lucene", 30), ("okapi", 30), ("bm25l", 400)):
            used = Bm25Settings(variant, stopwords=None)
            first = expected.setdefault(variant, search(index, queries, top_k, settings=used, num_threads=1))
            for num_threads, batch in ((1, 1), (2, 5), (4, None), (1, 1000)):
                options = {"settings": used, "num_threads": num_threads, "query_batch_size": batch}
                assert_same_hits(first, search(index, queries, top_k, **options))
            assert by_id(first, ids) == by_id(search(other, queries, top_k, settings=used), other_ids)


def test_index_files_do_not_depend_on_threads(tmp_path, small_tiles):
    # Stop words that first occur late, and words that first occur in several tiles at the same time.
    small_tiles(8)
    documents = [
        f"w{i // 3} w{i % 50} {'these those' if i % 7 == 6 else ''} {'their' if i > 700 else ''}" for i in range(900)
    ]
    files = {}
    for threads in (1, 2, 4, 8):
        for attempt in range(3):
            path = tmp_path / f"{threads}-{attempt}"
            build(path, documents, passage_ids(900), Analyzer(), num_threads=threads)
            for file in sorted(path.iterdir()):
                assert files.setdefault(file.name, file.read_bytes()) == file.read_bytes(), file.name


@pytest.mark.parametrize("variant", VARIANTS)
def test_ties_across_tiles_are_broken_by_id(variant, tmp_path, small_tiles):
    small_tiles(64, 16)
    documents = [["aa", "bb"]] * 400 + [["aa"]] * 3 + [["bb", "bb"]] * 5 + [[]] * 10 + [["xx"]] * 20
    ids = passage_ids(len(documents))
    index, reference = build(tmp_path / "index", documents, ids), Reference(documents)
    used = Bm25Settings(variant, stopwords=None)
    queries = [["aa"], ["bb"], ["aa", "bb"], ["bb", "aa"], ["xx"], ["aa", "xx", "bb", "aa"]]
    for top_k in (1, 5, 63, 64, 65, 399, 400, 401, 500):
        for query, hits in zip(queries, search(index, queries, top_k, settings=used), strict=True):
            check_hits(hits, reference, ids, query, top_k, variant, used.k1, used.b, used.used_delta)


def test_okapi_with_negative_weights(tmp_path, small_tiles):
    # Nearly all terms are in nearly all documents, so okapi's mean idf, which replaces negative idf values, is negative too:
    # the best document is the one that shares least with the query.
    small_tiles(100, 4)
    rng = np.random.default_rng(0)
    draw = lambda: ["aa"] * rng.integers(1, 9) + ["bb"] * rng.integers(0, 9) + ["cc"] * (rng.integers(0, 5) // 3)  # noqa: E731
    documents = [draw() for _ in range(300)] + [["aa"], ["bb"], []]
    ids = passage_ids(len(documents))
    index, reference = build(tmp_path / "index", documents, ids), Reference(documents)
    queries = [["aa"] * 7 + ["bb"] * 2 + ["cc"] * 4, ["aa", "bb"], ["cc", "aa"], ["cc"], ["bb", "cc", "cc"]]
    for k1, b in ((1.2, 0.75), (0.5, 0.0)):
        used = Bm25Settings("okapi", k1, b, stopwords=None)
        for top_k in (1, 2, 5, 20, 100, 299):
            for query, hits in zip(queries, search(index, queries, top_k, settings=used), strict=True):
                check_hits(hits, reference, ids, query, top_k, "okapi", k1, b, None)
    assert search(index, [["aa"]], 1, settings=used)[0][1][0] < 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_documents_are_all_hits(variant, tmp_path, small_tiles):
    # Every term is in every document: robertson and atire score 0, okapi below 0; the documents are still hits.
    small_tiles(32, 8)
    ids = passage_ids(300)
    index = build(tmp_path / "index", [["aa", "bb", "aa"]] * 300, ids)
    used = Bm25Settings(variant, stopwords=None)
    for top_k in (1, 33, 299, 300, 1000):
        for documents, scores in search(index, [["aa"], ["bb", "aa", "bb"]], top_k, settings=used):
            assert [ids[document] for document in documents] == sorted(ids)[:top_k]
            assert len(set(scores.tolist())) == 1
            assert not np.signbit(scores[0]) or variant == "okapi"


def test_single_matching_passage_is_found_at_any_position(tmp_path, small_tiles):
    # The sample for the threshold may miss the passage, or contain nothing else.
    small_tiles(16, 8)
    for position in (0, 15, 16, 100, 299):
        documents = [["aa", f"x{i}", f"y{i}"] for i in range(300)]
        documents[position] = ["needle", "aa", "aa"]
        index = build(tmp_path / str(position), documents, [f"{i:03}" for i in range(300)])
        for top_k in (1, 2, 50, 400):
            needle, both = search(index, [["needle"], ["needle", "aa"]], top_k)
            assert needle[0].tolist() == [position]
            assert both[0][0] == position and len(both[0]) == min(top_k, 300)


@pytest.mark.slow
def test_term_counts_above_one_and_two_bytes(tmp_path, small_tiles):
    counts = [1, 2, 254, 255, 256, 257, 511, 65_534, 65_535, 65_536, 70_000, 131_072]
    documents = [["aa"] * count + ["bb"] * 3 for count in counts]
    documents += [["aa"] * 300 + ["cc"] * 300 + ["dd"] * 70_000, [f"w{i}" for i in range(70_000)], ["cc"], [], ["ee"] * 255]
    documents += [["zz"]] * 60  # This makes "aa" and "cc" rare terms, but not "zz".
    queries = [["aa"], ["cc", "aa"], ["dd"], ["w69999", "w0", "ee"], ["bb", "cc", "aa", "aa"], ["zz", "ee"], ["ee", "dd"]]
    ids, reference = passage_ids(len(documents)), Reference(documents)
    for tile in (8, 16_384):
        small_tiles(tile, 4)
        index = build(tmp_path / str(tile), documents, ids)
        assert index.num_tokens == sum(map(len, documents))
        for variant in VARIANTS:
            for k1 in (1.2, 5e4):  # With 5e4, a tf of 255 and one of 70,000 score differently.
                used = Bm25Settings(variant, k1, stopwords=None)
                for top_k in (1, 3, 100):
                    for query, hits in zip(queries, search(index, queries, top_k, settings=used), strict=True):
                        check_hits(hits, reference, ids, query, top_k, variant, k1, used.b, used.used_delta)


def test_queries_of_thousands_of_tokens(tmp_path, small_tiles):
    small_tiles(128, 64)
    documents, _ = zipf_corpus(1000, seed=3)
    rng = np.random.default_rng(0)
    queries = [
        [f"w{i}" for i in rng.integers(0, 900, 5000)],
        ["w0"] * 5000,
        ["w0"] * 70_000 + ["w5"],
        [f"w{i % 800}" for i in range(5000)],
        [word for document in documents for word in document],
        ["w3"],
    ]
    ids, reference = passage_ids(len(documents)), Reference(documents)
    index = build(tmp_path / "index", documents, ids)
    for variant in VARIANTS:
        used = Bm25Settings(variant, stopwords=None)
        for top_k in (5, 300):
            for query, hits in zip(queries, search(index, queries, top_k, settings=used), strict=True):
                check_hits(hits, reference, ids, query, top_k, variant, used.k1, used.b, used.used_delta)


def test_corpus_without_words_has_no_hits(tmp_path):
    index = build(tmp_path / "index", [[], ["x"], ["?!"]], ["b", "a", "c"])
    assert (len(index), index.num_tokens) == (3, 0) and index.terms()[0] == []
    for variant in VARIANTS:
        for documents, _ in search(index, [["aa"], []], 5, settings=Bm25Settings(variant, stopwords=None)):
            assert len(documents) == 0
    assert search(index, [], 5) == []


def test_terms_and_document_frequencies(tmp_path, small_tiles):
    small_tiles(50)
    documents, _ = zipf_corpus(500, seed=4)
    index = build(tmp_path / "index", documents, passage_ids(500))
    vocabulary, frequencies = index.terms()
    expected = Counter(term for document in documents for term in set(document))
    assert dict(zip(vocabulary, frequencies.tolist(), strict=True)) == expected
    terms = ["w1", "absent", "w799", "", "w", "w1w1w1w1w1", "\u00e9\u00e9"]
    assert index.document_frequencies(terms).tolist() == [expected.get(term, 0) for term in terms]
    assert index.document_frequencies([]).tolist() == []
    assert frequencies.dtype == index.document_frequencies(["w1"]).dtype == np.int64


def test_ids_decide_ties_by_code_point(tmp_path):
    ids = ["b", "a", "B", "a0", "", "a\x00", "é", "z", "\uffff", "\U00010000", "10", "9", " a"]
    index = build(tmp_path / "index", [["aa"]] * len(ids), ids)
    ((documents, _),) = search(index, [["aa"]], 100)
    assert [ids[document] for document in documents] == sorted(ids)
    assert index.ids.to_pylist() == ids


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cut", [1, 137, 299])
def test_two_indexes_with_merged_statistics_equal_one(variant, cut, tmp_path, small_tiles):
    small_tiles(32, 16)
    documents, queries = zipf_corpus(300, seed=5)
    ids = passage_ids(300)
    whole = build(tmp_path / "whole", documents, ids)
    parts = [build(tmp_path / "a", documents[:cut], ids[:cut]), build(tmp_path / "b", documents[cut:], ids[cut:])]
    tokenized = tokenize_texts([" ".join(query) for query in queries], PLAIN)
    n, frequencies = 300, whole.terms()[1]
    statistics = Statistics(
        num_passages=300,
        num_tokens=sum(part.num_tokens for part in parts),
        document_frequencies=sum(part.document_frequencies(tokenized.vocabulary) for part in parts),
        average_idf=float((np.log(n - frequencies + 0.5) - np.log(frequencies + 0.5)).mean()),
    )
    used = Bm25Settings(variant, stopwords=None)
    for top_k in (1, 10, 200):
        merged = []
        results = [part.search(tokenized, top_k, settings=used, statistics=statistics) for part in parts]
        for (first, first_scores), (second, second_scores) in zip(*results, strict=True):
            found = [*zip(first.tolist(), first_scores.tolist(), strict=True)]
            found += [
                (document + cut, score) for document, score in zip(second.tolist(), second_scores.tolist(), strict=True)
            ]
            merged.append(sorted(found, key=lambda hit: (-hit[1], ids[hit[0]]))[:top_k])
        for (first, scores), second in zip(search(whole, queries, top_k, settings=used), merged, strict=True):
            assert [*zip(first.tolist(), scores.tolist(), strict=True)] == second


@pytest.mark.parametrize("variant", VARIANTS)
def test_max_query_terms_keeps_the_rarest_terms(variant, tmp_path):
    # w0 is in 30 passages, w1 in 29, ...; the query has them in another order, some repeated, and has unknown words.
    documents = [[f"w{i}" for i in range(30) if number + i < 30] for number in range(70)]
    index = build(tmp_path / "index", documents, passage_ids(70))
    query = ["w3", "unknown", "w17", "w0", "w17", "w9", "w3", "missing", "w26"]
    used = Bm25Settings(variant, stopwords=None)
    for kept, number in (
        (["w26"], 1),
        (["w17", "w17", "w26"], 2),
        (["w17", "w17", "w9", "w26"], 3),
        (query, 5),
        (query, 99),
    ):
        limited = search(index, [query], 50, settings=used, max_query_terms=number)
        assert_same_hits(limited, search(index, [kept], 50, settings=used))
        assert number >= 5 or len(limited[0][0]) < len(search(index, [query], 50)[0][0])


def test_stop_words_and_stems_apply_to_passages_and_queries(tmp_path):
    analyzer = Analyzer("en", "english")
    index = build(tmp_path / "index", ["the runners are running", "a run", "the the", "walks"], list("abcd"), analyzer)
    used = Bm25Settings(stopwords="en", stemmer="english")
    ((documents, _), (nothing, _)) = index.search(tokenize_texts(["to run", "the"], analyzer), 10, settings=used)
    assert sorted(documents.tolist()) == [0, 1] and len(nothing) == 0
    with pytest.raises(RetrievalError, match="stemmer"):
        list(index.search(tokenize_texts(["run"], PLAIN), 10, settings=Bm25Settings(stopwords=None)))


@pytest.mark.parametrize(
    "wrong", [{"top_k": 0}, {"top_k": -1}, {"max_query_terms": 0}, {"query_batch_size": 0}, {"num_threads": 0}]
)
def test_invalid_search_options_are_refused_at_once(wrong, tmp_path):
    index = build(tmp_path / "index", [["aa"]], ["a"])
    options = {"top_k": 1, "settings": Bm25Settings(stopwords=None), **wrong}
    with pytest.raises(RetrievalError, match=next(iter(wrong))):
        index.search(tokenize_texts(["aa"], PLAIN), **options)


def test_search_can_be_closed_before_its_end(tmp_path):
    index = build(tmp_path / "index", [["aa"]] * 10, passage_ids(10))
    queries = tokenize_texts(["aa"] * 5000, PLAIN)
    hits = index.search(queries, 3, settings=Bm25Settings(stopwords=None), query_batch_size=1, num_threads=2)
    assert len(next(hits)[0]) == 3
    hits.close()
