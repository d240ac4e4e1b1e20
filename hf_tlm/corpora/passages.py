"""Long documents into passages."""

from __future__ import annotations

import re

# A sentence ends at a terminator, possibly followed by closing quotes or brackets, before white space; CJK stops need
# no space after them.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])\s*|\n\s*\n")


def split_passages(text: str, max_words: int) -> list[str]:
    """Cut a text into passages of at most `max_words` white-space-separated words, at sentence ends where possible.

    Sentences are taken greedily; one that is longer than a passage is cut between words. Nothing is lost but the white
    space at the cuts.

    Raises:
        ValueError: max_words is not positive.
    """
    if max_words < 1:
        raise ValueError(f"max_words must be positive; received {max_words}.")
    passages: list[str] = []
    current: list[str] = []
    words = 0

    def close() -> None:
        nonlocal current, words
        if current:
            passages.append(" ".join(current))
        current, words = [], 0

    for sentence in _sentences(text):
        parts = sentence.split()
        if len(parts) > max_words:
            close()
            while len(parts) > max_words:
                passages.append(" ".join(parts[:max_words]))
                parts = parts[max_words:]
            current, words = [" ".join(parts)], len(parts)
        else:
            if words + len(parts) > max_words:
                close()
            current.append(sentence)
            words += len(parts)
    close()
    return passages


def _sentences(text: str) -> list[str]:
    """Stripped sentences, closing quotes and brackets kept with the sentence they end."""
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        end = match.start() + len(match.group().rstrip())
        if text[start:end].strip():
            sentences.append(text[start:end].strip())
        start = end
    if text[start:].strip():
        sentences.append(text[start:].strip())
    return sentences
