"""The tokenizer of the released COCO-LM checkpoints: a sentencepiece model, and a fairseq dictionary that numbers pieces.

This file travels with published models and imports nothing of hf_tlm.
"""

from __future__ import annotations

import re
import shutil
import unicodedata
from pathlib import Path

from transformers import PreTrainedTokenizer

SPACE = "\u2581"  # What sentencepiece writes for a space.
# fairseq's names of the special tokens, and what this dictionary calls them. The first four have the first four ids; the
# mask has one after the dictionary's last, unless the file lists it.
SPECIAL = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
TYPOGRAPHY = str.maketrans({**dict.fromkeys("‘’´", "'"), **dict.fromkeys("“”", '"'), **dict.fromkeys("—–", "-")})


def is_punctuation(character: str) -> bool:
    """Unicode's punctuation, and what else of ASCII can be seen and is neither letter nor digit."""
    if "!" <= character <= "~":
        return not character.isalnum()
    return unicodedata.category(character).startswith("P")


def split_words(text: str) -> str:
    """The text as sentencepiece was trained on it: plain quotes and hyphens, one space between words, punctuation at the
    ends of a word apart, and English contractions ('s, 'll, ...) in one."""
    words = []
    for word in text.strip().replace("``", '"').replace("''", '"').translate(TYPOGRAPHY).split():
        inner = [place for place, character in enumerate(word) if not is_punctuation(character)]
        start, end = (inner[0], inner[-1] + 1) if inner else (0, len(word))
        words += filter(None, (word[:start], word[start:end], word[end:]))
    line = re.sub(r"' ([smdtSMDT]|ll|re|ve)\b", r"'\1", " ".join(words))
    # In capitals the contraction ends the word, whatever follows.
    return " ".join(re.sub(r"' (LL|RE|VE)\b", r"'\1 ", line).split())


def drop_spaces(pieces: list[str]) -> list[str]:
    """Without the pieces that are a space alone before punctuation or at the end."""
    following = [*pieces, None][1:]
    return [
        piece
        for piece, after in zip(pieces, following, strict=True)
        if piece != SPACE or not (after is None or is_punctuation(after[0]))
    ]


def read_dictionary(path: str | Path) -> list[str]:
    """The symbols of a fairseq dictionary in the order of their ids, special tokens included.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read, or is not UTF-8.
        ValueError: a line is not a symbol, or a symbol and its count.
    """
    symbols = dict.fromkeys(SPECIAL[name] for name in ("<s>", "<pad>", "</s>", "<unk>"))
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            symbol, *count = line.rstrip().rsplit(" ", 1)
            if count and not count[0].isdecimal():
                raise ValueError(
                    f"Line {number} of {path} must be a symbol, a space and a count; found {line.rstrip()!r:.80}. "
                    "Is it the dictionary (dict.txt) of a released checkpoint?"
                )
            symbols.setdefault(SPECIAL.get(symbol, symbol))
    symbols.setdefault(SPECIAL["<mask>"])
    return list(symbols)


class CocoLmTokenizer(PreTrainedTokenizer):
    """Ids of the released checkpoints: [CLS] text [SEP], or [CLS] text [SEP] [SEP] text [SEP].

    A special token that is written out in a text is that token, so that [MASK] can be asked for;
    `split_special_tokens=True` takes it for text, as the released tokenizer does.

    Args:
        vocab_file: the sentencepiece model.
        dict_file: the dictionary.

    Raises:
        ImportError: sentencepiece is not installed.
        OSError, ValueError: a file cannot be read, or is not what it should be.
    """

    vocab_files_names = {"vocab_file": "sp.model", "dict_file": "dict.txt"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file: str, dict_file: str, **kwargs):
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise ImportError("CocoLmTokenizer needs sentencepiece: pip install sentencepiece") from error
        self.vocab_file, self.dict_file = str(vocab_file), str(dict_file)
        try:
            self.pieces = SentencePieceProcessor(model_file=self.vocab_file)
        except RuntimeError as error:
            raise ValueError(f"{vocab_file} is not a sentencepiece model: {error}") from error
        self.symbols = read_dictionary(dict_file)
        self.ids = {symbol: number for number, symbol in enumerate(self.symbols)}
        names = zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), SPECIAL.values(), strict=True)
        super().__init__(**{**dict(names), "special_tokens_pattern": "cls_double_sep", **kwargs})

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    def get_vocab(self) -> dict[str, int]:
        return {**self.ids, **self._added_tokens_encoder}

    def _tokenize(self, text: str, **kwargs) -> list[str]:
        return drop_spaces(self.pieces.encode(split_words(text), out_type=str))

    def _convert_token_to_id(self, token: str) -> int:
        return self.ids.get(SPECIAL.get(token, token), self.ids[SPECIAL["<unk>"]])

    def _convert_id_to_token(self, index: int) -> str:
        return self.symbols[index] if index < len(self.symbols) else SPECIAL["<unk>"]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).replace(SPACE, " ").strip()

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        prefix, paths = f"{filename_prefix}-" if filename_prefix else "", []
        for source, name in zip((self.vocab_file, self.dict_file), self.vocab_files_names.values(), strict=True):
            paths.append(Path(save_directory) / f"{prefix}{name}")
            if paths[-1].resolve() != Path(source).resolve():
                shutil.copyfile(source, paths[-1])
        return tuple(map(str, paths))
