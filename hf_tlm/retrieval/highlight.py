"""A query and a passage side by side with the words that both have marked (TLM, Table 8)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hf_tlm.retrieval.texts import Analyzer, load_bm25s, word_pattern
from hf_tlm.utils.shown import escape, one_line
from hf_tlm.utils.texts import UNSPACED_SET

WINDOWS, WINDOW_WORDS, CONTEXT_WORDS = 2, 30, 4  # of a text that is shown
LONGEST_PIECE = 60  # characters of a word, or of what is between two

# Where no spaces are, letters by themselves.
_LETTER = re.compile(rf"[^\W{UNSPACED_SET}]+|\w")

# What is shown of a text, on one line and as it is, in pieces: (piece, whether its words are marked).
Spans = list[tuple[str, bool]]


class MarkedTerms:
    """Called, the terms of a text that are worth a mark. More stop words are left out here than in a search.

    stemmer, script: see `Analyzer`.
    """

    def __init__(self, stemmer: str | None = None, script: str | None = None):
        self.script = script
        self._analyzer, self._plain = Analyzer(stemmer=stemmer, script=script), Analyzer(script=script)

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> MarkedTerms:
        """Those of the retrieval that a manifest tells of."""
        made = {**manifest, **(manifest.get("analyzer") or {})}
        return cls(made.get("stemmer"), made.get("script"))

    @cached_property
    def _stopwords(self) -> frozenset[str]:
        return frozenset(load_bm25s().stopwords.STOPWORDS_EN_PLUS)

    def __call__(self, text: str) -> set[str]:
        return {term for word in set(self._plain(text)) - self._stopwords for term in self._analyzer(word)}

    def words(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, text whose terms it has) of each word; a letter of a script without spaces has its neighbours'."""
        pattern = _LETTER if self.script == "unspaced" else word_pattern(marks=True, least=1)
        found = []
        for word in pattern.finditer(text):
            first, last = word.span()
            apart = self.script == "unspaced" and last == first + 1
            found.append((first, last, text[max(0, first - 1) : last + 1] if apart else word.group()))
        return found


def mark_shared(query: str, passages: Sequence[str], terms_of: MarkedTerms) -> tuple[Spans, list[Spans]]:
    """What is shown of a query and of passages, marked: in each passage the query's words, in the query those of any."""
    of_query, of_passages = terms_of(query), [terms_of(passage) for passage in passages]
    shared = of_query.intersection(set().union(*of_passages))
    return marked_spans(query, shared, terms_of), [
        marked_spans(passage, of_query & found, terms_of) for passage, found in zip(passages, of_passages, strict=True)
    ]


def marked_spans(text: str, terms: set[str], terms_of: MarkedTerms) -> Spans:
    """The parts of a text with the most different ones of the terms, these marked; "…" stands for what is left out.

    Args:
        terms_of: gives words, and their terms.
    """
    text = one_line(text, len(text))
    words = terms_of.words(text)
    if not words:
        return [(one_line(text, LONGEST_PIECE), False)]
    of_word = [terms & terms_of(around) if terms else terms for _, _, around in words]
    last = max(0, len(words) - WINDOW_WORDS)
    shown, missing = np.zeros(len(words), bool), set(terms)
    for window in range(WINDOWS):
        starts = [min(max(0, place - CONTEXT_WORDS), last) for place, found in enumerate(of_word) if found & missing]
        if not starts and window:
            break
        within = {
            start: missing.intersection(set().union(*of_word[start : start + WINDOW_WORDS])) for start in starts or [0]
        }
        best = max(within, key=lambda start: len(within[start]))
        shown[best : best + WINDOW_WORDS] = True
        missing -= within[best]

    pieces: Spans = [("" if shown[0] else "… ", False)]
    for place, (first, last, _) in enumerate(words):
        if shown[place]:
            before = text[words[place - 1][1] if place else 0 : first]
            pieces += [
                (_cut(before if not place or shown[place - 1] else ""), False),
                (_cut(text[first:last]), bool(of_word[place])),
            ]
        elif place and shown[place - 1]:
            pieces.append((" … ", False))
    pieces.append((_cut(text[words[-1][1] :]) if shown[-1] else "", False))
    return _joined(pieces)


def spans_to_markdown(spans: Spans) -> str:
    """Marked pieces in bold, everything else as it is."""
    text = "".join(f"**{escape(piece)}**" if marked else escape(piece) for piece, marked in spans)
    return text.strip() or "(empty)"


def _joined(pieces: Sequence[tuple[str, bool]]) -> Spans:
    """Neighbours of a kind as one; marked words that a space is between are one too."""
    spans: Spans = []
    for piece, marked in pieces:
        if marked and len(spans) > 1 and spans[-1] == (" ", False):
            spans.pop()
            piece = f"{spans.pop()[0]} {piece}"
        elif spans and piece and spans[-1][1] == marked:
            piece = spans.pop()[0] + piece
        if piece:
            spans.append((piece, marked))
    return spans


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_PIECE else f"{text[:LONGEST_PIECE]}…"
