"""Words, sentences and passages of texts in any script, with or without spaces between words."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import Range, check_number
from hf_tlm.utils.shown import kind_of

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer; Hiragana, Katakana, Bopomofo; Han.
UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x312F), (0x31A0, 0x31FF), (0x3400, 0x4DBF),
            (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
# The same ranges as the content of a regular expression's character set.
UNSPACED_SET = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
MIN_CLAUSE = 6
_CLAUSES = re.compile(f"[{UNSPACED_SET}]{{{MIN_CLAUSE},}}")
_RUNS = re.compile(f"[{UNSPACED_SET}]+")
# The vowel points of Hebrew and Arabic.
_POINT_BLOCKS = (range(0x591, 0x5C8), range(0x610, 0x61B), range(0x64B, 0x660), range(0x670, 0x671), range(0x6D6, 0x6EE))
POINTS = frozenset(chr(c) for block in _POINT_BLOCKS for c in block if unicodedata.category(chr(c)) == "Mn")
_POINTS = re.compile(f"[{''.join(sorted(POINTS))}]+")
# Marks that are vowels, tones or consonants, although Unicode classes them with accents: from Devanagari to Myanmar, Khmer,
# Japanese.
_SIGN_BLOCKS = (range(0x900, 0x10A0), range(0x1780, 0x1800), range(0x3099, 0x309B))
_SIGNS = {chr(code) for block in _SIGN_BLOCKS for code in block if unicodedata.category(chr(code)) == "Mn"}
# Scripts with thousands of characters: Han, and Korean syllables, here decomposed.
_MANY = (range(0x1100, 0x1200), range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x40000))
# The results of `script_of`.
SCRIPTS = ("unspaced", "marks")
# Thresholds of shares, computed on the first _SAMPLE_CHARACTERS characters of the first _SAMPLE_TEXTS texts.
_MAX_UNSPACED_SHARE, _MAX_MARK_SHARE, _MIN_SHARE = 0.1, 0.01, 0.01
_SAMPLE_TEXTS, _SAMPLE_CHARACTERS = 1000, 2000
# A sentence ends at a terminator, possibly followed by closing quotes or brackets, before white space; CJK stops need
# no space after them.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])\s*|\n\s*\n")
_WORD = re.compile(r"\S+")
# In a text without spaces every letter counts as a word.
_LETTER = re.compile(rf"[{UNSPACED_SET}]|[^\s{UNSPACED_SET}]+")
_MIN_UNSPACED_SHARE = 0.25
# What counts as a document of a text file, in the terms of `datasets`; "document" is the complete file.
SAMPLE_BY = ("line", "paragraph", "document")


def script_of(texts: Iterable[str]) -> str | None:
    """Return the kind of script of some texts, which decides how they are split into words.

    Returns:
        "unspaced" if there are no spaces between words (Chinese, Japanese, Thai); "marks" if combining marks are parts of
        words (Hindi and similar scripts; Arabic and Hebrew with vowel points; accents that are not composed with their
        letters); None if words are runs of letters.
    """
    sample = _take_sample(texts)
    if unspaced_share(sample) > _MAX_UNSPACED_SHARE:
        return "unspaced"
    return "marks" if _mark_share(sample) > _MAX_MARK_SHARE else None


def alphabet_of(texts: Iterable[str]) -> tuple[bool, bool]:
    """Return whether the marks of the texts' script are more than accents, and whether it has thousands of characters."""
    sample = "".join(_take_sample(texts))
    if sample.isascii():
        return False, False
    counts = Counter(unicodedata.normalize("NFD", sample))
    min_count = _MIN_SHARE * counts.total()
    num_large = sum(count for c, count in counts.items() if any(ord(c) in block for block in _MANY))
    return sum(counts[c] for c in _SIGNS) > min_count, num_large > min_count


def _take_sample(texts: Iterable[str]) -> list[str]:
    return [text[:_SAMPLE_CHARACTERS] for text in islice(texts, _SAMPLE_TEXTS)]


def unspaced_share(texts: Iterable[str]) -> float:
    """Return the share of characters, without spaces, that are in runs of at least `MIN_CLAUSE` `UNSPACED` letters.

    The share is small even in such a script if a text has been segmented, with spaces between its words.
    """
    num_unspaced = num_characters = 0
    for text in texts:
        num_characters += len(text) - text.count(" ")
        num_unspaced += 0 if text.isascii() else sum(map(len, _CLAUSES.findall(text)))
    return num_unspaced / max(1, num_characters)


def with_bigrams(text: str) -> str:
    """Replace every run of `UNSPACED` letters in a text by its letter bigrams, as words; a single letter is a word.

    Marks (tones and some vowels of Thai, Lao, Khmer) are removed from such runs.
    """
    return text if text.isascii() else _RUNS.sub(_bigrams, text)


def _bigrams(match: re.Match) -> str:
    letters = "".join(filter(str.isalnum, match.group()))
    return f" {' '.join(letters[i : i + 2] for i in range(max(1, len(letters) - 1)))} "


def without_points(text: str) -> str:
    """Return a text without the vowel points of Hebrew and Arabic, which most texts in these languages omit."""
    return text if text.isascii() else _POINTS.sub("", text)


@functools.cache
def combining_marks() -> str:
    """Return Unicode's combining marks of the first four planes, in order; other planes have no marks of a script."""
    return "".join(c for c in map(chr, range(0x40000)) if unicodedata.category(c)[0] == "M")


def _mark_share(texts: Iterable[str]) -> float:
    """Return the share of marks among letters and marks; a mark counts if it follows a letter or another such mark."""
    num_letters = num_marks = 0
    for text in texts:
        if text.isascii():
            num_letters += sum(map(str.isalpha, text))
            continue
        in_word = False
        for character in text:
            if character.isalpha():
                num_letters, in_word = num_letters + 1, True
            elif in_word := in_word and unicodedata.category(character)[0] == "M":
                num_marks += 1
    return num_marks / max(1, num_letters + num_marks)


def split_passages(text: str, max_words: int) -> list[str]:
    """Cut a text into passages of at most `max_words` words, at sentence ends where possible.

    Words are separated by white space; in a text that is mostly written without spaces (Chinese, Japanese, Thai, ...) every
    letter is a word.

    Sentences are added greedily; a sentence that is longer than a passage is cut between words. A passage is a slice of the
    text: nothing is changed, and only the white space at the cuts is lost.

    Raises:
        HfTlmError: `max_words` is not a positive integer, or `text` is not a string.
    """
    if not isinstance(text, str):
        raise HfTlmError(f"text: expected a text; received {kind_of(text)}.")
    check_number(HfTlmError, "max_words", max_words, Range(1, math.inf, whole=True))
    passages: list[str] = []
    start = end = words = 0
    for first, last, count in _split_sentences(text, max_words, _word_pattern(text)):
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
    """Count the words of a text as `split_passages` does."""
    pattern = _word_pattern(text)
    return sum(_count_matches(text, start, end, pattern) for start, end in sentences(text))


def end_of_words(text: str, words: int) -> int:
    """Return the offset at which the first `words` words of a text end, see `split_passages`; its length if it has fewer."""
    for count, word in enumerate(_word_pattern(text).finditer(text), 1):
        if count == words:
            return word.end()
    return len(text)


def share_beyond(texts: Iterable[str], max_words: int) -> float:
    """Return the share of all words of some texts that come after the first `max_words` of their text."""
    counts = [count_words(text) for text in texts]
    return sum(max(0, count - max_words) for count in counts) / max(1, sum(counts))


def batch_by_size(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Yield texts in lists of about `characters` characters each, which bounds the memory if texts are long."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text) + 1
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _word_pattern(text: str) -> re.Pattern:
    """Return the pattern that matches the words of a text."""
    return _LETTER if not text.isascii() and unspaced_share([text]) > _MIN_UNSPACED_SHARE else _WORD


def _count_matches(text: str, start: int, end: int, pattern: re.Pattern) -> int:
    return len(text[start:end].split()) if pattern is _WORD else len(pattern.findall(text, start, end))


def _split_sentences(text: str, max_words: int, pattern: re.Pattern) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, number of words) of sentences, or of their parts of at most `max_words` words."""
    for start, end in sentences(text):
        count = _count_matches(text, start, end, pattern)
        if count <= max_words:
            yield start, end, count
            continue
        words = list(pattern.finditer(text, start, end))
        for i in range(0, count, max_words):
            chunk = words[i : i + max_words]
            yield chunk[0].start(), chunk[-1].end(), len(chunk)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of sentences, without surrounding white space; closing quotes and brackets belong to a sentence."""
    start = 0
    for end in [match.start() + len(match.group().rstrip()) for match in _SENTENCE_END.finditer(text)] + [len(text)]:
        sentence = text[start:end]
        if stripped := sentence.strip():
            first = start + len(sentence) - len(sentence.lstrip())
            yield first, first + len(stripped)
        start = end
