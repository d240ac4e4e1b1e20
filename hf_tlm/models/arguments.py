"""Model options that several recipes share, light to import: LoRA adapters, and initial weights from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from hf_tlm.errors import ModelError
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, option

_RANDOM = NoEffect("embedding_init", ("random",), "with embedding_init random. Remove it.")
_WITHOUT_PEFT = NoEffect("use_peft", (False,), "without use_peft. Pass --use_peft true too, or remove it.")


@dataclass
class LoraArguments:
    """Settings of LoRA adapters (Hu et al., ICLR 2022, https://arxiv.org/abs/2106.09685): W + (lora_alpha / lora_r) B A."""

    use_peft: bool = option(
        False,
        "Train a LoRA adapter and the classification head instead of all weights: in both stages if the model starts "
        "from a checkpoint, in stage 2 alone if it starts from scratch.",
    )
    lora_r: Annotated[int, _WITHOUT_PEFT] = option(16, "LoRA: rank of the weight update B A.")
    lora_alpha: Annotated[float, _WITHOUT_PEFT] = option(32, "LoRA: the weight update B A is scaled by lora_alpha / lora_r.")
    lora_dropout: Annotated[float, _WITHOUT_PEFT] = option(0.05, "LoRA: dropout probability before A.")
    lora_target_modules: Annotated[list[str] | None, _WITHOUT_PEFT] = option(
        None,
        "LoRA: names of the linear layers of the body that get an adapter, for instance query value. Default: all.",
        nargs="+",
    )

    def __post_init__(self):
        check_ranges(self, ModelError)
        check_effects(self, ModelError)


@dataclass
class InitializationArguments:
    """Settings of the initial weights of a model from scratch (ours); the defaults are the papers'."""

    embedding_init: str = option(
        "random",
        "Initial token embeddings of a model from scratch: random, as in the papers; or spectral, the SVD of the positive "
        "PMI of co-occurrence counts over the run's own texts (ours).",
        choices=["random", "spectral"],
    )
    spectral_scale: Annotated[float, _RANDOM] = option(1.0, "Norm of every token embedding with embedding_init spectral.")
    weight_init: str = option(
        "config",
        "Standard deviation of the random weights of a model from scratch: config, its initializer_range; or width, "
        "0.02 x sqrt(768 / hidden_size), which has the effect of BERT-base's at any hidden size (ours).",
        choices=["config", "width"],
    )
    attention_init: str = option(
        "random",
        "Initial attention heads of a model from scratch: random; or neighbors, heads that copy what they attend to and, "
        "in bodies with learned positions, which become sinusoidal codes, attend to neighbouring tokens in the first "
        "layer (ours).",
        choices=["random", "neighbors"],
    )
    lm_head_init: str = option(
        "random",
        "Initial masked-LM head of a model from scratch: random; or frequencies, with the log frequency of every token in "
        "the run's own texts as output bias and a transform near the identity (ours).",
        choices=["random", "frequencies"],
    )

    classifier_init: str = option(
        "random",
        "Initial classifier of a model from scratch: random; or linear, which makes the model, before its last stage, a "
        "linear model of the task's tokens, with the weights in dimensions of the token embeddings (ours; needs a "
        "ModernBERT with classifier_pooling mean).",
        choices=["random", "linear"],
    )

    def __post_init__(self):
        check_ranges(self, ModelError)

    @property
    def needs_texts(self) -> bool:
        """Whether the tokens of the run's texts are counted before the first step."""
        return self.embedding_init == "spectral" or self.lm_head_init == "frequencies"

    @property
    def needs_initialization(self) -> bool:
        """Whether weights are written into the new model, beyond what its config determines."""
        return self.needs_texts or self.attention_init != "random" or self.classifier_init != "random"

    def chosen(self) -> Iterator[str]:
        """Yield the options that are not at their default, as "name value"."""
        for name in ("embedding_init", "weight_init", "attention_init", "lm_head_init", "classifier_init"):
            if getattr(self, name) != getattr(InitializationArguments, name):
                yield f"{name} {getattr(self, name)}"
