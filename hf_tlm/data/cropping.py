"""The second view of a text: a contiguous part of it (COCO-LM, Meng et al., NeurIPS 2021, section 3.3, X_crop)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.masking import uniforms
from hf_tlm.data.tokenization import TokenizerError
from hf_tlm.errors import HfTlmError


@dataclass(frozen=True)
class Cropper:
    """Crops texts to `fraction` of their tokens, one after the other, at least one.

    [CLS] is in front and, where the tokenizer has one, [SEP] at the end, so that both views of a text have one form.

    The tokens are those between the special tokens around a text (separators inside it stay); their number is rounded. The
    paper has [CLS] as the sequence's first token and does not speak of [SEP]. Where the part begins is one random number,
    a function of seed and draw, as masks are (`hf_tlm.data.masking`).

    Args:
        fraction: in (0, 1] (0.9 in the paper; Figure 4 compares others); 1 crops nothing.

    Raises:
        HfTlmError: `fraction` is out of range.
        TokenizerError: the tokenizer has no [CLS].
    """

    tokenizer: PreTrainedTokenizerBase
    fraction: float
    seed: int

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise HfTlmError(f"crop_fraction is the share of a text that is kept, in (0, 1]; received {self.fraction}.")
        if self.tokenizer.cls_token_id is None:
            raise TokenizerError(
                "Cropped texts begin with a cls_token, whose vector stands for the text, and this tokenizer has none. Use "
                "that of an encoder (BERT, RoBERTa, ...), or leave contrastive learning out: --scl false."
            )

    def __call__(self, texts: list[dict], special: np.ndarray) -> list[dict]:
        """Cropped texts: `input_ids`, and `token_type_ids` where the texts have them.

        Args:
            texts: with `input_ids`, `draw` and perhaps `token_type_ids`, see `TlmCollator`.
            special: bool [V], which tokens are special.
        """
        draws = np.array([text["draw"] for text in texts], dtype=np.int64)
        where = uniforms(self.seed, draws, np.zeros_like(draws), stream=4)
        return [self._crop(text, special, place) for text, place in zip(texts, where, strict=True)]

    def _crop(self, text: dict, special: np.ndarray, where: float) -> dict:
        ids = np.asarray(text["input_ids"])
        inner = np.flatnonzero(~special[ids])
        if not len(inner):  # Nothing but special tokens.
            return {name: text[name] for name in ("input_ids", "token_type_ids") if name in text}
        room = inner[-1] + 1 - inner[0]
        length = max(1, int(self.fraction * room + 0.5))
        start = inner[0] + int(where * (room - length + 1))
        end = [] if self.tokenizer.sep_token_id is None else [self.tokenizer.sep_token_id]
        cropped = {"input_ids": np.concatenate([[self.tokenizer.cls_token_id], ids[start : start + length], end])}
        if "token_type_ids" in text:
            types = np.asarray(text["token_type_ids"])
            span = types[start : start + length]
            cropped["token_type_ids"] = np.concatenate([types[:1], span, span[-1:] if end else []])
        return cropped
