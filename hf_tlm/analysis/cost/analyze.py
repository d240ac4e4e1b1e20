"""Figure 1 of the TLM paper with one's own runs."""

from __future__ import annotations

import math

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, CostArguments, named
from hf_tlm.analysis.cost.comparison import compare, to_markdown, to_rows
from hf_tlm.analysis.cost.figures import cost_figure
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.figures import save_figure
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.runs import find_results


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: CostArguments) -> Findings:
    """cost.png, cost.svg, and the points in cost.csv."""
    if not args.run:
        raise AnalysisError("--what cost needs --run: runs, or a folder of runs.")
    found = compare(
        find_results(args.runs),
        split=options.cost_split,
        tasks=options.cost_tasks,
        pretraining_flops={
            name: _flops(name, text) for name, text in named(options.pretraining_flops, "pretraining_flops").items()
        },
        published=options.published,
    )
    files = save_figure(cost_figure(found), args.folder, "cost", to_rows(found))
    return Findings("Score against cost", to_markdown(found), files)


def _flops(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise AnalysisError(f"--pretraining_flops takes checkpoint=FLOPs, such as {name}=1.54e21; received {name}={text}.")
    return value
