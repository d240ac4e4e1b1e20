"""The configuration of COCO-LM's main transformer.

This file travels with published models and imports nothing of hf_tlm.
"""

from __future__ import annotations

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .relative_positions import MODES


@strict
class CocoLmConfig(PreTrainedConfig):
    """BERT's configuration with one relative position bias for all layers (Meng et al., NeurIPS 2021, sections 3.3 and 4).

    The defaults are the paper's base size, but for `copy_bias`.

    Args:
        type_vocab_size: number of token types; 0, as in the released checkpoints: none, `token_type_ids` are not used.
        relative_attention_mode: `t5` (the paper), `signed` (the released checkpoints) or None for no relative positions;
            see `relative_position_buckets`.
        relative_attention_num_buckets, relative_attention_max_distance: 32 and 128 in the base setting, 64 and 128 in
            base++, 128 and 256 in large++.
        absolute_positions: learned absolute positions, beside the relative ones.
        zero_padding: after the LayerNorm, the embeddings of padding (where a two-dimensional attention mask is 0) are zero.
            Tokens do not see it; only the hidden states of padding itself are others.
        copy_head: the masked LM has a copy head; plain masked language modelling trains none.
        copy_bias: the copy head w^T h has a bias, as in the released checkpoints and in models whose configuration does not
            say; the paper's has none.
        lm_transform: BERT's dense layer, activation and LayerNorm before the output embedding, as auxiliary models have
            them (appendix D, "Projection Heads"); the main one has none.
        classifier_dropout: of the heads of labelled tasks; None: `hidden_dropout_prob`.

    Raises:
        ValueError: an unknown mode, too few or an odd number of buckets, or a distance that leaves none for the logarithm.
    """

    model_type = "cocolm"
    # What the stock BERT layers ask for.
    is_decoder = False
    add_cross_attention = False

    vocab_size: int = 32768
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    classifier_dropout: float | int | None = None
    max_position_embeddings: int = 512
    type_vocab_size: int = 0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    relative_attention_mode: str | None = "t5"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    absolute_positions: bool = True
    zero_padding: bool = True
    copy_head: bool = True
    copy_bias: bool = True
    lm_transform: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        mode, buckets, distance = (
            getattr(self, f"relative_attention_{name}") for name in ("mode", "num_buckets", "max_distance")
        )
        if mode is None:
            return
        if mode not in MODES:
            raise ValueError(f"relative_attention_mode must be one of {MODES} or None; received {mode!r}.")
        if buckets < 4 or buckets % 2:
            raise ValueError(f"relative_attention_num_buckets must be even and at least 4; received {buckets}.")
        if distance <= buckets // 2:
            raise ValueError(
                f"relative_attention_max_distance must be more than half of the {buckets} buckets; received {distance}."
            )
