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
FREQUENT_SHARE, RARE_SHARE = 0.5, 0.01
_MARK = re.compile(r"([^\w\s])\1+|</?\w+>|\[/?\w+\]|[@$#]\w+[@$#]")
# Unlike the one in `corpora.passages`, this does not split at abbreviations, so that no half sentences are used.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z\s])|(?<=[。！？])")
# Scripts without spaces between words, and Korean, where particles are attached to words, are tokenized by character.
_UNSPACED = UNSPACED_SET + "\uac00-\ud7af"
_TOKEN = re.compile(rf"[^\W{_UNSPACED}]+|\w|[^\w\s]")
# Maximum number of texts built from a sentence, and of ways to mark it that are considered.
MAX_PER_SENTENCE, MAX_WAYS = 2, 1000
# A phrase is searched in passages if it is marked in at least this share of the task's sentences that contain it. Others,
# such as pronouns, are part of a relation only by chance.
MIN_MARKED_SHARE = 0.5
# Share of the task's shortest, and of its longest texts, which are ignored for the range of lengths of sentences.
OUTLIERS = 0.02

Phrase = tuple[str, ...]


def marks_without_passages(texts: Sequence[str], passages: Sequence[str]) -> list[str]:
    """List the marks that more than half of the task's texts have, but less than one percent of passages.

    If the label depends on such a mark, as with marked entities, the teacher cannot label a passage.
    """
    counts = Counter(mark for text in texts for mark in _find_marks(text))
    frequent = {mark for mark, count in counts.items() if count > FREQUENT_SHARE * len(texts)}
    passage_counts = Counter(mark for text in passages for mark in _find_marks(text) & frequent) if frequent else Counter()
    return sorted(mark for mark in frequent if passage_counts[mark] < RARE_SHARE * len(passages))


def _find_marks(text: str) -> set[str]:
    """Find marks of entities in a text: <<, [[ and other repeated characters, <e1>, [E1], @GENE$."""
    return {match[0] for match in _MARK.finditer(text)}


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
        self.mark_pattern = re.compile(
            "|".join(map(re.escape, sorted({mark for pair in pairs for mark in pair}, key=len)[::-1]))
        )
        # Sentence without marks -> (phrase, kind) of all phrases that any text with this sentence marks.
        sentences: dict[Phrase, set[tuple[Phrase, int]]] = defaultdict(set)
        space_counts = [Counter[bool]() for _ in pairs]
        for text in texts:
            marked = sentences[self._tokenize_unmarked(text)]
            for kind, words in self._find_marked_texts(text):
                space_counts[kind][words[:1] == " "] += 1
                if phrase := self._tokenize_unmarked(words):
                    marked.add((phrase, kind))
        if missing := [pair for pair, counts in zip(pairs, space_counts, strict=True) if not counts]:
            raise ArgumentsError(
                f"teacher_marks: no training text has a phrase between {missing[0][0]} and {missing[0][1]}. Give the marks "
                "that the task's texts have."
            )
        self.spaces = [" " if counts[True] >= counts[False] else "" for counts in space_counts]
        self.kinds = _select_phrases(sentences)
        # First token -> length in tokens of the longest phrase that begins with it.
        self.max_phrase_lengths: dict[str, int] = {}
        for phrase in self.kinds:
            self.max_phrase_lengths[phrase[0]] = max(self.max_phrase_lengths.get(phrase[0], 0), len(phrase))
        lengths = [len(self.mark_pattern.sub("", text)) for text in texts]
        self.min_length, self.max_length = np.quantile(lengths, [OUTLIERS, 1 - OUTLIERS])

    def texts_of(self, passages: Iterable[str]) -> list[str]:
        """Return the sentences of passages that contain a phrase of every kind, with marks added; without duplicates.

        Each sentence is marked in at most `MAX_PER_SENTENCE` ways, which depend only on the sentence. Sentences that are
        shorter or longer than texts of the task are skipped.
        """
        texts: dict[str, None] = {}
        for passage in passages:
            for sentence in _SENTENCE_END.split(passage):
                if self.min_length <= len(sentence) <= self.max_length:
                    texts |= dict.fromkeys(self._mark_sentence(sentence))
        return list(texts)

    def _tokenize_unmarked(self, text: str) -> Phrase:
        return tuple(token.lower() for token in _TOKEN.findall(self.mark_pattern.sub(" ", text)))

    def _find_marked_texts(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield (kind, text between its marks) for all marked phrases, including nested ones."""
        starts: dict[int, int] = {}
        for match in self.mark_pattern.finditer(text):
            kind, pair = next((kind, pair) for kind, pair in enumerate(self.pairs) if match[0] in pair)
            if kind in starts and match[0] == pair[1]:
                yield kind, text[starts.pop(kind) : match.start()]
            elif match[0] == pair[0]:
                starts.setdefault(kind, match.end())

    def _mark_sentence(self, sentence: str) -> Iterator[str]:
        spans = list(self._find_phrases(sentence))
        spans_of_kind = [[span for span in spans if kind in self.kinds[span[0]]] for kind in range(len(self.pairs))]
        ways = [way for way in islice(product(*spans_of_kind), MAX_WAYS) if len({phrase for phrase, *_ in way}) == len(way)]
        if not ways:
            return
        generator = random.Random(xxhash.xxh3_64_intdigest(sentence.encode("utf-8", "surrogatepass")))
        for way in generator.sample(ways, min(MAX_PER_SENTENCE, len(ways))):
            text = sentence
            for (_, start, end), (before, behind), space in sorted(
                zip(way, self.pairs, self.spaces, strict=True), key=lambda entry: -entry[0][1]
            ):
                text = f"{text[:start]}{before}{space}{text[start:end]}{space}{behind}{text[end:]}"
            yield text

    def _find_phrases(self, sentence: str) -> Iterator[tuple[Phrase, int, int]]:
        """Yield (phrase, start, end) from left to right; of overlapping phrases the first, and of those the longest."""
        tokens = [(match[0].lower(), match.start(), match.end()) for match in _TOKEN.finditer(sentence)]
        position = 0
        while position < len(tokens):
            for size in range(min(self.max_phrase_lengths.get(tokens[position][0], 0), len(tokens) - position), 0, -1):
                phrase = tuple(token for token, *_ in tokens[position : position + size])
                if phrase in self.kinds:
                    yield phrase, tokens[position][1], tokens[position + size - 1][2]
                    position += size
                    break
            else:
                position += 1


def _select_phrases(sentences: dict[Phrase, set[tuple[Phrase, int]]]) -> dict[Phrase, set[int]]:
    """Return phrase -> kinds that it is marked as, for phrases that are marked in most sentences that contain them."""
    kinds: dict[Phrase, set[int]] = defaultdict(set)
    marked, occurrences = Counter[Phrase](), Counter[Phrase]()
    for phrases in sentences.values():
        for phrase, kind in phrases:
            kinds[phrase].add(kind)
        marked.update({phrase for phrase, _ in phrases})
    sizes = sorted({len(phrase) for phrase in kinds})
    for tokens in sentences:
        ngrams = {tokens[start : start + size] for size in sizes for start in range(len(tokens) - size + 1)}
        occurrences.update(ngrams & kinds.keys())
    return {
        phrase: phrase_kinds
        for phrase, phrase_kinds in kinds.items()
        if marked[phrase] >= MIN_MARKED_SHARE * occurrences[phrase]
    }
