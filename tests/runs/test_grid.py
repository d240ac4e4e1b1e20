"""Grids of runs: how a point is chosen and reported, kills, and sharing among processes; finally with real runs."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from hf_tlm.errors import HfTlmError
from hf_tlm.runs import CheckpointArguments, FinetuneArguments, grid, sharing
from hf_tlm.runs.grid import run_grid
from hf_tlm.runs.grid_points import Grid
from hf_tlm.training.run_folder import ProtocolError
from support.toys import make_task

RATES, EPOCHS = [1e-5, 2e-5, 4e-5], [2, 3]
GRID = {"learning_rate": RATES, "num_train_epochs": EPOCHS}
# The validation scores of a fake run at each point: the mean is highest at (2e-5, 3), the median at (4e-5, 2), the best
# at (1e-5, 2).
SCORES = {
    (1e-5, 2): [0.1, 0.2, 0.99],
    (1e-5, 3): [0.1, 0.1, 0.1],
    (2e-5, 2): [0.3, 0.3, 0.3],
    (2e-5, 3): [0.5, 0.6, 0.95],
    (4e-5, 2): [0.7, 0.65, 0.1],
    (4e-5, 3): [0.2, 0.2, 0.2],
}


class FakeRun:
    """The parts of a `FinetuneRun` that a grid needs; it takes `pause` seconds per seed, and logs its calls."""

    def __init__(self, log, pause=0.0, fail=()):
        self.log, self.pause, self.fail = log, pause, fail

    def __call__(self, task, checkpoint, args, *, test=True):
        point = (args.learning_rate, args.num_train_epochs)
        self.output_dir, self.seeds = Path(args.output_dir), []
        if point in self.fail:
            raise HfTlmError(f"diverged at {point[0]}")
        for seed, score in zip(args.run_seeds, SCORES[point], strict=False):
            time.sleep(self.pause)
            record = {"seed": seed, "validation": {"macro_f1": score, "accuracy": score / 2}}
            if test:
                record["test"] = {"macro_f1": score - 0.05}
            self.seeds.append(record)
            folder = self.output_dir / f"seed-{seed}" / "model"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps([*point, seed]))
        self.best = max(self.seeds, key=lambda record: record["validation"]["macro_f1"])
        (self.output_dir / "results.json").write_text(json.dumps({"seeds": self.seeds}))
        (self.output_dir / "README.md").write_text("the card")
        with open(self.log, "a") as file:
            file.write(f"{self.output_dir.name} {'test' if test else 'validation'} {os.getpid()}\n")
        return self


def go(folder, values=GRID, select_by="median", seeds=(0, 1, 2), trials=None, base="none", task=None, **changes):
    args = FinetuneArguments(output_dir=str(folder), report_to="none", use_cpu=True, disable_tqdm=True, **changes)
    spec = Grid(dict(values), list(seeds), select_by)
    return run_grid(task or make_task(), CheckpointArguments(model_name_or_path=str(base)), args, spec, trials)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    fake = FakeRun(tmp_path / "log")
    monkeypatch.setattr(grid, "finetune", fake)
    return fake


def log(tmp_path):
    return [line.split()[:2] for line in (tmp_path / "log").read_text().splitlines()]


@pytest.mark.parametrize("select_by,point", [("median", (4e-5, 2)), ("mean", (2e-5, 3)), ("best", (1e-5, 2))])
def test_select_by_chooses_the_point_and_only_that_is_tested(tmp_path, fake, select_by, point):
    run = go(tmp_path / "out", select_by=select_by)
    chosen = f"learning_rate={point[0]},num_train_epochs={float(point[1])}"
    assert run.record["chosen"]["folder"] == f"points/{chosen}"
    assert [name for name, split in log(tmp_path) if split == "test"] == [chosen]
    assert len(log(tmp_path)) == 7 and len(run.record["points"]) == 6
    # The model is that of the point's best seed.
    best = SCORES[point].index(max(SCORES[point]))
    assert json.loads((tmp_path / "out/config.json").read_text()) == [point[0], point[1], best]
    test = run.record["chosen"]["test"]["macro_f1"]
    assert test["values"] == pytest.approx([score - 0.05 for score in SCORES[point]])
    assert json.loads((tmp_path / "out/results.json").read_text())["seeds"][0]["test"]
    assert json.loads((tmp_path / "out/grid.json").read_text()) == run.to_dict()
    assert not list((tmp_path / "out").rglob("*.lock")) and not list(tmp_path.glob("*.lock"))


def test_table_is_sorted_with_the_chosen_point_first(tmp_path, fake):
    go(tmp_path / "out")
    lines = (tmp_path / "out/results.md").read_text().splitlines()
    assert lines[0] == "# toy: a grid of 6" and "over seeds 0, 1, 2, in percent" in lines[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0] == ["learning_rate", "num_train_epochs", "median", "mean", "std", "best", ""]
    assert rows[2] == ["4e-05", "2", "65.00", "48.33", "33.29", "70.00", "chosen"]
    assert [row[2] for row in rows[2:8]] == ["65.00", "60.00", "30.00", "20.00", "20.00", "10.00"]
    assert rows[-1] == ["macro_f1", "60.00", "43.33", "33.29", "65.00"]


@pytest.mark.parametrize("figure,said", [("max", "maximum of 3 seeds, macro_f1 65.00"), ("mean", "no choice has seen:")])
def test_report_has_the_seed_figure_of_the_chosen_point(tmp_path, fake, figure, said):
    go(tmp_path / "out", seed_figure=figure)
    text = (tmp_path / "out/results.md").read_text()
    assert said in text and ("the run's figure" in text) == (figure != "mean")


def test_finished_grid_is_not_repeated_and_may_grow(tmp_path, fake):
    go(tmp_path / "out", {**GRID, "learning_rate": RATES[:2]})
    assert len(log(tmp_path)) == 5
    go(tmp_path / "out", {**GRID, "learning_rate": RATES[:2]})
    assert len(log(tmp_path)) == 5
    run = go(tmp_path / "out")
    assert len(log(tmp_path)) == 5 + 2 + 1 and run.record["chosen"]["values"]["learning_rate"] == 4e-5
    go(tmp_path / "out", seeds=[0, 1])
    assert len(log(tmp_path)) == 8 + 6 + 1
    with pytest.raises(ProtocolError, match="weight_decay: 0.01 in the folder, 0.5 requested"):
        go(tmp_path / "out", weight_decay=0.5)


@pytest.mark.parametrize("name", ["config.json", "results.json", "seal.json"])
def test_damaged_export_is_created_again(tmp_path, fake, caplog, name):
    grid = {"learning_rate": RATES[:1], "num_train_epochs": EPOCHS[:1]}
    go(tmp_path / "out", grid)
    before = {file: (tmp_path / "out" / file).read_bytes() for file in ("config.json", "results.json", "seal.json")}
    (tmp_path / "out" / name).write_bytes(before[name][:-3])
    go(tmp_path / "out", grid)
    assert {file: (tmp_path / "out" / file).read_bytes() for file in before} == before
    assert re.search(r"It will be created again\.", caplog.text)
    assert len(log(tmp_path)) == 3, "the point itself is whole, and is tested once more"


def test_kill_during_the_export_leaves_it_unfinished(tmp_path, fake, monkeypatch):
    small, large = {**GRID, "learning_rate": RATES[:2]}, GRID  # Their best points differ.
    go(tmp_path / "out", small)
    published = report(tmp_path / "out")

    def killed(source, target):
        (target / "config.json").write_bytes((source / "config.json").read_bytes())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(grid, "copy_best_model", killed)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "out", large)
    assert (tmp_path / "out/config.json").read_bytes() != published["config.json"]
    go(tmp_path / "out", small)
    assert report(tmp_path / "out") == published


def test_failing_points_are_reported_and_not_chosen(tmp_path, fake):
    fake.fail = [(4e-5, 2)]
    run = go(tmp_path / "out")
    assert run.record["chosen"]["values"] == {"learning_rate": 2e-5, "num_train_epochs": 3}
    assert "points/learning_rate=4e-05,num_train_epochs=2.0: diverged at 4e-05" in run.to_text()
    fake.fail = []
    assert go(tmp_path / "out").record["chosen"]["values"]["learning_rate"] == 4e-5
    fake.fail = list(SCORES)
    with pytest.raises(HfTlmError, match="6 of 6 runs failed"):
        go(tmp_path / "other")
    with pytest.raises(HfTlmError, match="^diverged at 4e-05$"):
        go(tmp_path / "third", {"learning_rate": [4e-5], "num_train_epochs": [2, 3]})
    # No settings are kept, so that the folders can be used with others.
    assert (tmp_path / "out/settings.json").is_file() and not (tmp_path / "other").exists()
    fake.fail = []
    assert go(tmp_path / "third", {"learning_rate": [2e-5], "num_train_epochs": [2]}, weight_decay=0.5)


@pytest.mark.parametrize(
    "values,message",
    [
        ({"logging_steps": [1, 2]}, "A grid cannot vary logging_steps, which does not change the results"),
        ({"seed": [1, 2]}, "Pass --seeds, or seeds next to grid"),
        ({"learning_rate": {"min": 1e-5, "max": 1e-4}}, "--optuna_trials"),
        ({"layerwise_lr_decay": [0.9, 1.5]}, "layerwise_lr_decay: expected a number above 0 and at most 1; received 1.5"),
    ],
)
def test_invalid_grid_values_are_refused(tmp_path, fake, values, message):
    with pytest.raises(HfTlmError, match=message):
        go(tmp_path / "out", values)
    with pytest.raises(HfTlmError, match="Remove resume_from_checkpoint and hub_strategy"):
        go(tmp_path / "out", resume_from_checkpoint="alice/run@main-checkpoints")
    assert not (tmp_path / "out").exists() and not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    "values,model,options,message",
    [
        ({"optim": ["adamw_torch", "muon"]}, {"use_peft": True}, {}, "optim muon is for complete matrices"),
        ({"learning_rate": [1e-5]}, {"use_peft": True}, {"optim": "muon"}, "optim muon is for complete matrices"),
        ({"label_smoothing_factor": [0.0, 0.1]}, {}, {"crf": True}, "smooths the loss of single tags"),
        ({"doc_stride": [64, 32]}, {}, {}, "doc_stride .* has no effect on a classification task"),
    ],
)
def test_invalid_points_are_refused_before_the_first_run(tmp_path, fake, values, model, options, message):
    with pytest.raises(HfTlmError, match=message):
        args = FinetuneArguments(output_dir=str(tmp_path / "out"), report_to="none", use_cpu=True, **options)
        run_grid(
            make_task(), CheckpointArguments(model_name_or_path="none", **model), args, Grid(dict(values), [0], "median")
        )
    assert not (tmp_path / "out").exists() and not (tmp_path / "log").exists()


def start(folder, log, pause):
    """Fork a process with fake runs: starting Python would take longer than all the rest."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        grid.finetune, sharing.POLL_SECONDS = FakeRun(log, pause), 0.05
        go(folder)
        status = 0
    finally:
        os._exit(status)


def report(folder):
    names = ("grid.json", "results.md", "results.json", "config.json", "README.md")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_processes_with_one_killed_give_the_same_table(tmp_path, fake):
    go(tmp_path / "whole")
    log = tmp_path / "shared-log"
    processes = [start(tmp_path / "cut", log, 0.12) for _ in range(2)]
    end = time.monotonic() + 60
    while not log.exists() or len({line.split()[2] for line in log.read_text().splitlines()}) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(processes[0], signal.SIGKILL)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in processes] == [-signal.SIGKILL, 0]
    assert report(tmp_path / "cut") == report(tmp_path / "whole")
    runs = [line.split()[0] for line in log.read_text().splitlines() if "validation" in line]
    assert sorted(runs) == sorted(set(runs)), "a point was run twice"


@pytest.mark.parametrize("lengths, warnings", [([6], 1), ([5, 6], 2)])
def test_truncation_and_long_evaluation_are_warned_about_once(tmp_path, tokenizer, caplog, monkeypatch, lengths, warnings):
    """Every point warned of the same texts."""
    from support.tiny_checkpoints import pretrained

    prepare = sys.modules["hf_tlm.training.prepare"]  # The package's attribute of this name is the function.
    monkeypatch.setattr(prepare, "FEW_EVALUATED", 0)
    monkeypatch.setattr(prepare, "EVALUATED_PER_TRAINED", 0)
    base = pretrained(tmp_path / "base", tokenizer)
    values = {"learning_rate": [1e-3, 1e-2], "max_length": lengths}
    for name in ("out", "next"):  # The next grid warns again.
        caplog.clear()
        go(tmp_path / name, values, seeds=[3], base=base, max_steps=1)
        assert caplog.text.count("of the task's training texts are cut off") == warnings
        assert caplog.text.count("will probably take longer than training") == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_real_grid_equals_the_chosen_run_alone(tmp_path, tokenizer):
    """The chosen point's test scores are those of the same run without a grid."""
    from hf_tlm.runs import finetune
    from support.tiny_checkpoints import FAST, pretrained

    base = pretrained(tmp_path / "base", tokenizer)
    fast = {name: value for name, value in FAST.items() if name not in ("report_to", "disable_tqdm", "use_cpu")}
    values = {"learning_rate": [1e-3, 1e-2], "total_batch_size": [8]}
    run = go(tmp_path / "out", values, seeds=[3], base=base, **fast)
    assert [set(point["validation"]) for point in run.record["points"]] == [{"macro_f1", "accuracy"}] * 2
    for point in run.record["points"]:
        tested = list((tmp_path / "out" / point["folder"]).glob("seed-*/predictions/test.jsonl"))
        assert len(tested) == (1 if point["folder"] == run.record["chosen"]["folder"] else 0)

    arguments = {**FAST, **run.record["chosen"]["values"], "seeds": [3], "output_dir": str(tmp_path / "alone")}
    checkpoint = CheckpointArguments(model_name_or_path=str(base))
    alone = finetune(make_task(), checkpoint, FinetuneArguments(**arguments))
    assert run.record["chosen"]["test"]["macro_f1"]["values"] == alone.summary["test"]["macro_f1"]["values"]
    for name in ("model.safetensors", "seed-3/predictions/test.jsonl"):
        folder = tmp_path / "out" / ("" if "seed" not in name else run.record["chosen"]["folder"])
        assert (folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    card = (tmp_path / "out/README.md").read_text()
    assert "test" in card.lower() and "model-index" in card
    # The last lines about the chosen point are those of that run.
    last_lines = [line for line in alone.to_text().splitlines() if line.startswith(("to beat ", "with linear "))]
    assert len(last_lines) == 2 and all(line in run.to_text().splitlines() for line in last_lines)
