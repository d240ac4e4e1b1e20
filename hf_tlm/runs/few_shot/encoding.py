"""From a row to token ids: the template's words, label words, the texts cut to fit, one mask, perhaps answered examples."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.tokenization import check_tokenizer
from hf_tlm.runs.few_shot.templates import CHANGES, MASK, TEXTS, Prompt, PromptError
from hf_tlm.runs.finetuning.kinds import pad

# What byte-level BPE, sentencepiece and WordPiece write for a space before a piece, or for there being none.
_MARKS = "Ġ▁#"
# Token ids of a row's texts, one list for each text of the template, in its order.
Texts = tuple[list[int], ...]


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
    """The piece of each class's word where the mask is, int [C]; a PromptError unless it is one, and of one class."""
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


def kept_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text are kept in `room` tokens: the longest are cut, to one length."""
    kept, left = list(lengths), len(lengths)
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        kept[index] = min(lengths[index], room // left)
        room, left = room - kept[index], left - 1
    return kept


@dataclass
class PromptEncoder:
    """Fills a prompt with texts.

    Args:
        max_length: tokens of an input. Texts are cut to it at their ends, the longest first; mask and template never.
        first_text_limit, other_text_limit: tokens after which the first text of the row that is asked about, and every other
            text, its second one and all of demonstrations, is cut before anything else.
        tail: an input that is too long then ends after `max_length` tokens, whatever they are, as LM-BFF's do; of the texts
            before the mask so much is left out that it stays.
        examples: how many answered examples follow a text, each after the special tokens that end a text (LM-BFF, 6.1).

    Raises:
        PromptError: see `label_word_ids`; or `max_length` does not hold the template and one token of every text.
        TokenizerError: the tokenizer has no mask or no padding token.
    """

    tokenizer: PreTrainedTokenizerBase
    prompt: Prompt
    max_length: int
    examples: int = 0
    first_text_limit: int | None = None
    other_text_limit: int | None = None
    tail: bool = False
    word_ids: list[int] = field(init=False)

    def __post_init__(self):
        check_tokenizer(self.tokenizer)
        self.word_ids = label_word_ids(self.prompt, self.tokenizer)
        self._begin, self._end = _special_tokens(self.tokenizer)
        self._words = [
            None if part.kind in (*TEXTS, MASK) else tokenize_words(self.tokenizer, [part.value], part.space)[0]
            for part in self.prompt.parts
        ]
        filled = 1 + sum(len(ids) for ids in self._words if ids is not None) + len(self._end)
        held = 1 if self.tail else 1 + self.examples
        self._room = self.max_length - len(self._begin) - held * filled
        least = held * len(self.prompt.text_parts)
        if self._room < least:
            times = f", {held} times with the demonstrations," if held > 1 else ""
            raise PromptError(
                f"max_length {self.max_length} is too short: the template {self.prompt.template!r}{times} and a token of "
                f"every text take {self.max_length - self._room + least}. Raise --max_length."
            )

    def encode(self, rows: Dataset) -> list[Texts]:
        """Token ids of the texts of every row. rows: columns `text` and, where the template has it, `text_pair`."""
        columns = []
        for part in self.prompt.text_parts:
            texts = [CHANGES[part.value](text) for text in rows[part.kind][:]]
            columns.append(tokenize_words(self.tokenizer, texts, part.space) if texts else [])
        return list(zip(*columns, strict=True))

    def fill(self, texts: Texts, answered: Sequence[tuple[Texts, int]] = ()) -> dict[str, list[int] | int]:
        """The model's input for one row.

        Args:
            answered: examples and their classes' indices; as many as `examples`.

        Returns:
            `input_ids`, int [at most max_length], and `mask_position`, where in it the mask is.
        """
        rows = [(texts, self.tokenizer.mask_token_id), *((other, self.word_ids[label]) for other, label in answered)]
        kept = iter(self._kept([row for row, _ in rows]))
        input_ids, position = list(self._begin), 0
        for number, (row, answer) in enumerate(rows):
            own = iter(row)
            for part, words in zip(self.prompt.parts, self._words, strict=True):
                if words is not None:
                    input_ids += words
                elif part.kind == MASK:
                    position = position if number else len(input_ids)
                    input_ids.append(answer)
                else:
                    input_ids += next(own)[: next(kept)]
            input_ids += self._end
        return {"input_ids": input_ids[: self.max_length], "mask_position": position}

    def _kept(self, rows: Sequence[Texts]) -> list[int]:
        """How many tokens of each text of each row are kept: of the first row, which has the mask, its own come first."""
        first = [number == 0 and part.kind == TEXTS[0] for number in range(len(rows)) for part in self.prompt.text_parts]
        limits = [self.first_text_limit if is_first else self.other_text_limit for is_first in first]
        found = [len(ids) for row in rows for ids in row]
        lengths = [n if limit is None else min(n, limit) for n, limit in zip(found, limits, strict=True)]
        if not self.tail:
            return kept_lengths(lengths, self._room) if sum(lengths) > self._room else lengths
        parts = [part.kind for part in self.prompt.parts]
        before = parts.index(MASK)
        texts = sum(kind in TEXTS for kind in parts[:before])
        words = sum(len(ids) for ids in self._words[:before] if ids is not None)
        room = self.max_length - len(self._begin) - words - 1
        if sum(lengths[:texts]) > room:
            lengths[:texts] = kept_lengths(lengths[:texts], room)
        return lengths


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Those before and after a text."""
    (inner,) = tokenize_words(tokenizer, ["a"], space=False)
    whole = tokenizer("a", return_attention_mask=False)["input_ids"]
    start = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
    return whole[:start], whole[start + len(inner) :]


@dataclass
class PromptCollator:
    """Pads filled prompts to batches.

    For two prompts the batch is for example

    {"labels":         [1, 0],
     "input_ids":      [[2, 17, 40, 4, 9, 3], [2, 40, 4, 9, 3, 0]],
     "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]],
     "mask_positions": [3, 2]}

    without `labels` where the rows have no `label`.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        # First: the Trainer takes the first tensor's length for the number of texts.
        labels = {"labels": torch.tensor([row["label"] for row in rows])} if "label" in rows[0] else {}
        positions = torch.tensor([row["mask_position"] for row in rows])
        return {**labels, **pad(rows, self.tokenizer), "mask_positions": positions}
