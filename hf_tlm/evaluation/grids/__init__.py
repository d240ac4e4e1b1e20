"""Many runs of one kind: grids of settings, searches, and how processes share them."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.evaluation.grids.arguments import GridArguments
    from hf_tlm.evaluation.grids.grid import GridRun, run_grid
    from hf_tlm.evaluation.grids.points import Grid, GridError, Range
    from hf_tlm.evaluation.grids.sharing import PointsError, work_through

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "arguments": ["GridArguments"],
        "grid": ["GridRun", "run_grid"],
        "points": ["Grid", "GridError", "Range"],
        "sharing": ["PointsError", "work_through"],
    },
)
