"""From text to terms, the same way for passages and for queries."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from hf_tlm.errors import HfTlmError

_WORD = re.compile(r"\w\w+")
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

    Raises:
        RetrievalError: another value, or PyStemmer is not installed.
    """

    stopwords: str | None = "en"
    stemmer: str | None = None

    def __post_init__(self):
        if self.stopwords not in ("en", None):
            raise RetrievalError(f'stopwords must be "en" or None (keep every word); received {self.stopwords!r}.')
        if self.stemmer is not None:
            _stemmer(self.stemmer)

    def __call__(self, text: str) -> list[str]:
        terms = self.terms(_WORD.findall(text.lower()))
        return [term for term in terms if term is not None]

    def terms(self, words: Sequence[str]) -> list[str | None]:
        """The term of each lower-case word; None for a stop word."""
        stopwords = self.stopword_set
        stemmed = list(words) if self.stemmer is None else _stemmer(self.stemmer).stemWords(list(words))
        return [None if word in stopwords else term for word, term in zip(words, stemmed, strict=True)]

    @property
    def stopword_set(self) -> frozenset[str]:
        return frozenset(load_bm25s().stopwords.STOPWORDS_EN) if self.stopwords == "en" else frozenset()


@functools.cache
def _stemmer(language: str):
    try:
        import Stemmer
    except ImportError as error:
        raise RetrievalError("Stemming needs PyStemmer: pip install 'hf-tlm[stem]', or leave the stemmer out.") from error
    if language not in Stemmer.algorithms():
        raise RetrievalError(f"There is no Snowball stemmer {language!r}; there are {', '.join(Stemmer.algorithms())}.")
    return Stemmer.Stemmer(language)


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
