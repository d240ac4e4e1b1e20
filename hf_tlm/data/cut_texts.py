"""How much of texts a model never sees, because they are longer than it is trained on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from hf_tlm.data.tokenization import without_limits

logger = logging.getLogger(__name__)
MOST_CUT = 0.1  # Of the tokens: what is more is told.
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


def warn_of_cut(what: str, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int, advice: str) -> None:
    """Warn where a length cuts more than `MOST_CUT` of texts off.

    Args:
        what: whose texts they are.
        texts: a sample of them.
        advice: what to do, a sentence; `{words}` in it is how many words fill the length.
    """
    cut = measure_cut(texts, tokenizer, max_length)
    if cut.share > MOST_CUT:
        logger.warning(
            "%.0f%% of the tokens of %s are beyond %d tokens, where each is cut: no step sees them. %s",
            *(100 * cut.share, what, max_length, advice.format(words=cut.words)),
        )
