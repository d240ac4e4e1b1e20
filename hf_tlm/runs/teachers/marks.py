"""Marks around phrases in a task's texts, such as the two entities of a relation, and sentences with the same marks.

If the label of a text depends on which phrases are marked, a passage without marks has no label. But sentences of passages
that contain phrases which the task's texts mark can be marked in the same way, and a teacher can answer for these.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product

import numpy as np
import xxhash

from hf_tlm.errors import ArgumentsError
from hf_tlm.utils.texts import UNSPACED_SET

# A mark that is reported occurs in more than the first share of the task's texts, and less than the second of passages.
OFTEN, HARDLY = 0.5, 0.01
_MARK = re.compile(r"([^\w\s])\1+|</?\w+>|\[/?\w+\]|[@$#]\w+[@$#]")
# Unlike the one in `corpora.passages`, this does not split at abbreviations, so that no half sentences are used.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z\s])|(?<=[。！？])")
# Scripts without spaces between words, and Korean, where particles are attached to words, are tokenized by character.
_UNSPACED = UNSPACED_SET + "\uac00-\ud7af"
_TOKEN = re.compile(rf"[^\W{_UNSPACED}]+|\w|[^\w\s]")
# Maximum number of texts built from a sentence, and of ways to mark it that are considered.
PER_SENTENCE, WAYS = 2, 1000
# A phrase is searched in passages if it is marked in at least this share of the task's sentences that contain it. Others,
# such as pronouns, are part of a relation only by chance.
LEAST_MARKED = 0.5
# Share of the task's shortest, and of its longest texts, which are ignored for the range of lengths of sentences.
OUTLIERS = 0.02

Phrase = tuple[str, ...]


def marks_without_passages(texts: Sequence[str], passages: Sequence[str]) -> list[str]:
    """List the marks that more than half of the task's texts have, but less than one percent of passages.

    If the label depends on such a mark, as with marked entities, the teacher cannot label a passage.
    """
    counts = Counter(mark for text in texts for mark in _marks(text))
    often = {mark for mark, count in counts.items() if count > OFTEN * len(texts)}
    there = Counter(mark for text in passages for mark in _marks(text) & often) if often else Counter()
    return sorted(mark for mark in often if there[mark] < HARDLY * len(passages))


def _marks(text: str) -> set[str]:
    """Find marks of entities in a text: <<, [[ and other repeated characters, <e1>, [E1], @GENE$."""
    return {found[0] for found in _MARK.finditer(text)}


def read_marks(words: Sequence[str]) -> list[tuple[str, str]]:
    """Group words into pairs of marks, for the beginning and end of a phrase; the two may be the same.

    Raises:
        ArgumentsError: their number is odd, one is blank, or two pairs share a mark.
    """
    pairs = list(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or len(set(words)) < sum(len(set(pair)) for pair in pairs) or not all(word.strip() for word in words):
        raise ArgumentsError(
            "teacher_marks: expected pairs of a mark before a phrase and a mark after it, with different marks for each "
            f"kind of phrase, such as '<<' '>>' '[[' ']]'; received {' '.join(map(repr, words)):.100}."
        )
    return pairs


class MarkedPhrases:
    """The phrases that a task's texts mark, by which other sentences are marked in the same way.

    Args:
        texts: the task's training texts.
        pairs: for each kind of phrase, the marks before and after it.

    Raises:
        ArgumentsError: no text has a phrase of one of the kinds.
    """

    def __init__(self, texts: Sequence[str], pairs: Sequence[tuple[str, str]]):
        self.pairs = list(pairs)
        # The longest first, so that << is not matched as < twice.
        self.mark = re.compile("|".join(map(re.escape, sorted({mark for pair in pairs for mark in pair}, key=len)[::-1])))
        # Sentence without marks -> (phrase, kind) of all phrases that any text with this sentence marks.
        sentences: dict[Phrase, set[tuple[Phrase, int]]] = defaultdict(set)
        spaced = [Counter[bool]() for _ in pairs]
        for text in texts:
            marked = sentences[self._unmarked(text)]
            for kind, words in self._between_marks(text):
                spaced[kind][words[:1] == " "] += 1
                if phrase := self._unmarked(words):
                    marked.add((phrase, kind))
        if none := [pair for pair, counts in zip(pairs, spaced, strict=True) if not counts]:
            raise ArgumentsError(
                f"teacher_marks: no training text has a phrase between {none[0][0]} and {none[0][1]}. Give the marks that "
                "the task's texts have."
            )
        self.spaces = [" " if counts[True] >= counts[False] else "" for counts in spaced]
        self.kinds = _worth_finding(sentences)
        self.longest: dict[str, int] = {}  # First token -> length in tokens of the longest phrase that begins with it.
        for phrase in self.kinds:
            self.longest[phrase[0]] = max(self.longest.get(phrase[0], 0), len(phrase))
        lengths = [len(self.mark.sub("", text)) for text in texts]
        self.shortest, self.most = np.quantile(lengths, [OUTLIERS, 1 - OUTLIERS])

    def texts_of(self, passages: Iterable[str]) -> list[str]:
        """Return the sentences of passages that contain a phrase of every kind, with marks added; without duplicates.

        Each sentence is marked in at most `PER_SENTENCE` ways, which depend only on the sentence. Sentences that are shorter
        or longer than texts of the task are skipped.
        """
        made: dict[str, None] = {}
        for passage in passages:
            for sentence in _SENTENCE_END.split(passage):
                if self.shortest <= len(sentence) <= self.most:
                    made |= dict.fromkeys(self._marked(sentence))
        return list(made)

    def _unmarked(self, text: str) -> Phrase:
        return tuple(token.lower() for token in _TOKEN.findall(self.mark.sub(" ", text)))

    def _between_marks(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield (kind, text between its marks) for all marked phrases, including nested ones."""
        begun: dict[int, int] = {}
        for found in self.mark.finditer(text):
            kind, pair = next((kind, pair) for kind, pair in enumerate(self.pairs) if found[0] in pair)
            if kind in begun and found[0] == pair[1]:
                yield kind, text[begun.pop(kind) : found.start()]
            elif found[0] == pair[0]:
                begun.setdefault(kind, found.end())

    def _marked(self, sentence: str) -> Iterator[str]:
        there = list(self._phrases(sentence))
        of_kind = [[place for place in there if kind in self.kinds[place[0]]] for kind in range(len(self.pairs))]
        ways = [way for way in islice(product(*of_kind), WAYS) if len({phrase for phrase, *_ in way}) == len(way)]
        if not ways:
            return
        chosen = random.Random(xxhash.xxh3_64_intdigest(sentence.encode("utf-8", "surrogatepass")))
        for way in chosen.sample(ways, min(PER_SENTENCE, len(ways))):
            text = sentence
            for (_, start, end), (before, behind), space in sorted(
                zip(way, self.pairs, self.spaces, strict=True), key=lambda one: -one[0][1]
            ):
                text = f"{text[:start]}{before}{space}{text[start:end]}{space}{behind}{text[end:]}"
            yield text

    def _phrases(self, sentence: str) -> Iterator[tuple[Phrase, int, int]]:
        """Yield (phrase, start, end) from left to right; of overlapping phrases the first, and of those the longest."""
        tokens = [(match[0].lower(), match.start(), match.end()) for match in _TOKEN.finditer(sentence)]
        position = 0
        while position < len(tokens):
            for size in range(min(self.longest.get(tokens[position][0], 0), len(tokens) - position), 0, -1):
                phrase = tuple(token for token, *_ in tokens[position : position + size])
                if phrase in self.kinds:
                    yield phrase, tokens[position][1], tokens[position + size - 1][2]
                    position += size
                    break
            else:
                position += 1


def _worth_finding(sentences: dict[Phrase, set[tuple[Phrase, int]]]) -> dict[Phrase, set[int]]:
    """Return phrase -> kinds that it is marked as, for phrases that are marked in most sentences that contain them."""
    kinds: dict[Phrase, set[int]] = defaultdict(set)
    marked, there = Counter[Phrase](), Counter[Phrase]()
    for phrases in sentences.values():
        for phrase, kind in phrases:
            kinds[phrase].add(kind)
        marked.update({phrase for phrase, _ in phrases})
    sizes = sorted({len(phrase) for phrase in kinds})
    for tokens in sentences:
        parts = {tokens[start : start + size] for size in sizes for start in range(len(tokens) - size + 1)}
        there.update(parts & kinds.keys())
    return {phrase: of for phrase, of in kinds.items() if marked[phrase] >= LEAST_MARKED * there[phrase]}
