"""Whether a tokenizer knows the texts that a model is trained on: of another language it makes [UNK] of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.tokenization import TokenizerError, without_limits

# So many texts are looked at, each cut after so many characters and tokens.
SAMPLE, CHARACTERS, TOKENS = 1000, 2000, 512
# Share of tokens: more of them are no rare words.
MOST_UNKNOWN = 0.2
_NO_TEXTS = ("id", "label", "tags", "answers", "source")


def check_known(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], name: str) -> None:
    """Tokenise a sample of texts, and count what the tokenizer does not know.

    Args:
        name: of the tokenizer, as it was asked for.

    Raises:
        TokenizerError: too much of them is [UNK].
    """
    if tokenizer.unk_token_id is None:
        return
    sample = [text[:CHARACTERS] for text in islice(texts, SAMPLE)]
    if not sample:
        return
    options = {"add_special_tokens": False, "truncation": True, "max_length": TOKENS, "return_attention_mask": False}
    ids = [index for row in tokenizer(sample, **options)["input_ids"] for index in row]
    without_limits(tokenizer)
    unknown = ids.count(tokenizer.unk_token_id)
    if unknown > MOST_UNKNOWN * len(ids):
        raise TokenizerError(
            f"The tokenizer of {name} does not fit the texts: {unknown / len(ids):.0%} of the tokens of "
            f"{len(sample):,} texts are {tokenizer.unk_token}, expected at most {MOST_UNKNOWN:.0%}. Give a tokenizer, or a "
            "checkpoint, of their language and kind."
        )


def spread_texts(rows: Dataset) -> list[str]:
    """Texts of rows of any kind of task, from its beginning to its end."""
    chosen = rows.select(range(0, len(rows), max(1, len(rows) // SAMPLE)))
    columns = [chosen[name][:] for name in chosen.column_names if name not in _NO_TEXTS]
    return [" ".join(filter(None, map(_flat, values))) for values in zip(*columns, strict=True)]


def _flat(value: object) -> str:
    """A text, or words or texts in a list; nothing of what is neither."""
    if isinstance(value, list):
        return " ".join(map(_flat, value))
    return value if isinstance(value, str) else ""
