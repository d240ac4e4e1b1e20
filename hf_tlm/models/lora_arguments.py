"""The options of LoRA adapters, light to import."""

from __future__ import annotations

from dataclasses import dataclass

from hf_tlm.models.errors import ModelError
from hf_tlm.utils.options import option
from hf_tlm.utils.ranges import check_ranges


@dataclass
class LoraArguments:
    """Low-rank adaptation (Hu et al., ICLR 2022, https://arxiv.org/abs/2106.09685): W + (lora_alpha / lora_r) B A."""

    use_peft: bool = option(
        False,
        "Train a LoRA adapter and the classification head instead of all weights: in both stages from a "
        "checkpoint, in stage 2 from scratch.",
    )
    lora_r: int = option(16, "LoRA: rank of B A.")
    lora_alpha: float = option(32, "LoRA: B A is scaled by lora_alpha / lora_r.")
    lora_dropout: float = option(0.05, "LoRA: dropout before A.")
    lora_target_modules: list[str] | None = option(
        None,
        "LoRA: names of the linear layers that get an adapter, for instance query value. Default: all of the body's.",
        nargs="+",
    )

    def __post_init__(self):
        check_ranges(self, ModelError)
