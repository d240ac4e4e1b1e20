"""Sensitivity tables: the cell of a run, what is refused, and what is written."""

import csv
import json
import math
import shutil

import pytest

from hf_tlm.analysis import AnalysisError, find_results, sensitivity_table, table_to_latex, table_to_markdown, table_to_rows
from hf_tlm.utils.run_files import SEED_FIGURES
from support.launching import fails
from support.made_runs import make_record, make_run, run_analyze, write

BM25 = {"retriever": "bm25", "top_k": 50}
ISS = {**BM25, "selection": {"method": "iss", "fraction": 0.2, "size": 7, "layer": 2}}


@pytest.fixture
def runs(tmp_path):
    """Runs with different rho1 on two tasks: 3 is best on one, 3 and 99 are equal on the other as printed."""
    make_run(tmp_path / "runs/scierc-3", "scierc", {0: 0.6, 1: 0.8}, rho1=3)
    make_run(tmp_path / "runs/scierc-99", "scierc", {0: 0.5, 1: 0.5}, rho1=99.0)
    make_run(tmp_path / "runs/chemprot-3", "chemprot", {0: 0.4}, metric="micro_f1", rho1=3)
    make_run(tmp_path / "runs/chemprot-99", "chemprot", {0: 0.400001}, metric="micro_f1", rho1=99)
    make_run(tmp_path / "runs/scierc-inf", "scierc", {2: 0.25}, rho1=float("inf"))
    return tmp_path / "runs"


def test_table_has_a_row_per_setting_and_a_column_per_task(runs):
    table = sensitivity_table(find_results({"runs": runs}))
    assert (table.rows, table.columns) == (("rho1",), ("task",))
    assert table.row_keys == ((3,), (99.0,), (float("inf"),)) and table.column_keys == (("chemprot",), ("scierc",))
    cell = table.cells[(3,), ("scierc",)]
    assert cell.summary == {"mean": pytest.approx(0.7), "std": pytest.approx(0.02**0.5), "n": 2, "values": [0.6, 0.8]}
    assert table.best == {((3,), ("scierc",)), ((3,), ("chemprot",)), ((99.0,), ("chemprot",))}
    assert table_to_markdown(table).splitlines()[:5] == [
        "| rho1 | chemprot | scierc |",
        "| --- | ---: | ---: |",
        "| 3 | **40.00** (n = 1) | **70.00** ± 14.14 (n = 2) |",
        "| 99 | **40.00** (n = 1) | 50.00 ± 0.00 (n = 2) |",
        "| inf |  | 25.00 (n = 1) |",
    ]
    text = table_to_markdown(table)
    assert "micro F1 of chemprot; macro F1 of scierc" in text and "on validation in percent" in text


def test_baseline_counts_as_a_finished_run_of_one_seed(runs):
    record = {"task": "scierc", "metric": "macro_f1", "name": "linear", "settings": {"C": 1.0}}
    write(runs / "baselines/linear/results.json", {**record, "scores": {"validation": {"macro_f1": 0.3}, "test": {}}})
    (found,) = (result for result in find_results({"runs": runs}) if result.run == "baselines/linear")
    assert (found.seed, found.error, found.score("validation")) == (0, None, 0.3)
    write(runs / "baselines/linear/results.json", {**record, "scores": {"validation": 3}})
    with pytest.raises(AnalysisError, match="the record of seed 0: validation must be an object"):
        find_results({"runs": runs})


def test_maximum_over_seeds_is_shown_if_all_runs_report_it(tmp_path):
    """Beside a run that reports the mean, all show means."""
    for name, scores in (("a", {0: 0.1, 1: 0.9}), ("b", {0: 0.7, 1: 0.7})):
        file = make_run(tmp_path / "runs" / name, "scierc", scores) / "results.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "seed_figure": "max"}))
    table = sensitivity_table(find_results({"runs": tmp_path / "runs"}))
    text = table_to_markdown(table)
    assert "| a | **90.00** (50.00 ± 56.57) |" in text and "maximum (mean ± standard deviation, n - 1) over seeds" in text
    assert [(row["maximum"], row["mean"]) for row in table_to_rows(table)] == [
        (90, 50),
        (pytest.approx(70), pytest.approx(70)),
    ]
    assert "\\textbf{90.00} (50.00 $\\pm$ 56.57)" in table_to_latex(table)
    make_run(tmp_path / "runs/c", "scierc", {0: 0.6})
    text = table_to_markdown(sensitivity_table(find_results({"runs": tmp_path / "runs"})))
    assert "| a | 50.00 ± 56.57 (n = 2) |" in text and "maximum" not in text
    assert "; means, since the runs' own figures differ (max, mean). The best" in text
    shutil.rmtree(tmp_path / "runs/c")
    write(tmp_path / "runs/d/settings.json", {"task": "scierc", "metric": "macro_f1"})
    write(tmp_path / "runs/d/seed-3/results.json", {"seed": 3, "validation": {"macro_f1": 0.5}})
    text = table_to_markdown(sensitivity_table(find_results({"runs": tmp_path / "runs"})))
    assert "| a | **90.00** (50.00 ± 56.57) (n = 2) |" in text, "a run that is not finished has no figure yet"


def test_seed_figure_of_a_grid_applies_to_all_its_points(tmp_path):
    """Starting the grid with another figure only rewrites the results of the chosen point."""
    for name, figure in (("a", {}), ("b", {"seed_figure": "max"})):
        file = make_run(tmp_path / "grid/points" / name, "t", {0: 0.1, 1: 0.9}) / "results.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **figure}))
    for figure in ("max", "median"):
        write(tmp_path / "grid/grid.json", {"seed_figure": figure})
        assert {result.seed_figure for result in find_results({"grid": tmp_path / "grid"})} == {figure}


@pytest.mark.parametrize("scores", [[0.5, math.nan], [math.nan, 0.5]])
def test_figure_over_seeds_is_nan_if_a_score_is_nan(scores):
    assert all(math.isnan(figure(scores)) for _, figure in SEED_FIGURES.values())


def test_run_named_like_a_part_of_a_run_is_found(runs):
    for name in ("stage1-only", "stage2_lr3", "seed-study", "split-half"):
        make_run(runs / name, "scierc", {0: 0.5})
    for part in ("stage1", "seed-0", "checkpoint-10", "model", ".hidden"):
        make_run(runs / part, "scierc", {0: 0.5})
    names = {result.run for result in find_results({"runs": runs})} - {"scierc-3", "scierc-99", "scierc-inf"}
    assert names == {"chemprot-3", "chemprot-99", "stage1-only", "stage2_lr3", "seed-study", "split-half"}


def test_common_number_of_seeds_is_mentioned_once(runs):
    some = [result for result in find_results({"runs": runs}) if result.run in ("scierc-3", "scierc-99")]
    text = table_to_markdown(sensitivity_table(some))
    assert "| 3 | **70.00** ± 14.14 |" in text and "over seeds, n = 2." in text and "| rho1 | scierc |" in text


def test_latex_is_escaped(runs):
    make_run(runs / "odd", "a_b & c", {0: 1.0}, rho1="50% {x} ~^\\<$#±")
    table = sensitivity_table(find_results({"runs": runs}))
    lines = table_to_latex(table).splitlines()
    begin = lines.index("\\begin{tabular}{lrrr}")
    assert lines[begin + 1] == "\\toprule" and lines[-2:] == ["\\bottomrule", "\\end{tabular}"]
    assert lines[begin + 2] == "rho1 & a\\_b \\& c & chemprot & scierc \\\\"
    assert "3 &  & \\textbf{40.00} (n = 1) & \\textbf{70.00} $\\pm$ 14.14 (n = 2) \\\\" in lines
    assert "$\\infty$ &  &  & 25.00 (n = 1) \\\\" in lines
    escaped = "50\\% \\{x\\} \\textasciitilde{}\\textasciicircum{}\\textbackslash{}\\textless{}\\$\\#$\\pm$"
    assert f"{escaped} & 100.00 (n = 1) &  &  \\\\" in lines
    assert all(line.startswith("%") for line in lines[:begin])


def test_columns_of_several_settings_are_nested(runs):
    results = find_results({"runs": runs})
    table = sensitivity_table(results, [], ["task", "rho1"])
    lines = table_to_latex(table).splitlines()
    assert "\\multicolumn{2}{c}{chemprot} & \\multicolumn{3}{c}{scierc} \\\\" in lines
    assert "3 & 99 & 3 & 99 & $\\infty$ \\\\" in lines
    assert table_to_markdown(table).startswith("| chemprot / 3 | chemprot / 99 | scierc / 3 |")


def test_csv_has_a_row_per_cell(runs):
    rows = table_to_rows(sensitivity_table(find_results({"runs": runs}), split="test"))
    assert len(rows) == 5
    first = rows[1]
    assert (first["rho1"], first["task"], first["metric"], first["split"]) == ("3", "scierc", "macro_f1", "test")
    assert first["mean"] == pytest.approx(70) and first["std"] == pytest.approx(100 * 0.02**0.5)
    assert (first["n"], first["best"], first["seeds"], first["scores"]) == (2, True, "0 1", "60.0 80.0")


def test_markdown_is_escaped(tmp_path):
    make_run(tmp_path / "a", "t|u", {0: 0.5}, rho1="<b>*x*\n`y`")
    text = table_to_markdown(sensitivity_table(find_results({"runs": tmp_path}), ["rho1", "task"]))
    assert text.splitlines()[2] == "| \\<b\\>\\*x\\* \\`y\\` | t\\|u | 50.00 |"


def test_subsets_are_described_in_words(tmp_path):
    for name, subset in (("bm25", BM25), ("iss", ISS), ("none", None)):
        make_run(tmp_path / f"scierc-{name}", "scierc", {0: 0.5}, subset=subset)
    table = sensitivity_table(find_results({"runs": tmp_path}))
    assert table.rows == ("subset",) and table.row_keys == (("BM25",), ("BM25, 20% by ISS",), ("task only",))
    assert sensitivity_table(find_results({"runs": tmp_path}), ["fraction", "top_k", "layer"]).row_keys == (
        (0.2, 50, 2),
        (None, 50, None),
        (None, None, None),
    )


def test_runs_with_equal_settings_are_rows_by_name(tmp_path):
    for name in ("scierc-b10", "scierc-b9", "acl_arc-b9"):
        make_run(tmp_path / name, name.partition("-")[0], {0: 0.5})
    table = sensitivity_table(find_results({"runs": tmp_path}))
    assert (table.rows, table.row_keys) == (("run",), (("b9",), ("b10",)))
    assert len(table.cells) == 3


def test_runs_of_different_settings_in_a_cell_are_refused(runs):
    make_run(runs / "scierc-3-slow", "scierc", {5: 0.5}, rho1=3, learning_rate=1e-5)
    results = find_results({"runs": runs})
    with pytest.raises(AnalysisError, match=r"share a cell \(rho1 = 3, task = scierc\) and differ in learning_rate"):
        sensitivity_table(results, ["rho1"])
    with pytest.raises(AnalysisError, match="differ in rho1.*remove one"):
        sensitivity_table(results, ["learning_rate"], ["task"])
    make_run(runs / "scierc-3-again", "scierc", {1: 0.5}, rho1=3)
    with pytest.raises(AnalysisError, match="scierc-3 and scierc-3-again.*both have seed 1"):
        sensitivity_table([result for result in find_results({"runs": runs}) if "slow" not in result.run], ["rho1"])
    make_run(runs / "scierc-4", "scierc", {0: 0.5}, metric="accuracy", rho1=4)
    some = [result for result in find_results({"runs": runs}) if result.run in ("scierc-99", "scierc-4")]
    with pytest.raises(
        AnalysisError, match="different metrics, accuracy and macro_f1|different metrics, macro_f1 and accuracy"
    ):
        sensitivity_table(some)


def test_unknown_or_repeated_setting_is_refused(runs):
    results = find_results({"runs": runs})
    with pytest.raises(AnalysisError, match="No run has a setting 'rho'. Did you mean rho1.*differ in: rho1, task"):
        sensitivity_table(results, ["rho"])
    with pytest.raises(AnalysisError, match="once"):
        sensitivity_table(results, ["task"], ["task"])
    with pytest.raises(AnalysisError, match="received 0 results and the split 'test'"):
        sensitivity_table([], split="test")


def test_failed_runs_of_reproduce_are_in_the_row_of_their_arm(tmp_path):
    """The same holds for a setting that the failed run's own record lacks."""
    make_record(tmp_path, "scierc", "BM25", 0, 0.5, rho1=3)
    make_record(tmp_path, "scierc", "BM25", 1, 0.7, rho1=3)
    make_record(tmp_path, "scierc", "BM25", 2, error="MemoryError: too much", rho1=3, subset="scierc/subsets/bm25")
    make_record(tmp_path, "scierc", "lost", 0, error="it | broke", rho1=99)
    table = sensitivity_table(find_results({"table": tmp_path}), split="test")
    assert table.rows == ("arm",)
    assert table.failed == ["scierc/BM25/seed-2, seed 2: MemoryError: too much", "scierc/lost/seed-0, seed 0: it | broke"]
    text = table_to_markdown(table)
    assert "| BM25 | 60.00 ± 14.14 |" in text and "| lost | failed |" in text
    assert "- scierc/lost/seed-0, seed 0: it \\| broke" in text, "no markup"
    assert "% - scierc/lost/seed-0, seed 0: it | broke" in table_to_latex(table)
    by_rho = sensitivity_table(find_results({"table": tmp_path}), ["rho1"], split="test")
    assert len(by_rho.cells[(3,), ()].failed) == 1 and len(by_rho.cells[(3,), ()].scores) == 2
    assert "% - scierc/lost/seed-0" in table_to_latex(table)


def test_seeds_of_an_arm_with_different_settings_are_refused(tmp_path):
    """Seeds whose teachers differ only by the seed are averaged."""
    for seed in (0, 1):
        make_record(tmp_path, "scierc", "BM25", seed, 0.5, learning_rate=1e-4, teacher=f"scierc/base/seed-{seed}")
    assert len(sensitivity_table(find_results({"table": tmp_path}), ["arm"], split="test").cells[("BM25",), ()].scores) == 2
    make_record(tmp_path, "scierc", "BM25", 2, 0.5, learning_rate=1e-3, teacher="scierc/base/seed-2")
    with pytest.raises(AnalysisError, match="BM25/seed-0 and scierc/BM25/seed-2 would share .* and differ in learning_rate"):
        sensitivity_table(find_results({"table": tmp_path}), ["arm"], split="test")


def test_unfinished_runs_and_scores_that_are_not_finite_are_listed(tmp_path):
    write(tmp_path / "a/settings.json", {"task": "t", "metric": "accuracy", "arguments": {"rho1": 1}})
    write(tmp_path / "a/seed-3/results.json", {"seed": 3, "validation": {"accuracy": 0.5}})
    make_run(tmp_path / "b", "t", {0: float("nan"), 1: 0.25}, metric="accuracy", rho1=2)
    table = sensitivity_table(find_results({"x": tmp_path}), ["rho1"])
    assert table.failed == ["a: not finished", "b, seed 0: no validation score"]
    assert "| 1 | **50.00** |" in table_to_markdown(table) and "| 2 | 25.00 |" in table_to_markdown(table)


def test_runs_are_found_in_grids_and_nested_folders(tmp_path):
    make_run(tmp_path / "grid/points/learning_rate=1", "t", {0: 0.5})
    make_run(tmp_path / "grid", "t", {0: 0.5})
    write(tmp_path / "grid/grid.json", {})
    write(tmp_path / "pretraining/results.json", {"corpus": {}, "cost": {}})
    make_run(tmp_path / "deep/er/scierc_x", "scierc", {0: 0.5})
    make_run(tmp_path / "deep/er/.hidden", "scierc", {0: 0.5})
    write(
        tmp_path / "few/results.json", {"task": "t", "metric": "accuracy", "splits": [{"seed": 13, "test": {"accuracy": 1}}]}
    )
    results = find_results({"all": tmp_path})
    assert [result.run for result in results] == ["deep/er/scierc_x", "few", "grid/learning_rate=1"]
    assert [result.arm for result in results] == ["deep/er/x", "few", "grid/learning_rate=1"] and results[1].seed == 13
    named = find_results({"first": tmp_path / "few", "second": tmp_path / "deep"})
    assert [result.run for result in named] == ["first", "second/er/scierc_x"]
    with pytest.raises(AnalysisError, match="No run with a task is in .*pretraining"):
        find_results({"x": tmp_path / "pretraining"})
    with pytest.raises(AnalysisError, match="Expected folders of runs; there is no folder .*nowhere"):
        find_results({"x": tmp_path / "nowhere"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"task": "t", "see', "is not JSON"),
        ("[1]", "expected a JSON object, found list"),
        (json.dumps({"task": "t", "seeds": [{}]}), "the record of a seed: seed must be a whole number; found nothing"),
        (json.dumps({"task": "t", "seeds": [1]}), "the record of a seed: all of it must be an object; found 1"),
        (json.dumps({"task": "t", "arguments": [1], "seeds": []}), "is not what recipes write: arguments must be an object"),
        (
            json.dumps({"task": "t", "seeds": [{"seed": 0, "cost": {"flops": "x"}}]}),
            "seed 0: cost.flops must be a number",
        ),
    ],
)
def test_damaged_results_are_named(tmp_path, content, message):
    path = write(tmp_path / "run/results.json", content)
    with pytest.raises(AnalysisError, match=message) as error:
        find_results({"x": tmp_path})
    assert str(path) in str(error.value)


def test_results_of_older_versions_may_lack_fields(tmp_path):
    seeds = [{"seed": 0, "validation": {"f1": 0.5}, "test": None, "cost": None}]
    content = {"task": "t", "metric": "f1", "model": None, "subset": {"selection": {"fraction": 0.2}}, "seeds": seeds}
    write(tmp_path / "run/results.json", content)
    (result,) = find_results({"x": tmp_path})
    assert result.score("validation") == 0.5 and result.score("test") is None and result.cost == {}
    assert result.settings["subset"] == "unknown, 20% chosen"


def test_damaged_record_is_named(tmp_path):
    write(tmp_path / "runs/a.json", {"status": "finished", "settings": {}, "kind": "finetune"})
    with pytest.raises(AnalysisError, match="a.json is not the record of a run: name must be a text; found nothing"):
        find_results({"x": tmp_path})
    file = make_record(tmp_path / "table", "scierc", "BM25", 0, 0.5, rho1=3)
    record = json.loads(file.read_text())
    for change, where in (
        ({"task": 3}, "task"),
        ({"seed": []}, "seed"),
        ({"settings": "x"}, "settings"),
        ({"test": {"macro_f1": "x"}}, "test.macro_f1"),
        ({"teacher": "x"}, "teacher"),
        ({"subset": {"selection": {"fraction": "x"}}}, "subset.selection.fraction"),
    ):
        write(file, record | change)
        with pytest.raises(AnalysisError, match=f"seed-0.json is not the record of a run: {where} must be"):
            find_results({"x": tmp_path / "table"})


def test_recipe_writes_the_table_in_three_formats(runs, tmp_path, capsys):
    arguments = ["--what", "tables", "--run", runs, "--table_rows", "rho1", "--table_split", "test"]
    run_analyze(*arguments, "--output_dir", tmp_path / "out")
    text = (tmp_path / "out/table.md").read_text()
    assert "**70.00** ± 14.14" in text and text.strip() in capsys.readouterr().out
    assert "\\bottomrule" in (tmp_path / "out/table.tex").read_text()
    with open(tmp_path / "out/table.csv", newline="") as file:
        assert [row["rho1"] for row in csv.DictReader(file)] == ["3", "3", "99", "99", "inf"]
    run_analyze(*arguments[:4], "--table_rows", "task", "--table_columns", "rho1", "--output_dir", tmp_path / "turned")
    assert "| task | 3 | 99 | inf |" in (tmp_path / "turned/table.md").read_text()
    fails("recipes/analyze.py", *arguments[:4], "--table_rows", "nothing", message="No run has a setting 'nothing'")
    fails("recipes/analyze.py", "--what", "tables", message="--what tables needs --run")
