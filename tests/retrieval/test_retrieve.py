import logging
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.retrieval import Bm25Settings, RetrievalError, Subset, default_top_k, retrieve, tokenize_texts
from hf_tlm.retrieval.engine import search_package
from hf_tlm.retrieval.report import retrieval_report


@pytest.fixture
def run(tmp_path):
    """Return retrieve() with a cache folder of this test."""
    return lambda task, corpus, **options: retrieve(task, corpus, cache_dir=str(tmp_path / "cache"), **options)


def union_by_hand(queries, passages, top_k):
    """Return the union computed with plain dictionaries: id -> (rank, score, n_queries, best_query)."""
    analyzer = Bm25Settings().analyzer
    ids = sorted(passages)
    corpus = tokenize_texts([passages[identifier] for identifier in ids], analyzer)
    hits = search_package(tokenize_texts(list(queries.values()), analyzer), corpus, top_k, backend="rank_bm25")
    seen = {}
    for query, found in zip(queries, hits, strict=True):
        for rank, (document, score) in enumerate(zip(*found, strict=True), start=1):
            seen.setdefault(ids[document], []).append((rank, -score, query))
    order = {query: number for number, query in enumerate(queries)}
    result = {}
    for identifier, hits_of_passage in seen.items():
        rank, _, query = min(hits_of_passage, key=lambda hit: (hit[0], hit[1], order[hit[2]]))
        result[identifier] = (rank, max(-score for _, score, _ in hits_of_passage), len(hits_of_passage), query)
    return result


def rows_by_id(subset):
    names = ("rank", "score", "n_queries", "best_query")
    return {row["id"]: tuple(row[name] for name in names) for row in subset.dataset}


@pytest.mark.parametrize("top_k", [1, 2, 3, 6])
@pytest.mark.parametrize("retriever", ["bm25", "bm25s", "rank_bm25"])
def test_union_equals_one_computed_by_hand(run, make_task, make_corpus, queries, passages, retriever, top_k):
    subset = run(make_task(), make_corpus(), top_k=top_k, retriever=retriever)
    assert rows_by_id(subset) == union_by_hand(queries, passages, top_k)
    rows = list(subset.dataset)
    assert rows == sorted(rows, key=lambda row: (row["rank"], -row["score"], row["id"]))
    assert all(row["text"] == passages[row["id"]] and row["source"] == "toy" for row in rows)


def test_union_of_random_texts_equals_one_computed_by_hand(run, make_task, make_corpus):
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(25)]
    passages = {f"d{number:03}": " ".join(rng.choice(words, 6)) for number in rng.permutation(80)}
    queries = {f"q{number}": " ".join(rng.choice(words, 4)) for number in range(30)}
    subset = run(make_task(queries), make_corpus(passages), top_k=5)
    assert rows_by_id(subset) == union_by_hand(queries, passages, 5)
    assert subset.manifest["counts"]["union"] == len(subset) < 80


def test_best_query_goes_by_rank_then_score_then_order(run, make_task, make_corpus):
    passages = {"a": "apple apple pear", "b": "plum", "c": "cherry"}
    queries = {"weak": "pear", "strong": "apple pear", "again": "apple pear", "plum": "plum"}
    subset = rows_by_id(run(make_task(queries), make_corpus(passages), top_k=2))
    assert subset["a"][0] == 1 and subset["a"][2:] == (3, "strong")
    assert "c" not in subset


def test_duplicate_texts_are_ranked_by_id(run, make_task, make_corpus):
    both = rows_by_id(run(make_task(), make_corpus(), top_k=2))
    assert both["p1"][0] == 1 and both["p3"][0] == 2 and both["p1"][1] == both["p3"][1]
    assert "p3" not in rows_by_id(run(make_task(), make_corpus(), top_k=1))


def test_subset_does_not_depend_on_the_order_of_the_corpus(run, make_task, make_corpus, passages):
    turned = dict(reversed(passages.items()))
    first, second = (run(make_task(), make_corpus(rows), top_k=2) for rows in (passages, turned))
    assert first.dataset.to_dict() == second.dataset.to_dict()
    assert first.manifest["corpus"]["fingerprint"] != second.manifest["corpus"]["fingerprint"]


def test_subset_does_not_depend_on_labels(run, make_task, make_corpus):
    first, second = (run(make_task(labels=labels), make_corpus(), top_k=2) for labels in (["yes", "no"] * 5, ["b", "a"] * 5))
    assert first.dataset.to_dict() == second.dataset.to_dict()


def test_sentence_pairs_are_one_query(run, make_task, make_corpus):
    task = make_task({"a": "football", "b": "zebra"}, pairs=["kinase", "quagga"])
    assert {row["id"] for row in run(task, make_corpus(), top_k=6).dataset} == {"p2", "p4", "p5"}


def test_manifest_records_counts_and_settings(run, make_task, make_corpus, caplog):
    task, corpus = make_task(), make_corpus()
    with caplog.at_level(logging.WARNING):
        manifest = run(task, corpus, top_k=3, settings=Bm25Settings("bm25l", k1=0.9, b=0.4)).manifest
    assert "1 of 5 queries are empty, first: q2" in caplog.text
    assert manifest["counts"] == {
        "queries": 5,
        "empty_queries": 1,
        "first_empty_queries": ["q2"],
        "queries_without_hits": 1,
        "first_queries_without_hits": ["q4"],
        "sources": {"toy": 6},
        "bad_files": [],
        "passages": 6,
        "union": 4,
    }
    assert manifest["corpus"] == {"name": corpus.name, "fingerprint": corpus.fingerprint, "size": 6}
    assert manifest["task"] == {"name": "toy", "fingerprint": task.fingerprint, "split": "train"}
    chosen = {name: manifest[name] for name in "retriever query_mode variant k1 b delta stopwords top_k".split()}
    assert list(chosen.values()) == ["bm25", "text", "bm25l", 0.9, 0.4, 0.5, "en", 3]
    assert manifest["seed"] is None and manifest["num_passages"] is None
    assert {"hf_tlm", "bm25s", "rank_bm25", "datasets"} <= set(manifest["versions"])


def test_rake_queries_find_other_passages_than_texts(run, make_task, make_corpus, passages):
    text = ". ".join(f"good{number} word{number}" for number in range(20)) + ". football"
    task = make_task({"a": text, "b": "kinase"})
    assert "p4" in rows_by_id(run(task, make_corpus(), top_k=2))
    rake = run(task, make_corpus({**passages, "p7": "good3 word3"}), top_k=2, query_mode="rake")
    assert {"p7", "p2"} <= set(rows_by_id(rake)) and "p4" not in rows_by_id(rake)
    assert rake.manifest["query_mode"] == "rake"


def test_keeping_stop_words_changes_the_hits(run, make_task, make_corpus):
    subset = run(make_task(), make_corpus(), top_k=6, settings=Bm25Settings(stopwords=None))
    assert "p6" in rows_by_id(subset)
    assert subset.manifest["counts"]["empty_queries"] == 0


def test_top_k_above_the_corpus_is_lowered_with_a_warning(run, make_task, make_corpus, caplog):
    with caplog.at_level(logging.WARNING):
        subset = run(make_task(), make_corpus())
    assert "top_k 5000 is larger than the corpus: using K = 6" in caplog.text
    assert (subset.manifest["top_k"], subset.manifest["top_k_requested"]) == (6, 5000)
    assert rows_by_id(subset) == rows_by_id(run(make_task(), make_corpus(), top_k=6))


def test_random_draws_distinct_passages_by_the_seed(run, make_task, make_corpus):
    corpus = make_corpus({f"p{number:03}": f"text {number}" for number in range(200)})
    first, same, other = (
        run(make_task(), corpus, retriever="random", num_passages=50, seed=seed).dataset for seed in (1, 1, 2)
    )
    assert first.to_dict() == same.to_dict() and set(first["id"]) != set(other["id"])
    assert len(set(first["id"])) == 50
    assert first["rank"][:] == list(range(1, 51)) and first["n_queries"][:] == [0] * 50
    assert set(first["score"]) == set(first["best_query"]) == {None}
    assert first["id"][:] != sorted(first["id"])  # They are in the order of the draws.
    everything = run(make_task(), corpus, retriever="random", num_passages=200)
    assert len(set(everything.dataset["id"])) == 200
    assert everything.manifest["seed"] == 0 and everything.manifest["num_passages"] == 200


def test_random_draws_are_uniform(run, make_task, make_corpus):
    corpus = make_corpus({f"p{number}": f"text {number}" for number in range(10)})
    drawn = Counter(
        identifier
        for seed in range(60)
        for identifier in run(make_task(), corpus, retriever="random", num_passages=5, seed=seed).dataset["id"]
    )
    assert len(drawn) == 10 and all(15 <= times <= 45 for times in drawn.values())


@pytest.mark.parametrize(
    "options,message",
    [
        ({"retriever": "lucene"}, "retriever must be one of bm25, bm25s, rank_bm25, sharded"),
        ({"top_k": 0}, "top_k: expected .*; received 0"),
        ({"retriever": "random", "num_passages": 2, "seed": 2.5}, "seed: expected a whole number .*; received 2.5"),
        ({"query_mode": "title"}, "text, rake"),
        ({"settings": Bm25Settings("okapi"), "retriever": "bm25s"}, "bm25s has no .*okapi.*rank_bm25: lucene, okapi"),
        ({"num_passages": 3}, "uses top_k"),
        ({"retriever": "random"}, "needs num_passages"),
        (
            {"retriever": "random", "num_passages": 0},
            "num_passages: expected a whole number .*; received 0",
        ),
    ],
)
def test_invalid_arguments_are_refused_before_the_corpus_is_read(make_task, options, message):
    with pytest.raises(RetrievalError, match=message):
        retrieve(make_task(), corpus=None, **options)


def test_dataset_in_place_of_a_corpus_is_refused(make_task):
    with pytest.raises(RetrievalError, match="corpus: expected a Corpus; received a Dataset. Pass hf_tlm.load_corpus"):
        retrieve(make_task(), Dataset.from_dict({"text": ["a gene"]}), top_k=1)


def test_random_draw_larger_than_the_corpus_is_refused(run, make_task, make_corpus):
    with pytest.raises(RetrievalError, match="draw 7 distinct passages: the corpus has 6"):
        run(make_task(), make_corpus(), retriever="random", num_passages=7)


def test_empty_queries_are_refused(run, make_task, make_corpus):
    with pytest.raises(RetrievalError, match="All 2 queries of toy are empty"):
        run(make_task({"a": "the of", "b": "x ?"}), make_corpus())


def test_queries_without_any_hit_are_refused(run, make_task, make_corpus):
    with pytest.raises(RetrievalError, match="None of the 2 queries of toy shares a word"):
        run(make_task({"a": "zebra", "b": "quagga"}), make_corpus())


def test_empty_corpus_is_refused(run, make_task):
    with pytest.raises(RetrievalError, match="has no passages"):
        run(make_task(), _fake_corpus([]))
    with pytest.raises(RetrievalError, match="the corpus has 0"):
        run(make_task(), _fake_corpus([]), retriever="random", num_passages=1)


def test_duplicate_ids_are_refused(run, make_task):
    rows = [{"id": name, "text": "kinase", "source": "s"} for name in ("b", "a", "b")]
    with pytest.raises(RetrievalError, match="'b' occurs twice, in rows 0 and 2"):
        run(make_task(), _fake_corpus(rows))


def _fake_corpus(rows):
    columns = {name: [row[name] for row in rows] for name in ("id", "text", "source")}
    passages = Dataset.from_dict(columns)
    part = SimpleNamespace(name="stand-in", fingerprint="0")
    return SimpleNamespace(
        name="stand-in", fingerprint="0", parts=(part,), bad_files={}, to_dataset=lambda cache_dir: passages
    )


def test_default_top_k_follows_the_paper():
    assert [default_top_k(n) for n in (515, 4999, 5000, 20_000, 100_000, 100_001, 180_040)] == [
        5000, 5000, 500, 500, 500, 50, 50
    ]  # fmt: skip


def test_many_queries_without_hits_are_warned_about(run, make_task, make_corpus, caplog):
    queries = {"q1": "the kinase inhibitor", "q2": "schöne Straßen", "q3": "über Köln"}
    with caplog.at_level(logging.WARNING):
        run(make_task(queries), make_corpus(), top_k=1)
    assert "2 of the 3 training texts match no passage" in caplog.text
    caplog.clear()
    run(make_task(), make_corpus(), top_k=1)
    assert "match no passage" not in caplog.text


@pytest.mark.parametrize("retriever", ["bm25", "bm25s", "rank_bm25", "sharded"])
@pytest.mark.parametrize(
    "script, query, passages",
    [
        ("unspaced", "今天天气很好，我们去公园。", {"a": "公园里的天气不错", "b": "重视战友的小说"}),
        ("marks", "हिन्दी में लिखी किताब", {"a": "यह किताब नई है", "b": "हवा और पानी"}),
    ],
)
def test_words_depend_on_the_script(run, make_task, make_corpus, tmp_path, retriever, script, query, passages):
    if retriever == "sharded":
        pytest.importorskip("datatrove")
    variant, queries = Bm25Settings(variant="okapi") if retriever == "rank_bm25" else None, {"q": query, "r": query}
    subset = run(make_task(queries), make_corpus(passages), top_k=1, retriever=retriever, settings=variant)
    assert subset.dataset["id"][:] == ["a"] and subset.manifest["script"] == script
    subset.save(tmp_path / "subset")
    assert Subset.load(tmp_path / "subset").manifest["script"] == script
    shown = retrieval_report(subset, make_task(queries))
    assert f"script {script}" in shown and ("**公园**" in shown or "**किताब**" in shown)


@pytest.mark.parametrize("query,said", [("the of and", "or keep stop words"), ("😀 👍🏽!", "or draw a random subset")])
def test_error_on_queries_without_words_names_a_remedy(run, make_task, make_corpus, query, said):
    with pytest.raises(RetrievalError, match=f"are empty once stop words .* dropped. Check the task's text column, {said}"):
        run(make_task({"q": query, "r": query}), make_corpus())


def test_k_that_selects_most_of_the_corpus_is_warned_about(run, make_task, make_corpus, caplog):
    """The K that the warning names selects at most half, one more selects more."""
    with caplog.at_level(logging.WARNING):
        whole = run(make_task(), make_corpus())
    fits = re.search(r"selects (\d+) of the (\d+) passages of the corpus. --top_k (\d+) selects at most half", caplog.text)
    found, passages, k = map(int, fits.groups())
    assert found == len(whole.dataset) and 2 * found > passages
    sizes = [len(run(make_task(), make_corpus(), top_k=number).dataset) for number in (k, k + 1)]
    assert 2 * sizes[0] <= passages < 2 * sizes[1]
    caplog.clear()
    run(make_task(), make_corpus(), top_k=k)
    assert "selects at most half" not in caplog.text
    run(make_task(), make_corpus(), top_k=5000)  # A preset may set this.
    assert f"top_k 5,000 selects {found} of the {passages} passages of the corpus. --top_k {k} selects" in caplog.text
    assert "of them. If the corpus is the task's own unlabelled texts, this may be what you want." in caplog.text
