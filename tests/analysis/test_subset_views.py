"""Views of subsets: each number against sets, loops or a retrieval for every K; figures and the recipe on hostile
names.
"""

import runpy
import sys
import warnings
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from datasets import Dataset, Features, Value

from hf_tlm.analysis import (
    AnalysisError,
    AnalyzeArguments,
    AnalyzedTask,
    analyze,
    case_studies,
    case_studies_to_markdown,
    find_results,
    rank_against_influence,
    read_run,
    read_runs,
    report_page,
    size_against_k,
    source_shares,
    subset_overlap,
)
from hf_tlm.analysis import subsets as views
from hf_tlm.analysis.arguments import SubsetsArguments
from hf_tlm.corpora import load_corpus
from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval import Subset, retrieve
from hf_tlm.retrieval.subset_files import COLUMNS
from hf_tlm.tasks import load_task
from support.launching import ROOT, fails
from support.toys import make_task, sentences

MANIFEST = {
    "format": "hf_tlm.subset", "format_version": 1, "retriever": "bm25", "query_mode": "text", "top_k": 5, "stemmer": None,
    "variant": "lucene", "k1": 1.2, "b": 0.75, "delta": None, "stopwords": "en",
    "corpus": {"name": "toy", "fingerprint": "c", "size": 100},
    "task": {"name": "toy", "fingerprint": "t", "split": "train"},
}  # fmt: skip


def subset_of(rows, *, sources=None, influence=None, **manifest):
    """Return a subset of rows (id, source, rank, score, best query)."""
    columns = {"id": [], "source": [], "rank": [], "score": [], "best_query": []}
    for row in rows:
        for values, value in zip(columns.values(), row, strict=True):
            values.append(value)
    columns |= {"text": [f"text of {name}" for name in columns["id"]], "n_queries": [1] * len(rows)}
    features = Features({name: Value(kind) for name, kind in COLUMNS.items()})
    dataset = Dataset.from_dict({name: columns[name] for name in COLUMNS}, features=features)
    if influence is not None:
        dataset = dataset.add_column("influence", influence, feature=Value("float32"))
    counts = {"passages": 100, "union": len(rows), "queries": 9, "sources": sources}
    return Subset(dataset, {**MANIFEST, "counts": counts, **manifest})


def random_subset(seed, size, **manifest):
    """Return a subset of passages out of p0 .. p99, each with one of 9 queries."""
    rng = np.random.default_rng(seed)
    return subset_of(
        [(f"p{at}", "s", 1 + at % 5, 1.0, f"q{rng.integers(9)}") for at in rng.permutation(100)[:size]], **manifest
    )


@pytest.fixture(scope="module")
def retrieved(corpus_rows, tmp_path_factory):
    corpus, cache = load_corpus(Dataset.from_list(corpus_rows)), str(tmp_path_factory.mktemp("cache"))
    return {k: retrieve(make_task(), corpus, top_k=k, cache_dir=cache) for k in (1, 2, 3, 6)}


@pytest.mark.parametrize(
    "call,match",
    [
        (lambda: size_against_k("runs/a"), r'subset: expected a Subset; received "runs/a". Give Subset.open\("runs/a"\)'),
        (lambda: rank_against_influence(Dataset.from_dict({})), "subset: expected a Subset; received a Dataset"),
        (lambda: source_shares({"a": "runs/a"}), 'subset: expected a Subset; received "runs/a"'),
        (lambda: source_shares([random_subset(0, 9)]), "subsets: expected a mapping of names to Subsets; received a list"),
        (lambda: subset_overlap({"a": random_subset(0, 9), "b": None}), "subset: expected a Subset"),
        (lambda: report_page("runs/a"), r'run: expected a RunFolder; received "runs/a". Give read_run\("runs/a"\)'),
        (lambda: find_results("runs/a"), "places: expected a mapping of names to folders; received a str"),
        (lambda: read_runs(["runs/a"]), "places: expected a mapping of names to folders; received a list"),
    ],
)
def test_names_in_place_of_subsets_and_runs_are_refused(call, match):
    with pytest.raises(HfTlmError, match=match):
        call()


def test_report_page_refuses_names_and_unnamed_subsets(retrieved, tmp_path):
    retrieved[1].save(tmp_path / "subset")
    run = read_run(tmp_path / "subset")
    for second, subsets in (("runs/b", None), (None, random_subset(0, 9)), (None, {"a": "runs/a"})):
        with pytest.raises(HfTlmError, match="expected (a RunFolder|a mapping of names to Subsets|a Subset); received"):
            report_page(run, second=second, subsets=subsets)


def test_size_against_k_equals_retrievals_of_every_k(retrieved):
    found = size_against_k(retrieved[6])
    assert found.k.tolist() == [1, 2, 3, 4, 5, 6]
    for k, subset in retrieved.items():
        assert found.passages[k - 1] == len(subset)
    assert len(retrieved[1]) < len(retrieved[2]) < len(retrieved[6])
    ranks, scores = np.array(retrieved[6].dataset["rank"][:]), np.array(retrieved[6].dataset["score"][:])
    for k in found.k:
        own_scores = scores[ranks == k]
        assert (found.score[k - 1], found.deviation[k - 1]) == (
            pytest.approx((own_scores.mean(), own_scores.std()))
            if len(own_scores)
            else (pytest.approx(np.nan, nan_ok=True),) * 2
        )


def test_size_against_k_without_passages_or_scores_at_a_rank():
    subset = subset_of([("a", "s", 1, 4.0, "q"), ("b", "s", 1, 2.0, "q"), ("c", "s", 3, 1.0, "r")])
    found = size_against_k(subset)
    assert found.passages.tolist() == [2, 2, 3, 3, 3]
    np.testing.assert_allclose(found.score, [3, np.nan, 1, np.nan, np.nan])
    np.testing.assert_allclose(found.deviation, [1, np.nan, 0, np.nan, np.nan])
    released = subset_of([("a", "s", 1, None, None), ("b", "s", 2, None, None)], retriever="released", top_k=None)
    found = size_against_k(released)
    assert found.passages.tolist() == [1, 2] and np.isnan(found.score).all()


def test_subset_without_ranks_is_refused():
    part = {"size": 1, "of": 3, "method": "iss"}
    rows = [("a", "s", 1, 1.0, "q")]
    for subset, message in (
        (subset_of(rows, selection=part), r"is a selection \(1 of 3 passages by iss\)"),
        (subset_of(rows, retriever="random"), "drawn at random"),
        (subset_of(rows, retriever="released", rank_column=False), "has no ranks"),
        (subset_of([]), "is empty"),
    ):
        with pytest.raises(AnalysisError, match=message):
            size_against_k(subset)


def test_passages_without_ranks_among_others_are_left_out(task):
    """As in a subset of retrieved and random passages, see `Subset.save`."""
    rows = [("a", "s", 1, 4.0, "train-0"), ("r", None, None, None, None), ("b", "s", 2, 2.0, "train-1")]
    of_task = {"name": "toy", "fingerprint": task.fingerprint, "split": "train"}
    mixed = subset_of(rows, influence=[0.2, 0.9, 0.1], task=of_task)
    alone = subset_of([rows[0], rows[2]], influence=[0.2, 0.1], task=of_task)
    for field in ("passages", "score"):
        np.testing.assert_array_equal(getattr(size_against_k(mixed), field), getattr(size_against_k(alone), field))
    assert rank_against_influence(mixed) == rank_against_influence(alone)
    assert case_studies(mixed, task) == case_studies(alone, task)
    with pytest.raises(AnalysisError, match="None of the passages has a rank"):
        size_against_k(subset_of([rows[1]]))


def test_overlap_equals_that_of_sets():
    subsets = {name: random_subset(seed, size) for name, seed, size in (("a", 0, 40), ("b", 1, 60), ("c", 2, 25))}
    found = subset_overlap(subsets)
    sets = [set(subset.dataset["id"]) for subset in subsets.values()]
    for a, first in enumerate(sets):
        for b, second in enumerate(sets):
            assert found.passages[a, b] == len(first & second)
            assert found.jaccard[a, b] == len(first & second) / len(first | second)
            assert found.containment[a, b] == len(first & second) / len(first)
    hits = [{query: set() for query in (f"q{i}" for i in range(9))} for _ in subsets]
    for own_hits, subset in zip(hits, subsets.values(), strict=True):
        for row in subset.dataset:
            own_hits[row["best_query"]].add(row["id"])
    for a, b in combinations(range(3), 2):
        shares = [len(hits[a][q] & hits[b][q]) / len(both) for q in hits[a] if (both := hits[a][q] | hits[b][q])]
        assert found.per_query[a, b] == found.per_query[b, a] == pytest.approx(np.mean(shares))
    assert found.names == ["a", "b", "c"] and found.per_query.diagonal().tolist() == [1, 1, 1]


def test_overlap_per_query_needs_the_same_queries():
    other = random_subset(1, 30, task={"name": "other", "fingerprint": "u", "split": "train"})
    random = subset_of([(f"p{at}", "s", at + 1, None, None) for at in range(20)], retriever="random")
    found = subset_overlap({"a": random_subset(0, 30), "other": other, "random": random})
    assert np.isnan(found.per_query[~np.eye(3, dtype=bool)]).all() and np.isnan(found.per_query[2, 2])
    assert 0 < found.jaccard[0, 2] < 1


def test_overlap_of_different_corpora_is_refused():
    of_toy, of_else = random_subset(0, 10), random_subset(0, 10, corpus={"name": "else", "fingerprint": "d", "size": 9})
    with pytest.raises(AnalysisError, match=r"a of toy \(fingerprint c\); b of else \(fingerprint d\)"):
        subset_overlap({"a": of_toy, "b": of_else})
    unknown = random_subset(0, 10, corpus={"name": "index", "fingerprint": None, "size": 9})
    with pytest.raises(AnalysisError, match="fingerprint unknown"):
        subset_overlap({"a": unknown, "b": unknown})
    with pytest.raises(AnalysisError, match="at least two subsets; received 1"):
        subset_overlap({"a": of_toy})
    with pytest.raises(AnalysisError, match="'b' is empty"):
        subset_overlap({"a": of_toy, "b": subset_of([])})


def test_source_shares_and_ratios_to_the_corpus():
    rows = [("a", "x", 1, 1.0, "q"), ("b", "x", 1, 1.0, "q"), ("c", "y", 2, 1.0, "q"), ("d", None, 2, 1.0, "q")]
    first = subset_of(rows, sources={"x": 10, "y": 60, "z": 20, "": 10})
    second = subset_of(rows[2:3])
    found = source_shares({"one": first, "two": second}, top=2)
    assert [(row.source, row.subset, row.passages, row.share) for row in found] == [
        ("y", "one", 1, 0.25), ("y", "two", 1, 1.0), ("x", "one", 2, 0.5), ("x", "two", 0, 0.0),
        (None, "one", 1, 0.25), (None, "two", 0, 0.0),
    ]  # fmt: skip
    assert [row.corpus_share for row in found] == [0.6, None, 0.1, None, 0.3, None]
    assert [row.ratio for row in found if row.subset == "one"] == pytest.approx([0.25 / 0.6, 5.0, 0.25 / 0.3])
    assert [row.others for row in found] == [0, 0, 0, 0, 2, 2]
    assert [row.source for row in source_shares({"one": first}, top=9)] == ["x", "", "y", "z"]
    absent = source_shares({"one": subset_of(rows[:1], sources={"y": 3})}, top=1)
    assert (absent[0].source, absent[0].corpus_share, absent[0].ratio) == ("x", 0, None)
    for subsets, message in (({}, "expected at least one subset; received none"), ({"e": subset_of([])}, "'e' is empty")):
        with pytest.raises(AnalysisError, match=message):
            source_shares(subsets)
    with pytest.raises(AnalysisError, match="top must be at least 1; received 0"):
        source_shares({"one": first}, top=0)


def selection_of(ranks, influence, **manifest):
    part = {"size": len(ranks), "of": 50, "method": "iss"}
    rows = [(f"p{at}", "s", rank, 1.0, "q") for at, rank in enumerate(ranks)]
    return subset_of(rows, influence=influence, selection=part, **manifest)


def test_influence_is_summarized_by_bins_of_ranks():
    found = rank_against_influence(selection_of([1, 1, 2, 3, 4, 5, 6, 7], [8.0, 6.0, 5, 4, 3, 2, 1, 0]), bins=4)
    assert [(item.first, item.last, item.passages, item.mean, item.deviation) for item in found.bins] == [
        (1, 1, 2, 7, 1), (2, 3, 2, 4.5, 0.5), (4, 5, 2, 2.5, 0.5), (6, 7, 2, 0.5, 0.5),
    ]  # fmt: skip
    assert found.bins[0].quantiles == pytest.approx([6.1, 6.5, 7, 7.5, 7.9])
    assert (found.passages, found.of) == (8, 50) and -1 < found.spearman < -0.98  # One tie.
    assert rank_against_influence(selection_of([1, 2, 3], [0.1, 0.2, 0.9])).spearman == pytest.approx(1)


def test_equal_ranks_stay_in_one_bin():
    found = rank_against_influence(selection_of([1] * 6 + [2] * 3 + [9], list(range(10))), bins=10)
    assert [(item.first, item.last, item.passages) for item in found.bins] == [(1, 1, 6), (2, 2, 3), (9, 9, 1)]
    assert [item.passages for item in rank_against_influence(selection_of([1, 2, 3, 4], [1] * 4), bins=2).bins] == [2, 2]


def test_constant_or_missing_influence():
    assert np.isnan(rank_against_influence(selection_of([1, 2], [3.0, 3.0])).spearman)
    assert np.isnan(rank_against_influence(selection_of([2, 2], [3.0, 4.0])).spearman)
    with pytest.raises(AnalysisError, match="have no influence"):
        rank_against_influence(random_subset(0, 3))
    with pytest.raises(AnalysisError, match="drawn at random"):
        rank_against_influence(selection_of([1, 2], [3.0, 4.0], retriever="random"))
    with pytest.raises(AnalysisError, match="bins must be at least 1"):
        rank_against_influence(selection_of([1, 2], [3.0, 4.0]), bins=0)


def test_table_of_influence_names_ranks(tmp_path):
    found = views.influence({"toy": selection_of([1, 1, 2, 3], [8.0, 6.0, 5.0, 4.0])}, tmp_path, 2)
    assert "| 1 " in found.text and "| 2 to 3 " in found.text


def test_case_studies_pair_task_texts_with_their_passages(retrieved):
    task, subset = make_task(), retrieved[6]
    texts = dict(zip(task.train["id"], task.train["text"], strict=True))
    best = {}
    for row in subset.dataset:
        best.setdefault(row["best_query"], []).append(row)
    found = case_studies(subset, task, 8, passages=2, seed=3)
    assert len(found) == 8 and found[:5] == case_studies(subset, task, 5, passages=2, seed=3)
    assert [study.query_id for study in found] != [s.query_id for s in case_studies(subset, task, 8, passages=2, seed=4)]
    for study in found:
        assert "".join(piece for piece, _ in study.query) == texts[study.query_id]
        expected = best[study.query_id][:2]
        assert [passage.id for passage in study.passages] == [row["id"] for row in expected]
        for passage, row in zip(study.passages, expected, strict=True):
            assert "".join(piece for piece, _ in passage.text) == row["text"]
            marked = {word for piece, mark in passage.text if mark for word in piece.lower().split()}
            words = set(row["text"].lower().rstrip(".").split()) & set(texts[study.query_id].lower().split())
            assert marked == words - {"the", "and"}
            assert (passage.rank, passage.score, passage.source) == (row["rank"], row["score"], row["source"])
    every = case_studies(subset, task, 1000, passages=1)
    assert {study.query_id for study in every} == set(best) and len(every) == len(best)
    enough = sum(len(rows) >= 3 for rows in best.values())
    assert all(len(study.passages) == 3 for study in case_studies(subset, task, enough, passages=3))


def test_case_studies_in_markdown(task):
    text = "The <b>gene</b> $x$ *blocks* the_gene"
    rows = [{**row, "text": "Gene & blocks", "id": f"q{at}"} for at, row in enumerate(task.train)]
    task = replace(task, splits={**task.splits, "train": Dataset.from_list(rows, features=task.train.features)})
    subset = subset_of(
        [("p|1", "s*", 2, 1.25, "q1")], task={"name": "toy", "fingerprint": task.fingerprint, "split": "train"}
    )
    subset = replace(subset, dataset=subset.dataset.map(lambda row: {"text": text}))
    (study,) = case_studies(subset, task)
    assert study.query == [("Gene", True), (" & ", False), ("blocks", True)]
    assert study.passages[0].text[:3] == [("The <b>", False), ("gene", True), ("</b> $x$ *", False)]
    assert case_studies_to_markdown([study]) == (
        "### 1\n\n> **Task text** q1: **Gene** \\& **blocks**\n>\n"
        "> **Passage**, rank 2, score 1.2, found by 1 query (p\\|1, from s\\*): "
        "The \\<b\\>**gene**\\</b\\> \\$x\\$ \\***blocks**\\* the_gene\n"
    )


def test_subset_without_queries_has_no_case_studies(task, retrieved):
    with pytest.raises(AnalysisError, match=r"retrieved for toy \(fingerprint t\), not for toy"):
        case_studies(random_subset(0, 5), task)
    unqueried = {"task": {"name": "toy", "fingerprint": None, "split": "train"}}
    with pytest.raises(AnalysisError, match="drawn at random"):
        case_studies(random_subset(0, 5, retriever="random", **unqueried), task)
    with pytest.raises(AnalysisError, match="does not record which task texts"):
        case_studies(subset_of([("a", "s", 1, None, None)], retriever="released", **unqueried), task)
    for options in ({"number": 0}, {"passages": 0}):
        with pytest.raises(AnalysisError, match="must be at least 1; received 0"):
            case_studies(retrieved[6], make_task(), **options)


@pytest.fixture
def coarse(monkeypatch):
    """Draw figures at a low resolution, which takes less time."""
    monkeypatch.setattr("hf_tlm.analysis.figures.DPI", 40)


def test_many_subsets_with_hostile_names_are_drawn(tmp_path, coarse):
    names = ["$x_{", "日本語", "a" * 60, "<i>", "b\nc", "../../up", "up"]
    subsets = {name: random_subset(at, 30, sources={"s": 5, "$y^": 7}) for at, name in enumerate(names)}
    subsets["$x_{"].dataset = subsets["$x_{"].dataset.map(lambda row: {"source": "$y^"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Older versions of matplotlib use names that pyparsing has deprecated, already when they are imported.
        warnings.simplefilter("default", DeprecationWarning)
        sizes = views.sizes(subsets, tmp_path)
        sources = views.sources(subsets, tmp_path, 5)
        overlap = views.overlaps({name: subsets[name] for name in names[:4]}, tmp_path)
        scored = {name: selection_of([1, 2, 3], [0.1, 0.3, 0.2]) for name in names[-2:]}
        influence = views.influence(scored, tmp_path, 3)
    assert [path.name for path in sizes.files][::3] == ["subsets_size.png", "subsets_size_2.png"]
    assert len(sources.files) == 6 and [path.name for path in overlap.files][::3] == ["subsets_overlap.png"]
    assert [path.name for path in influence.files][::3] == ["subsets_influence_up.png", "subsets_influence_up-2.png"]
    assert all(path.parent == tmp_path and path.stat().st_size for path in [*sizes.files, *influence.files])
    assert "\\$x\\_{" in sizes.text and "\\<i\\>" in overlap.text


def test_labels_are_shortened():
    assert views.label("a\n b") == "a b" and views.label("x" * 26) == "x" * 26
    assert views.label("a" * 20 + "b" * 20) == "a" * 17 + "…" + "b" * 8


def test_recipe_writes_figures_and_case_studies(retrieved, tmp_path, monkeypatch, capsys, coarse):
    folder = tmp_path / "task"
    folder.mkdir()
    for split, rows in make_task().splits.items():
        rows.remove_columns("id").to_json(folder / f"{split}.jsonl")
    rows = [{"text": row["text"]} for row in sentences(60, 9)]
    corpus = load_corpus(Dataset.from_list(rows))
    whole = retrieve(load_task(str(folder)), corpus, top_k=3, cache_dir=str(tmp_path / "cache"))
    influence = np.linspace(1, 0, 10).astype("float32")
    part = whole.dataset.select(np.linspace(0, len(whole) - 1, 10).astype(int)).add_column(
        "influence", influence, feature=Value("float32")
    )
    manifest = {**whole.manifest, "selection": {"size": 10, "of": len(whole), "method": "iss"}}
    for name, subset in {"whole": whole, "part": Subset(part, manifest), "else": retrieved[2]}.items():
        subset.save(tmp_path / name)
    given = [f"BM25={tmp_path / 'whole'}", f"ISS={tmp_path / 'part'}", str(tmp_path / "else")]
    monkeypatch.chdir(ROOT)
    command = ["recipes/analyze.py", "--what", "subsets", "--task", str(folder), "--subsets", *given]
    monkeypatch.setattr(sys, "argv", [*command, "--output_dir", str(tmp_path / "out"), "--case_studies", "2"])
    runpy.run_path("recipes/analyze.py")["main"]()
    out = capsys.readouterr().out
    assert "ISS is not shown. The subset is a selection (10 of" in out
    assert "Spearman's correlation of rank (1 is the best) and influence: -" in out
    assert f"| BM25 | ISS | 10 | {10 / len(whole):.3f} | {10 / len(whole):.3f} | 1.000 |" in out
    assert "Compared within a corpus only" in out and "else is not shown. The subset was retrieved for toy" in out
    written = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {f"subsets_{what}.{kind}" for what in ("size", "sources", "influence_ISS") for kind in ("png", "svg", "csv")}
    others = {"subsets.md", "subsets_overlap.csv", "subsets_case_study_BM25.md", "subsets_case_study_ISS.md"}
    assert written == pictures | others
    assert (tmp_path / "out" / "subsets_case_study_BM25.md").read_text().count("**Task text**") == 2
    monkeypatch.setattr(sys, "argv", [*command, "--output_dir", str(tmp_path / "less"), "--case_studies", "2"])
    sys.argv += ["--case_passages", "1", "--top_sources", "1"]
    runpy.run_path("recipes/analyze.py")["main"]()
    cases = [tmp_path / name / "subsets_case_study_BM25.md" for name in ("out", "less")]
    assert [path.read_text().count("**Passage") for path in cases] == [4, 2]
    lines = (tmp_path / "out" / "subsets_size.csv").read_text().splitlines()
    assert lines[0] == "subset,k,passages,score,deviation" and lines[3].startswith(f"BM25,3,{len(whole)},")


def test_missing_or_empty_subset_is_refused(retrieved, tmp_path):
    fails("recipes/analyze.py", "--what", "subsets", message="--what subsets needs --subsets")
    with pytest.raises(AnalysisError, match="--rank_bins: expected .*; received 0"):
        SubsetsArguments(rank_bins=0)
    assert SubsetsArguments(case_studies=0).case_studies == 0
    args = AnalyzeArguments(what=["subsets"], output_dir=str(tmp_path))
    args.opened_subsets = {"filled": retrieved[1], "empty": subset_of([])}
    with pytest.raises(AnalysisError, match="'empty' is empty: there is nothing to show"):
        analyze("subsets", args, AnalyzedTask(), SubsetsArguments())


def test_files_of_subsets_have_different_names():
    assert views._file_names(["x", "x!", "x-2", "?"]) == ["x", "x-2", "x-2-3", "subset"]
