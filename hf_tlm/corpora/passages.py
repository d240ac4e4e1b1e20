"""Long documents into passages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A sentence ends at a terminator, possibly followed by closing quotes or brackets, before white space; CJK stops need
# no space after them.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])\s*|\n\s*\n")
_WORD = re.compile(r"\S+")
# What of a text file is a document, in the words of `datasets`; "document" is all of it.
SAMPLE_BY = ("line", "paragraph", "document")


def split_passages(text: str, max_words: int) -> list[str]:
    """Cut a text into passages of at most `max_words` white-space-separated words, at sentence ends where possible.

    Sentences are taken greedily; one that is longer than a passage is cut between words. A passage is a slice of the
    text: nothing is changed, and nothing lost but the white space at the cuts.

    Raises:
        ValueError: max_words is not positive.
    """
    if max_words < 1:
        raise ValueError(f"max_words must be positive; received {max_words}.")
    passages: list[str] = []
    start = end = words = 0
    for first, last, count in _pieces(text, max_words):
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
    """Words as `split_passages` counts them: between white space, and a sentence that ends without any is one at least."""
    return sum(len(text[start:end].split()) for start, end in sentences(text))


def share_beyond(texts: Iterable[str], max_words: int) -> float:
    """Share of all words of some texts that are beyond the first `max_words` of their text."""
    counts = [count_words(text) for text in texts]
    return sum(max(0, count - max_words) for count in counts) / max(1, sum(counts))


def _pieces(text: str, max_words: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, words) of the sentences, each at most `max_words` long."""
    for start, end in sentences(text):
        count = len(text[start:end].split())
        if count <= max_words:
            yield start, end, count
            continue
        words = list(_WORD.finditer(text, start, end))
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
