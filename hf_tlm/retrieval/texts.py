"""From text to terms, the same way for passages and for queries, and from a labelled task to its queries.

There is one query per training example, made from its text alone (TLM, section 3.2).
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
_IMPORTING = threading.Lock()


class RetrievalError(HfTlmError):
    """Queries, settings, an index or a subset that cannot be used."""


@dataclass(frozen=True)
class Analyzer:
    """Lower case, runs of two or more Unicode word characters, stop words dropped, the rest stemmed if asked for.

    Calling it is the definition; `tokenize` computes the same on all cores.

    Args:
        stopwords: "en" drops Lucene's 33 English stop words, None keeps every word.
        stemmer: a Snowball algorithm by PyStemmer's name ("english", "german", ...), or None.
        script: "unspaced": of Chinese, Japanese, Thai and their like each two neighbouring letters are a word. "marks":
            combining marks are word characters, but for the vowel points of Arabic and Hebrew, which are left out. None:
            neither; see `hf_tlm.utils.texts.script_of`.

    Raises:
        RetrievalError: another value, or PyStemmer is not installed.
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
            _stemmer(self.stemmer)

    def __call__(self, text: str) -> list[str]:
        text = text.lower()
        if self.script is not None:
            text = with_bigrams(text) if self.script == "unspaced" else without_points(text)
        terms = self.terms(word_pattern(marks=self.script == "marks", least=2).findall(text))
        return [term for term in terms if term is not None]

    def terms(self, words: Sequence[str]) -> list[str | None]:
        """The term of each lower-case word; None for a stop word."""
        stopwords = self.stopword_set
        stemmed = list(words) if self.stemmer is None else _stemmer(self.stemmer).stemWords(list(words))
        return [None if word in stopwords else term for word, term in zip(words, stemmed, strict=True)]

    def to_dict(self) -> dict[str, str | None]:
        """The settings, as an index keeps them: those of before there were scripts are as they were."""
        script = {} if self.script is None else {"script": self.script}
        return {"stopwords": self.stopwords, "stemmer": self.stemmer, **script}

    @property
    def stopword_set(self) -> frozenset[str]:
        return frozenset(load_bm25s().stopwords.STOPWORDS_EN) if self.stopwords == "en" else frozenset()


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


@functools.cache
def load_bm25s() -> ModuleType:
    """Import bm25s without JAX, which it would try out where it is installed.

    JAX then takes three quarters of a GPU's memory, and keeps them while the model trains. Nothing here needs it.
    """
    with _IMPORTING:  # Of two threads the second would take the first one's None for what was there.
        jax = sys.modules.pop("jax", None)
        sys.modules["jax"] = None  # type: ignore[assignment]  # How Python is told that there is no such package.
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
    """Of runs of at least so many word characters, combining marks among them if so asked."""
    return re.compile(rf"[\w{combining_marks() if marks else ''}]{{{least},}}")


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


@functools.cache
def _stemmer(language: str):
    try:
        import Stemmer
    except ImportError as error:
        raise RetrievalError("Stemming needs PyStemmer: pip install 'hf-tlm[stem]', or leave the stemmer out.") from error
    if language not in Stemmer.algorithms():
        raise RetrievalError(f"There is no Snowball stemmer {language!r}; there are {', '.join(Stemmer.algorithms())}.")
    return Stemmer.Stemmer(language)
