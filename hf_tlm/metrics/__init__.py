"""The metrics of every kind of task, by their official definitions, as `evaluate.Metric` modules."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.metrics.scores import KIND_METRICS, METRICS, Lead, compute_metrics_for, load_metric, paired_bootstrap, scorer
    from hf_tlm.metrics.squad import best_threshold, normalize_answer

__getattr__, __dir__, __all__ = export_lazily(__name__)
