"""Text analysis, shared by passages and queries, and the queries of a labelled task.

There is one query per training example, built from its text alone (TLM, section 3.2).
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.texts import SCRIPTS, combining_marks, with_bigrams, without_points

if TYPE_CHECKING:
    from datasets import Dataset

QUERY_MODES = ("text", "rake")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_PUNCTUATION = re.compile(r"[^\w\s]")
_IMPORT_LOCK = threading.Lock()


class RetrievalError(HfTlmError):
    """Raised when queries, settings, an index or a subset cannot be used."""


@dataclass(frozen=True)
class Analyzer:
    """An analyzer that splits a text into terms, as BM25 indexes and searches them.

    It lower-cases the text, takes runs of two or more Unicode word characters as words, drops stop words, and stems the
    rest if a stemmer is given. `__call__` is the reference implementation; `bm25.tokenize` computes the same on all cores.

    Args:
        stopwords: "en" drops Lucene's 33 English stop words, None keeps every word.
        stemmer: a Snowball algorithm by PyStemmer's name ("english", "german", ...), or None.
        script: "unspaced": in scripts such as Chinese, Japanese and Thai every two neighbouring letters (a bigram) are a
            word. "marks": combining marks are word characters, except the vowel points of Arabic and Hebrew, which are
            dropped. None: neither; see `hf_tlm.utils.texts.script_of`.

    Raises:
        RetrievalError: a value is invalid, or PyStemmer is not installed.
    """

    stopwords: str | None = "en"
    stemmer: str | None = None
    script: str | None = None

    def __post_init__(self):
        if self.script not in (*SCRIPTS, None):
            raise RetrievalError(f'script must be "unspaced", "marks" or None; received {self.script!r}.')
        if self.stopwords not in ("en", None):
            raise RetrievalError(f'stopwords must be "en" or None (keep every word); received {self.stopwords!r}.')
        if self.stemmer is not None:
            _load_stemmer(self.stemmer)

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order, repetitions included."""
        text = text.lower()
        if self.script is not None:
            text = with_bigrams(text) if self.script == "unspaced" else without_points(text)
        terms = self.terms(word_pattern(marks=self.script == "marks", least=2).findall(text))
        return [term for term in terms if term is not None]

    def terms(self, words: Sequence[str]) -> list[str | None]:
        """Return the term of each lower-case word; None for a stop word."""
        stopwords = self.stopword_set
        stemmed = list(words) if self.stemmer is None else _load_stemmer(self.stemmer).stemWords(list(words))
        return [None if word in stopwords else term for word, term in zip(words, stemmed, strict=True)]

    def to_dict(self) -> dict[str, str | None]:
        """Return the settings as an index stores them.

        A script of None is left out, so that settings stored before the field existed stay equal.
        """
        script = {} if self.script is None else {"script": self.script}
        return {"stopwords": self.stopwords, "stemmer": self.stemmer, **script}

    @property
    def stopword_set(self) -> frozenset[str]:
        """Return the stop words; empty if every word is kept."""
        return frozenset(load_bm25s().stopwords.STOPWORDS_EN) if self.stopwords == "en" else frozenset()


def example_texts(split: Dataset) -> list[str]:
    """Return the text of every example; sentence pairs (`text`, `text_pair`) are joined by a space. Labels are not read."""
    texts = split["text"][:]
    if "text_pair" in split.column_names:
        texts = [f"{first} {second}" for first, second in zip(texts, split["text_pair"][:], strict=True)]
    return texts


def build_queries(
    texts: Sequence[str], mode: str = "text", num_phrases: int = 20, *, script: str | None = None
) -> list[str]:
    """Build one query per text, in the same order.

    Args:
        mode: "text", the full text; "rake", its `num_phrases` best key phrases (RAKE, Rose et al. 2010), best first,
            joined by spaces. A text without a key phrase gives an empty query.
        script: see `Analyzer`.

    Raises:
        RetrievalError: the mode is unknown, or num_phrases is below 1.
    """
    check_query_mode(mode)
    if num_phrases < 1:
        raise RetrievalError(f"num_phrases must be at least 1; received {num_phrases}.")
    return list(texts) if mode == "text" else _extract_phrases(texts, num_phrases, script)


def check_query_mode(mode: str) -> None:
    """Check that `mode` is one of QUERY_MODES, or raise a RetrievalError."""
    if mode not in QUERY_MODES:
        raise RetrievalError(f"query_mode must be one of {', '.join(QUERY_MODES)}; received {mode!r}.")


@functools.cache
def load_bm25s() -> ModuleType:
    """Import bm25s while hiding JAX, which bm25s would initialise if it is installed.

    JAX would then reserve three quarters of a GPU's memory for as long as the process runs, training included. Nothing
    here needs it.
    """
    with _IMPORT_LOCK:  # Without the lock, a second thread would take the first one's None for the original entry.
        jax = sys.modules.pop("jax", None)
        sys.modules["jax"] = None  # type: ignore[assignment]  # Makes `import jax` raise ImportError.
        try:
            import bm25s
            import bm25s.stopwords
            import bm25s.tokenization
        finally:
            del sys.modules["jax"]
            if jax is not None:
                sys.modules["jax"] = jax
    return bm25s


@functools.cache
def word_pattern(*, marks: bool, least: int) -> re.Pattern:
    """Return the pattern of a run of at least `least` word characters; with `marks`, combining marks are among them."""
    return re.compile(rf"[\w{combining_marks() if marks else ''}]{{{least},}}")


def _extract_phrases(texts: Sequence[str], num_phrases: int, script: str | None) -> list[str]:
    """Return the RAKE key phrases of each text, joined by spaces; see `build_queries`."""
    from rake_nltk import Rake

    # Pass in stop words and tokenizers: by default rake-nltk asks NLTK for data that must be downloaded. A phrase ends
    # at a stop word and at any punctuation, Unicode's included, so all punctuation is mapped to one symbol.
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


@functools.cache
def _load_stemmer(language: str):
    """Return PyStemmer's stemmer for an algorithm, or raise a RetrievalError if it or the package is missing."""
    try:
        import Stemmer
    except ImportError as error:
        raise RetrievalError("Stemming needs PyStemmer: pip install 'hf-tlm[stem]', or remove the stemmer.") from error
    if language not in Stemmer.algorithms():
        raise RetrievalError(f"stemmer: expected one of {', '.join(Stemmer.algorithms())}; received {language!r}.")
    return Stemmer.Stemmer(language)
