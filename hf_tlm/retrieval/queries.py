"""Queries of a labelled task, one per training example, made from its text alone (TLM, section 3.2); and their terms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf_tlm.retrieval.analyzer import RetrievalError, load_bm25s
from hf_tlm.utils.texts import combining_marks

if TYPE_CHECKING:
    from datasets import Dataset

QUERY_MODES = ("text", "rake")

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_PUNCTUATION = re.compile(r"[^\w\s]")


def example_texts(split: Dataset) -> list[str]:
    """The text of every example; sentence pairs (`text`, `text_pair`) are joined by a space. Labels are not read."""
    texts = split["text"][:]
    if "text_pair" in split.column_names:
        texts = [f"{first} {second}" for first, second in zip(texts, split["text_pair"][:], strict=True)]
    return texts


def build_queries(
    texts: Sequence[str], mode: str = "text", num_phrases: int = 20, *, script: str | None = None
) -> list[str]:
    """One query per text, in the same order.

    Args:
        mode: "text", the whole text; "rake", its `num_phrases` best key phrases (RAKE, Rose et al. 2010), best first,
            joined by spaces. A text without a key phrase gives an empty query.
        script: see `Analyzer`.

    Raises:
        RetrievalError: unknown mode, or fewer than one phrase.
    """
    check_query_mode(mode)
    if num_phrases < 1:
        raise RetrievalError(f"num_phrases must be at least 1; received {num_phrases}.")
    return list(texts) if mode == "text" else _rake(texts, num_phrases, script)


def check_query_mode(mode: str) -> None:
    """Raise RetrievalError unless `mode` is one of QUERY_MODES."""
    if mode not in QUERY_MODES:
        raise RetrievalError(f"query_mode must be one of {', '.join(QUERY_MODES)}; received {mode!r}.")


def _rake(texts: Sequence[str], num_phrases: int, script: str | None) -> list[str]:
    from rake_nltk import Rake

    # Every resource is handed in: left to itself rake-nltk asks NLTK for data that have to be downloaded. A phrase
    # ends at a stop word and at any punctuation, Unicode's too, so all of it becomes one symbol.
    punctuation = re.compile(rf"[^\w\s{combining_marks()}]") if script == "marks" else _PUNCTUATION
    rake = Rake(
        stopwords=set(load_bm25s().stopwords.STOPWORDS_EN_PLUS),
        punctuations={"."},
        sentence_tokenizer=_SENTENCE_END.split,
        word_tokenizer=lambda sentence: punctuation.sub(" . ", sentence).split(),
    )
    queries = []
    for text in texts:
        rake.extract_keywords_from_text(text)
        phrases = [phrase for _, phrase in rake.get_ranked_phrases_with_scores()[:num_phrases]]
        queries.append(" ".join(phrases))
    return queries
