"""Analysis: the papers' figures and tables of one's own runs, models and subsets, and a report that people open."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.analysis.analyze import ARGUMENTS, analyze
    from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask
    from hf_tlm.analysis.cost.comparison import Comparison, Scored, compare
    from hf_tlm.analysis.cost.figures import cost_figure
    from hf_tlm.analysis.cost.published import published_points
    from hf_tlm.analysis.curves.figures import curves_figure
    from hf_tlm.analysis.curves.series import average, choose_quantities
    from hf_tlm.analysis.curves.states import RunLog, SeedLog, read_runs
    from hf_tlm.analysis.embeddings.measures import (
        alignment,
        cosine_similarities,
        random_pairs,
        same_class_pairs,
        silhouette,
        uniformity,
    )
    from hf_tlm.analysis.embeddings.projection import project
    from hf_tlm.analysis.embeddings.vectors import embed_texts
    from hf_tlm.analysis.encoders import load_encoder
    from hf_tlm.analysis.errors import AnalysisError
    from hf_tlm.analysis.figures import new_figure, save_figure, series_style, style
    from hf_tlm.analysis.findings import Findings
    from hf_tlm.analysis.heads.attention import TextMaps, measure_heads, separator_ids, text_maps
    from hf_tlm.analysis.heads.figures import draw_attention_maps, draw_head_shares
    from hf_tlm.analysis.heads.head_types import AttentionHead, LayerShares, count_maxima, layer_shares
    from hf_tlm.analysis.report.arguments import ReportArguments
    from hf_tlm.analysis.report.page import report_page, write_report
    from hf_tlm.analysis.report.recorded import task_of_run
    from hf_tlm.analysis.report.run_folder import RunFolder, read_run
    from hf_tlm.analysis.runs import Result, find_results
    from hf_tlm.analysis.subsets.case_study import CaseStudy, RetrievedPassage, case_studies, case_studies_to_markdown
    from hf_tlm.analysis.subsets.influence import RankBin, RankInfluence, rank_against_influence
    from hf_tlm.analysis.subsets.overlap import Overlap, subset_overlap
    from hf_tlm.analysis.subsets.ranks import SizeAgainstK, size_against_k
    from hf_tlm.analysis.subsets.sources import SourceShare, source_shares
    from hf_tlm.analysis.tables.rendering import table_to_latex, table_to_markdown, table_to_rows
    from hf_tlm.analysis.tables.table import SensitivityTable, sensitivity_table
    from hf_tlm.analysis.words.influential_words import InfluentialWord, label_pmi, to_markdown, word_frequencies

__getattr__, __dir__, __all__ = export_lazily(__name__)
