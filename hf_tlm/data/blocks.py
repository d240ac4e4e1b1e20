"""From texts to blocks: sequences of one length, made of the texts one after the other, as pretraining takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_tlm.corpora.passages import by_size, sentences
from hf_tlm.data.tokenization import TokenizerError
from hf_tlm.errors import HfTlmError

CONTIGUOUS, SENTENCES = "contiguous", "sentences"
# Characters that are tokenised together: what bounds the memory where documents are long.
_CHARACTERS = 1 << 20


class BlocksError(HfTlmError):
    """Blocks that cannot be made, or not as they were asked for."""


class BlockMaker:
    """Packs texts into blocks `[CLS] ... [SEP]` of at most `max_length` tokens, with the tokenizer's own two.

    contiguous: the tokens of all texts, a [SEP] between two texts, cut every `max_length` - 2 tokens; only the last block
    is shorter. sentences: whole sentences until the next one does not fit, with a [SEP] between texts that share a block; a
    sentence that is longer than a block is cut (Liu et al. 2019, section 4.2, call it FULL-SENTENCES).

    A text is tokenised as a whole, so a sentence's tokens do not depend on the mode.

    blocks: finished blocks, int32 [<= max_length] each, for the caller to take away.
    open: tokens of the block that is being filled, at most `max_length` - 3.
    tokens: of all texts so far, special tokens not counted.

    Raises:
        TokenizerError: the tokenizer is not a fast one, or does not put one token before a text and one after it.
        BlocksError: `mode` is neither, or `max_length` leaves no room.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, mode: str = CONTIGUOUS):
        if mode not in (CONTIGUOUS, SENTENCES):
            raise BlocksError(f"blocks must be {CONTIGUOUS} or {SENTENCES}; received {mode!r}.")
        if max_length < 3:
            raise BlocksError(f"A block has two special tokens and at least one more; received max_length {max_length}.")
        name = tokenizer.name_or_path or "this one"
        if not tokenizer.is_fast:
            raise TokenizerError(f"Blocks need a fast tokenizer (a tokenizer.json); {name} is in pure Python.")
        self.first, self.last = tokenizer.cls_token_id, tokenizer.sep_token_id
        if None in (self.first, self.last) or tokenizer("")["input_ids"] != [self.first, self.last]:
            raise TokenizerError(
                f"Blocks need a tokenizer that puts a cls_token before a text and a sep_token after it; {name} makes "
                f"{tokenizer.convert_ids_to_tokens(tokenizer('')['input_ids'])} of an empty text. Use an encoder's (BERT, "
                "RoBERTa, ...), or leave --tokenizer_name out to train one."
            )
        self.tokenizer, self.mode, self.room = tokenizer, mode, max_length - 2
        self.blocks: list[np.ndarray] = []
        self.open: list[int] = []
        self.tokens = 0

    def add(self, texts: Sequence[str]) -> Iterator[None]:
        """Append texts; stops after each, when `blocks`, `open` and `tokens` are those of the texts up to there."""
        for some in by_size(texts, _CHARACTERS):
            encoded = self.tokenizer(
                some,
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                return_offsets_mapping=self.mode == SENTENCES,
                verbose=False,  # Texts longer than a model's sequences are what is expected here.
            )
            for number, ids in enumerate(encoded["input_ids"]):
                if ids and self.mode == CONTIGUOUS:
                    self.open += [self.last, *ids] if self.tokens else ids
                    self._cut()
                elif ids:
                    self._add_sentences(_in_sentences(some[number], ids, encoded["offset_mapping"][number]))
                self.tokens += len(ids)
                yield

    def finish(self) -> None:
        """End the block that is being filled."""
        if self.open:
            self.blocks.append(self._framed(self.open))
            self.open = []

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on from here, as JSON values."""
        return {"open": self.open, "tokens": self.tokens, "blocks": [block.tolist() for block in self.blocks]}

    def restore(self, state: dict[str, Any]) -> None:
        self.open, self.tokens = list(state["open"]), state["tokens"]
        self.blocks = [np.array(block, np.int32) for block in state["blocks"]]

    def _add_sentences(self, parts: list[list[int]]) -> None:
        for number, part in enumerate(parts):
            between = [self.last] if number == 0 and self.open else []
            if len(self.open) + len(between) + len(part) > self.room:
                self.finish()
                between = []
            self.open += between + part
            self._cut()

    def _cut(self) -> None:
        whole = len(self.open) // self.room * self.room
        self.blocks += [self._framed(self.open[start : start + self.room]) for start in range(0, whole, self.room)]
        del self.open[:whole]

    def _framed(self, ids: list[int]) -> np.ndarray:
        return np.array([self.first, *ids, self.last], np.int32)


def _in_sentences(text: str, ids: list[int], offsets: list[tuple[int, int]]) -> list[list[int]]:
    """The tokens of each sentence: a token belongs to the sentence in which it begins."""
    starts = [start for start, _ in sentences(text)][1:]
    cuts = [0, *np.searchsorted([start for start, _ in offsets], starts).tolist(), len(ids)]
    return [ids[start:end] for start, end in zip(cuts, cuts[1:], strict=False) if end > start]
