"""retrieve() returns the same subset with every engine; and which passages it leaves out."""

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.corpora import Corpus, load_corpus
from hf_tlm.retrieval import (
    Bm25Settings,
    ElasticSettings,
    Index,
    RetrievalArguments,
    RetrievalError,
    Sharding,
    retrieval_report,
    retrieve,
)
from support.elastic_server import ElasticServer

WORDS = [f"word{number}" for number in range(40)]
LONG = " ".join(f"held{number} out{number}" for number in range(12))


def texts(number, seed, length=12):
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(WORDS) + 1)
    return [" ".join(rng.choice(WORDS, length, p=weights / weights.sum())) for _ in range(number)]


@pytest.fixture
def task(make_task):
    return make_task({f"q{number}": text for number, text in enumerate(texts(15, 1))})


@pytest.fixture
def folder(tmp_path):
    """A corpus of three files."""
    (tmp_path / "corpus").mkdir()
    for part in range(3):
        rows = {"text": texts(50, part + 2), "source": [f"source{part}"] * 50}
        Dataset.from_dict(rows).to_parquet(tmp_path / "corpus" / f"part{part}.parquet")
    return tmp_path / "corpus"


@pytest.fixture
def run(tmp_path):
    return lambda task, corpus, **options: retrieve(task, corpus, cache_dir=str(tmp_path / "cache"), **options)


def rows(subset):
    return subset.dataset.to_list()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"max_query_terms": 3}, {"settings": Bm25Settings("bm25l", stopwords=None)}])
def test_every_engine_gives_the_same_subset(run, task, folder, options):
    corpus = load_corpus(str(folder))
    expected = run(task, corpus, top_k=7, **options)
    assert 7 < len(expected) < 150
    for retriever in ("bm25s", "rank_bm25"):
        assert rows(run(task, corpus, top_k=7, retriever=retriever, **options)) == rows(expected)
    sharded = run(task, corpus, top_k=7, retriever="sharded", sharding=Sharding(3), **options)
    assert rows(sharded) == rows(expected)
    ours, theirs = expected.manifest["counts"], sharded.manifest["counts"]
    for name in (
        "queries",
        "empty_queries",
        "queries_without_hits",
        "first_queries_without_hits",
        "passages",
        "union",
        "sources",
    ):
        assert theirs[name] == ours[name], name
    assert ours["sources"] == {"source0": 50, "source1": 50, "source2": 50}


def test_max_query_terms_changes_the_hits(run, task, folder):
    corpus = load_corpus(str(folder))
    few, all_terms = (run(task, corpus, top_k=5, max_query_terms=number) for number in (2, None))
    assert few.manifest["max_query_terms"] == 2 and rows(few) != rows(all_terms)


def test_index_is_built_once_for_all_tasks_and_settings(run, task, make_task, folder, tmp_path, monkeypatch):
    corpus = load_corpus(str(folder))
    run(task, corpus, top_k=3)
    monkeypatch.setattr("hf_tlm.retrieval.bm25.index.write_index", lambda *_: pytest.fail("built twice"))
    other = make_task({"q": WORDS[3], "r": WORDS[3]})
    assert len(run(other, corpus, top_k=3, settings=Bm25Settings("atire", k1=2.0))) == 3
    assert len(list((tmp_path / "cache").glob("index-*"))) == 1


def test_index_dir_is_extended_by_new_files_and_refuses_other_corpora(run, task, folder, tmp_path):
    index_dir = str(tmp_path / "index")
    before = run(
        task, load_corpus([str(folder / "part0.parquet"), str(folder / "part2.parquet")]), top_k=4, index_dir=index_dir
    )
    assert len(Index.load(index_dir)) == 100
    corpus = load_corpus(str(folder))
    extended = run(task, corpus, top_k=4, index_dir=index_dir)
    assert Index.load(index_dir).fingerprint == corpus.fingerprint and len(Index.load(index_dir)) == 150
    assert rows(extended) == rows(run(task, corpus, top_k=4)) != rows(before)
    assert rows(run(task, corpus, top_k=4, index_dir=index_dir)) == rows(extended)
    with pytest.raises(RetrievalError, match="built from another corpus"):
        run(task, load_corpus(str(folder / "part1.parquet")), top_k=4, index_dir=index_dir)
    with pytest.raises(RetrievalError, match="built with other settings: stopwords en"):
        run(task, corpus, top_k=4, index_dir=index_dir, settings=Bm25Settings(stopwords=None))


def test_skipped_file_is_searched_once_it_is_readable(run, task, folder, tmp_path):
    whole = (folder / "part1.parquet").read_bytes()
    (folder / "part1.parquet").write_bytes(whole[:-1000] + b"?" * 1000)
    corpus = load_corpus(str(folder), skip_bad_files=True)
    found = run(task, corpus, top_k=4, index_dir=str(tmp_path / "index"))
    assert found.manifest["counts"]["bad_files"] == ["part1.parquet"] and found.manifest["counts"]["passages"] == 100
    assert "files that could not be read, left out: part1.parquet" in found.summary()
    (folder / "part1.parquet").write_bytes(whole)
    corpus = load_corpus(str(folder), skip_bad_files=True)
    found = run(task, corpus, top_k=4, index_dir=str(tmp_path / "index"))
    assert found.manifest["counts"]["bad_files"] == [] and found.manifest["counts"]["passages"] == 150


def test_passages_with_held_out_texts_are_left_out(run, make_task, make_corpus):
    passages = {"a": f"kinase and then {LONG} again", "b": "kinase alone", "c": f"{LONG} kinase"}
    task = make_task({"q": "kinase", "r": LONG})  # make_task holds the same texts out.
    clean = run(task, make_corpus(passages), top_k=3)
    assert clean.dataset["id"][:] == ["b"] and clean.manifest["decontamination"]["ids"] == ["a", "c"]
    assert "left out because they contain held-out texts: 2" in clean.summary()
    assert len(run(task, make_corpus(passages), top_k=3, decontaminate=False)) == 3
    with pytest.raises(RetrievalError, match=r"No passage is left for toy: all passages found \(2\)"):
        run(task, make_corpus({"a": passages["a"], "c": passages["c"]}), top_k=3)


def test_random_subset_keeps_its_size_without_held_out_texts(run, make_task, make_corpus):
    passages = {f"p{number}": f"text {number}" for number in range(6)} | {
        f"x{number}": LONG + " kinase" for number in range(6)
    }
    task = make_task({"q": "kinase", "r": LONG})
    for seed in range(4):
        subset = run(task, make_corpus(passages), retriever="random", num_passages=6, seed=seed)
        assert sorted(subset.dataset["id"]) == [f"p{number}" for number in range(6)]
        assert subset.dataset["rank"][:] == list(range(1, 7))
    with pytest.raises(RetrievalError, match="Cannot draw 7 distinct passages: of 12 passages, 6 contain held-out texts"):
        run(task, make_corpus(passages), retriever="random", num_passages=7)


def test_near_duplicates_of_better_passages_are_left_out(run, make_task, make_corpus):
    long = " ".join(WORDS)
    passages = {"a": f"{long} kinase", "b": f"{long} kinase kinase", "c": "another text on the kinase"}
    task = make_task({"q": "kinase", "r": "text"})
    subset = run(task, make_corpus(passages), top_k=3, deduplicate=0.8)
    assert sorted(subset.dataset["id"]) == ["b", "c"]
    assert subset.manifest["deduplication"] == {"threshold": 0.8, "passages": 1, "ids": ["a"]}
    assert len(run(task, make_corpus(passages), top_k=3)) == 3


def test_random_subset_keeps_its_size_without_near_duplicates(run, make_task, make_corpus):
    """The first drawn passage of a group is kept, and another passage is drawn in place of each other one."""
    long = " ".join(WORDS)
    passages = {f"r{number}": f"{long} {number}" for number in range(8)} | {
        f"p{number}": f"text {number}" for number in range(6)
    }
    task = make_task({"q": "kinase", "r": "text"})
    for seed in range(4):
        subset = run(task, make_corpus(passages), retriever="random", num_passages=7, seed=seed, deduplicate=0.8)
        ids = subset.dataset["id"][:]
        assert len(ids) == 7 and sum(name.startswith("r") for name in ids) == 1
        deduplication = subset.manifest["deduplication"]
        assert deduplication["passages"] == len(deduplication["ids"]) and set(deduplication["ids"]).isdisjoint(ids)
    whole = run(task, make_corpus(passages), retriever="random", num_passages=5, seed=1)
    assert whole.manifest["deduplication"] is None
    with pytest.raises(RetrievalError, match="of 14 passages, 0 contain held-out texts, and 7 nearly repeat others"):
        run(task, make_corpus(passages), retriever="random", num_passages=8, deduplicate=0.8)


@pytest.mark.parametrize("retriever", ["bm25", "random"])
def test_unreadable_files_are_named_in_summary_and_report(run, task, folder, retriever):
    (folder / "part1.parquet").write_bytes(b"nothing")
    corpus = load_corpus(str(folder), skip_bad_files=True)
    subset = run(task, corpus, retriever=retriever, **({"num_passages": 9} if retriever == "random" else {"top_k": 3}))
    assert subset.manifest["counts"]["bad_files"] == ["part1.parquet"]
    assert "files that could not be read, left out: part1.parquet" in subset.summary()
    assert "| files that could not be read | 1 left out (part1.parquet) |" in retrieval_report(subset)


def test_index_built_without_parts_is_used(run, task, folder, tmp_path):
    """README builds an index like this, without recording the corpus files as parts."""
    corpus = load_corpus(str(folder))
    Index.open_or_build(tmp_path / "index", corpus.to_dataset(), corpus_name="c", fingerprint=corpus.fingerprint)
    assert rows(run(task, corpus, top_k=5, index_dir=str(tmp_path / "index"))) == rows(run(task, corpus, top_k=5))


@pytest.mark.parametrize(
    "options,message",
    [
        ({"deduplicate": 1.5}, "Deduplication needs threshold above 0 and at most 1"),
        ({"deduplicate": 0.0, "retriever": "random", "num_passages": 3}, "Deduplication needs threshold"),
        (
            {"retriever": "elasticsearch", "elastic": ElasticSettings("http://localhost:1", "x"), "max_query_terms": 8},
            "max_query_terms .8. needs the corpus's document frequencies",
        ),
    ],
)
def test_invalid_options_are_refused_before_the_corpus_is_read(task, options, message):
    unread = Corpus("unread", "0", lambda: pytest.fail("the corpus was read"))
    with pytest.raises(RetrievalError, match=message):
        retrieve(task, unread, **options)


def test_output_folder_is_checked_first(tmp_path, run, task, folder):
    subset = run(task, load_corpus(str(folder)), top_k=3)
    subset.save(tmp_path / "subset")
    RetrievalArguments().check(str(tmp_path / "subset"))
    with pytest.raises(RetrievalError, match="would replace .*subset, the subset of --like"):
        RetrievalArguments(retriever="random", like=str(tmp_path / "subset")).check(str(tmp_path / "subset"))
    (tmp_path / "subset" / "thesis.tex").touch()
    with pytest.raises(RetrievalError, match="contains something other than a saved subset .thesis.tex"):
        RetrievalArguments().check(str(tmp_path / "subset"))


def test_random_subset_like_one_of_another_corpus_is_warned_about(tmp_path, run, task, folder, caplog):
    run(task, load_corpus(str(folder)), top_k=3).save(tmp_path / "subset")
    random = RetrievalArguments(retriever="random", like=str(tmp_path / "subset"))
    random.retrieve(task, load_corpus(str(folder)))
    assert "was chosen from are not those of this corpus" not in caplog.text
    random.retrieve(task, load_corpus(str(folder), max_words=2))
    assert "not those of this corpus: they were cut with another length (pass --passage_words 0), or" in caplog.text
    run(task, load_corpus(str(folder), max_words=2), top_k=3).save(tmp_path / "subset")
    random.retrieve(task, load_corpus(str(folder)))
    assert "they were cut with another length (pass --passage_words 2)" in caplog.text
    caplog.clear()
    (tmp_path / "other.txt").write_text("one\ntwo\nthree\nfour\n" * 40)
    random.retrieve(task, load_corpus(str(tmp_path / "other.txt"), max_words=2))
    assert "not those of this corpus: they are of another corpus. The" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("retriever", ["bm25", "bm25s", "rank_bm25", "elasticsearch", "sharded"])
def test_queries_without_hits_are_counted_once(run, make_task, folder, retriever):
    """One query has words that no passage has; another has only stop words and is empty."""
    task, corpus = make_task({"a": WORDS[3], "b": "the of", "c": "zygote"}), load_corpus(str(folder))
    with ElasticServer() as server:
        options = {"elasticsearch": {"elastic": ElasticSettings(server.url, "corpus")}, "sharded": {"sharding": Sharding(2)}}
        counts = run(task, corpus, top_k=3, retriever=retriever, **options.get(retriever, {})).manifest["counts"]
        assert (counts["empty_queries"], counts["first_empty_queries"]) == (1, ["b"])
        assert (counts["queries_without_hits"], counts["first_queries_without_hits"]) == (1, ["c"])
        if retriever != "elasticsearch":  # It does not support max_query_terms.
            options = options.get(retriever, {}) | {"max_query_terms": 3}
            assert run(task, corpus, top_k=3, retriever=retriever, **options).manifest["counts"] == counts


@pytest.mark.parametrize(
    "options,message",
    [
        ({"executor": "slurm"}, "--executor slurm has no effect with --retriever bm25: it is for sharded"),
        ({"num_shards": 64, "retriever": "bm25s"}, "--num_shards 64 has no effect with --retriever bm25s"),
        ({"elastic_url": "http://x"}, "--elastic_url http://x has no effect .*: it is for elasticsearch"),
        ({"num_threads": 1, "retriever": "bm25s"}, "--num_threads 1 has no effect .*: it is for bm25"),
        ({"num_threads": 1, "retriever": "sharded"}, "--num_threads 1 has no effect .*: it is for bm25"),
        ({"query_batch_size": 8, "retriever": "rank_bm25"}, "--query_batch_size 8 .*: it is for bm25 and sharded"),
        ({"work_dir": "x", "retriever": "elasticsearch"}, "--work_dir x has no effect"),
        ({"like": "x"}, "--like gives the size of a random subset"),
        ({"like": "x", "num_passages": 3, "retriever": "random"}, "--like and --num_passages both set the size"),
    ],
)
def test_options_of_another_retriever_are_refused(task, options, message):
    with pytest.raises(RetrievalError, match=message):
        RetrievalArguments(**options).retrieve(task, None)


def test_elasticsearch_with_a_corpus_and_with_an_existing_index(run, task, folder):
    corpus = load_corpus(str(folder))
    with ElasticServer() as server:
        elastic = ElasticSettings(server.url, "corpus")
        from_corpus = run(task, corpus, top_k=5, retriever="elasticsearch", elastic=elastic)
        from_index = run(task, None, top_k=5, retriever="elasticsearch", elastic=elastic)
    ours = run(task, corpus, top_k=5)
    assert [row["id"] for row in rows(from_corpus)] == [row["id"] for row in rows(ours)]
    assert rows(from_corpus) == rows(from_index)
    assert from_index.manifest["corpus"] == {"name": "corpus", "fingerprint": corpus.fingerprint, "size": 150}


def test_manifest_of_a_foreign_elasticsearch_index(run, make_task):
    """Its analyzer decides about stop words, and a query of stop words may have hits."""
    with ElasticServer() as server:
        fields = {"text": {"type": "text"}, "source": {"type": "keyword"}}
        server.add("theirs", {"x1": {"text": "The kinase of it", "source": "s"}}, fields)
        task = make_task({"a": "kinase", "b": "the of", "c": "zygote"})
        elastic = ElasticSettings(server.url, "theirs")
        subset = run(task, None, top_k=1, retriever="elasticsearch", elastic=elastic)
    manifest = subset.manifest
    assert (manifest["stopwords"], manifest["analyzed_by"]) == (None, "the index's")
    assert "stop words as the index's analyzer has them" in subset.summary()
    assert (manifest["counts"]["first_empty_queries"], manifest["counts"]["first_queries_without_hits"]) == ([], ["c"])


@pytest.mark.parametrize(
    "options,message",
    [
        ({"retriever": "elasticsearch"}, "expected ElasticSettings for the retriever elasticsearch"),
        ({"retriever": "sharded", "settings": Bm25Settings(), "index_dir": "x"}, "index_dir is only for the retriever bm25"),
        ({"max_query_terms": 0}, "max_query_terms: expected"),
        ({"num_threads": 0}, "num_threads: expected"),
        ({"query_batch_size": -1}, "query_batch_size: expected"),
    ],
)
def test_options_of_another_retriever_are_refused_from_python(task, options, message):
    with pytest.raises(RetrievalError, match=message):
        retrieve(task, None, **options)
