"""Reading grids: files, text and mappings, typed values, names of points, and errors."""

import pytest

from hf_tlm.config import ConfigError
from hf_tlm.runs.grid_points import Grid, GridArguments, GridError, Range, point_name


def test_points_are_all_combinations_with_the_last_argument_fastest():
    # YAML reads 2e-5 as a string.
    grid = Grid.read("{learning_rate: [2e-5, 3e-5], total_batch_size: [16, '32'], lr_scheduler_type: linear}")
    assert grid.points() == [
        {"learning_rate": rate, "total_batch_size": size, "lr_scheduler_type": "linear"}
        for rate in (2e-5, 3e-5)
        for size in (16, 32)
    ]
    assert [type(value) for value in grid.points()[0].values()] == [float, int, str]
    assert (grid.seeds, grid.select_by) == (None, "median")


def test_command_line_overrides_seeds_and_select_by_of_a_file(tmp_path):
    (tmp_path / "grid.yaml").write_text("grid: {num_train_epochs: [2, 3]}\nseeds: [5, 6]\nselect_by: mean\n")
    arguments = {"grid": str(tmp_path / "grid.yaml")}
    grid = GridArguments(**arguments).read()
    assert (grid.seeds, grid.select_by, len(grid.points())) == ([5, 6], "mean", 2)
    grid = GridArguments(**arguments, grid_select_by="best").read([1])
    assert (grid.seeds, grid.select_by) == ([1], "best")
    assert GridArguments().read() is None


def test_ranges_have_no_grid_points():
    grid = Grid({"learning_rate": {"min": "1e-5", "max": "1e-4", "log": True}, "num_train_epochs": [2, 3]})
    assert grid.values["learning_rate"] == Range(1e-5, 1e-4, True)
    with pytest.raises(GridError, match="learning_rate: the values of a range cannot be combined.*--optuna_trials"):
        grid.points()


@pytest.mark.parametrize(
    "content,message",
    [
        ({"learning_rat": [1]}, "Unknown key 'learning_rat' in the grid. Did you mean learning_rate"),
        ({"learning_rate": ["fast"]}, "learning_rate: expected a number from 0 to 100; received 'fast'"),
        ({"learning_rate": []}, "learning_rate must have at least one value, and each only once"),
        ({"learning_rate": [2e-5, "0.00002"]}, "learning_rate must have at least one value, and each only once"),
        ({"learning_rate": {"min": 1, "max": 0.5}}, "min must be below max"),
        ({"learning_rate": {"min": 0, "max": 1, "log": True}}, "above 0 with log"),
        ({"learning_rate": {"min": 1}}, "a range must be {min: ..., max: ..., log: true or false}"),
        ({"lr_scheduler_type": {"min": "linear", "max": "cosine"}}, "min and max of a range must be numbers"),
        ({}, "a mapping of arguments to lists"),
        ([1], "a mapping of arguments to lists"),
        ({"grid": {"seed": [1]}, "seed": [1]}, "received 'seed'. Did you mean seeds"),
        ({"grid": {"learning_rate": [1]}, "seeds": 5}, "a list of whole numbers; received 5"),
        ({"grid": {"learning_rate": [1]}, "seeds": [1, 1]}, "seeds of a grid must be different"),
        ({"grid": {"learning_rate": [1]}, "select_by": "luck"}, "one of median, mean, best; received 'luck'"),
        ("nowhere.yaml", "Cannot read the grid nowhere.yaml"),
        ("{learning_rate: [1", "is not YAML"),
    ],
)
def test_invalid_grids_are_refused(content, message):
    with pytest.raises((GridError, ConfigError), match=message.replace("{", r"\{")):
        Grid.read(content)


@pytest.mark.parametrize("arguments", [{"grid_select_by": "best"}, {"optuna_trials": 3}])
def test_options_without_a_grid_are_refused(arguments):
    with pytest.raises(GridError, match="has no effect without --grid"):
        GridArguments(**arguments)
    with pytest.raises(GridError, match="optuna_trials: expected a whole number from 1 to 10,000; received 0"):
        GridArguments(grid="{}", optuna_trials=0)


def test_names_of_points_are_distinct_file_names():
    assert point_name({"learning_rate": 2e-5, "crf": True}) == "learning_rate=2e-05,crf=True"
    names = {point_name({"optim_args": text}) for text in ("a/b", "a b", "a-b", "x" * 400, "x" * 401)}
    assert len(names) == 5 and all("/" not in name and " " not in name and len(name) < 200 for name in names)
