"""Measured figures are only in docs/results, and agree with the records."""

import re
from dataclasses import replace

import pytest

import make_results
from make_results import (
    FINDINGS,
    README_TABLE,
    TOPICS,
    Scores,
    make_pages,
    outdated,
    page_text,
    part,
    shifted,
    source_text,
    unfounded,
    unfounded_blocks,
    with_links,
)
from support.documentation import DOCS, page_name, pages, without_blocks

# A score with its deviation, a factor or a speed.
MEASURED = re.compile(r"\d ± \d|\d+(\.\d+)? (times (as|the speed|faster|slower)|(passages|queries|tokens) (a|per) second)")


def test_pages_are_current():
    assert not outdated(make_pages()), "run python docs/make_results.py"


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_measured_figures_are_only_in_results(page):
    if page.is_relative_to(DOCS / "results"):
        return
    text = README_TABLE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]+`", "", without_blocks(text))
    assert not (found := MEASURED.search(text)), f"{found[0]!r} belongs to a page of docs/results"


def test_table_shows_the_scores_of_the_records(monkeypatch):
    rows = [
        {"task": "a", "arm": "linear", "metric": "f1", "seeds": 1, "finished": [0], "test": {"mean": 0.5, "std": None}},
        {"task": "a", "arm": "BM25", "metric": "f1", "seeds": 3, "finished": [0], "test": {"mean": 0.25, "std": None}},
        {"task": "b", "arm": "BM25", "metric": "f1", "seeds": 3, "finished": [0, 1, 2], "test": {"mean": 0.1, "std": 0.01}},
        {"task": "b", "arm": "random", "metric": None, "seeds": 3, "finished": [], "test": None},
    ]
    large = [{**rows[1], "finished": [0, 1], "test": {"mean": 0.75, "std": 0.25}}]
    monkeypatch.setattr(make_results, "read_rows", {"coffee/x": rows, "large/x": large}.__getitem__)
    columns = {"A": ("a", "coffee/x", "large/x"), "A, large": ("a", "large/x"), "B": ("b", "coffee/x", "large/x")}
    arms = {"linear": ("linear",), "none": ("random",), "ours": ("BM26", "BM25"), "large": ("large#BM25",)}
    assert Scores("short", columns, arms).to_text().splitlines() == [
        "| | A (f1) | A, large (f1) | B (f1) |",
        "|---|---:|---:|---:|",
        "| linear | 50.00 |  |  |",
        "| ours | 25.00 (1 seed) | 75.00 ± 25.00 (2 seeds) | 10.00 ± 1.00 |",
        "| large | 75.00 ± 25.00 (2 seeds) | 75.00 ± 25.00 (2 seeds) |  |",
    ]
    for validation, shown in ((0.6, "30.00"), (0.5, "75.00 ± 25.00")):  # Alone 0.5.
        together = {"with_linear": {"mean": 0.3, "std": None}, "with_linear_validation": {"mean": validation}}
        large[0] |= {"validation": {"mean": 0.5}, **together}
        chosen = Scores("short", {"A": ("a", "large/x")}, {"chosen": ("BM25 or with linear",)}).to_text()
        assert chosen.splitlines()[-1] == f"| chosen | {shown} (2 seeds) |"
    rows[0]["metric"] = "accuracy"
    with pytest.raises(ValueError, match=r"short: A has scores of \['accuracy', 'f1'\], and one metric is expected"):
        Scores("short", columns, arms).to_text()


def test_notes_below_a_table_are_folded(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text("| 1 |\n\nMade by `b c`. Scores.\n\n**Published**")
    monkeypatch.setattr(make_results, "RECORDS", tmp_path)
    about = "<details><summary>How it was made, and what its columns are</summary>\n\nMade by `b c`. Scores.\n\n</details>"
    assert source_text("a.md") == f"| 1 |\n\n{about}\n\n**Published**"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("12.34 ± 0.56 and 1,234 passages", []),
        ("12.3, and half a percent more: 0.6", []),
        ("12.4", ["12.4"]),
        ("1,235 passages", ["1,235"]),
        ("3 seeds of 12 tasks", []),
        ("13 tasks", ["13"]),
        ("`13`, 13 x 13, [a](13.md)", []),
    ],
)
def test_figures_of_notes_without_a_table_are_found(text, missing):
    assert unfounded(text, "| 12.34 ± 0.56 | 1234 |") == missing


def test_page_with_a_figure_that_no_table_has_is_refused(tmp_path, monkeypatch):
    topic = replace(TOPICS[0], page="made_up")
    (tmp_path / "made_up.md").write_text("A score of 99.87.")
    monkeypatch.setattr(make_results, "NOTES", tmp_path)
    with pytest.raises(ValueError, match=r"made_up.md has figures that no table has: 99.87"):
        page_text(topic)


def test_figures_must_be_in_records_linked_by_their_paragraph(tmp_path):
    (tmp_path / "table.md").write_text("| 61.42 | 17.5 |")
    (tmp_path / "page.md").write_text("# Found\n\nIt has 88.1.\n\n## one\n\n| 52.4 |\n\n## two\n\n| 53.5 |\n")
    (tmp_path / "runs.jsonl").write_text('{"cost": 0.333, "test": {"values": [0.425, 31.5]}}\n')
    text = tmp_path / "findings.md"
    text.write_text(
        "It has 61.4 ([table](table.md)), _43.9_ more than 17.5.\n\nAgain 61.4 at 10^13.\n\n"
        "- One has 52.4, not 53.5 or 88.1 ([one](page.md#one)).\n"
        "- Seeds have 42.5 and 31.5 ([seeds](runs.jsonl#values)).\n- And 33.3 ([seeds](runs.jsonl#values)), 42.5."
    )
    assert unfounded_blocks(text, tmp_path) == ["61.4", "53.5", "88.1", "33.3"]


@pytest.mark.parametrize("file", FINDINGS.values(), ids=lambda file: file.parent.name)
def test_findings_do_not_claim_to_have_no_record(file):
    assert not re.search(r"not (kept|recorded)|without\s+a\s+record|no\s+record", file.read_text(encoding="utf-8"))


def test_page_begins_with_its_answer(tmp_path, monkeypatch):
    assert all(f"| {make_results.answer(topic)} |" in make_results.index_text() for topic in TOPICS)
    (tmp_path / "plateau.md").write_text("It **depends**.\n")
    monkeypatch.setattr(make_results, "NOTES", tmp_path)
    with pytest.raises(ValueError, match=r"notes/plateau.md does not begin with the page's answer"):
        make_results.answer(next(topic for topic in TOPICS if topic.page == "plateau"))


def test_findings_without_a_record_are_refused(tmp_path, monkeypatch):
    """The page of the plateau is not itself a record."""
    topic = next(topic for topic in TOPICS if topic.page == "plateau")
    file = tmp_path / "findings.md"
    file.write_text(FINDINGS["plateau.md"].read_text().replace("score 64.0 ±", "score 64.9 ±"))
    monkeypatch.setattr(make_results, "FINDINGS", {"plateau.md": file})
    with pytest.raises(ValueError, match=r"findings.md has figures that no record has which their paragraph links: 64.9"):
        page_text(topic)


def test_headings_and_links_of_sources_are_adapted():
    assert shifted("### a\n#### b\n") == "## a\n### b\n"
    assert part("x\n# One core, b\ny\n## z\n# Two\n", "One core") == "y\n## z"
    with pytest.raises(ValueError, match="no heading 'Three'"):
        part("# One\n", "Three")
    assert with_links("[a](plateau.md#scierc) [b](coffee/main.json) [c](https://x.org)", "findings.md") == (
        "[a](plateau.md#scierc) [b](../../benchmarks/results/coffee/main.json) [c](https://x.org)"
    )


def test_source_without_a_heading_is_refused():
    with pytest.raises(ValueError, match=r"new\.md has no heading"):
        make_results.with_heading("| a |", "new.md")
    assert make_results.with_heading("## Its own", "new.md") == "## Its own"
