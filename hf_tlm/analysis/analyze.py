"""From a name in `WHAT` to what finds it out."""

from __future__ import annotations

import importlib
from typing import Any

from hf_tlm.analysis.arguments import WHAT, AnalyzeArguments, AnalyzedTask
from hf_tlm.analysis.findings import Findings

OPTIONS = {what: importlib.import_module(f"hf_tlm.analysis.{what}.options").Options for what in WHAT}


def analyze(what: str, args: AnalyzeArguments, task: AnalyzedTask, options: Any) -> Findings:
    """Run one analysis: `analyze` of the package of its name.

    Args:
        options: an instance of the package's own `Options`.
    """
    return importlib.import_module(f"hf_tlm.analysis.{what}.analyze").analyze(args, task, options)
