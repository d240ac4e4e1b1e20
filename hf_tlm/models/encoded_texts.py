"""Where the texts of a batch are: padded, one a row, or packed, several a row (see `hf_tlm.data.collator`).

Shapes: R rows, S positions in a row, B texts (R = B when padded), H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig


@dataclass
class EncodedTexts:
    """Hidden states of a batch, and each text's own.

    hidden: float [R, S, H]; attention_mask: int64 [R, S]; text_ids, first_tokens: of a packed batch, else None.
    """

    hidden: torch.Tensor
    attention_mask: torch.Tensor
    text_ids: torch.Tensor | None = None
    first_tokens: torch.Tensor | None = None

    def first(self) -> torch.Tensor:
        """The first token's hidden state of each text, [B, 1, H]: a sequence of one, as classification heads take it."""
        if self.first_tokens is None:
            return self.hidden[:, :1]
        return self.hidden.flatten(0, 1)[self.first_tokens].unsqueeze(1)

    def mean(self) -> torch.Tensor:
        """The mean of each text's hidden states, [B, H]."""
        if self.text_ids is None or self.first_tokens is None:
            weights = self.attention_mask.unsqueeze(-1)
            return (self.hidden * weights).sum(dim=1) / weights.sum(dim=1)
        count = len(self.first_tokens)
        # Row 0 gathers the padding.
        sums = self.hidden.new_zeros(count + 1, self.hidden.shape[-1])
        sums = sums.index_add(0, self.text_ids.flatten(), self.hidden.flatten(0, 1))
        sizes = torch.bincount(self.text_ids.flatten(), minlength=count + 1)
        return sums[1:] / sizes[1:, None]


def attended(input_ids: torch.Tensor, attention_mask: torch.Tensor | None, text_ids: torch.Tensor | None) -> torch.Tensor:
    """The attention mask of a batch, int64 [R, S]: without one that of all tokens, in packed rows of all but padding."""
    if attention_mask is not None:
        return attention_mask
    return torch.ones_like(input_ids) if text_ids is None else (text_ids > 0).to(input_ids.dtype)


def packed_attention_mask(
    text_ids: torch.Tensor, config: PreTrainedConfig, dtype: torch.dtype
) -> torch.Tensor | dict[str, torch.Tensor]:
    """The block-diagonal mask by which the texts of a row do not see each other, as the body takes it.

    BERT and its kin attend across the texts of a row when only `position_ids` restart; a mask with four dimensions is
    used as it is. Padding sees padding, so that no row of the attention is empty.

    Args:
        text_ids: int64 [R, S]; dtype: that of the model's weights.

    Returns:
        [R, 1, S, S]: bool, True where a token (third dimension) sees another; for eager attention 0 there and the
        smallest number elsewhere. For bodies with layers of local attention one for each kind of layer, by its name.
    """
    sees = text_ids[:, None, :, None] == text_ids[:, None, None, :]
    masks = {"full_attention": sees}
    window = getattr(config, "sliding_window", None)
    if window is not None:
        place = torch.arange(text_ids.shape[1], device=text_ids.device)
        masks["sliding_attention"] = sees & ((place[:, None] - place[None, :]).abs() <= window)
    if config._attn_implementation == "eager":
        lowest = torch.finfo(dtype).min
        masks = {
            name: torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, lowest)
            for name, mask in masks.items()
        }
    return masks if window is not None else masks["full_attention"]
