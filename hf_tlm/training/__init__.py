"""The Trainer, its arguments, the two training stages, and the cost of training."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.errors import ArgumentsError
    from hf_tlm.training.arguments import PretrainArguments, ScoreModelArguments, TlmArguments
    from hf_tlm.training.cost import ROBERTA_LARGE_FLOPS, Cost, training_flops
    from hf_tlm.training.model_arguments import ModelArguments
    from hf_tlm.training.objectives import tlm_objectives
    from hf_tlm.training.prepare import Setup, check_model, check_sources, check_tlm, model_factory, prepare
    from hf_tlm.training.stages import StageData, final_scores, run_stage
    from hf_tlm.training.trainer import TlmTrainer

__getattr__, __dir__, __all__ = export_lazily(__name__)
