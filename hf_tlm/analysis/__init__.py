"""Analysis: the papers' figures and tables of one's own runs, models and subsets, and a report that people open."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.analysis.analyze import OPTIONS, analyze
    from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask
    from hf_tlm.analysis.errors import AnalysisError
    from hf_tlm.analysis.figures import new_figure, save_figure, series_style
    from hf_tlm.analysis.findings import Findings
    from hf_tlm.analysis.report.arguments import ReportArguments
    from hf_tlm.analysis.report.page import report_page, write_report
    from hf_tlm.analysis.report.run_folder import RunFolder, read_run
    from hf_tlm.analysis.words.influential_words import InfluentialWord, label_pmi, to_markdown, word_frequencies

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "analyze": ["OPTIONS", "analyze"],
        "arguments": ["AnalyzeArguments", "AnalyzedTask"],
        "errors": ["AnalysisError"],
        "figures": ["new_figure", "save_figure", "series_style"],
        "findings": ["Findings"],
        "report.arguments": ["ReportArguments"],
        "report.page": ["report_page", "write_report"],
        "report.run_folder": ["RunFolder", "read_run"],
        "words.influential_words": ["InfluentialWord", "label_pmi", "to_markdown", "word_frequencies"],
    },
)
