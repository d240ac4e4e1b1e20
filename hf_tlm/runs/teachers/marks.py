"""What marks phrases in a task's texts, as the two entities of a relation, and passages that are marked likewise.

A label that hangs on which phrases are marked cannot be read off a passage. Of its sentences that hold phrases which the
task's texts mark elsewhere, one can be made into a text of the task's kind, and a teacher answers for it.
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

# A mark that so many of the task's texts have, and hardly any passage.
OFTEN, HARDLY = 0.5, 0.01
_MARK = re.compile(r"([^\w\s])\1+|</?\w+>|\[/?\w+\]|[@$#]\w+[@$#]")
# Not that of `corpora.passages`, which cuts at abbreviations too: half a sentence would be asked about as a whole one.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z\s])|(?<=[。！？])")
# What is written without spaces between words, or as Korean with particles at their end, is looked for by characters.
_UNSPACED = UNSPACED_SET + "\uac00-\ud7af"
_TOKEN = re.compile(rf"[^\W{_UNSPACED}]+|\w|[^\w\s]")
# So many texts are made of a sentence at most, of so many ways to mark it.
PER_SENTENCE, WAYS = 2, 1000
# A phrase is looked for in passages if it is marked in so many of the task's sentences that hold it. Others, as pronouns,
# are phrases of a relation by chance.
LEAST_MARKED = 0.5
# Sentences are as long as all but so many of the task's shortest and longest texts.
OUTLIERS = 0.02

Phrase = tuple[str, ...]


def marks_without_passages(texts: Sequence[str], passages: Sequence[str]) -> list[str]:
    """List the marks that the task's texts often have and passages hardly ever.

    More than half of the texts have it, and less than one of a hundred passages: where a label depends on it, as on marked
    entities, the teacher cannot know that of a passage.
    """
    counts = Counter(mark for text in texts for mark in _marks(text))
    often = {mark for mark, count in counts.items() if count > OFTEN * len(texts)}
    there = Counter(mark for text in passages for mark in _marks(text) & often) if often else Counter()
    return sorted(mark for mark in often if there[mark] < HARDLY * len(passages))


def _marks(text: str) -> set[str]:
    """What marks entities: <<, [[ and other such runs, <e1>, [E1], @GENE$."""
    return {found[0] for found in _MARK.finditer(text)}


def read_marks(words: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of marks: where a phrase begins, and where it ends, which may be the same; else an ArgumentsError."""
    pairs = list(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or len(set(words)) < sum(len(set(pair)) for pair in pairs) or not all(word.strip() for word in words):
        raise ArgumentsError(
            "teacher_marks: expected what marks a phrase two by two, where it begins and where it ends, other marks for "
            f"each kind, such as '<<' '>>' '[[' ']]'; received {' '.join(map(repr, words)):.100}."
        )
    return pairs


class MarkedPhrases:
    """The phrases that a task's texts mark, and texts of the same kind made of other sentences.

    Args:
        texts: the task's training texts.
        pairs: of each kind of phrase the marks before and behind it.

    Raises:
        ArgumentsError: no text has a phrase of one of the kinds.
    """

    def __init__(self, texts: Sequence[str], pairs: Sequence[tuple[str, str]]):
        self.pairs = list(pairs)
        # The longest first: << is not < twice.
        self.mark = re.compile("|".join(map(re.escape, sorted({mark for pair in pairs for mark in pair}, key=len)[::-1])))
        # Of each sentence without its marks: the phrases that are marked in it, by kind, whichever text of it marks them.
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
        self.longest: dict[str, int] = {}  # Of the phrases that begin with a token.
        for phrase in self.kinds:
            self.longest[phrase[0]] = max(self.longest.get(phrase[0], 0), len(phrase))
        lengths = [len(self.mark.sub("", text)) for text in texts]
        self.shortest, self.most = np.quantile(lengths, [OUTLIERS, 1 - OUTLIERS])

    def texts_of(self, passages: Iterable[str]) -> list[str]:
        """Their sentences that hold a phrase of every kind, marked in at most `PER_SENTENCE` ways each; none twice.

        Sentences are as long as texts of the task. Which ways are taken depends on the sentence alone.
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
        """(kind, what stands between its marks), of phrases within others too."""
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
        """(phrase, start, end) from left to right, of those that overlap the first, and of those the longest."""
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
    """The phrases that are mostly marked where they are, with the kinds that they are marked as."""
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
