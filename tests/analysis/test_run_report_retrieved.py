"""Retrieved passages on the page of a run: beside the task texts that retrieved them, with shared words marked."""

import dataclasses
import re

from hf_tlm.analysis import write_report
from hf_tlm.analysis.report.blocks import Column, make_table
from hf_tlm.analysis.report.teacher_and_subset import retrieved_table
from hf_tlm.retrieval import retrieve
from support.report_runs import EVIL, text_task


def words(text):
    return set(re.findall(r"\w+", text.lower()))


def test_words_shared_by_query_and_passage_are_marked(task, corpus):
    subset = retrieve(task, corpus, top_k=3)
    table = retrieved_table(subset, task, 500)
    assert "shared words are marked" in table.caption and len(table.rows) == len(subset)
    for _, query, passage, *_ in table.rows:
        assert query.text in task.train["text"][:] and passage.text in subset.dataset["text"][:]
        for cell, other in ((query, passage), (passage, query)):
            marked = words(" ".join(piece for piece, mark in cell.pieces if mark))
            assert marked and marked <= words(other.text)
            rest = words(" ".join(piece for piece, mark in cell.pieces if not mark))
            assert not (rest - {"the", "and"}) & words(other.text)  # Stop words are not marked.


def test_texts_of_another_task_with_equal_ids_are_not_shown(task, corpus, tmp_path):
    subset = retrieve(task, corpus, top_k=3)
    other = text_task({split: [("quite another text", label) for label in "ab" * 24] for split in ("train", "validation")})
    assert set(subset.dataset["best_query"]) <= set(other.train["id"])
    cells = {row[1].text for row in retrieved_table(subset, other, 500).rows}
    assert cells <= set(task.train["id"])
    subset.save(tmp_path / "subset")
    page = write_report(tmp_path / "subset", tmp_path / "report.html", task=other).read_text(encoding="utf-8")
    assert "Pass the task that these were retrieved for as --task" in page and "quite another text" not in page
    page = write_report(tmp_path / "subset", tmp_path / "report.html", task=task).read_text(encoding="utf-8")
    assert "as --task" not in page and "<mark>" in page


def test_marked_texts_are_cut_counted_and_escaped(task, corpus, tmp_path):
    column = [Column("passage", wide=True)]
    (cell,) = make_table("", column, [[[("one ", False), ("two", True), (" three", False)]]], characters=6).rows[0]
    assert cell.pieces == [("one ", False), ("tw…", True)] and cell.text == "one tw…"
    many = [[[("a", True), (" ", False)] * 50]] * 20
    assert make_table("", column, many, most_bytes=5000).left_out > 15
    subset = retrieve(task, corpus, top_k=2)
    texts = [f"{EVIL.encode('utf-8', 'replace').decode()} {text}" for text in subset.dataset["text"][:]]
    evil = dataclasses.replace(
        subset,
        dataset=subset.dataset.remove_columns("text").add_column("text", texts).select_columns(subset.dataset.column_names),
    )
    evil.save(tmp_path / "subset")
    page = write_report(tmp_path / "subset", tmp_path / "report.html", task=task).read_text(encoding="utf-8")
    assert "<mark>" in page and "&lt;img src=x" in page and "<img" not in page and page.count("</script>") == 1
