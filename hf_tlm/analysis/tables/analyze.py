"""A table of runs by their settings."""

from __future__ import annotations

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, TablesArguments
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.figures import to_csv
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.runs import find_results
from hf_tlm.analysis.tables.rendering import table_to_latex, table_to_markdown, table_to_rows
from hf_tlm.analysis.tables.table import sensitivity_table
from hf_tlm.utils.files import atomic_write


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: TablesArguments) -> Findings:
    """table.md, table.tex and table.csv of the runs."""
    if not args.run:
        raise AnalysisError("--what tables needs --run: runs, or a folder of runs.")
    results = find_results(args.runs)
    table = sensitivity_table(results, options.table_rows, options.table_columns, split=options.table_split)
    contents = {
        "table.md": table_to_markdown(table),
        "table.tex": table_to_latex(table),
        "table.csv": to_csv(table_to_rows(table)),
    }
    files = []
    for name, content in contents.items():
        files.append(args.folder / name)
        atomic_write(files[-1], content)
    title = "Scores by " + ", ".join((*table.rows, *table.columns))
    return Findings(title, contents["table.md"], files)
