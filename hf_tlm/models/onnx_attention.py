"""Attention as an exporter should trace it: few operators, and none that processors are slow at.

Shapes: B texts, H heads, S tokens, D dimensions of a head.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.modernbert import modeling_modernbert

from hf_tlm.models.families import FAMILIES

# How far below the largest of its row a masked score is kept. exp(-60) = 9e-27 is nothing beside 1 in float32; what is much
# lower is a denormal number, at which the softmax of onnxruntime, and the product after it, are many times slower.
DEPTH = 60.0
ROTARY_OPSET = 23  # The first with an operator for rotary positions.
_NAME = "hf_tlm_onnx"
_LOCK = threading.Lock()  # Of what a class and a module of transformers hold meanwhile.


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(query key^T scaling + mask) value, float [B, S, H, D], of float [B, H, S, D] each."""
    scores = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
        scores = torch.maximum(scores, scores.amax(-1, keepdim=True) - DEPTH)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, eager_mask)


@contextlib.contextmanager
def exportable_attention(model: Any, opset: int) -> Iterator[None]:
    """With attention as products and a softmax: torch's fused one is traced with a test of every weight for nan.

    Of a padded text no row is masked whole, which that test is for. A body that is none of ours (heads may share keys, or
    scores be capped), or does not take transformers' attention functions (COCO-LM's own), has the plain one of its class.
    """
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if before is None:
        yield
        return
    known = model._supports_attention_backend and model.config.model_type in FAMILIES
    model.set_attn_implementation(_NAME if known else "eager")
    try:
        with _rotary_operator() if opset >= ROTARY_OPSET and _fixed_angles(model.config) else contextlib.nullcontext():
            yield
    finally:
        model.set_attn_implementation(before)


def _fixed_angles(config: Any) -> bool:
    """Whether rotary positions turn by the same angles at any length."""
    kinds = (getattr(config, "rope_parameters", None) or {}).values()
    return not any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds if isinstance(kind, dict))


@contextlib.contextmanager
def _rotary_operator() -> Iterator[None]:
    """With ModernBERT's rotary positions as one operator, where stock code is seven of them for queries, and for keys."""

    def angles(self: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, float [1, S, D / 2]: stock code has them twice, side by side."""
        found = position_ids[..., None].float() * getattr(self, f"{layer_type}_inv_freq")
        scaling = getattr(self, f"{layer_type}_attention_scaling")
        return found.cos() * scaling, found.sin() * scaling

    def apply(
        query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = (values.expand(query.shape[0], -1, -1) for values in (cos, sin))
        turned = [torch.onnx.ops.rotary_embedding(states, cos, sin) for states in (query, key)]
        return turned[0], turned[1]

    others = [
        (modeling_modernbert.ModernBertRotaryEmbedding, "forward", angles),
        (modeling_modernbert, "apply_rotary_pos_emb", apply),
    ]
    with _LOCK:
        stock = [(owner, name, getattr(owner, name)) for owner, name, _ in others]
        try:
            for owner, name, function in others:
                setattr(owner, name, function)
            yield
        finally:
            for owner, name, function in stock:
                setattr(owner, name, function)
