"""Token ids of texts through a memory of the token ids of their words, several times as fast as the tokenizer itself."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece

# Limits of the memory of a tokenizer: words, and characters of a word.
MOST_WORDS, LONGEST_WORD = 1 << 17, 32


class WordPieceEncoder:
    """Encodes texts exactly as a WordPiece tokenizer does, but tokenises each word only the first time.

    BERT's tokenizers split a text at spaces and punctuation before anything else, so that the tokens of a word do not depend
    on its neighbours. `word_piece_encoder` says which tokenizers are of that kind.

    Args:
        tokenizer: one of that kind, without truncation and padding.
        added: contents of the tokens that are found in a text before it is split, such as [MASK].
        lowercase: whether it converts texts to lower case.
    """

    def __init__(self, tokenizer: Tokenizer, added: Sequence[str], lowercase: bool):
        self._tokenizer, self._model, self._lowercase = tokenizer, tokenizer.model, lowercase
        self._known: dict[str, list[int]] = {}
        self._ascii_words = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]").findall
        # No text matches (?!).
        self._has_added = re.compile("|".join(map(re.escape, added)) or "(?!)").search
        self._single, self._pair = _Template(tokenizer, "a"), _Template(tokenizer, "a", "b")

    def word_ids(self, text: str, most: int = sys.maxsize) -> list[int]:
        """Return the first `most` token ids of a text, without special tokens around it."""
        known, ids = self._known, list[int]()
        for word in self._words(text):
            try:
                ids += known[word]
            except KeyError:
                ids += self._tokenise(word)
            if len(ids) >= most:
                return ids[:most]
        return ids

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int, type_ids: bool = False
    ) -> dict[str, list[list[int]]] | None:
        """Return the `input_ids` of texts, or of pairs of texts, truncated at the end to `max_length` tokens.

        Of a pair the longer text is truncated first, as by `truncation=True` in transformers. Special tokens are included.
        The result is None if there is no room for other tokens.

        Args:
            type_ids: return `token_type_ids` too.
        """
        template = self._single if pairs is None else self._pair
        room = max_length - template.num_special
        if room < 1:
            return None
        names = ("input_ids", "token_type_ids") if type_ids else ("input_ids",)
        columns: dict[str, list[list[int]]] = {name: [] for name in names}
        for row, text in enumerate(texts):
            if pairs is None:
                parts = [self.word_ids(text, room)]
            else:
                parts = _truncate_pair(self.word_ids(text), self.word_ids(pairs[row]), room)
            columns["input_ids"].append(template.join(parts))
            if type_ids:
                columns["token_type_ids"].append(template.types(parts))
        return columns

    def _words(self, text: str) -> list[str]:
        """Split a text into words and punctuation. Parts that only the tokenizer can split begin with a space."""
        if text.isascii() and text.isprintable() and not self._has_added(text):
            return self._ascii_words(text.lower() if self._lowercase else text)
        if " " not in text:  # Accents, control characters, or an added token.
            return [f" {text}"]
        return [word for part in text.split(" ") for word in self._words(part)]

    def _tokenise(self, word: str) -> list[int]:
        if word[0] == " ":
            ids = self._tokenizer.encode(word[1:], add_special_tokens=False).ids
        else:
            ids = [token.id for token in self._model.tokenize(word)]
        if len(word) <= LONGEST_WORD:
            if len(self._known) >= MOST_WORDS:
                self._known.clear()
            self._known[word] = ids
        return ids


class _Template:
    """The order of special tokens and texts in an input, and the types of their tokens."""

    def __init__(self, tokenizer: Tokenizer, text: str, pair: str | None = None):
        # Each text is one token here, whose id says which of the two it is.
        probe = Tokenizer(WordLevel({text: 0} if pair is None else {text: 0, pair: 1}, text))
        probe.post_processor = tokenizer.post_processor
        encoding = probe.encode(text, pair)
        self._parts = list(zip(encoding.special_tokens_mask, encoding.ids, encoding.type_ids, strict=True))
        self.num_special = sum(encoding.special_tokens_mask)

    def join(self, texts: Sequence[list[int]]) -> list[int]:
        """Return the token ids of an input, from the token ids of its texts."""
        ids = list[int]()
        for is_special, index, _ in self._parts:
            ids += [index] if is_special else texts[index]
        return ids

    def types(self, texts: Sequence[list[int]]) -> list[int]:
        types = list[int]()
        for is_special, index, type_id in self._parts:
            types += [type_id] * (1 if is_special else len(texts[index]))
        return types


def _truncate_pair(first: list[int], second: list[int], room: int) -> list[list[int]]:
    """Truncate the longer text of a pair until both have room, or each text to a half: the longer one has the odd token."""
    shorter, longer = sorted((len(first), len(second)))
    if shorter + longer > room:
        longer = max(shorter, room - shorter)
        if shorter + longer > room:
            shorter, longer = room // 2, room - room // 2
    lengths = (shorter, longer) if len(first) <= len(second) else (longer, shorter)
    return [first[: lengths[0]], second[: lengths[1]]]


@functools.lru_cache(maxsize=4)
def word_piece_encoder(settings: str) -> WordPieceEncoder | None:
    """Return the encoder of a tokenizer, with what it remembers; None for a tokenizer whose words are not independent.

    Args:
        settings: the content of the tokenizer's `tokenizer.json`.
    """
    parts = json.loads(settings)
    normalizer = parts["normalizer"] or {"type": "BertNormalizer", "lowercase": False}
    kinds = (parts["model"].get("type"), normalizer["type"], (parts["pre_tokenizer"] or {}).get("type"))
    # A normalized added token is searched in the normalized text, a single word only between spaces, and white space may
    # belong to the token beside it.
    if kinds != ("WordPiece", "BertNormalizer", "BertPreTokenizer") or any(
        token["single_word"] or token["normalized"] or re.search(r"\s", token["content"]) for token in parts["added_tokens"]
    ):
        return None
    tokenizer = Tokenizer.from_str(settings)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return WordPieceEncoder(tokenizer, [token["content"] for token in parts["added_tokens"]], normalizer["lowercase"])


def find_encoder(tokenizer: Any) -> WordPieceEncoder | None:
    """Return an encoder that gives what a tokenizer of transformers gives; None where only the tokenizer itself does."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    own_code = not type(tokenizer).__module__.startswith("transformers.")
    if backend is None or own_code or tokenizer.truncation_side != "right" or tokenizer.split_special_tokens:
        return None
    # The settings of other tokenizers may be many megabytes.
    return word_piece_encoder(backend.to_str()) if isinstance(backend.model, WordPiece) else None
