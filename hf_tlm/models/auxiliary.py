"""The config of an auxiliary masked LM (ELECTRA's generator) from that of the main model it shares embeddings with."""

from __future__ import annotations

from copy import deepcopy

from transformers import PreTrainedConfig

from hf_tlm.models.errors import ModelError
from hf_tlm.models.families import family_of


def auxiliary_config(config: PreTrainedConfig, size: float = 0.25, layers: int | None = None) -> PreTrainedConfig:
    """A narrower or shallower model of the same family, vocabulary, positions, embedding size and dropout.

    ELECTRA (Clark et al., ICLR 2020, section 3.2 and appendix A) multiplies hidden size, FFN size and attention heads by
    `size` and keeps the depth and the size of a head. A model has whole heads, at least one: the number nearest to
    `size` x heads decides the width, and the FFN follows it.

    Args:
        config: the main model's; left as it is.
        size: width as a share of the main model's, in (0, 1].
        layers: depth; None: the main model's.

    Raises:
        ModelError: `size` or `layers` is out of range, or this body cannot be narrower than its token embeddings.
    """
    family_of(config)
    if not 0 < size <= 1:
        raise ModelError(f"auxiliary_size is a share of the main model's width, in (0, 1]; received {size}.")
    if layers is not None and not 1 <= layers <= config.num_hidden_layers:
        raise ModelError(
            f"auxiliary_layers must lie between 1 and the main model's {config.num_hidden_layers}; received {layers}."
        )
    auxiliary = deepcopy(config)
    # Only where there is a projection between them can the width differ from that of the shared embeddings.
    if size < 1 and not hasattr(config, "embedding_size"):
        raise ModelError(
            f"The token embeddings of a {config.model_type} body are as wide as the body, so an auxiliary model that "
            f"shares them cannot have auxiliary_size {size:g}. Take an electra (or albert) config, whose embeddings have a "
            "size of their own, or a shallower auxiliary model: --auxiliary_size 1 --auxiliary_layers 4."
        )
    if size < 1:
        heads = max(1, round(size * config.num_attention_heads))
        auxiliary.num_attention_heads = heads
        auxiliary.hidden_size = config.hidden_size * heads // config.num_attention_heads
        auxiliary.intermediate_size = config.intermediate_size * heads // config.num_attention_heads
    if layers is not None:
        auxiliary.num_hidden_layers = layers
        if hasattr(config, "num_hidden_groups"):
            auxiliary.num_hidden_groups = min(config.num_hidden_groups, layers)
        if hasattr(config, "layer_types"):
            auxiliary.layer_types = config.layer_types[:layers]
    return auxiliary
