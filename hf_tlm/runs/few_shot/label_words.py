"""Label words as single pieces of a tokenizer."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from hf_tlm.runs.few_shot.templates import Prompt, PromptError

# What byte-level BPE, sentencepiece and WordPiece write for a space before a piece, or for there being none.
_MARKS = "Ġ▁#"


def tokenize_words(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], space: bool) -> list[list[int]]:
    """Token ids of texts without special tokens around them. A special token that is written out in a text is text.

    Args:
        space: whether a space comes before each: to tokenizers that keep spaces a word is another one after a space.
    """
    texts = [f" {text}" if space else text for text in texts]
    # verbose: long texts are cut later, so that the tokenizer's warning would be wrong.
    options = {"add_special_tokens": False, "split_special_tokens": True, "return_attention_mask": False, "verbose": False}
    return tokenizer(texts, **options)["input_ids"]


def label_word_ids(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The piece of each class's word where the mask is, int [C].

    Raises:
        PromptError: a word is several pieces or unknown (single pieces that are near are named), or two classes have the
            same piece.
    """
    space = prompt.mask_part.space
    ids: dict[str, int] = {}
    for name, word in prompt.label_words.items():
        piece = _single_piece(tokenizer, word, space)
        if piece is None:
            raise PromptError(_advice(tokenizer, name, word, space))
        if piece in ids.values():
            other = next(other for other, taken in ids.items() if taken == piece)
            raise PromptError(
                f"The classes {other!r} and {name!r} have one label word to this tokenizer: {prompt.label_words[other]!r} "
                f"and {word!r} are both its piece {tokenizer.convert_ids_to_tokens(piece)!r}. Give different --label_words."
            )
        ids[name] = piece
    return list(ids.values())


def _single_piece(tokenizer: PreTrainedTokenizerBase, word: str, space: bool) -> int | None:
    (ids,) = tokenize_words(tokenizer, [word], space)
    return ids[0] if len(ids) == 1 and ids[0] != tokenizer.unk_token_id else None


def _advice(tokenizer: PreTrainedTokenizerBase, name: str, word: str, space: bool) -> str:
    (ids,) = tokenize_words(tokenizer, [word], space)
    pieces = " ".join(tokenizer.convert_ids_to_tokens(ids))
    spellings = [other for other in (word.lower(), word.capitalize(), word.upper()) if other != word]
    whole = {piece.lstrip(_MARKS) for piece in tokenizer.get_vocab()} - set(tokenizer.all_special_tokens)
    near = difflib.get_close_matches(word, sorted(piece for piece in whole if piece.isalpha()), n=20, cutoff=0.5)
    fitting = [other for other in dict.fromkeys([*spellings, *near]) if _single_piece(tokenizer, other, space) is not None]
    hint = f"Single pieces that are spelled like it: {', '.join(fitting[:5])}." if fitting else "Choose a more common word."
    return (
        f"The label word {word!r} of class {name!r} must be one piece of the tokenizer, as one mask is all that is filled; "
        f"it is {pieces or 'nothing'}. {hint} Give --label_words {name}=word."
    )
