"""The options of LoRA adapters, light to import."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_tlm.models.errors import ModelError
from hf_tlm.utils.ranges import check_ranges


@dataclass
class LoraArguments:
    """Low-rank adaptation (Hu et al., ICLR 2022, https://arxiv.org/abs/2106.09685): W + (lora_alpha / lora_r) B A."""

    use_peft: bool = field(
        default=False,
        metadata={
            "help": "Train a LoRA adapter and the classification head instead of all weights: in both stages from a "
            "checkpoint, in stage 2 from scratch."
        },
    )
    lora_r: int = field(default=16, metadata={"help": "LoRA: rank of B A."})
    lora_alpha: float = field(default=32, metadata={"help": "LoRA: B A is scaled by lora_alpha / lora_r."})
    lora_dropout: float = field(default=0.05, metadata={"help": "LoRA: dropout before A."})
    lora_target_modules: list[str] | None = field(
        default=None,
        metadata={
            "help": "LoRA: names of the linear layers that get an adapter, for instance query value. Default: all of the "
            "body's.",
            "nargs": "+",
        },
    )

    def __post_init__(self):
        check_ranges(self, ModelError)
