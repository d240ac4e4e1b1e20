"""Prompts for masked LMs: a template with a mask, a label word for every class, and the token ids of filled prompts."""

from __future__ import annotations

import difflib
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.tokenization import check_tokenizer
from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning.kinds import pad

TEXTS, MASK, WORDS = ("text", "text_pair"), "mask", "words"
# Marks of byte-level BPE, sentencepiece and WordPiece for a piece with or without a space before it.
_MARKS = "Ġ▁#"
# Token ids of a row's texts: one list for each text in the template, in the template's order.
Texts = tuple[list[int], ...]


class PromptError(HfTlmError):
    """Raised when a template or label words cannot be used."""


def _strip_punctuation(text: str) -> str:
    """Remove the punctuation at the end of a text, because the template has its own."""
    return text.rstrip().rstrip(".!?,;:").rstrip()


def _lower_first_letter(text: str) -> str:
    """Change the first letter of a text to lower case, because the text continues a sentence."""
    return text[:1].lower() + text[1:]


CHANGES: Mapping[str, Callable[[str], str]] = {"": str, "bare": _strip_punctuation, "lower": _lower_first_letter}


@dataclass(frozen=True)
class Part:
    """A part of a template.

    kind: `text`, `text_pair`, `mask`, or `words` for the template's own words.
    value: for a text the name of its change in `CHANGES`; for `words` the words.
    space: whether there is a space before it, which some tokenizers include in the first piece of a word.
    """

    kind: str
    value: str
    space: bool


@dataclass(frozen=True)
class Prompt:
    """A template and label words: a masked LM fills {mask}, and predicts the class whose label word has the highest logit.

    The method is that of Gao, Fisch and Chen, ACL 2021, https://aclanthology.org/2021.acl-long.295, section 4.

    Attributes:
        template: such as "{text} It was {mask}." or "{text:bare}? {mask}, {text_pair:lower}". `:bare` removes the
            punctuation at the end of a text, `:lower` changes its first letter to lower case.
        label_words: class -> word, in the order of the classes' indices.

    Raises:
        PromptError: the template does not have exactly one {mask} and at least one text, or has an unknown field; a label
            word is empty.
    """

    template: str
    label_words: Mapping[str, str]

    def __post_init__(self):
        kinds = [part.kind for part in self.parts]
        if kinds.count(MASK) != 1 or not any(kind in TEXTS for kind in kinds):
            raise PromptError(
                f"A template must have {{mask}} once, and {{text}}, {{text_pair}} or both; received {self.template!r}. An "
                "example: '{text} It was {mask}.'"
            )
        if empty := [name for name, word in self.label_words.items() if not word.strip()]:
            raise PromptError(f"The class {empty[0]!r} has an empty label word. Give --label_words {empty[0]}=word.")

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the template in order."""
        try:
            fields = list(string.Formatter().parse(self.template.strip()))
        except ValueError as error:
            raise PromptError(f"The template {self.template!r} cannot be read: {error}.") from error
        parts, space = [], False
        for words, name, change, conversion in fields:
            space = space or words[:1].isspace()
            if words.strip():
                parts.append(Part(WORDS, " ".join(words.split()), space))
                space = words[-1:].isspace()
            if name is None:
                continue
            change = change or ""  # None if there are only words.
            if name not in (*TEXTS, MASK) or conversion or change not in (CHANGES if name in TEXTS else ("",)):
                raise PromptError(
                    f"The template {self.template!r} has an invalid field {name + (':' + change if change else '')!r}. "
                    "Fields are text, text_pair and mask; a text can be changed by :bare or :lower."
                )
            parts.append(Part(name, change, space))
            space = False
        return tuple(parts)

    @property
    def text_parts(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind in TEXTS)


_INFERENCE = "{text:bare}? {mask}, {text_pair:lower}"
_PARAPHRASE = "{text} {mask}, {text_pair:lower}"
_NLI = {"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"}
_TWO_WAY = {"entailment": "Yes", "not_entailment": "No"}
# LM-BFF's manual prompts (Table 1; punctuation as in the released code), classes in the order of GLUE's numbers.
PROMPTS: dict[str, Prompt] = {
    "sst2": Prompt("{text} It was {mask}.", {"negative": "terrible", "positive": "great"}),
    "cola": Prompt("{text} This is {mask}.", {"unacceptable": "incorrect", "acceptable": "correct"}),
    "mnli": Prompt(_INFERENCE, _NLI),
    "mnli_mm": Prompt(_INFERENCE, _NLI),
    "snli": Prompt(_INFERENCE, _NLI),
    "qnli": Prompt(_INFERENCE, _TWO_WAY),
    "rte": Prompt(_INFERENCE, _TWO_WAY),
    "mrpc": Prompt(_PARAPHRASE, {"not_equivalent": "No", "equivalent": "Yes"}),
    "qqp": Prompt(_PARAPHRASE, {"not_duplicate": "No", "duplicate": "Yes"}),
}


def prompt_for(
    task: str,
    label_names: Sequence[str],
    template: str | None = None,
    label_words: Sequence[str] | None = None,
    *,
    pairs: bool = False,
) -> Prompt:
    """Return the prompt of a task.

    Args:
        task: its name. GLUE's tasks and SNLI have prompts (`PROMPTS`), also under glue_<name>.
        label_names: class names in the order of their indices; if they are only numbers, GLUE's words are assigned by
            number.
        template, label_words: override the task's own; label words as "class=word".
        pairs: whether the task's rows are pairs of texts.

    Raises:
        PromptError: there is no template, or no word for a class; a word is for an unknown class; or the texts of the
            template do not fit the task's rows, which are pairs or single texts.
    """
    builtin = PROMPTS.get(task.removeprefix("glue_"))
    if template is None and builtin is not None:
        template = builtin.template
    if template is None:
        raise PromptError(
            f"Task {task} has no built-in prompt (tasks with one: {', '.join(PROMPTS)}). Pass --template, for instance "
            "'{text} It was {mask}.', and --label_words class=word for every class."
        )
    words: dict[str, str] = {}
    if label_words is not None:
        words = dict(_parse_label_word(entry, label_names) for entry in label_words)
    elif builtin is not None:
        is_numbered = list(label_names) == [str(index) for index in range(len(builtin.label_words))]
        words = dict(zip(label_names if is_numbered else builtin.label_words, builtin.label_words.values(), strict=True))
    if missing := [name for name in label_names if name not in words]:
        raise PromptError(
            f"Task {task} needs a label word for {', '.join(map(repr, missing))}. Pass --label_words with one for every "
            f"class, for instance {' '.join(f'{name}=word' for name in label_names)}."
        )
    prompt = Prompt(template, {name: words[name] for name in label_names})
    text_kinds = {part.kind for part in prompt.text_parts}
    if text_kinds != set(TEXTS if pairs else TEXTS[:1]):
        expected = "{text} and {text_pair}, as its rows are pairs" if pairs else "{text} alone, as its rows are single texts"
        raise PromptError(f"The template of task {task} needs {expected}; received {template!r}.")
    return prompt


def _parse_label_word(entry: str, label_names: Sequence[str]) -> tuple[str, str]:
    name, equals, word = entry.partition("=")
    if not equals or name not in label_names:
        raise PromptError(
            f"label_words: expected class=word with one of the classes {', '.join(label_names)}; received {entry!r}."
        )
    return name, word


def tokenize_words(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], space: bool) -> list[list[int]]:
    """Tokenize texts without adding special tokens; special tokens that are spelled out in a text are treated as text.

    Args:
        space: whether to put a space before each text, because tokenizers that keep spaces have other pieces for a word
            after a space.

    Returns:
        The token ids of each text.
    """
    texts = [f" {text}" if space else text for text in texts]
    # verbose: the tokenizer's warning about long texts would be wrong, because they are truncated later.
    options = {"add_special_tokens": False, "split_special_tokens": True, "return_attention_mask": False, "verbose": False}
    return tokenizer(texts, **options)["input_ids"]


def label_word_ids(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token id of each class's label word at the mask, int [C].

    Raises:
        PromptError: a word is not a single piece of the tokenizer, or two classes have the same piece.
    """
    (space,) = (part.space for part in prompt.parts if part.kind == MASK)
    ids: dict[str, int] = {}
    for name, word in prompt.label_words.items():
        piece = _single_piece(tokenizer, word, space)
        if piece is None:
            raise PromptError(_format_word_error(tokenizer, name, word, space))
        if piece in ids.values():
            other = next(other for other, other_piece in ids.items() if other_piece == piece)
            raise PromptError(
                f"The classes {other!r} and {name!r} have the same label word for this tokenizer: "
                f"{prompt.label_words[other]!r} and {word!r} both become {tokenizer.convert_ids_to_tokens(piece)!r}. Pass "
                "different --label_words."
            )
        ids[name] = piece
    return list(ids.values())


def _single_piece(tokenizer: PreTrainedTokenizerBase, word: str, space: bool) -> int | None:
    (ids,) = tokenize_words(tokenizer, [word], space)
    return ids[0] if len(ids) == 1 and ids[0] != tokenizer.unk_token_id else None


def _format_word_error(tokenizer: PreTrainedTokenizerBase, name: str, word: str, space: bool) -> str:
    (ids,) = tokenize_words(tokenizer, [word], space)
    pieces = " ".join(tokenizer.convert_ids_to_tokens(ids))
    spellings = [other for other in (word.lower(), word.capitalize(), word.upper()) if other != word]
    vocabulary = {piece.lstrip(_MARKS) for piece in tokenizer.get_vocab()} - set(tokenizer.all_special_tokens)
    similar = difflib.get_close_matches(word, sorted(piece for piece in vocabulary if piece.isalpha()), n=20, cutoff=0.5)
    suggestions = [
        other for other in dict.fromkeys([*spellings, *similar]) if _single_piece(tokenizer, other, space) is not None
    ]
    hint = (
        f"Similar words that are one piece: {', '.join(suggestions[:5])}." if suggestions else "Choose a more common word."
    )
    return (
        f"The label word {word!r} of class {name!r} must be one piece of the tokenizer, because only one mask is filled; "
        f"received {pieces or 'nothing'}. {hint} Pass --label_words with {name}=word, and one for every other class."
    )


def kept_lengths(lengths: Sequence[int], capacity: int) -> list[int]:
    """Return how many tokens of each text to keep so that all fit into `capacity`; the longest are cut to one length."""
    kept, remaining = list(lengths), len(lengths)
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        kept[index] = min(lengths[index], capacity // remaining)
        capacity, remaining = capacity - kept[index], remaining - 1
    return kept


@dataclass
class PromptEncoder:
    """An encoder that fills a prompt with texts.

    Args:
        max_length: maximum number of tokens of an input. Texts are truncated at their ends, the longest first; mask and
            template never are.
        first_text_limit, other_text_limit: maximum number of tokens of the first text of the row to classify, and of every
            other text (its second text, and all texts of demonstrations), applied before anything else.
        tail: truncate an input to its first `max_length` tokens, whatever they are, as LM-BFF does. Texts before the mask
            are only truncated as far as is necessary to keep the mask.
        examples: number of demonstrations (examples with their label words) after a text, each after the special tokens
            that end a text (LM-BFF, section 6.1).

    Raises:
        PromptError: see `label_word_ids`; or `max_length` is too small for the template and one token of every text.
        TokenizerError: the tokenizer has no mask token or no padding token.
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
        self._prefix, self._suffix = _special_tokens(self.tokenizer)
        self._part_ids = [
            None if part.kind in (*TEXTS, MASK) else tokenize_words(self.tokenizer, [part.value], part.space)[0]
            for part in self.prompt.parts
        ]
        template_length = 1 + sum(len(ids) for ids in self._part_ids if ids is not None) + len(self._suffix)
        num_segments = 1 if self.tail else 1 + self.examples
        self._capacity = self.max_length - len(self._prefix) - num_segments * template_length
        min_capacity = num_segments * len(self.prompt.text_parts)
        if self._capacity < min_capacity:
            times = f", {num_segments} times with the demonstrations," if num_segments > 1 else ""
            raise PromptError(
                f"max_length {self.max_length} is too short: the template {self.prompt.template!r}{times} and one token of "
                f"every text need {self.max_length - self._capacity + min_capacity}. Raise --max_length."
            )

    def encode(self, rows: Dataset) -> list[Texts]:
        """Tokenize the texts of every row.

        Args:
            rows: columns `text` and, if the template has it, `text_pair`.
        """
        columns = []
        for part in self.prompt.text_parts:
            texts = [CHANGES[part.value](text) for text in rows[part.kind][:]]
            columns.append(tokenize_words(self.tokenizer, texts, part.space) if texts else [])
        return list(zip(*columns, strict=True))

    def fill(self, texts: Texts, demonstrations: Sequence[tuple[Texts, int]] = ()) -> dict[str, list[int] | int]:
        """Build the model's input for one row.

        Args:
            texts: token ids of its texts, see `encode`.
            demonstrations: token ids of their texts, and the indices of their classes; `examples` of them.

        Returns:
            `input_ids`, int [at most max_length], and `mask_position`, the index of the mask in it.
        """
        rows = [(texts, self.tokenizer.mask_token_id), *((other, self.word_ids[label]) for other, label in demonstrations)]
        lengths = iter(self._truncate_lengths([row for row, _ in rows]))
        input_ids, position = list(self._prefix), 0
        for row_index, (row, answer_id) in enumerate(rows):
            row_texts = iter(row)
            for part, words in zip(self.prompt.parts, self._part_ids, strict=True):
                if words is not None:
                    input_ids += words
                elif part.kind == MASK:
                    position = position if row_index else len(input_ids)
                    input_ids.append(answer_id)
                else:
                    input_ids += next(row_texts)[: next(lengths)]
            input_ids += self._suffix
        return {"input_ids": input_ids[: self.max_length], "mask_position": position}

    def _truncate_lengths(self, rows: Sequence[Texts]) -> list[int]:
        """Return how many tokens to keep of each text of each row, one number per text in order.

        The first row is the one with the mask; the others are demonstrations.
        """
        first = [
            row_index == 0 and part.kind == TEXTS[0] for row_index in range(len(rows)) for part in self.prompt.text_parts
        ]
        limits = [self.first_text_limit if is_first else self.other_text_limit for is_first in first]
        full_lengths = [len(ids) for row in rows for ids in row]
        lengths = [n if limit is None else min(n, limit) for n, limit in zip(full_lengths, limits, strict=True)]
        if not self.tail:
            return kept_lengths(lengths, self._capacity) if sum(lengths) > self._capacity else lengths
        parts = [part.kind for part in self.prompt.parts]
        mask_index = parts.index(MASK)
        num_texts = sum(kind in TEXTS for kind in parts[:mask_index])
        num_template_tokens = sum(len(ids) for ids in self._part_ids[:mask_index] if ids is not None)
        capacity = self.max_length - len(self._prefix) - num_template_tokens - 1
        if sum(lengths[:num_texts]) > capacity:
            lengths[:num_texts] = kept_lengths(lengths[:num_texts], capacity)
        return lengths


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer puts before and after a text."""
    (inner,) = tokenize_words(tokenizer, ["a"], space=False)
    encoded = tokenizer("a", return_attention_mask=False)["input_ids"]
    start = next(i for i in range(len(encoded)) if encoded[i : i + len(inner)] == inner)
    return encoded[:start], encoded[start + len(inner) :]


def collate(tokenizer: PreTrainedTokenizerBase, rows: list[dict]) -> dict[str, torch.Tensor]:
    """Pad filled prompts to a batch; without `labels` if the rows have no `label`.

    A batch of two rows is, for example:

    {"labels":         [1, 0],
     "input_ids":      [[2, 17, 40, 4, 9, 3], [2, 40, 4, 9, 3, 0]],
     "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]],
     "mask_positions": [3, 2]}
    """
    # Labels come first, because the Trainer uses the length of the first tensor as the batch size.
    labels = {"labels": torch.tensor([row["label"] for row in rows])} if "label" in rows[0] else {}
    positions = torch.tensor([row["mask_position"] for row in rows])
    return {**labels, **pad(rows, tokenizer), "mask_positions": positions}
