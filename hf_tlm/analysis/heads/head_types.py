"""Which kind an attention head is of (TLM, section 4.4.1): definitions on attention maps alone.

Of every row of a map, a token's attention to all tokens of its text, the largest weight is looked at. A head is *positional*
(Voita et al. 2019) if at least 90% of these maxima are on a token next to the row's own, *vertical* (Kovaleva et al. 2019)
if at least 90% are on [CLS], [SEP] or a full stop. What the papers leave open is settled as follows:

- Rows are counted over all tokens, special ones too, of all texts together; rows and columns of padding are left out.
- Next to a token is the previous or the next one, and a head may mix them, as TLM's words allow. Voita et al. ask for one
  side: `AttentionHead` has the counts of both.
- Of several equal maxima in a row all have to be on such a token. An even row is of no kind, whichever comes first in it.
- A head that is both, as only the shortest of texts allow, is positional.
- TLM has "at least 90%" for the one kind and "more than 90%" for the other; here exactly 90% is enough for both.

Shapes: B texts, S positions in a row of the batch, A heads of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch.nn.functional import pad

from hf_tlm.analysis.errors import AnalysisError

SHARE = Fraction(9, 10)
POSITIONAL, VERTICAL, OTHER = "positional", "vertical", "other"


@dataclass(frozen=True)
class AttentionHead:
    """How many of a head's row maxima are where.

    layer, head: from 1.
    rows: that were looked at.
    previous, next: maxima on the token before, and after, the row's own.
    adjacent: on either; more than the sum of the two by the rows in which both are equal.
    separators: on [CLS], [SEP] or a full stop.
    """

    layer: int
    head: int
    rows: int
    previous: int
    next: int
    adjacent: int
    separators: int

    @property
    def kind(self) -> str:
        if self.adjacent >= SHARE * self.rows:
            return POSITIONAL
        return VERTICAL if self.separators >= SHARE * self.rows else OTHER


@dataclass(frozen=True)
class LayerShares:
    """Percent of a layer's heads that are of each kind; layer None: of all layers' heads."""

    layer: int | None
    heads: int
    positional: float
    vertical: float
    other: float


def count_maxima(maps: torch.Tensor, attention_mask: torch.Tensor, separators: torch.Tensor) -> torch.Tensor:
    """Row maxima of one layer that are on the previous token, on the next, on either, and on a separator.

    Args:
        maps: float [B, A, S, S]: attention weights of rows (third dimension) to columns, none below 0.
        attention_mask: [B, S], 0 at padding, on whichever side that is.
        separators: bool [B, S]: where [CLS], [SEP] and full stops are.

    Returns:
        int64 [A, 4].

    Raises:
        AnalysisError: a weight is not a number.
    """
    real = attention_mask.bool()
    maps = maps.masked_fill(~real[:, None, None, :], -1)
    largest = maps.amax(-1, keepdim=True)
    if (largest[..., 0].isnan() & real[:, None]).any():
        raise AnalysisError("Attention weights are not numbers: the model has diverged, or its weights are damaged.")
    on_top = maps == largest
    maxima = on_top.sum(-1)
    previous = pad(on_top.diagonal(-1, 2, 3), (1, 0))
    following = pad(on_top.diagonal(1, 2, 3), (0, 1))
    is_adjacent = (previous.int() + following.int() == maxima) & real[:, None]
    is_separator = ((on_top & separators[:, None, None, :]).sum(-1) == maxima) & real[:, None]
    found = (is_adjacent & ~following, is_adjacent & ~previous, is_adjacent, is_separator)
    return torch.stack([rows.sum((0, 2)) for rows in found], dim=1)


def layer_shares(heads: Iterable[AttentionHead]) -> list[LayerShares]:
    """The shares of each layer in order, and at last those of all heads."""
    kinds: dict[int | None, list[str]] = {}
    for head in heads:
        kinds.setdefault(head.layer, []).append(head.kind)
    kinds[None] = [kind for layer in kinds.values() for kind in layer]
    return [
        LayerShares(layer, len(own), *(100 * own.count(kind) / len(own) for kind in (POSITIONAL, VERTICAL, OTHER)))
        for layer, own in kinds.items()
        if own
    ]
