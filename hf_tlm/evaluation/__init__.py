"""Metrics, and the protocol that trains, evaluates and summarises over seeds."""

from hf_tlm.evaluation.metrics import METRICS, compute_metrics_for, load_metric
from hf_tlm.evaluation.protocol import ProtocolError, Run, run_tlm
from hf_tlm.evaluation.seeds import aggregate, format_score, format_table

__all__ = [
    "METRICS",
    "ProtocolError",
    "Run",
    "aggregate",
    "compute_metrics_for",
    "format_score",
    "format_table",
    "load_metric",
    "run_tlm",
]
