"""One relative position bias for all layers: buckets of distances, and a learned number a bucket and head.

This file travels with published models and imports nothing of hf_tlm.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

MODES = ("t5", "signed")


def relative_position_buckets(distances: torch.Tensor, mode: str, num_buckets: int, max_distance: int) -> torch.Tensor:
    """The bucket of each distance (position of the key - position of the query), int64 in [0, num_buckets).

    Short distances have buckets of their own; beyond, buckets are as wide as the logarithm makes them, up to
    `max_distance`, from where on all distances share one. Each direction has half of the buckets.

    `t5`: T5's bidirectional buckets (Raffel et al., JMLR 2020, section 2.1), as the COCO-LM paper says. `signed`: those of
    its released checkpoints, where the bucket of -n mirrors that of n around distance 0; the last bucket is never used.

    Args:
        distances: int64 of any shape.
    """
    half = num_buckets // 2
    exact = half // 2
    size = distances.abs()
    # In float32, like the models whose buckets these are: where a boundary falls on a whole number, rounding decides.
    logarithm = torch.log(size.clamp(min=1).float() / exact)
    if mode == "t5":
        wide = exact + (logarithm / math.log(max_distance / exact) * (half - exact)).long()
    else:
        wide = exact + torch.ceil(logarithm / math.log((max_distance - 1) / exact) * (half - 1 - exact)).long()
    buckets = torch.where(size < exact, size, wide.clamp(max=half - 1))
    if mode == "t5":
        return buckets + half * (distances > 0)
    return buckets * distances.sign() + half - 1


class RelativePositionBias(nn.Module):
    """What a head adds to the attention score of a query and a key, by the bucket of their distance.

    Not an `Embedding`: two transformers that share their embeddings have a bias each.
    """

    def __init__(self, mode: str, num_buckets: int, max_distance: int, num_heads: int):
        super().__init__()
        self.mode, self.num_buckets, self.max_distance = mode, num_buckets, max_distance
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        # A table made on the CPU: a logarithm that another device rounds otherwise would move a boundary.
        self.buckets = nn.Buffer(self.bucket_table(), persistent=False)

    def bucket_table(self) -> torch.Tensor:
        """The buckets of the distances from -max_distance to max_distance, int64 [2 max_distance + 1]."""
        distances = torch.arange(-self.max_distance, self.max_distance + 1, device="cpu")
        return relative_position_buckets(distances, self.mode, self.num_buckets, self.max_distance)

    def forward(self, position_ids: torch.LongTensor) -> torch.Tensor:
        """The bias, float [B, heads, S, S] (queries, keys), of positions int64 [B, S]; B may be 1 for a whole batch."""
        distances = position_ids[:, None, :] - position_ids[:, :, None]
        within = distances.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return F.embedding(self.buckets[within], self.weight).permute(0, 3, 1, 2).contiguous()
