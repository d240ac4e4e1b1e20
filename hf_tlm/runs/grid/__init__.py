"""Many runs of one kind: grids of settings, searches, and how processes share them."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.runs.grid.grid import GridRun, run_grid
    from hf_tlm.runs.grid.points import Grid, GridArguments, GridError, Range

__getattr__, __dir__, __all__ = export_lazily(__name__)
