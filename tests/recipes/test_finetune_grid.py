"""recipes/finetune.py with a grid: the arguments that it passes on, and errors of the command line."""

import runpy
import sys

import pytest

from hf_tlm import runs
from hf_tlm.runs.grid_points import Range
from support.launching import ROOT


class FakeResult:
    def to_text(self):
        return "the table"


@pytest.fixture
def recipe(work, tmp_path, monkeypatch):
    """Return a function that runs the recipe in this process and returns the arguments, grid and trials of `run_grid`."""

    def run(*arguments):
        calls = []
        monkeypatch.setattr(
            runs, "run_grid", lambda t, c, args, grid, trials: calls.append((args, grid, trials)) or FakeResult()
        )
        command = ["--task", str(work / "task"), "--model_name_or_path", "x", "--output_dir", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", ["finetune.py", *command, "--use_cpu", "true", *arguments])
        runpy.run_path(str(ROOT / "recipes" / "finetune.py"), run_name="__main__")
        return calls[0]

    return run


def test_grid_is_given_on_the_command_line(recipe, capsys):
    args, grid, trials = recipe("--grid", "{learning_rate: [2e-5, 3e-5], crf: [true]}", "--max_length", "16")
    assert grid.values == {"learning_rate": [2e-5, 3e-5], "crf": [True]} and trials is None and args.max_length == 16
    assert "the table" in capsys.readouterr().out


def test_range_is_given_on_the_command_line(recipe):
    ranged = "{learning_rate: {min: 1e-5, max: 1e-4, log: true}, num_train_epochs: [3, 10]}"
    _, grid, trials = recipe("--grid", ranged, "--optuna_trials", "2")
    assert grid.values == {"learning_rate": Range(1e-5, 1e-4, log=True), "num_train_epochs": [3.0, 10.0]} and trials == 2


def test_command_line_overrides_a_grid_of_a_config(recipe):
    config = (
        str(ROOT / "recipes/configs/finetune/cocolm.yaml"),
        str(ROOT / "recipes/configs/finetune/cocolm_squad_base.yaml"),
    )
    more = ["--seeds", "7", "8", "--grid_select_by", "mean", "--max_length", "64", "--optuna_trials", "9"]
    args, grid, trials = recipe("--config", *config, *more)
    assert (grid.seeds, grid.select_by, trials, len(grid.points())) == ([7, 8], "mean", 9, 32)
    assert (args.max_length, args.adam_beta2) == (64, 0.98)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--grid", "nowhere.yaml"], "Cannot read the grid nowhere.yaml"),
        (["--grid", "{learning_rat: [1]}"], "Unknown key 'learning_rat' in the grid. Did you mean learning_rate"),
        (["--optuna_trials", "3"], "optuna_trials 3 has no effect without --grid"),
        (["--grid", "{max_steps: [1]}", "--subset", "owner/name"], "--subset is for a teacher to label, but a grid has no"),
    ],
)
def test_errors_are_messages_with_status_1(recipe, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        recipe(*arguments)
    assert stop.value.code == 1 and message in capsys.readouterr().err
