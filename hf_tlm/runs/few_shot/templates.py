"""Prompts as data: a template with a mask in it, and a word for every class."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hf_tlm.errors import HfTlmError

TEXTS, MASK, WORDS = ("text", "text_pair"), "mask", "words"


class PromptError(HfTlmError):
    """A template or label words that cannot be used."""


def _bare(text: str) -> str:
    """Without the punctuation at its end, where the template has its own."""
    return text.rstrip().rstrip(".!?,;:").rstrip()


def _lower(text: str) -> str:
    """With a small first letter, as it goes on in the middle of a sentence."""
    return text[:1].lower() + text[1:]


CHANGES: Mapping[str, Callable[[str], str]] = {"": str, "bare": _bare, "lower": _lower}


@dataclass(frozen=True)
class Part:
    """A part of a template.

    kind: `text` or `text_pair`, `mask`, or `words`, which are the template's own.
    value: of a text what is done to it, of `CHANGES`; of `words` what they are.
    space: whether a space comes before it, which some tokenizers make a part of a word's piece.
    """

    kind: str
    value: str
    space: bool


@dataclass(frozen=True)
class Prompt:
    """A template and label words: a masked LM fills {mask}, and the class is the one whose word it likes best.

    The method is that of Gao, Fisch and Chen, ACL 2021, https://aclanthology.org/2021.acl-long.295, section 4.

    Attributes:
        template: such as "{text} It was {mask}." or "{text:bare}? {mask}, {text_pair:lower}". `:bare` leaves out the
            punctuation at a text's end, `:lower` makes its first letter small.
        label_words: class -> word, in the order of the classes' indices.

    Raises:
        PromptError: the template has not one {mask} and a text, or an unknown field; a label word is empty.
    """

    template: str
    label_words: Mapping[str, str]

    def __post_init__(self):
        kinds = [part.kind for part in self.parts]
        if kinds.count(MASK) != 1 or not any(kind in TEXTS for kind in kinds):
            raise PromptError(
                f"A template has {{mask}} once, and {{text}}, {{text_pair}} or both; received {self.template!r}. An "
                "example: '{text} It was {mask}.'"
            )
        if empty := [name for name, word in self.label_words.items() if not word.strip()]:
            raise PromptError(f"The class {empty[0]!r} has an empty label word. Give --label_words {empty[0]}=word.")

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The template in order."""
        try:
            found = list(string.Formatter().parse(self.template.strip()))
        except ValueError as error:
            raise PromptError(f"The template {self.template!r} cannot be read: {error}.") from error
        parts, space = [], False
        for words, field, change, conversion in found:
            space = space or words[:1].isspace()
            if words.strip():
                parts.append(Part(WORDS, " ".join(words.split()), space))
                space = words[-1:].isspace()
            if field is None:
                continue
            change = change or ""  # None is for words alone.
            if field not in (*TEXTS, MASK) or conversion or change not in (CHANGES if field in TEXTS else ("",)):
                raise PromptError(
                    f"The template {self.template!r} has a field {field + (':' + change if change else '')!r}. Fields are "
                    "text, text_pair and mask; a text can be changed by :bare or :lower."
                )
            parts.append(Part(field, change, space))
            space = False
        return tuple(parts)

    @property
    def text_parts(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind in TEXTS)

    @property
    def mask_part(self) -> Part:
        return next(part for part in self.parts if part.kind == MASK)


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
    """The prompt of a task.

    Args:
        task: its name. GLUE's tasks and SNLI have prompts (`PROMPTS`), also under glue_<name>.
        label_names: class names in the order of their indices; classes that are only numbered take GLUE's words by number.
        template, label_words: override the task's own; label words as "class=word".
        pairs: whether the task's rows are pairs of texts.

    Raises:
        PromptError: nothing says what the template or a class's word is, a word is for no class, or the template does not
            fit a task of pairs or of single texts.
    """
    own = PROMPTS.get(task.removeprefix("glue_"))
    if template is None and own is not None:
        template = own.template
    if template is None:
        raise PromptError(
            f"Task {task} has no prompt of its own (those that have: {', '.join(PROMPTS)}). Give --template, for instance "
            "'{text} It was {mask}.', and --label_words class=word for every class."
        )
    if label_words is not None:
        words = dict(_class_and_word(entry, label_names) for entry in label_words)
    elif own is not None:
        words = _by_name_or_number(own.label_words, label_names)
    else:
        words = {}
    if missing := [name for name in label_names if name not in words]:
        raise PromptError(
            f"There is no label word for {', '.join(map(repr, missing))} of task {task}. Give --label_words with one for "
            f"every class, for instance {' '.join(f'{name}=word' for name in label_names)}."
        )
    prompt = Prompt(template, {name: words[name] for name in label_names})
    used = {part.kind for part in prompt.text_parts}
    if used != set(TEXTS if pairs else TEXTS[:1]):
        expected = "{text} and {text_pair}, as its rows are pairs" if pairs else "{text} alone, as its rows are single texts"
        raise PromptError(f"The template of task {task} needs {expected}; received {template!r}.")
    return prompt


def _class_and_word(entry: str, label_names: Sequence[str]) -> tuple[str, str]:
    name, equals, word = entry.partition("=")
    if not equals or name not in label_names:
        raise PromptError(
            f"Label words are given as class=word with the classes {', '.join(label_names)}; received {entry!r}."
        )
    return name, word


def _by_name_or_number(words: Mapping[str, str], label_names: Sequence[str]) -> dict[str, str]:
    if list(label_names) == [str(number) for number in range(len(words))]:
        return dict(zip(label_names, words.values(), strict=True))
    return dict(words)
