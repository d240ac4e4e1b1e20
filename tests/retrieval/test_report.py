"""The report of a tiny subset equals the golden file (HF_TLM_WRITE_GOLDEN=1 writes it); hostile texts are escaped."""

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, Value, concatenate_datasets

from hf_tlm.retrieval import RetrievalError, Subset
from hf_tlm.retrieval.report import (
    MarkedTerms,
    _bar,
    _spread_rows,
    mark_shared,
    marked_spans,
    retrieval_report,
    spans_to_markdown,
)
from hf_tlm.retrieval.subset_files import COLUMNS
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.utils.shown import for_markdown

GOLDEN = Path(__file__).parent / "golden" / "report.md"
HOSTILE = [
    "| a | b |\n| --- | --- |\n# kinase\n\n```\ncode",
    "<script>alert(1)</script> kinase <!-- <b>",
    "*kinase* **inhibitor** _the_ __enzyme__ ~~gone~~ `code` $x_1$ &amp;",
    "![kinase](http://a/b.png) [x]: y [link](z) \\ \\* \\",
    "kinase\r\n> quoted\u2028- item\n1. item\n\n---\n===\x00\x1b[31m\u202ered",
    "_kinase_ x_kinase_y **kinase inhibitor**" + "*" * 300 + "kinase" * 100,
    "\n \t",
    "日本語のキナーゼ kinase—inhibitor…",
]


def make_subset(rows, **manifest):
    features = Features({name: Value(kind) for name, kind in COLUMNS.items()})
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    counts = {"passages": 12345, "union": len(rows), "queries": 5, "empty_queries": 1, "first_empty_queries": ["q2"],
              "queries_without_hits": 1, "first_queries_without_hits": ["q4"]}  # fmt: skip
    defaults = {"retriever": "bm25s", "corpus": {"name": "toy_corpus", "fingerprint": "c", "size": 12345},
            "task": {"name": "toy", "fingerprint": "t", "split": "train"}, "query_mode": "text", "top_k": 3,
            "top_k_requested": 3, "variant": "lucene", "k1": 1.2, "b": 0.75, "delta": None, "stopwords": "en"}  # fmt: skip
    manifest = {**defaults, **manifest, "counts": {**counts, **manifest.get("counts", {})}}
    return Subset(Dataset.from_dict(columns, features=features), manifest)


def row(number, text, query, rank=1, score=1.0, n_queries=1, source="toy|source"):
    return {"id": f"p_{number}", "text": text, "source": source, "rank": rank, "score": score, "n_queries": n_queries,
            "best_query": query}  # fmt: skip


@pytest.fixture
def subset(passages):
    texts = list(passages.values())
    return make_subset([
        row(1, texts[2], "q1", 1, 3.25, 2), row(2, texts[0], "q3", 1, 2.5, 1, source="other"),
        row(3, texts[4], "q5", 1, 2.0, 5), row(4, texts[1], "q3", 2, 2.5, 1), row(5, texts[3], "q1", 3, 0.5, 1, source=None),
    ])  # fmt: skip


@pytest.fixture
def random_subset(passages):
    rows = [row(i, text, None, i + 1, None, 0) for i, text in enumerate(passages.values())]
    none = dict.fromkeys(("query_mode", "top_k", "top_k_requested", "variant", "k1", "b", "stopwords"))
    counts = {"queries": 0, "empty_queries": 0, "first_empty_queries": [], "queries_without_hits": 0}
    return make_subset(rows, retriever="random", seed=3, **none, counts=counts)


def shorten(*text_and_terms):
    return spans_to_markdown(marked_spans(*text_and_terms))


def section(report, title):
    return report.split(f"## {title}\n")[1].split("\n## ")[0]


def test_report_equals_its_golden_file(subset, make_task):
    manifest = {
        **subset.manifest,
        "counts": {**subset.manifest["counts"], "sources": {"toy|source": 10_000, "other": 2_000, "absent": 345}},
        "decontamination": {"passages": 7, "ids": [f"p_{i}" for i in range(10, 17)], "ngram": 13, "threshold": 0.2},
        "deduplication": {"passages": 0, "ids": []},
    }
    report = retrieval_report(dataclasses.replace(subset, manifest=manifest), make_task(), 4)
    if os.environ.get("HF_TLM_WRITE_GOLDEN"):
        GOLDEN.write_text(report, encoding="utf-8")
    assert report == GOLDEN.read_text(encoding="utf-8")


def test_report_of_a_loaded_subset_is_the_same(subset, make_task, tmp_path):
    subset.manifest.update(format="hf_tlm.subset", format_version=1, versions={})
    subset.save(tmp_path / "saved")
    assert retrieval_report(Subset.load(tmp_path / "saved"), make_task()) == retrieval_report(subset, make_task())


def test_report_of_a_larger_subset():
    rows = [
        row(i, "word " * (i + 1), f"q{i % 5}", rank=1 + i % 200, score=0.0, n_queries=1 + i % 9, source=f"s{i % 30:02}")
        for i in range(2000)
    ]
    report = retrieval_report(make_subset(rows, top_k=1500))
    assert "| 20 | 200 | 10.0% | ██▍ |" in section(report, "Size against K")
    assert (
        re.findall(r"\n\| ([\d,]+) ", section(report, "Size against K")) == "1 2 5 10 20 50 100 200 500 1,000 1,500".split()
    )
    assert "Mean 5.0, median 5.0, maximum 9; 9,993 hits in total." in report
    assert "| 4 to 7 | 888 |" in report and "| 8 to 15 | 444 |" in report
    assert "| s00 | 67 | 3.4% |\n" in report and "| 10 others | 660 | 33.0% |" in report
    assert "| 1 | 501 | 1,000 | 1,500 | 2,000 | 1,000 | 2,001,000 |" in report
    assert "passages of the subset | 2,000 (16.2%)" in report


def test_report_of_a_random_subset_leaves_out_queries_and_ranks(random_subset, make_task):
    report = retrieval_report(random_subset, make_task(), 2)
    assert "drawn at random" in report and "retriever random, seed 3." in report
    for absent in ("Size against K", "Queries that hit", "**", "queries |", "None", "nan"):
        assert absent not in report
    assert "> Enzymes bind small molecules in the active site.\n>\n> p_0, from toy\\|source" in report
    assert report.count("###") == 2


def test_report_of_a_subset_with_few_records(subset, make_task):
    """A subset of another engine or an older version has no BM25 settings, and no counts except passages."""
    minimal = {name: subset.manifest[name] for name in ("corpus", "task")} | {
        "retriever": "elasticsearch",
        "query_mode": "text",
    }
    bare = Subset(subset.dataset, {**minimal, "counts": {"passages": 10}})
    report = retrieval_report(bare, make_task(), 1)
    assert "Settings: retriever elasticsearch, query mode text." in report and "| 3 | 5 | 100.0% |" in report
    assert "queries |" not in section(report, "Counts") and "None" not in report and "not checked" in report


def test_report_without_the_task_or_without_examples(subset, make_task):
    private = section(retrieval_report(subset), "Examples")
    assert "The task's texts are not quoted." in private and private.count("###") == min(10, len(subset))
    assert not any(text in private for text in make_task().train["text"][:] if text.strip())
    assert all(row["id"] in private for row in subset.dataset)
    assert "## Examples" not in retrieval_report(subset, make_task(), 0)
    assert retrieval_report(subset, make_task(), 100).count("###") == len(subset)
    with pytest.raises(RetrievalError, match="num_examples: expected a whole number from 0 .*; received -1"):
        retrieval_report(subset, num_examples=-1)
    with pytest.raises(RetrievalError, match="has no example"):
        retrieval_report(subset, make_task({"other": "kinase", "task": "enzymes"}))


def test_report_of_retrieved_and_random_passages_together(subset, random_subset, make_task):
    """Random passages, and released ones, have no query: they are neither examples nor among those that queries hit."""
    released = random_subset.dataset.map(lambda row: {"n_queries": None}, features=random_subset.dataset.features)
    rows = concatenate_datasets([random_subset.dataset, subset.dataset, released])
    together = Subset(rows, subset.manifest)
    for task in (None, make_task()):
        report = retrieval_report(together, task)
        for name in ("Queries that hit a passage", "Examples"):
            assert section(report, name) == section(retrieval_report(subset, task), name)
    hits = "a passage was found by 2.0 queries on average, at most by 5"
    assert hits in subset.summary() and hits in together.summary()


def test_report_of_an_empty_subset(subset):
    empty = make_subset([])
    assert retrieval_report(empty).endswith("The subset is empty.\n")


def test_stop_words_are_never_marked():
    rows = [row(0, "The kinase was not there, which is after all the Kinases' own.", "q")]
    data = Dataset.from_dict({"id": ["q", "r"], "text": ["After all the kinase was not there", "x"], "label": ["a", "b"]})
    task = task_from_datasets(TaskSpec(name="toy", path="toy"), {"train": data, "validation": data})
    for stopwords in ("en", None):
        report = retrieval_report(make_subset(rows, stopwords=stopwords), task)
        assert re.findall(r"\*\*(.+?)\*\*", section(report, "Examples")) == ["Query", "kinase", "Passage", "kinase"]


def test_stems_are_marked():
    pytest.importorskip("Stemmer")
    query, (first, second) = mark_shared(
        "kinase inhibition by acids", ["Kinases were inhibited", "acid"], MarkedTerms("english")
    )
    assert query == [("kinase inhibition", True), (" by ", False), ("acids", True)]
    assert first == [("Kinases", True), (" were ", False), ("inhibited", True)] and second == [("acid", True)]
    assert [spans_to_markdown(first), spans_to_markdown([])] == ["**Kinases** were **inhibited**", "(empty)"]


def test_long_texts_are_shortened_around_the_matches():
    text = " ".join(["filler"] * 100 + ["red", "apple"] + ["filler"] * 100 + ["pear"] + ["filler"] * 100)
    short = shorten(text, {"red", "apple", "pear"}, MarkedTerms())
    assert short.startswith("… filler filler filler filler **red apple** filler") and short.endswith("filler …")
    assert "filler … filler filler filler filler **pear**" in short and len(short.split()) < 75
    assert shorten(text, set(), MarkedTerms()).count("filler") == 30
    assert shorten("", {"a"}, MarkedTerms()) == "(empty)" and shorten("?!", {"a"}, MarkedTerms()) == "?!"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_do_not_change_the_structure(text, make_task):
    """They are used as text, id, source and names, in a passage and in its query."""
    queries = {text: text.strip() or "kinase", "q2": "kinase inhibitor"}
    rows = [row(0, text, text), row(text, "kinase inhibitor", "q2", source=text), row(2, "kinase", "q2", rank=2)]
    plain = [row(0, "kinase", "q1"), row(1, "kinase", "q2"), row(2, "kinase", "q2", rank=2)]

    def shape(report):
        marks = re.compile(r"^(#+ |> |>$|\||$)")
        return [(line and marks.match(line) and marks.match(line).group(), len(re.findall(r"(?<!\\)\|", line)))
                for line in report.split("\n")]  # fmt: skip

    hostile = make_subset(rows, corpus={"name": text}, task={"name": text}, counts={"first_empty_queries": [text] * 9})
    expected = retrieval_report(make_subset(plain), make_task({"q1": "kinase", "q2": "kinase inhibitor"}))
    report = retrieval_report(hostile, make_task(queries))
    # Rows of the table of sources differ, since the hostile source may be blank or new; all other lines are the same.
    drop = {"|"}
    assert [line for line in shape(report) if line[0] not in drop] == [
        line for line in shape(expected) if line[0] not in drop
    ]
    assert report == report.encode().decode() and not re.search(r"[\x00-\x09\x0b-\x1f\u2028\u202e\r]", report)
    assert max(map(len, report.split("\n"))) < 1500
    report.encode("utf-8")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_literally(text):
    markdown = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
    plain = " ".join(re.sub(r"[\x00-\x1f\u2028\u202e]", " ", text).split())
    tokens = markdown.parse(f"> **Query**: {for_markdown(text, 1000)}")
    inline = [token for token in tokens if token.type == "inline"]
    assert [token.type for token in tokens if token.type.endswith("open")] == ["blockquote_open", "paragraph_open"]
    shown = [child.content for child in inline[0].children if (child.type, child.content) != ("html_inline", "<!-- -->")]
    assert "".join(shown).strip() == f"Query: {plain}".strip()
    marked = markdown.parse(f"> **Query**: {shorten(text, {'kinase', 'inhibitor'}, MarkedTerms())}")
    kinds = {
        child.type for token in marked if token.type == "inline" for child in token.children if child.content != "<!-- -->"
    }
    assert kinds <= {"text", "text_special", "strong_open", "strong_close"}
    bold = re.findall(r"<strong>(.*?)</strong>", markdown.renderer.render(marked, markdown.options, {}))
    assert all(re.fullmatch("Query|(kinase|inhibitor)( (kinase|inhibitor))*", part) for part in bold)
    assert len(bold) > 1 or "kinase" not in re.findall(r"\w+", text)


def test_examples_are_spread_over_ranks_and_queries():
    rng = np.random.default_rng(0)
    ranks = np.sort(rng.integers(1, 501, 5000))
    chosen = _spread_rows(ranks, [f"q{i}" for i in rng.integers(0, 40, 5000)], 10)
    found = ranks[chosen].tolist()
    assert found == sorted(found) and found[0] == 1 and found[-1] > 400 and len(set(found)) >= 9
    queries = [f"q{i % 3}" for i in range(30)]
    chosen = _spread_rows(np.ones(30, int), queries, 6)
    assert len(set(chosen)) == 6 and {queries[row] for row in chosen} == {"q0", "q1", "q2"}
    assert _spread_rows(np.array([1, 1, 2]), ["a", "a", "a"], 10) == [0, 1, 2]
    assert _spread_rows(np.array([3, 1, 2]), ["a", "b", "c"], 3) == [1, 2, 0]


def test_names_are_shortened():
    assert for_markdown("a|" * 100) == "a\\|" * 60 + "…" and for_markdown("a\n b") == "a b"


def test_lengths_of_bars():
    assert [_bar(value, 1000) for value in (0, 1, 42, 1000)] == ["", "▏", "█", "█" * 24]
