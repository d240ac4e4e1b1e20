"""Scripts in which words are not runs of letters: those without spaces, and those whose marks are parts of words."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import islice

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
