"""BM25: its settings, the weights of every variant, and the one exact order of results that all engines keep.

The score of a passage is the float64 sum over the query's tokens (a repeated token counts each time), rounded to
float32. Passages are ordered by score, highest first, then by tie key, smallest first. Rounding makes sums equal that
differ only in the order of their terms, so engines agree and ties do not depend on the arithmetic. A passage is a hit
only if it shares a token with the query.

Variants and their names: Kamphuis et al. 2020, "Which BM25 do you mean?"; Lu 2024, "BM25S"; okapi: rank_bm25.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hf_tlm.retrieval.names import VARIANTS
from hf_tlm.retrieval.texts import Analyzer, RetrievalError
from hf_tlm.utils.options import check_numbers, of_python

DEFAULT_DELTA = {"bm25l": 0.5, "bm25+": 1.0}
OKAPI_EPSILON = 0.25  # of the mean idf, in place of a negative idf

# Documents int32 [n] and scores float32 [n] of one query, best first; n <= K.
Hits = tuple[np.ndarray, np.ndarray]
NO_HITS: Hits = (np.empty(0, np.int32), np.empty(0, np.float32))


@dataclass(frozen=True)
class Bm25Settings:
    """What a BM25 score depends on besides the texts.

    Args:
        variant: see VARIANTS for what each engine offers. "lucene" is Lucene's and so Elasticsearch's.
        k1: saturation of the term frequency, above 0.
        b: strength of the length normalisation, 0 to 1.
        delta: lower bound of bm25l and bm25+ for a term that occurs; None: 0.5 for bm25l, 1.0 for bm25+.
        stopwords, stemmer, script: see `Analyzer`; the same for queries and passages. `retrieve` finds the script.

    Raises:
        RetrievalError: a value out of range, an unknown variant, or a delta for a variant that has none.
    """

    variant: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    delta: float | None = None
    stopwords: str | None = "en"
    stemmer: str | None = None
    script: str | None = None

    def __post_init__(self):
        if not any(self.variant in variants for variants in VARIANTS.values()):
            raise RetrievalError(f"There is no BM25 variant {self.variant!r}. {_offers()}")
        check_numbers(RetrievalError, k1=self.k1, b=self.b, delta=self.delta)
        for name in ("k1", "b", "delta"):
            object.__setattr__(self, name, of_python(getattr(self, name)))
        if self.delta is not None and self.variant not in DEFAULT_DELTA:
            raise RetrievalError(
                f"delta belongs to the variants {', '.join(DEFAULT_DELTA)}; {self.variant!r} has none, but got "
                f"{self.delta!r}. Leave it out."
            )
        _ = self.analyzer

    @property
    def used_delta(self) -> float | None:
        """`delta`, or the variant's default; None for a variant without one."""
        return DEFAULT_DELTA.get(self.variant) if self.delta is None else self.delta

    @property
    def analyzer(self) -> Analyzer:
        return Analyzer(self.stopwords, self.stemmer, self.script)

    def to_dict(self) -> dict[str, Any]:
        """The settings, as work in progress keeps them: those of before there were scripts are as they were."""
        return {name: value for name, value in asdict(self).items() if name != "script" or value is not None}


@dataclass(frozen=True)
class Statistics:
    """What a score depends on besides query and passage: of one index, or summed over several.

    num_passages, num_tokens: of the corpus; document_frequencies: int64, aligned with the queries' vocabulary;
    average_idf: mean of ln(N - df + 0.5) - ln(df + 0.5) over all terms of the corpus, which only okapi needs.
    """

    num_passages: int
    num_tokens: int
    document_frequencies: np.ndarray
    average_idf: float | None = None


def okapi_idf(frequencies: np.ndarray, num_passages: int) -> np.ndarray:
    """float64: may be negative."""
    return np.log(num_passages - frequencies + 0.5) - np.log(frequencies + 0.5)


def average_idf(frequencies: np.ndarray, num_passages: int) -> float:
    """Mean of `okapi_idf` over the terms of a corpus; sorted, it is that of any split of the corpus, to the last bit."""
    return float(okapi_idf(np.sort(frequencies).astype(np.float64), num_passages).mean()) if len(frequencies) else 0.0


def term_weights(settings: Bm25Settings, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
    """(weights, constants), float64 [V]: every variant is the same saturation.

    A token of the query adds `constant + weight * tf / (tf + norm)` to a passage that has it tf times, and `constant` to
    every other passage, with `norm` from `length_norms`. For BM25L, c = tf / B and

        (c + delta) / (k1 + c + delta) = delta / (k1 + delta) + k1 / (k1 + delta) * tf / (tf + (k1 + delta) * B).

    Terms of no passage have weight and constant 0.
    """
    variant, k1, delta = settings.variant, settings.k1, settings.used_delta or 0.0
    n, df = statistics.num_passages, np.maximum(statistics.document_frequencies, 1).astype(np.float64)
    constants = np.zeros(len(df))
    if variant == "lucene":
        weights = np.log(1 + (n - df + 0.5) / (df + 0.5))
    elif variant == "robertson":
        weights = np.log(np.maximum((n - df + 0.5) / (df + 0.5), 1))
    elif variant == "atire":
        weights = np.log(n / df) * (k1 + 1)
    elif variant == "okapi":
        assert statistics.average_idf is not None  # whoever counts for okapi gives it
        idf = okapi_idf(df, n)
        weights = np.where(idf < 0, OKAPI_EPSILON * statistics.average_idf, idf) * (k1 + 1)
    elif variant == "bm25+":
        idf = np.log((n + 1) / df)
        weights, constants = idf * (k1 + 1), idf * delta
    else:
        idf = np.log((n + 1) / (df + 0.5)) * (k1 + 1)
        weights, constants = idf * k1 / (k1 + delta), idf * delta / (k1 + delta)
    known = statistics.document_frequencies > 0
    return weights * known, constants * known


def length_norms(settings: Bm25Settings, lengths: np.ndarray, statistics: Statistics) -> np.ndarray:
    """float64: k1 * B of passages of some lengths in tokens, B = 1 - b + b * length / mean; for BM25L (k1 + delta) * B."""
    k1 = settings.k1
    if settings.variant == "bm25l":
        k1 += settings.used_delta or 0.0
    mean = max(statistics.num_tokens, 1) / statistics.num_passages
    return k1 * (1 - settings.b + settings.b * lengths / mean)


def check_engine(engine: str, settings: Bm25Settings) -> None:
    """Raise RetrievalError unless there is such an engine and it has the variant."""
    if engine not in VARIANTS:
        raise RetrievalError(f"There is no BM25 engine {engine!r}; expected one of {', '.join(VARIANTS)}.")
    if settings.variant not in VARIANTS[engine]:
        raise RetrievalError(f"{engine} has no BM25 variant {settings.variant!r}. {_offers()}")


def _offers() -> str:
    return "Variants: " + "; ".join(f"{name}: {', '.join(variants)}" for name, variants in VARIANTS.items()) + "."
