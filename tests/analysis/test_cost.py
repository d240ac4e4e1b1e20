"""Score against cost: averages over the same tasks only, and the papers' points as printed."""

import csv
import json
import re

import pytest

from hf_tlm.analysis import AnalysisError, compare, cost_figure, find_results, published_points
from hf_tlm.analysis.cost import ALE_COLUMNS, ALE_ROWS, ROBERTA_LARGE_FLOPS, to_markdown, to_rows
from hf_tlm.tasks import TASKS
from hf_tlm.training.cost import ROBERTA_LARGE_FLOPS as OF_COSTS
from support.launching import fails
from support.made_runs import make_run, run_analyze, write


@pytest.fixture
def runs(tmp_path):
    """Arms a and b on two tasks, c on one of them."""
    folder = tmp_path / "runs"
    make_run(folder / "scierc-a", "scierc", {0: 0.5, 1: 0.7}, flops=2e12)
    make_run(folder / "chemprot-a", "chemprot", {0: 0.3, 1: 0.4}, metric="micro_f1", flops=4e12)
    make_run(folder / "scierc-b", "scierc", {0: 0.8}, flops=1e12)
    make_run(folder / "chemprot-b", "chemprot", {0: 0.6, 7: 0.8}, metric="micro_f1", flops=1e12)
    make_run(folder / "scierc-c", "scierc", {0: 0.9}, flops=1e12)
    return folder


def points_by_name(found):
    return {point.name: point for point in found.points}


def test_scores_are_averaged_over_the_same_tasks(runs):
    found = compare(find_results({"x": runs}), tasks=["scierc", "chemprot"], published=False)
    a, b = points_by_name(found)["a"], points_by_name(found)["b"]
    # Seed 0: (50 + 30) / 2, seed 1: (70 + 40) / 2.
    assert (a.score, a.deviation, a.seeds) == (pytest.approx(47.5), pytest.approx(15 / 2**0.5), 2)
    assert a.flops == 3e12 and a.ratio == pytest.approx(3e12 / 4.36e21)
    # Only seed 0 is common to its tasks.
    assert (b.score, b.deviation, b.seeds) == (pytest.approx(75), None, 1)
    assert found.tasks == {"scierc": "macro_f1", "chemprot": "micro_f1"}
    assert found.notes == ["c is left out: it has no score on chemprot"] and "c" not in points_by_name(found)


def test_tasks_default_to_those_common_to_all_arms(runs):
    found = compare(find_results({"x": runs}))
    assert list(found.tasks) == ["scierc"] and points_by_name(found)["c"].score == pytest.approx(90)
    assert found.notes == ["not averaged, as some arms lack it: chemprot"]
    assert points_by_name(found)["TLM (small-scale)"].score == 80.51  # The score on this task, not the paper's average.
    text = to_markdown(found)
    assert "over scierc (macro F1): every point" in text and "chemprot" in text.split("exactly these")[1]


def test_published_points_are_averaged_over_the_same_tasks(runs):
    found = compare(find_results({"x": runs}), tasks=["scierc", "chemprot"])
    point = points_by_name(found)["BERT-Base"]
    assert point.score == pytest.approx((80.98 + 81.94) / 2) and point.source == "TLM Table 2: BERT-Base"
    assert point.flops == 2.79e19 and point.ratio == pytest.approx(0.0064, rel=0.01)
    rows = to_rows(found)
    assert [row["flops"] for row in rows] == sorted(row["flops"] for row in rows)
    assert rows[-1]["name"] == "RoBERTa-Large" and rows[-1]["flops_ratio"] == 1
    assert rows[-1]["tasks"] == "scierc chemprot" and rows[0]["published"] == ""
    # Scores on another metric are not comparable.
    make_run(runs / "scierc-a", "scierc", {0: 0.5}, metric="accuracy")
    only = [result for result in find_results({"x": runs}) if result.run == "scierc-a"]
    other = compare(only)
    assert not other.published and "no published row with FLOPs has test scores on these tasks and metrics" in other.notes


def test_runs_that_cannot_be_compared_are_refused(runs, tmp_path):
    results = find_results({"x": runs})
    with pytest.raises(AnalysisError, match="No task is common to all arms .*not comparable"):
        compare([result for result in results if result.run in ("scierc-c", "chemprot-b")])
    with pytest.raises(AnalysisError, match="No run has a score on 'rct'. Tasks with scores: .*scierc"):
        compare(results, tasks=["rct"])
    make_run(tmp_path / "more/rct-d", "rct", {0: 0.5}, metric="micro_f1")
    with pytest.raises(AnalysisError, match="No arm has scores on all of rct, scierc"):
        compare([*results, *find_results({"y": tmp_path / "more"})], tasks=["rct", "scierc"])
    with pytest.raises(AnalysisError, match="a has seed 0 on chemprot twice"):
        compare([*results, *results])
    make_run(runs / "scierc-d", "scierc", {0: 0.5}, metric="accuracy")
    with pytest.raises(AnalysisError, match="different metrics, accuracy and macro_f1"):
        compare(find_results({"x": runs}))
    make_run(tmp_path / "glue/cola", "glue_cola", {0: 0.5}, metric="matthews", splits=["validation"])
    with pytest.raises(AnalysisError, match="No run has both a test score and a cost.*cola, seed 0, has no test score"):
        compare(find_results({"x": tmp_path / "glue"}))


def trained(flops, model):
    """Return the record of a pretraining."""
    return {"cost": {"flops": flops, "seconds": 1.0}, "model": model}


def test_cost_includes_that_of_the_start_checkpoint(tmp_path):
    """A run whose start checkpoint has an unknown cost is left out."""
    start = {"model_name_or_path": "runs/pretrained"}
    make_run(tmp_path / "runs/scierc-further", "scierc", {0: 0.5}, flops=1e12, model=start)
    make_run(tmp_path / "runs/scierc-hub", "scierc", {0: 0.5}, flops=1e12, model={"model_name_or_path": "some/roberta-base"})
    make_run(tmp_path / "runs/scierc-scratch", "scierc", {0: 0.5}, flops=1e12)
    write(
        tmp_path / "runs/pretrained/results.json",
        trained(5e15, {"model_name_or_path": None}),
    )
    results = find_results({"x": tmp_path / "runs"})
    found = compare(results, published=False)
    assert points_by_name(found)["further"].flops == 5e15 + 1e12 and points_by_name(found)["further"].pretraining == 5e15
    assert "hub" not in points_by_name(found) and "starts from roberta-base" in found.notes[0]
    assert "--pretraining_flops roberta-base=..." in found.notes[0]
    found = compare(results, pretraining_flops={"roberta-base": 1.54e21, "pretrained": 7e15})
    assert points_by_name(found)["hub"].flops == 1.54e21 + 1e12 and points_by_name(found)["further"].pretraining == 7e15
    # The checkpoint was itself trained from a checkpoint.
    write(
        tmp_path / "runs/pretrained/results.json",
        trained(5e15, {"model_name_or_path": "base"}),
    )
    assert "further" not in points_by_name(compare(results))
    assert points_by_name(compare(results, pretraining_flops={"base": 1e15}))["further"].pretraining == 6e15
    write(
        tmp_path / "runs/base/results.json",
        trained(2e15, {"model_name_or_path": "first"}),
    )
    write(tmp_path / "runs/first/results.json", trained(1e15, {}))
    assert points_by_name(compare(results))["further"].pretraining == 8e15
    write(
        tmp_path / "runs/first/results.json",
        trained(1e15, {"model_name_or_path": "pretrained"}),
    )
    assert "further" not in points_by_name(compare(results))


@pytest.mark.parametrize("start", ["runs/first", "runs/first/mlm", "runs/first/seed-1/model"])
def test_cost_includes_that_of_a_run_as_the_start_checkpoint(tmp_path, start):
    """All seeds of a run, from which the best one was chosen, or one seed; with the run's teacher and its own checkpoint."""
    make_run(tmp_path / "runs/scierc-further", "scierc", {0: 0.5}, flops=1e12, model={"model_name_or_path": start})
    make_run(tmp_path / "runs/first", "other", {0: 0.5, 1: 0.6}, model={"model_name_or_path": "runs/pretrained"})
    write(tmp_path / "runs/pretrained/results.json", trained(5e15, {}))
    file = tmp_path / "runs/first/results.json"
    record = json.loads(file.read_text()) | {"teacher": {"flops": 3e10}}
    record["seeds"] = [{**seed, "cost": {"flops": 1e11, "seconds": 1}} for seed in record["seeds"]]
    write(file, record)
    write(tmp_path / "runs/first/seed-1/results.json", record["seeds"][1])
    (tmp_path / "runs/first/seed-1/model").mkdir()
    results = find_results({"further": tmp_path / "runs/scierc-further"})
    (point,) = compare(results, published=False).points
    assert point.pretraining == 5e15 + 3e10 + (1e11 if "seed" in start else 2e11)


def test_cost_includes_that_of_the_teacher(tmp_path):
    """For each seed that it taught: the cost of its predictions, and of its training if known."""
    make_run(tmp_path / "runs/scierc-taught", "scierc", {0: 0.5, 1: 0.6}, flops=1e12)
    file = tmp_path / "runs/scierc-taught/results.json"
    record = json.loads(file.read_text())
    teacher = {"model": "large", "seconds": 3.0, "flops": 2e12, "training": {"flops": 7e12, "seconds": 9.0}}
    for report, cost in ((teacher, 9e12), ({**teacher, "training": None}, 2e12), ({"model": "linear", "seconds": 3.0}, 0)):
        file.write_text(json.dumps({**record, "teacher": report}))
        point = points_by_name(compare(find_results({"x": tmp_path / "runs"}), published=False))["taught"]
        assert point.flops == 1e12 + cost and point.pretraining == cost
    for damaged in ("large", {"flops": "1e3"}, {"training": 3}, {"training": {"flops": []}}):
        file.write_text(json.dumps({**record, "teacher": damaged}))
        with pytest.raises(AnalysisError, match="(teacher|not what recipes write|is not a number)"):
            find_results({"x": tmp_path / "runs"})


def test_glue_results_are_compared_with_those_of_ale(tmp_path):
    for task, metric in (("glue_cola", "matthews"), ("glue_sst2", "accuracy")):
        make_run(tmp_path / f"{task}-mine", task, {0: 0.5}, metric=metric, splits=["validation"])
    found = compare(find_results({"x": tmp_path}), split="validation")
    assert [point.name for point in found.published] == [
        "BERT_small",
        "ELECTRA_small",
        "ELECTRA_small, 2x time",
        "ALE_small",
    ]
    assert points_by_name(found)["ELECTRA_small, 2x time"].score == pytest.approx((56.1 + 86.9) / 2)
    make_run(tmp_path / "glue_mrpc-mine", "glue_mrpc", {0: 0.5}, metric="f1", splits=["validation"])
    assert not compare(find_results({"x": tmp_path}), split="validation").published  # The paper has accuracy for MRPC.


def test_published_points_have_sources():
    points = published_points()
    assert len({point.source for point in points}) == len(points) == 18
    assert ROBERTA_LARGE_FLOPS == OF_COSTS
    for point in points:
        assert re.fullmatch(r"(TLM Table 2|ISS Table 3|BERT, ELECTRA and ALE Table IV): .+", point.source)
        assert 1e17 < point.flops < 1e22 and set(point.metrics) == set(point.scores) <= set(TASKS)
        assert all(20 < score < 100 for score in point.scores.values())


PRINTED = {  # FLOPs and average, as printed in the papers.
    "TLM Table 2: BERT-Base": (2.79e19, 83.46),
    "TLM Table 2: BERT-Large": (9.07e19, 83.82),
    "TLM Table 2: RoBERTa-Base": (1.54e21, 84.12),
    "TLM Table 2: RoBERTa-Large": (4.36e21, 85.50),
    "TLM Table 2: TLM (small-scale)": (2.74e18, 83.78),
    "TLM Table 2: TLM (medium-scale)": (8.30e18, 84.71),
    "TLM Table 2: TLM (large-scale)": (7.59e19, 85.74),
    "ISS Table 3: TLM (small-20%)": (1.82e18, 82.93),
    "ISS Table 3: TLM (medium-20%)": (4.15e18, 83.58),
    "ISS Table 3: TLM (large-20%)": (8.30e18, 84.71),
    "ISS Table 3: TLM (large, BERT-Base)": (2.33e19, 85.31),
    "ISS Table 3: ISS (small-scale)": (1.82e18, 84.11),
    "ISS Table 3: ISS (medium-scale)": (4.15e18, 84.86),
    "ISS Table 3: ISS (large-scale)": (8.30e18, 85.36),
    "BERT, ELECTRA and ALE Table IV: BERT_small": (2.3e17, 75.7),
    "BERT, ELECTRA and ALE Table IV: ELECTRA_small": (2.3e17, 76.8),
    "BERT, ELECTRA and ALE Table IV: ELECTRA_small, 2x time": (4.6e17, 77.6),
    "BERT, ELECTRA and ALE Table IV: ALE_small": (2.3e17, 71.3),
}


def test_published_points_agree_with_the_papers_averages():
    points = {point.source: point for point in published_points()}
    assert set(points) == set(PRINTED)
    for source, (flops, average) in PRINTED.items():
        assert points[source].flops == flops
        # A number that was copied wrongly would not agree with the average.
        assert points[source].average(points[source].metrics) == pytest.approx(average, abs=0.07), source


def test_published_rows_occur_in_the_text_of_the_papers(data_dir):
    papers = data_dir.parent / "papers"
    if not papers.is_dir():
        pytest.skip(f"NO PAPERS: {papers} is not there.")
    texts = {name: (papers / f"{name}.txt").read_text(encoding="utf-8") for name in ("tlm", "iss", "electra_ale")}
    names = ALE_COLUMNS.split()
    assert "Train FLOPs\tParams\tMRPC\tCoLA\tMNLI\tSST-2\tQQP\tQNLI\tRTE\tSTS-B\tAvg." in texts["electra_ale"]
    assert names[1:-1] == ["mrpc", "cola", "mnli", "sst2", "qqp", "qnli", "rte", "stsb"]
    for row, cells in ALE_ROWS.items():
        flops, *scores = cells.split()
        label = re.escape(row.rpartition(", ")[2])
        assert re.search(rf"{label}\t{re.escape(flops)}\t[\d.]+M\t" + "\t".join(scores), texts["electra_ale"]), row
    for source, (flops, average) in PRINTED.items():
        if (paper := source.split()[0].lower()) in ("tlm", "iss"):
            mantissa, _, power = f"{flops:.2e}".partition("e+")
            lines = [
                line
                for line in texts[paper].splitlines()
                if f"{mantissa}E{power}" in line and line.endswith(f"{average:.2f}")
            ]
            assert lines, source


def test_figure_shows_own_and_published_points(runs):
    figure = cost_figure(compare(find_results({"x": runs})))
    by_flops, own_points = figure.axes
    assert by_flops.get_xscale() == "log" and "RoBERTa-Large" in by_flops.get_xlabel()
    assert by_flops.get_ylabel() == "scierc, test score (%)"
    published = [line for line in by_flops.lines if not line.get_label().startswith("_")]
    assert all(line.get_markerfacecolor() == "none" for line in published) and len(published) == 6
    filled = [line for line in by_flops.lines if line.get_label() == "_own"]
    assert len(filled) == 3 and all(line.get_markerfacecolor() != "none" for line in filled)
    assert "published" in figure.legends[0].get_title().get_text()
    assert [label.get_text().partition("\n")[0] for label in own_points.get_yticklabels()] == ["a", "b", "c"]
    single = cost_figure(compare([r for r in find_results({"x": runs}) if r.arm == "c"], published=False))
    assert len(single.axes) == 1 and not single.legends and single.axes[0].get_title() == "c (filled)"


def test_recipe_writes_figure_and_table(runs, tmp_path, capsys):
    arguments = ["--what", "cost", "--run", runs]
    run_analyze(*arguments, "--cost_tasks", "scierc", "chemprot", "--output_dir", tmp_path / "out")
    assert "- c is left out: it has no score on chemprot" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cost.csv", "cost.png", "cost.svg"]
    with open(tmp_path / "out/cost.csv", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows["ISS (small-scale)"]["published"] == "ISS Table 3: ISS (small-scale)" and rows["a"]["seeds"] == "2"
    run_analyze(*arguments, "--no_published", "--output_dir", tmp_path / "own")
    assert len((tmp_path / "own/cost.csv").read_text().splitlines()) == 4
    run_analyze(*arguments, "--cost_split", "validation", "--output_dir", tmp_path / "validation")
    with open(tmp_path / "validation/cost.csv", newline="") as file:
        assert {row["split"] for row in csv.DictReader(file)} == {"validation"}
    fails("recipes/analyze.py", "--what", "cost", message="--what cost needs --run")
    fails("recipes/analyze.py", *arguments, "--pretraining_flops", "x=many", message="such as x=1.54e21; received x=many")
