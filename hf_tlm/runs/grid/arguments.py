"""How a recipe takes a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from hf_tlm.runs.grid.points import SELECTIONS, GridError
from hf_tlm.utils.no_effect import NoEffect, check_effects
from hf_tlm.utils.options import option
from hf_tlm.utils.ranges import check_ranges

if TYPE_CHECKING:
    from hf_tlm.runs.grid.points import Grid

_WITHOUT_GRID = NoEffect("grid", (None,), "without --grid, which says what to choose from.")


@dataclass
class GridArguments:
    """The settings to choose from, by their scores on validation."""

    grid: str | None = option(
        None,
        "Lists of values by argument, every combination of which is run: a YAML file, or YAML as it is, such as "
        "'{learning_rate: [2e-5, 3e-5], num_train_epochs: [3, 10]}'. A file may also hold {grid: ..., seeds: ..., "
        "select_by: ...}. Processes that are given the same --output_dir share the work.",
    )
    grid_select_by: Annotated[str | None, _WITHOUT_GRID] = option(
        None,
        "Which figure of a point's validation scores over the seeds has to be highest: median (default), mean or best.",
        choices=list(SELECTIONS),
    )
    optuna_trials: Annotated[int | None, _WITHOUT_GRID] = option(
        None,
        "Instead of every combination: so many trials of one seed each, drawn by Optuna (extra [search]); the "
        "best of them is run with all seeds. The grid may hold ranges too: {learning_rate: {min: 1e-5, max: 1e-4, log: "
        "true}}.",
    )

    def __post_init__(self):
        check_effects(self, GridError)
        check_ranges(self, GridError)

    def read(self, seeds: list[int] | None = None, model_name_or_path: str = "") -> Grid | None:
        """The grid; None where none is asked for.

        Args:
            seeds: of the command line, which win over those of the grid's file.
            model_name_or_path: a pattern of folders makes a grid of them, of each with every point of the other.

        Raises:
            GridError: no folder matches; see also `Grid.read`.
        """
        several = any(sign in model_name_or_path for sign in "*?[")
        if self.grid is None and not several:
            return None
        from hf_tlm.runs.grid.points import CHECKPOINT, Grid, Range, checkpoints

        starts: dict[str, list[Any] | Range] = {CHECKPOINT: checkpoints(model_name_or_path)} if several else {}
        if self.grid is None:
            return Grid(starts, seeds)
        grid = Grid.read(self.grid, seeds=seeds, select_by=self.grid_select_by)
        return Grid({**starts, **grid.values}, grid.seeds, grid.select_by)
