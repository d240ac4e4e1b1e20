"""The parts of the report: confusion matrices, groups, comparisons, tables of limited size, and charts."""

from collections import Counter

import numpy as np
import pytest

from hf_tlm.analysis import AnalysisError
from hf_tlm.analysis.arguments import ReportPageArguments
from hf_tlm.analysis.report import about
from hf_tlm.analysis.report.blocks import (
    MOST_DOTS,
    MOST_POINTS,
    Column,
    Text,
    line_chart,
    make_table,
    printable,
    scatter,
    to_markdown,
)
from hf_tlm.analysis.report.compare import Agreement, pair
from hf_tlm.analysis.report.errors import _precision_and_f1, confusion, fewer_classes
from hf_tlm.analysis.report.predictions import (
    Judged,
    Predictions,
    by_quantile,
    by_value,
    difference,
    document_frequency,
    lengths_and_rare_shares,
    mean_and_std,
    question_word,
)
from hf_tlm.analysis.report.run_folder import BASELINE, RunFolder


def test_confusion_precision_and_f1_of_a_hand_computed_example():
    pairs = [("a", "a"), ("a", "b"), ("b", "b"), ("b", "b"), ("c", "a")]
    found = confusion(pairs, ["b", "a", "never"])
    assert list(found.names) == ["b", "a", "never", "c"]
    assert found.counts.tolist() == [[2, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert np.diagonal(found.shares).tolist() == [1, 0.5, 0, 0] and found.support.tolist() == [2, 2, 0, 1]
    rows = [Judged(str(at), truth, predicted, 0.0, None) for at, (truth, predicted) in enumerate(pairs)]
    by_class = _precision_and_f1(Predictions("classification", "test", {0: rows}, ["b", "a", "never"]), found.names)
    assert np.array(by_class) == pytest.approx(np.array([[2 / 3, 0.8], [0.5, 0.5], [0, 0], [0, 0]]))


def test_rare_classes_are_merged():
    pairs = [("a", "a")] * 5 + [("b", "c")] + [("c", "b")] * 3 + [("d", "a")]
    found = fewer_classes(confusion(pairs, ["d", "c", "b", "a"]), most=3)
    assert list(found.names) == ["c", "a", "(others)"]
    assert found.counts.tolist() == [[0, 0, 3], [0, 5, 0], [1, 1, 0]]
    assert fewer_classes(found, 3) is found


def test_rare_words_are_those_in_few_texts():
    frequency = document_frequency(["The the cat", "the dog", "The Dog ran"])
    assert frequency == Counter(the=3, dog=2, cat=1, ran=1)
    # In "The cat flew", cat and flew occur in fewer than two training texts.
    lengths, rare = lengths_and_rare_shares(["The cat flew", "the DOG", "..."], frequency, 2)
    assert lengths.tolist() == [3, 2, 0] and rare.tolist() == pytest.approx([2 / 3, 0, 0])


def test_words_of_other_scripts_are_counted():
    texts = ["今天很冷", "यह किताब है"]
    lengths, rare = lengths_and_rare_shares(texts, document_frequency(["今天", "किताब"]), 1)
    assert lengths.tolist() == [4, 3] and rare.tolist() == pytest.approx([1 / 2, 2 / 3])


def test_rows_are_grouped_by_value_quantile_and_question_word():
    found = by_value(["x", "y", "x", "z"], ["z", "w"])
    assert [(group.name, group.rows.tolist()) for group in found] == [("z", [3]), ("x", [0, 2]), ("y", [1])]
    quarters = by_quantile(np.array([8, 1, 2, 3, 4, 5, 6, 7]))
    assert [group.name for group in quarters] == ["1 to 2", "3 to 4", "5 to 6", "7 to 8"]
    assert [group.rows.tolist() for group in quarters] == [[1, 2], [3, 4], [5, 6], [0, 7]]
    # Equal values stay in one group.
    assert [group.name for group in by_quantile(np.array([2, 2, 2, 2, 9]))] == ["2", "9"]
    assert [len(group.rows) for group in by_quantile(np.zeros(3))] == [3] and by_quantile(np.zeros(0)) == []
    assert question_word("In which year, and how?") == "which" and question_word("Name it.") == "other"


def test_mean_deviation_and_difference_over_seeds():
    first, second = np.array([[1, 0.0], [1, 1]]), np.array([[1, 1.0], [0, 1]])
    assert mean_and_std(first) == (0.75, pytest.approx(0.5**1.5)) and mean_and_std(first[:1]) == (0.5, None)
    # Seed 0 gains 0.5, seed 1 loses 0.5.
    assert difference(first, second, [(0, 0), (1, 1)]) == (0.75, 0.75, 0, pytest.approx(0.5**0.5))


def test_exact_p_value_of_mcnemar():
    assert Agreement(0, 0, 0, 5).p == 1.0 and Agreement(7, 4, 4, 0).p == 1.0
    # 2 x (C(6,0) + C(6,1)) / 2^6.
    assert Agreement(9, 1, 5, 3).p == pytest.approx(2 * 7 / 64)
    assert Agreement.of(np.array([1, 1, 0, 0, 0], bool), np.array([1, 0, 1, 1, 0], bool)) == Agreement(1, 1, 2, 1)


def judged_rows(rights, start=0):
    return [Judged(f"row-{start + at}", "a", "b", float(right), right) for at, right in enumerate(rights)]


def test_rows_of_two_runs_are_aligned():
    first = Predictions("classification", "test", {0: judged_rows([True, False, True]), 1: judged_rows([False] * 3)})
    second = Predictions(
        "classification", "test", {1: judged_rows([True, False, False])[::-1], 7: judged_rows([True] * 3)[::-1]}
    )
    found = pair(first, second, (0, 7))
    assert found.names == ["1"] and found.agreements() == [Agreement(0, 0, 1, 2)]
    assert found.second.tolist() == [[1, 0, 0], [1, 1, 1]]
    alone = Predictions("classification", "test", {7: judged_rows([True] * 3)})
    assert pair(first, alone, (0, 7)).names == ["0 and 7"] and pair(first, alone, (0, 7)).agreements()[0].both == 2
    other = Predictions("classification", "test", {0: judged_rows([True] * 3, start=1)})
    with pytest.raises(AnalysisError, match="are of different rows"):
        pair(first, other, (0, 0))


def test_tables_are_limited_in_rows_and_bytes():
    columns = (Column("text"), Column("n", "number"), Column("s", "share"))
    rows = [["x" * 50, 1234, 0.5]] * 10
    found = make_table("t", columns, rows, most=4, characters=10)
    assert len(found.rows) == 4 and found.left_out == 6
    assert [cell.text for cell in found.rows[0]] == ["x" * 10 + "…", "1,234", "50.0%"]
    assert (found.rows[0][1].sort, found.rows[0][2].bar) == (1234, 0.5)
    # Escaped as "&#34;", they need several times as many bytes.
    quotes = make_table("t", columns[:1], [['"' * 100]] * 10, most_bytes=1200)
    assert (len(quotes.rows), quotes.left_out) == (2, 8)
    assert make_table("t", columns[:1], [["x" * 9000]], most_bytes=10).rows  # One row is always kept, cut short.
    assert make_table("t", columns[:2], [[None, None]]).rows[0][1].text == ""


def test_characters_that_a_page_cannot_have_are_replaced():
    assert printable("a\x00b\u202ec\ud800d\ne") == "a b c?d\ne" and printable("abc", 2) == "ab…"


def test_axes_have_round_numbers():
    chart = line_chart("t", "step", "loss", {"a": [(0, 0.11), (100, 0.47)], "b": [(50, float("nan"))]})
    assert [label for _, label in chart.y_ticks] == ["0.1", "0.2", "0.3", "0.4", "0.5"]
    assert [label for _, label in chart.x_ticks] == ["0", "20", "40", "60", "80", "100"]
    assert [name for name, _ in chart.lines] == ["a"]
    # Larger values are drawn higher, where y is smaller.
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in chart.lines[0][1].split())
    assert x0 < x1 and y0 > y1 and chart.y_ticks[0][0] > chart.y_ticks[-1][0]
    assert line_chart("t", "x", "y", {"a": [(1, float("inf"))]}) is None
    for flat in ([(3, 5.0)], [(3, 0.0), (4, 0.0)], [(1, 1e-9), (2, 2e-9)], [(1, 1e12), (1e9, 3e12)]):
        chart = line_chart("t", "x", "y", {"a": flat})
        assert 2 <= len(chart.y_ticks) <= 12 and all(0 <= position <= 250 for position, _ in chart.y_ticks)


@pytest.mark.parametrize(
    "pair", [(0.69314, 0.69315), (1_234_560.1, 1_234_560.2), (-3e7, -3e7 + 4), (0.3, 0.1 + 0.2), (0, 1e-7)]
)
def test_ticks_of_a_nearly_constant_curve_differ(pair):
    chart = line_chart("t", "step", "loss", {"a": list(enumerate(pair))})
    labels = [label for _, label in chart.y_ticks]
    assert 2 <= len(labels) == len(set(labels)) and all(len(label) < 14 for label in labels)


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        ("loss", "loss"),
        ("corpus/mlm_loss", "corpus: masked LM"),
        ("task/task_loss", "task: task loss"),
        ("task/teacher_loss", "task: teacher loss"),
        ("task/rtd_loss", "task: replaced tokens"),
        ("task/scl_loss", "task: contrast of sequences"),
    ],
)
def test_losses_have_readable_names_in_a_chart(logged, shown):
    chart = about._loss_chart("", [{"step": step, "loss": 1.0, logged: 1.0} for step in (1, 2, 3)])
    assert [name for name, _ in chart.lines] == [shown]


def test_charts_limit_lines_and_points():
    chart = line_chart("t", "x", "y", {f"s{n}": [(at, at) for at in range(10_000)] for n in range(9)})
    assert len(chart.lines) == 7 and chart.note == "Not drawn: s7, s8."
    assert chart.lines[0][1].count(" ") == MOST_POINTS - 1 and len(chart.numbers.rows) <= 63
    dots = scatter("t", "x", "y", [(at, at) for at in range(9000)])
    assert len(dots.dots) == MOST_DOTS and dots.note == "1,500 of 9,000 rows are drawn." and not scatter("t", "x", "y", [])


@pytest.mark.parametrize("name", ["report_rows", "report_characters", "rare_below"])
def test_invalid_options_are_refused(name):
    with pytest.raises(AnalysisError, match=f"--{name}: expected .*; received 0"):
        ReportPageArguments(**{name: 0})


def test_baseline_has_no_checkpoints(tmp_path):
    run = RunFolder("linear", tmp_path, BASELINE, {"metric": "accuracy"}, [{"seed": 0, "test": {"accuracy": 0.5}}])
    assert "Checkpoints" not in about.scores(run).blocks[-1].text


@pytest.mark.parametrize(
    "arguments,chosen",
    [
        ({"stage": "both"}, True),
        ({"stage": "1"}, False),
        ({"stage": "1", "load_best_model_at_end": True}, True),
        ({"select_by": "best"}, True),
        ({"select_by": "last"}, False),
        ({"method": "zero_shot"}, False),
    ],
)
def test_choice_of_checkpoints_by_validation_is_mentioned(tmp_path, arguments, chosen):
    seeds = [{"seed": 0, "test": {"accuracy": 0.5}}]
    run = RunFolder("run", tmp_path, "tlm", {"metric": "accuracy", "arguments": arguments}, seeds)
    *_, note = about.scores(run).blocks
    assert ("Checkpoints were chosen by the validation score." in note.text) == chosen


def test_loss_of_a_regression_has_no_nats(tmp_path):
    log = [{"step": step, "loss": 1.0} for step in (1, 2, 3)]
    seeds = [{"seed": 0, "history": log}]
    for kind, unit in (("regression", "loss"), ("classification", "loss (nats)")):
        run = RunFolder("run", tmp_path, "finetune", {"kind": kind, "metric": "pearson"}, seeds, tmp_path)
        assert [chart.y_label for chart in about.curves(run)] == [unit]


def test_names_of_runs_are_no_markup_in_markdown():
    table = make_table("Rows where *b* is better", [Column("id")], [["x"]])
    text = to_markdown([Text("*b* minus <a>"), table])
    assert text.startswith("\\*b\\* minus \\<a\\>\n\n**Rows where \\*b\\* is better**")
