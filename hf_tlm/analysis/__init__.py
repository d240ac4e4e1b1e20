"""Analysis: the papers' figures and tables of one's own runs, models and subsets, and a report that people open."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.analysis.analyze import OPTIONS, analyze
    from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask
    from hf_tlm.analysis.errors import AnalysisError
    from hf_tlm.analysis.figures import new_figure, save_figure, series_style
    from hf_tlm.analysis.findings import Findings
    from hf_tlm.analysis.subsets.case_study import CaseStudy, RetrievedPassage, case_studies, case_studies_to_markdown
    from hf_tlm.analysis.subsets.influence import RankBin, RankInfluence, rank_against_influence
    from hf_tlm.analysis.subsets.overlap import Overlap, subset_overlap
    from hf_tlm.analysis.subsets.ranks import SizeAgainstK, size_against_k
    from hf_tlm.analysis.subsets.sources import SourceShare, source_shares
    from hf_tlm.analysis.words.influential_words import InfluentialWord, label_pmi, to_markdown, word_frequencies

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "analyze": ["OPTIONS", "analyze"],
        "arguments": ["AnalyzeArguments", "AnalyzedTask"],
        "errors": ["AnalysisError"],
        "figures": ["new_figure", "save_figure", "series_style"],
        "findings": ["Findings"],
        "subsets.case_study": ["CaseStudy", "RetrievedPassage", "case_studies", "case_studies_to_markdown"],
        "subsets.influence": ["RankBin", "RankInfluence", "rank_against_influence"],
        "subsets.overlap": ["Overlap", "subset_overlap"],
        "subsets.ranks": ["SizeAgainstK", "size_against_k"],
        "subsets.sources": ["SourceShare", "source_shares"],
        "words.influential_words": ["InfluentialWord", "label_pmi", "to_markdown", "word_frequencies"],
    },
)
