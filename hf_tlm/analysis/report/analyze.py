"""The report of a run, alone or beside a second."""

from __future__ import annotations

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, ReportPageArguments
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.report.blocks import to_markdown
from hf_tlm.analysis.report.page import FILE, compare_runs, write_report
from hf_tlm.analysis.report.run_folder import read_run
from hf_tlm.utils.files import atomic_write


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: ReportPageArguments) -> Findings:
    """report.html of the first of --run; a second is what it is compared with, the tables of that in report.md too."""
    runs = [read_run(path, name) for name, path in args.runs.items()]
    if not 1 <= len(runs) <= 2:
        raise AnalysisError(f"--what report takes one --run, or two to compare; received {len(runs)}.")
    second = runs[1] if len(runs) == 2 else None
    loaded = task.load() if task.task is not None else None
    subsets = args.opened_subsets or None
    path = write_report(runs[0], args.folder / FILE, second=second, task=loaded, subsets=subsets, options=options)
    names = " against ".join(run.name for run in runs)
    title, text = f"Report of {names}", f"One page for any browser, {path.stat().st_size / 1e6:.2f} MB."
    section = None if second is None else compare_runs(runs[0], second, task=loaded, options=options)
    if section is None:
        return Findings(title, text, [path])
    tables = to_markdown(section.blocks)
    atomic_write(path.with_suffix(".md"), f"# {names}\n\n{tables}")
    return Findings(title, f"{text}\n\n{tables}", [path, path.with_suffix(".md")])
