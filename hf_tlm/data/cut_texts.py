"""How much of texts a model never sees, because they are longer than it is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from hf_tlm.data.tokenization import without_limits

CHARACTERS = 20_000  # Of a text no more is looked at: whole books would take long, and what they say is clear by then.


@dataclass(frozen=True)
class Cut:
    """What a length leaves of some texts.

    share: of their tokens, without special ones, that are cut off.
    words: so many of their words fill the length, on average.
    """

    share: float
    words: int


def measure_cut(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Cut:
    """What is cut off of texts in `max_length` tokens, special ones included."""
    if not texts:
        return Cut(0.0, 0)
    texts = [text[:CHARACTERS] for text in texts]
    rows = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    without_limits(tokenizer)
    room = max(1, max_length - tokenizer.num_special_tokens_to_add())
    tokens, words = sum(map(len, rows)), sum(len(text.split()) for text in texts)
    cut = sum(max(0, len(row) - room) for row in rows)
    return Cut(cut / tokens if tokens else 0.0, int(room * words / tokens) if tokens else 0)
