"""The Trainer, its arguments, the two stages, and what they cost."""

from hf_tlm.training.arguments import ArgumentsError, TlmArguments
from hf_tlm.training.cost import ROBERTA_LARGE_FLOPS, Cost, training_flops
from hf_tlm.training.setup import ModelArguments, Setup, prepare
from hf_tlm.training.stages import StageData, run_stage
from hf_tlm.training.trainer import TlmTrainer, tlm_objectives

__all__ = [
    "ROBERTA_LARGE_FLOPS",
    "ArgumentsError",
    "Cost",
    "ModelArguments",
    "Setup",
    "StageData",
    "TlmArguments",
    "TlmTrainer",
    "prepare",
    "run_stage",
    "tlm_objectives",
    "training_flops",
]
