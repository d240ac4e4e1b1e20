"""The report of a run, alone or beside a second."""

from __future__ import annotations

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.report.options import Options
from hf_tlm.analysis.report.page import FILE, write_report
from hf_tlm.analysis.report.run_folder import read_run


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: Options) -> Findings:
    """report.html of the first of --run; a second is what it is compared with."""
    runs = [read_run(path, name) for name, path in args.runs.items()]
    if not 1 <= len(runs) <= 2:
        raise AnalysisError(f"--what report takes one --run, or two to compare; received {len(runs)}.")
    path = write_report(
        runs[0],
        args.folder / FILE,
        second=runs[1] if len(runs) == 2 else None,
        task=task.load() if task.task is not None else None,
        subsets=args.opened_subsets or None,
        options=options,
    )
    names = " against ".join(run.name for run in runs)
    return Findings(f"Report of {names}", f"One page for any browser, {path.stat().st_size / 1e6:.2f} MB.", [path])
