"""Predictions with anything finished: a run of TLM, fine-tuning, few-shot learning, or a stock checkpoint."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.runs.prediction.arguments import PredictArguments, PredictorArguments
    from hf_tlm.runs.prediction.predict import check_predictable, predict, predict_after

__getattr__, __dir__, __all__ = export_lazily(__name__)
