"""Texts in any script, with spaces between words or without: their words, sentences, and passages of so many words."""

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

# Written without spaces: Thai, Lao, Myanmar, Khmer; Hiragana, Katakana, Bopomofo; Han.
UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x312F), (0x31A0, 0x31FF), (0x3400, 0x4DBF),
            (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
# The same as the inside of a regular expression's set.
UNSPACED_SET = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
CLAUSE = 6
_CLAUSES = re.compile(f"[{UNSPACED_SET}]{{{CLAUSE},}}")
_RUNS = re.compile(f"[{UNSPACED_SET}]+")
# The vowel points of Hebrew and Arabic.
_POINT_BLOCKS = (range(0x591, 0x5C8), range(0x610, 0x61B), range(0x64B, 0x660), range(0x670, 0x671), range(0x6D6, 0x6EE))
POINTS = frozenset(chr(c) for block in _POINT_BLOCKS for c in block if unicodedata.category(chr(c)) == "Mn")
_POINTS = re.compile(f"[{''.join(sorted(POINTS))}]+")
# Marks that are vowels, tones or consonants, and Unicode's accents too: from Devanagari to Myanmar, Khmer, Japanese.
_SIGN_BLOCKS = (range(0x900, 0x10A0), range(0x1780, 0x1800), range(0x3099, 0x309B))
_SIGNS = {chr(code) for block in _SIGN_BLOCKS for code in block if unicodedata.category(chr(code)) == "Mn"}
# What has thousands of characters: Han, and Korean syllables, here in their parts.
_MANY = (range(0x1100, 0x1200), range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x40000))
# What `script_of` finds.
SCRIPTS = ("unspaced", "marks")
# Of the first texts, of so many characters each, more than these shares.
_MOST_UNSPACED, _MOST_MARKS, _LEAST = 0.1, 0.01, 0.01
_SAMPLE, _CHARACTERS = 1000, 2000
# A sentence ends at a terminator, possibly followed by closing quotes or brackets, before white space; CJK stops need
# no space after them.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])\s*|\n\s*\n")
_WORD = re.compile(r"\S+")
# Of a text that is written without spaces, a letter at a time.
_LETTER = re.compile(rf"[{UNSPACED_SET}]|[^\s{UNSPACED_SET}]+")
_UNSPACED = 0.25
# What of a text file is a document, in the words of `datasets`; "document" is all of it.
SAMPLE_BY = ("line", "paragraph", "document")


def script_of(texts: Iterable[str]) -> str | None:
    """What is to be known of the script of some texts before their words are told apart.

    Returns:
        "unspaced" where no spaces are between words (Chinese, Japanese, Thai); "marks" where combining marks are parts of
        words (Hindi and its like; Arabic and Hebrew with vowel points; accents that are not one with their letters); None
        where words are runs of letters.
    """
    sample = _sample(texts)
    if unspaced_share(sample) > _MOST_UNSPACED:
        return "unspaced"
    return "marks" if _share_of_marks(sample) > _MOST_MARKS else None


def alphabet_of(texts: Iterable[str]) -> tuple[bool, bool]:
    """Whether the marks of the texts' script are more than accents, and whether it has thousands of characters."""
    sample = "".join(_sample(texts))
    if sample.isascii():
        return False, False
    counts = Counter(unicodedata.normalize("NFD", sample))
    least = _LEAST * counts.total()
    many = sum(count for c, count in counts.items() if any(ord(c) in block for block in _MANY))
    return sum(counts[c] for c in _SIGNS) > least, many > least


def _sample(texts: Iterable[str]) -> list[str]:
    return [text[:_CHARACTERS] for text in islice(texts, _SAMPLE)]


def unspaced_share(texts: Iterable[str]) -> float:
    """Of what some texts have beside spaces the share of characters in runs of `CLAUSE` or more of `UNSPACED`.

    Little of a text is, even in such a script, where somebody has put spaces between its words.
    """
    found = characters = 0
    for text in texts:
        characters += len(text) - text.count(" ")
        found += 0 if text.isascii() else sum(map(len, _CLAUSES.findall(text)))
    return found / max(1, characters)


def with_bigrams(text: str) -> str:
    """A text in which of every run of `UNSPACED` each two neighbouring letters are a word, and a single one is itself.

    Marks (tones and some vowels of Thai, Lao, Khmer) are left out of such runs.
    """
    return text if text.isascii() else _RUNS.sub(_bigrams, text)


def _bigrams(run: re.Match) -> str:
    letters = "".join(filter(str.isalnum, run.group()))
    return f" {' '.join(letters[i : i + 2] for i in range(max(1, len(letters) - 1)))} "


def without_points(text: str) -> str:
    """A text without the vowel points of Hebrew and Arabic, which most texts in them leave out."""
    return text if text.isascii() else _POINTS.sub("", text)


@functools.cache
def combining_marks() -> str:
    """Unicode's combining marks of the first four planes, in order; the others are for no script."""
    return "".join(c for c in map(chr, range(0x40000)) if unicodedata.category(c)[0] == "M")


def _share_of_marks(texts: Iterable[str]) -> float:
    """Of letters, and of marks that follow upon a letter or another such mark, the share of the marks."""
    letters = marks = 0
    for text in texts:
        if text.isascii():
            letters += sum(map(str.isalpha, text))
            continue
        within = False
        for character in text:
            if character.isalpha():
                letters, within = letters + 1, True
            elif within := within and unicodedata.category(character)[0] == "M":
                marks += 1
    return marks / max(1, letters + marks)


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
