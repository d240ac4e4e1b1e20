"""From a name in `WHAT` to what finds it out."""

from __future__ import annotations

import importlib
from typing import Any

from hf_tlm.analysis.arguments import (
    AnalyzeArguments,
    AnalyzedTask,
    CostArguments,
    CurvesArguments,
    EmbeddingsArguments,
    HeadsArguments,
    ReportPageArguments,
    SubsetsArguments,
    TablesArguments,
    WordsArguments,
)
from hf_tlm.analysis.findings import Findings

# Of each analysis, what is its own.
ARGUMENTS = {
    "heads": HeadsArguments,
    "words": WordsArguments,
    "embeddings": EmbeddingsArguments,
    "curves": CurvesArguments,
    "cost": CostArguments,
    "subsets": SubsetsArguments,
    "tables": TablesArguments,
    "report": ReportPageArguments,
}


def analyze(what: str, args: AnalyzeArguments, task: AnalyzedTask, options: Any) -> Findings:
    """Run one analysis: `analyze` of the module of its name.

    Args:
        options: an instance of its class in `ARGUMENTS`.
    """
    module = "report.page" if what == "report" else what
    return importlib.import_module(f"hf_tlm.analysis.{module}").analyze(args, task, options)
