"""Task-driven training of text models from scratch, on the Hugging Face Trainer.

    task = load_task("path/to/scierc")                            # a labelled task
    corpus = load_corpus("path/to/corpus/*.parquet")              # a general corpus
    subset = retrieve(task, corpus, top_k=50)                     # the passages that resemble the task
    subset.save("scierc-bm25")

    args = TlmArguments(output_dir="scierc-tlm", rho1=3, rho2=20, max_steps=1000, seeds=[0, 1, 2])
    model_args = ModelArguments(model_config="models/bert_tiny")
    run = run_tlm(task, subset, args, model_args)                 # stage 1, stage 2, evaluation, export
    print(run.to_text())                                          # and scierc-tlm is a stock checkpoint

The subpackages follow the same order: tasks, corpora, retrieval, data, models, objectives, influence, metrics, training,
runs, experiments, analysis; a module imports only from subpackages to the left of its own. The names exported here are
imported on first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

# Set before anything loads onnxruntime, whose wheels send usage data to Microsoft unless this variable disables it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from hf_tlm.corpora import Corpus, load_corpus, split_passages
    from hf_tlm.data import BlockArguments, InterleavedBatchSampler, TlmCollator, tokenize, train_wordpiece
    from hf_tlm.errors import HfTlmError
    from hf_tlm.influence import InfluenceScorer, select
    from hf_tlm.metrics import compute_metrics_for, load_metric
    from hf_tlm.models import TlmModel, build_config, export_stock
    from hf_tlm.objectives import Mlm, TaskLoss, WeightedMean, WeightedSum
    from hf_tlm.retrieval import Bm25Settings, Index, Subset, retrieve, tokenize_texts
    from hf_tlm.runs import run_pretraining, run_tlm, score_models
    from hf_tlm.tasks import TASKS, Task, TaskSpec, load_task, task_from_datasets
    from hf_tlm.training import (
        ModelArguments,
        PretrainArguments,
        ScoreModelArguments,
        TlmArguments,
        TlmTrainer,
        prepare,
        run_stage,
    )
    from hf_tlm.version import __version__

__getattr__, __dir__, __all__ = export_lazily(__name__)
