"""How a recipe that makes a run is asked for its report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hf_tlm.utils.options import option

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task


@dataclass
class ReportArguments:
    """The report at the end."""

    report: bool = option(
        False,
        "Write analysis/report.html into output_dir: one page for any browser, with scores, cost, errors and "
        "curves. hf-tlm analyze --what report makes it later, too.",
    )

    def write(self, output_dir: str | os.PathLike, task: Task | None = None, subset: Subset | None = None) -> Path | None:
        """The page of the finished run in `output_dir`; None where none is asked for.

        Args:
            task, subset: what the run was given.

        Raises:
            AnalysisError: see `hf_tlm.analysis.write_report`.
        """
        if not self.report:
            return None
        from hf_tlm.analysis.report.page import write_report

        return write_report(output_dir, task=task, subsets=None if subset is None else {"the run's subset": subset})
