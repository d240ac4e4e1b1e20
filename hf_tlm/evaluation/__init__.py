"""Metrics, and the protocol that trains, evaluates and summarises over seeds."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.evaluation.baseline_arguments import BaselineArguments
    from hf_tlm.evaluation.baselines import Baseline, linear_model, majority_class, make_baselines
    from hf_tlm.evaluation.checkpoint import evaluate_checkpoint
    from hf_tlm.evaluation.few_shot import FewShotArguments, FewShotRun, PromptClassifier, run_few_shot
    from hf_tlm.evaluation.finetuning import (
        CheckpointArguments,
        FinetuneArguments,
        FinetuneOptions,
        FinetuneRun,
        PredictArguments,
        check_predictable,
        finetune,
        predict,
    )
    from hf_tlm.evaluation.grids import Grid, GridArguments, GridRun, run_grid, work_through
    from hf_tlm.evaluation.metrics import KIND_METRICS, METRICS, best_threshold, compute_metrics_for, load_metric
    from hf_tlm.evaluation.pretraining import PretrainingRun, run_pretraining
    from hf_tlm.evaluation.protocol import ProtocolError, Run, run_tlm
    from hf_tlm.evaluation.score_model import score_models, train_score_model
    from hf_tlm.evaluation.seeds import aggregate, format_score, format_table

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "baseline_arguments": ["BaselineArguments"],
        "baselines": ["Baseline", "linear_model", "majority_class", "make_baselines"],
        "checkpoint": ["evaluate_checkpoint"],
        "few_shot": ["FewShotArguments", "FewShotRun", "PromptClassifier", "run_few_shot"],
        "finetuning": [
            *("CheckpointArguments", "FinetuneArguments", "FinetuneOptions", "FinetuneRun", "PredictArguments"),
            *("check_predictable", "finetune", "predict"),
        ],
        "grids": ["Grid", "GridArguments", "GridRun", "run_grid", "work_through"],
        "metrics": ["KIND_METRICS", "METRICS", "best_threshold", "compute_metrics_for", "load_metric"],
        "pretraining": ["PretrainingRun", "run_pretraining"],
        "protocol": ["ProtocolError", "Run", "run_tlm"],
        "score_model": ["score_models", "train_score_model"],
        "seeds": ["aggregate", "format_score", "format_table"],
    },
)
