"""Analysis: the papers' figures and tables for your own runs, models and subsets, and a report as one HTML page."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.analysis.arguments import ARGUMENTS, AnalyzeArguments, AnalyzedTask, Findings, ReportArguments, analyze
    from hf_tlm.analysis.attention import (
        AttentionHead,
        LayerShares,
        TextMaps,
        count_maxima,
        layer_shares,
        measure_heads,
        separator_ids,
        text_maps,
    )
    from hf_tlm.analysis.cost import Comparison, Scored, compare, cost_figure, published_points
    from hf_tlm.analysis.curves import average, choose_quantities, curves_figure
    from hf_tlm.analysis.encoders import (
        alignment,
        cosine_similarities,
        embed_texts,
        load_encoder,
        project,
        random_pairs,
        same_class_pairs,
        silhouette,
        uniformity,
    )
    from hf_tlm.analysis.figures import new_figure, save_figure, series_style, style
    from hf_tlm.analysis.heads import draw_attention_maps, draw_head_shares
    from hf_tlm.analysis.report.page import report_page, write_report
    from hf_tlm.analysis.report.run_folder import RunFolder, read_run, task_of_run
    from hf_tlm.analysis.runs import Result, find_results
    from hf_tlm.analysis.subset_measures import (
        CaseStudy,
        Overlap,
        RankBin,
        RankInfluence,
        RetrievedPassage,
        SizeAgainstK,
        SourceShare,
        case_studies,
        case_studies_to_markdown,
        rank_against_influence,
        size_against_k,
        source_shares,
        subset_overlap,
    )
    from hf_tlm.analysis.tables import SensitivityTable, sensitivity_table, table_to_latex, table_to_markdown, table_to_rows
    from hf_tlm.analysis.trainer_logs import RunLog, SeedLog, read_runs
    from hf_tlm.analysis.words import InfluentialWord, label_pmi, to_markdown, word_frequencies
    from hf_tlm.errors import AnalysisError

__getattr__, __dir__, __all__ = export_lazily(__name__)
