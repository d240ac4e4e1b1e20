"""Training curves: reading the logs, means over seeds, and the figure."""

import csv
import json
import math

import numpy as np
import pytest

from hf_tlm.analysis import AnalysisError, AnalyzeArguments, average, choose_quantities, curves_figure, read_runs
from hf_tlm.analysis.arguments import CurvesArguments
from hf_tlm.analysis.curves import analyze, point_rows, smooth, unit
from support.launching import fails
from support.made_runs import make_state, run_analyze, write


def entry(step, tokens=None, **values):
    return {"step": step, "epoch": 0.1, **({} if tokens is None else {"tokens": tokens, "flops": 10 * tokens}), **values}


def read(folder):
    (run,) = read_runs({"run": folder}).values()
    return run


def points_of(seed, quantity, axis="steps"):
    curve = seed.curve(quantity)
    return list(zip(curve.x[axis], curve.values, strict=True))


@pytest.fixture
def two_stages(tmp_path):
    """Two seeds; stage 1 ends at step 20 with 2,000 tokens, stage 2 at step 10 with 500."""
    for seed, shift in ((0, 0.0), (1, 1.0)):
        folder = tmp_path / f"run/seed-{seed}"
        make_state(
            folder / "stage1/trainer_state.json",
            [
                entry(10, 1000, loss=9.0, **{"corpus/mlm_loss": 7.0 + shift, "task/task_loss": 2.0}),
                entry(20, 2000, loss=8.0, **{"corpus/mlm_loss": 6.0 + shift, "task/task_loss": 1.5}),
                entry(20, 2000, train_loss=8.5, train_runtime=3.0),
                {"step": 20, "eval_macro_f1": 0.25, "eval_loss": 1.0},
            ],
        )
        make_state(
            folder / "stage2/trainer_state.json",
            [
                entry(4, 200, loss=1.0, **{"task/task_loss": 1.0}),
                {"step": 5, "eval_macro_f1": 0.5 + 0.1 * shift},
                entry(10, 500, loss=0.5, **{"task/task_loss": 0.5}),
            ],
        )
    return tmp_path / "run"


def test_stages_are_joined_in_sequence(two_stages):
    first, second = read(two_stages).seeds
    assert points_of(first, "task/task_loss") == [(10, 2.0), (20, 1.5), (24, 1.0), (30, 0.5)]
    assert points_of(first, "task/task_loss", "tokens") == [(1000, 2.0), (2000, 1.5), (2200, 1.0), (2500, 0.5)]
    # An evaluation logs no tokens: they are interpolated, a sixth of the way from 200 to 500.
    assert points_of(second, "eval_macro_f1", "tokens") == [(2000, 0.25), (2250, 0.6)]
    assert points_of(first, "eval_macro_f1", "flops") == [(20_000, 0.25), (22_500, 0.5)]
    assert first.curve("task/task_loss").stages == ["1", "1", "2", "2"]
    assert [end["steps"] for end in first.ends] == [20] and first.ends[0]["tokens"] == 2000
    assert read(two_stages).quantities == ["loss", "corpus/mlm_loss", "task/task_loss", "eval_macro_f1", "eval_loss"]


def test_mean_and_deviation_over_seeds(two_stages):
    mean = average(read(two_stages), "eval_macro_f1")
    assert mean.x["steps"].tolist() == [20, 25] and mean.stages == ["1", "2"] and mean.seeds.tolist() == [2, 2]
    assert mean.mean == pytest.approx([0.25, 0.55]) and mean.deviation == pytest.approx([0, 0.1 / math.sqrt(2)])
    assert average(read(two_stages), "nothing") is None


def test_log_of_a_resumed_run_has_each_step_once(tmp_path):
    """Entries beyond the step at which the run resumed are dropped; if a step was logged twice, the last entry counts."""
    make_state(
        tmp_path / "trainer_state.json",
        [entry(s, loss=float(s)) for s in (1, 2, 3, 4)] + [entry(3, loss=30.0), entry(3, loss=31.0), entry(5, loss=50.0)],
    )
    (seed,) = read(tmp_path).seeds
    assert points_of(seed, "loss") == [(1, 1), (2, 2), (3, 31), (5, 50)]


@pytest.fixture
def unsaved(monkeypatch):
    """Draw figures without rendering them, which takes a second."""
    monkeypatch.setattr("hf_tlm.analysis.curves.save_figure", lambda *_: [])


def test_values_that_are_not_finite_are_reported_and_left_out_of_the_mean(tmp_path, two_stages, unsaved):
    state = two_stages / "seed-1/stage2/trainer_state.json"
    content = json.loads(state.read_text())
    content["log_history"][0]["task/task_loss"] = float("nan")
    content["log_history"][0]["loss"] = None
    write(state, content)
    run = read(two_stages)
    assert math.isnan(run.seeds[1].curve("task/task_loss").values[2])
    mean = average(run, "task/task_loss")
    assert mean.mean.tolist() == [2.0, 1.5, 1.0, 0.5] and mean.seeds.tolist() == [2, 2, 1, 2]
    assert math.isnan(mean.deviation[2])
    assert len(run.seeds[1].points["loss"]) == 3
    findings = analyze(arguments(tmp_path, run=[str(two_stages)]), None, CurvesArguments(quantities=["task_loss"]))
    assert "run, seed 1: task/task_loss is not finite at step 24" in findings.text


def arguments(folder, **values):
    return AnalyzeArguments(what=["curves"], output_dir=str(folder / "out"), **values)


def test_trainer_states_are_found_in_every_layout(tmp_path):
    """An interrupted training has its newest checkpoint's state; a finished fine-tuning has the history in its results."""
    for step in (9, 10, 100):
        make_state(tmp_path / f"cut/seed-0/checkpoint-{step}/trainer_state.json", [entry(step, loss=1.0)])
    make_state(tmp_path / "cut/seed-0/checkpoint-100.partial/trainer_state.json", [entry(7, loss=1.0)])
    make_state(tmp_path / "nested/seed-3/seed-3/stage1/trainer_state.json", [entry(1, loss=1.0)])
    make_state(tmp_path / "pre/training/trainer_state.json", [entry(2, loss=1.0)])
    history = [{"step": 5, "accuracy": 0.5}, {"step": 10, "accuracy": 0.75}]
    write(tmp_path / "tuned/seed-1/results.json", {"history": history, "cost": {"steps": 10, "tokens": 400, "flops": 8.0}})
    runs = read_runs({"all": tmp_path})
    assert list(runs) == ["cut", "nested", "pre", "tuned"]
    assert points_of(runs["cut"].seeds[0], "loss") == [(100, 1.0)]
    assert [seed.seed for seed in runs["nested"].seeds] == ["3"] and runs["pre"].quantities == ["loss"]
    assert points_of(runs["tuned"].seeds[0], "eval_accuracy", "tokens") == [(200, 0.5), (400, 0.75)]
    assert runs["tuned"].quantities == ["eval_accuracy"]
    both = read_runs({"a": tmp_path / "pre/training/trainer_state.json", "b": tmp_path / "pre"})
    assert list(both) == ["a", "b"] and points_of(both["a"].seeds[0], "loss") == points_of(both["b"].seeds[0], "loss")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"log_history": [', "is not JSON"),
        ({"log_history": 3}, "has no list log_history"),
        ({"log_history": [{"loss": 1}]}, "an entry of log_history has no step"),
        ({"log_history": []}, "Nothing was logged in"),
    ],
)
def test_damaged_state_is_named(tmp_path, content, message):
    write(tmp_path / "run/trainer_state.json", content)
    with pytest.raises(AnalysisError, match=message) as error:
        read_runs({"run": tmp_path / "run"})
    assert str(tmp_path / "run") in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"points": [3]},
        {"points": 3},
        {"metric": "other"},
        {"seeds": 3},
        {"seeds": [1, 2]},
        {"validation": {"accuracy": {"median": 0.5, "values": [10**400]}}},
        {"validation": {"accuracy": {"median": "x", "values": ["x"]}}},
        {"folder": "x" * 300},
    ],
)
def test_damaged_grid_is_named(tmp_path, change):
    point = {"values": {"model_name_or_path": "a/checkpoint-4"}, "folder": "points/a"}
    point |= {"validation": {"accuracy": {"median": 0.5, "values": [0.5]}}}
    grid = {"points": [{**point, **{name: change[name] for name in point if name in change}}], "seeds": [0]}
    grid |= {"metric": "accuracy"}
    write(tmp_path / "grid.json", grid | change)
    with pytest.raises(AnalysisError, match="grid.json is not what a grid writes"):
        read_runs({"grid": tmp_path})


def test_grid_over_checkpoints_is_drawn_against_pretraining_time(tmp_path, unsaved):
    """The axis has the seconds of the pretraining, not of the fine-tuning; the text says so."""
    points = []
    for step in (4, 8):
        entries = [entry(step, loss=1.0, seconds=30.0 * step)]
        make_state(tmp_path / f"pre/checkpoint-{step}/trainer_state.json", entries)
        scores = {"accuracy": {"median": 0.5, "values": [0.5]}}
        start = {"model_name_or_path": str(tmp_path / f"pre/checkpoint-{step}")}
        points.append({"values": start, "folder": f"points/{step}", "validation": scores})
    write(tmp_path / "grid/grid.json", {"points": points, "seeds": [0], "metric": "accuracy"})
    args = arguments(tmp_path, run=[f"grid={tmp_path / 'grid'}"])
    (seed,) = read(tmp_path / "grid").seeds
    assert points_of(seed, "eval_accuracy", "seconds") == [(120, 0.5), (240, 0.5)]
    text = analyze(args, None, CurvesArguments(x="seconds")).text
    line = "- grid: one seed, fine-tuned from a pretraining's checkpoints, and drawn against that pretraining's seconds"
    assert f"{line} of training" in text.splitlines()


def test_missing_folder_or_log_is_refused(tmp_path):
    with pytest.raises(AnalysisError, match="There is no .*nowhere"):
        read_runs({"run": tmp_path / "nowhere"})
    with pytest.raises(AnalysisError, match="Nothing was logged"):
        read_runs({"run": tmp_path})


def test_quantities_are_chosen_by_default_name_or_pattern(tmp_path, two_stages):
    runs = [read(two_stages)]
    assert choose_quantities(runs) == ["corpus/mlm_loss", "task/task_loss", "eval_macro_f1"]
    assert choose_quantities(runs, ["mlm_loss", "loss"]) == ["corpus/mlm_loss", "loss"]
    assert choose_quantities(runs, ["*_f1", "task/*"]) == ["eval_macro_f1", "task/task_loss"]
    with pytest.raises(
        AnalysisError, match="logged 'task_los'. Did you mean .*task/task_loss.* Logged quantities: corpus/mlm_loss, eval"
    ):
        choose_quantities(runs, ["task_los"])
    names = [f"{stream}/{term}_{i}_loss" for stream in ("corpus", "task") for term in "ab" for i in range(5)]
    make_state(tmp_path / "many/trainer_state.json", [entry(s, **dict.fromkeys(names, 1.0)) for s in (1, 2)])
    chosen = choose_quantities([read(tmp_path / "many")])
    assert len(chosen) == 12 and chosen[:10] == [name for name in names if name.startswith("corpus")]
    make_state(tmp_path / "short/trainer_state.json", [entry(1, loss=1.0, learning_rate=1.0)])
    assert choose_quantities([read(tmp_path / "short")]) == ["loss"]


def test_units_of_quantities():
    assert unit("corpus/lm_loss") == ("nats", 1) and unit("task/copy_accuracy_replaced") == ("%", 100)
    assert unit("corpus/cosine_positive") == ("cosine", 1) and unit("corpus/replaced_fraction") == ("%", 100)
    assert unit("eval_matthews") == ("%", 100) and unit("grad_norm") == ("grad norm", 1)


def test_running_means_do_not_cross_stages():
    values = np.array([0.0, 3.0, 6.0, 0.0, 9.0, 100.0, 300.0])
    stages = ["1"] * 5 + ["2"] * 2
    assert smooth(values, stages, 3).tolist() == [0, 3, 3, 5, 9, 100, 300]
    assert smooth(values, stages, 1) is values
    values[2] = np.nan
    assert smooth(values, stages, 3).tolist() == [0, 1.5, 1.5, 4.5, 9, 100, 300]
    with pytest.raises(AnalysisError, match="odd number of points, 1 for none; received 4"):
        CurvesArguments(smoothing=4)


def test_every_point_is_in_the_csv(two_stages):
    rows = point_rows({"run": read(two_stages)}, ["eval_macro_f1"], 1)
    assert len(rows) == 6
    assert rows[1] | {"seconds": "", "real_tokens": ""} == rows[1]
    known = {"run": "run", "quantity": "eval_macro_f1", "seed": "0", "stage": "2", "steps": 25.0, "tokens": 2250.0}
    assert rows[1] | known | {"value": 0.5, "deviation": "", "seeds": 1, "drawn": 0.5} == rows[1]
    assert rows[5]["seed"] == "mean" and rows[5]["seeds"] == 2 and rows[5]["deviation"] == pytest.approx(0.1 / math.sqrt(2))


def test_figure_shows_means_bands_and_the_end_of_a_stage(two_stages, tmp_path):
    make_state(tmp_path / "other/trainer_state.json", [entry(s, 100 * s, **{"task/task_loss": 1.0}) for s in (10, 20_000)])
    runs = {"$a_1": read(two_stages), "b": read(tmp_path / "other")}
    figure = curves_figure(runs, ["task/task_loss", "eval_macro_f1"], x="tokens", smoothing=3)
    loss, score = figure.axes
    assert (loss.get_title(), loss.get_ylabel(), score.get_ylabel()) == ("task/task_loss", "nats", "%")
    assert figure.get_supxlabel() == "tokens, padding included (10⁶), running means of 3 points"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["$a_1", "b"]
    lines = [line for line in score.lines if len(line.get_xdata())]
    assert lines[0].get_xdata() == pytest.approx([0.002, 0.00225]) and lines[0].get_ydata() == pytest.approx([25, 55])
    assert lines[1].get_linestyle() == ":" and lines[1].get_xdata() == pytest.approx([0.002] * 2)  # The end of stage 1.
    assert len(score.collections) == 1  # The band of one deviation.
    figure = curves_figure(runs, ["eval_macro_f1"], spread="lines")
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:2]] == [[25, 50], [25, 60]]
    assert not figure.axes[0].collections
    with pytest.raises(AnalysisError, match="at most 7 runs; received 8"):
        curves_figure({str(i): runs["b"] for i in range(8)}, ["task/task_loss"])


def test_run_without_the_quantity_of_the_axis_is_left_out(two_stages, tmp_path, unsaved):
    make_state(tmp_path / "plain/trainer_state.json", [entry(1, loss=1.0), entry(2, loss=0.5)])
    args = arguments(tmp_path, run=[str(two_stages), str(tmp_path / "plain")])
    assert "- plain is left out: its log has no tokens" in analyze(args, None, CurvesArguments(x="tokens")).text
    with pytest.raises(AnalysisError, match=r"plain: the log has no FLOPs \(--x flops\)"):
        analyze(arguments(tmp_path, run=[str(tmp_path / "plain")]), None, CurvesArguments(x="flops"))


def test_recipe_writes_figure_and_table(two_stages, tmp_path, capsys):
    run_analyze("--what", "curves", "--run", f"mine={two_stages}", "--x", "flops", "--output_dir", tmp_path / "out")
    text = capsys.readouterr().out
    assert "- mine: 2 seeds" in text and "Also logged (--quantities): eval_loss, loss." in text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["curves.csv", "curves.png", "curves.svg"]
    with open(tmp_path / "out/curves.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "1" and row["quantity"] == "corpus/mlm_loss"]
    assert [(row["run"], row["flops"], row["value"]) for row in rows] == [
        ("mine", "10000.0", "8.0"),
        ("mine", "20000.0", "7.0"),
    ]
    fails("recipes/analyze.py", "--what", "curves", message="--what curves needs --run")
    write(tmp_path / "bad/trainer_state.json", "{")
    fails(
        "recipes/analyze.py",
        "--what",
        "curves",
        "--run",
        tmp_path / "bad",
        message="trainer_state.json cannot be read, it is damaged",
    )
