"""The published figures: their form, rows copied here a second time, and the text of the papers."""

import re

import pytest

from hf_tlm.experiments import PUBLISHED, Arm
from hf_tlm.experiments.published import EIGHT, PAPERS, PUBLISHED_BY_ARM
from hf_tlm.tasks import TASKS

NAMES = {*TASKS, "average"}
# As printed in the papers, with columns in the same order.
LINES = {
    (
        "TLM Table 2: TLM (small-scale)",
        EIGHT,
    ): "93.74 ±0.20 93.53 ±1.61 70.54 ±0.39 93.08 ±0.17 69.84 ±3.69 80.51 ±1.53 81.99 ±0.42 86.99 ±0.03 83.78",
    ("TLM Table 2: BERT-Base", EIGHT): "93.50 ±0.15 91.93 ±1.74 69.11 ±0.17 93.77 ±0.22 69.45 ±2.90 80.98 ±1.07 81.94 ±0.38 "
    "87.00 ±0.06 83.46",
    ("TLM Table 3: BM25 w/ C_BERT", "imdb scierc chemprot"): "94.40±0.09 86.07±0.48 83.64±0.26",
    ("TLM Table 4: Only Task Data", "agnews scierc chemprot"): "93.41±0.10 51.23±1.13 55.05±0.18",
    ("TLM Table 5: Ext only", "helpfulness scierc chemprot"): "69.76±0.50 85.66±1.58 82.50±0.27",
    ("TLM Table 6: rho2 = 100", "rct scierc chemprot"): "88.16 ±0.15 85.48±1.01 83.77 ±0.77",
    ("TLM Table 7: wo/ stage-2", "agnews imdb chemprot acl_arc"): "93.98 92.23 69.30 57.00",
    (
        "ISS Table 3: ISS (small-scale)",
        EIGHT,
    ): "93.78 ±0.06 93.53 ±0.00 70.78 ±0.29 93.25 ±0.07 72.41 ±0.66 80.56 ±0.43 81.71 ±0.10 86.99 ±0.02 84.11",
    ("ISS Table 5: ISS 20%", "agnews scierc chemprot"): "94.40±0.06 83.70±0.31 82.82±0.41",
    ("ISS Table 5: TLM 80%", "agnews scierc chemprot"): "94.27±0.09 81.75±0.15 81.86±0.47",
    (
        "COCO-LM Table 1: COCO-LM (base)",
        "qqp qnli sst2 cola rte mrpc stsb average",
    ): "92.0 93.1 93.2 63.9 84.8 91.4 90.3 87.2",
}
FACTS = {
    "TLM Table 2: TLM (small-scale)": (109e6, 2.74e18, 0.91e9),
    "TLM Table 2: BERT-Base": (109e6, 2.79e19, 16e9),
    "ISS Table 3: ISS (small-scale)": (109e6, 1.82e18, 0.18e9),
    "COCO-LM Table 1: COCO-LM (base)": (110e6, None, None),
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_every_row_names_its_source_and_has_valid_cells(key):
    row = PUBLISHED[key]
    assert key == f"{row.source}: {row.row}" and row.paper in PAPERS
    assert row.measure in ("test", "validation", "subset hours", "GPU-hours")
    assert row.cells and set(row.cells) <= NAMES
    for task, cell in row.cells.items():
        assert re.fullmatch(r"\d+(\.\d+)?(±\d+\.\d+)?", cell), cell
        mean, deviation = row.score(task)
        if row.measure in ("test", "validation"):
            assert 40 < mean < 100 and (deviation is None or deviation < 8)
    if set(row.cells) == set(EIGHT.split()):  # A wrongly copied number would not agree with the average.
        assert sum(row.score(task)[0] for task in EIGHT.split()[:-1]) / 8 == pytest.approx(row.score("average")[0], abs=0.03)


@pytest.mark.parametrize("key,columns", LINES, ids=[key for key, _ in LINES])
def test_rows_equal_those_of_the_papers(key, columns):
    cells = re.findall(r"\d+\.\d+(?: ?±\d+\.\d+)?", LINES[key, columns])
    assert [PUBLISHED[key].cells[task] for task in columns.split()] == [cell.replace(" ", "") for cell in cells]


@pytest.mark.parametrize("key", FACTS)
def test_parameters_flops_and_data_equal_those_of_the_papers(key):
    row = PUBLISHED[key]
    assert (row.parameters, row.flops, row.data) == FACTS[key]


def test_figure_is_shown_with_deviation_and_source():
    row = PUBLISHED["TLM Table 5: rho1 = 3"]
    assert row.show("scierc") == "80.01 ± 0.72 (TLM Table 5: rho1 = 3)"
    assert row.show("imdb") is None and row.score("imdb") is None
    assert PUBLISHED["COCO-LM Table 1: BERT (base)"].show("glue_cola") == "58.9 (COCO-LM Table 1: BERT (base))"


def test_rows_shown_beside_arms_exist():
    assert {row for rows in PUBLISHED_BY_ARM.values() for row in rows} <= set(PUBLISHED)
    for name in ("task only", "random", "BM25", "BM25 + ISS 20%", "BM25 20%", "pretrained"):
        assert Arm.read(name).published == PUBLISHED_BY_ARM[name.lower()]


def numbers(text):
    return " " + " ".join(re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))) + " "


def test_every_row_occurs_in_the_text_of_its_paper(data_dir):
    """Its numbers follow each other, with deviations between them or in the line below."""
    papers = data_dir.parent / "papers"
    if not papers.is_dir():
        pytest.skip(f"NO PAPERS: {papers} is not there.")
    texts = {
        paper: numbers(re.sub(r"<[^>]*>", " ", (papers / f"{file}.txt").read_text(encoding="utf-8")))
        for paper, file in (("TLM", "tlm"), ("ISS", "iss"), ("COCO-LM", "coco_lm"))
    }
    rows = {key: list(row.cells.values()) for key, row in PUBLISHED.items()}
    # In Table 5 of ISS both methods share a line; Table 1 of TLM has numbers of GPUs, hours and days.
    for share in (10, 20, 40, 60, 80):
        pair = zip(rows.pop(f"ISS Table 5: ISS {share}%"), rows.pop(f"ISS Table 5: TLM {share}%"), strict=True)
        rows[f"ISS Table 5: {share}%"] = [cell for cells in pair for cell in cells]
    assert rows.pop("TLM Table 1: TLM") == [str(8 * 42)] and rows.pop("TLM Table 1: PLMs") == [str(1000 * 24)]
    missing = []
    for key, cells in rows.items():
        means, deviations = zip(*(cell.partition("±")[::2] for cell in cells), strict=True)
        mixed = numbers(" ".join(cells).replace("±", " "))
        below = f"{numbers(' '.join(means))}{numbers(' '.join(deviations)).strip()} "
        if not any(line in texts[key.split()[0]] for line in (mixed, below, below.rstrip() + " ")):
            missing.append(key)
    # This row is shifted by a column in the text; its average shows that ours is right.
    assert missing == ["TLM Table 2: TLM (large-scale)"]
