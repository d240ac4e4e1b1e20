"""Long documents into passages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import Range, check_number
from hf_tlm.utils.scripts import UNSPACED_SET, unspaced_share
from hf_tlm.utils.shown import kind_of

# A sentence ends at a terminator, possibly followed by closing quotes or brackets, before white space; CJK stops need
# no space after them.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])\s*|\n\s*\n")
_WORD = re.compile(r"\S+")
# Of a text that is written without spaces, a letter at a time.
_LETTER = re.compile(rf"[{UNSPACED_SET}]|[^\s{UNSPACED_SET}]+")
_UNSPACED = 0.25
# What of a text file is a document, in the words of `datasets`; "document" is all of it.
SAMPLE_BY = ("line", "paragraph", "document")


def split_passages(text: str, max_words: int) -> list[str]:
    """Cut a text into passages of at most `max_words` words, at sentence ends where possible.

    Words are what is between white space; of a text that is mostly written without any (Chinese, Japanese, Thai, ...)
    letters.

    Sentences are taken greedily; one that is longer than a passage is cut between words. A passage is a slice of the
    text: nothing is changed, and nothing lost but the white space at the cuts.

    Raises:
        HfTlmError: max_words is not a positive whole number, or `text` is no text.
    """
    if not isinstance(text, str):
        raise HfTlmError(f"text: expected a text; received {kind_of(text)}.")
    check_number(HfTlmError, "max_words", max_words, Range(1, math.inf, whole=True))
    passages: list[str] = []
    start = end = words = 0
    for first, last, count in _pieces(text, max_words, _words_of(text)):
        if words + count > max_words:
            passages.append(text[start:end])
            words = 0
        if words == 0:
            start = first
        end = last
        words += count
    if words:
        passages.append(text[start:end])
    return passages


def count_words(text: str) -> int:
    """Words as `split_passages` counts them."""
    pattern = _words_of(text)
    return sum(_count(text, start, end, pattern) for start, end in sentences(text))


def end_of_words(text: str, words: int) -> int:
    """After how many characters so many words of a text end, as `split_passages` counts them; all of one that has fewer."""
    for number, word in enumerate(_words_of(text).finditer(text), 1):
        if number == words:
            return word.end()
    return len(text)


def share_beyond(texts: Iterable[str], max_words: int) -> float:
    """Share of all words of some texts that are beyond the first `max_words` of their text."""
    counts = [count_words(text) for text in texts]
    return sum(max(0, count - max_words) for count in counts) / max(1, sum(counts))


def by_size(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Texts in lists of about so many characters, which bound the memory where texts are long."""
    some: list[str] = []
    size = 0
    for text in texts:
        some.append(text)
        size += len(text) + 1
        if size >= characters:
            yield some
            some, size = [], 0
    if some:
        yield some


def _words_of(text: str) -> re.Pattern:
    """What the words of a text are."""
    return _LETTER if not text.isascii() and unspaced_share([text]) > _UNSPACED else _WORD


def _count(text: str, start: int, end: int, pattern: re.Pattern) -> int:
    return len(text[start:end].split()) if pattern is _WORD else len(pattern.findall(text, start, end))


def _pieces(text: str, max_words: int, pattern: re.Pattern) -> Iterator[tuple[int, int, int]]:
    """(start, end, words) of the sentences, each at most `max_words` long."""
    for start, end in sentences(text):
        count = _count(text, start, end, pattern)
        if count <= max_words:
            yield start, end, count
            continue
        words = list(pattern.finditer(text, start, end))
        for i in range(0, count, max_words):
            part = words[i : i + max_words]
            yield part[0].start(), part[-1].end(), len(part)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the sentences without the white space around; closing quotes and brackets end a sentence."""
    start = 0
    for cut in [match.start() + len(match.group().rstrip()) for match in _SENTENCE_END.finditer(text)] + [len(text)]:
        sentence = text[start:cut]
        if stripped := sentence.strip():
            first = start + len(sentence) - len(sentence.lstrip())
            yield first, first + len(stripped)
        start = cut
