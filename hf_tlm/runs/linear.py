"""A linear model on TF-IDF, fitted: what it says of texts, and files without pickles that keep it.

N texts, C classes, F n-grams.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer

from hf_tlm.models import ModelError
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import listed, mapped, one_of, read_fields, real, whole, words
from hf_tlm.utils.run_files import LINEAR_FILE
from hf_tlm.utils.texts import UNSPACED_SET, script_of

# Words, and punctuation marks each by itself: entity marks such as [[ ]] say much on some tasks.
TOKENS = r"(?u)\w+|[^\w\s]"
# Without spaces between words a run of letters is a clause, which hardly comes twice: each character is a word there. So it
# is in the scripts that `script_of` calls unspaced, as in a search; other models stay as they were.
TOKENS_BY_CHARACTER = rf"(?u)[^\W{UNSPACED_SET}]+|\w|[^\w\s]"
WEIGHTS_FILE = "linear.safetensors"
COLUMNS = ("text", "text_pair")
# Logit of a class that was not seen.
UNSEEN = -1e4
_MOST = 1e9  # Of a weight.
LARGEST = 1 << 30  # Bytes of the file of n-grams.
# Bounds of the temperature.
_TEMPERATURES = (1e-2, 1e2)
# A stranger may have written the file.
_FIELDS = {
    "n_grams": whole(1, 3),
    "num_labels": whole(2, 100_000),
    "temperature": real(1e-3, 1e3),
    "terms": mapped(listed(words(LARGEST), LARGEST), len(COLUMNS)),
    "by_character": one_of(True),
}
_DAMAGED = "Make it again with `hf-tlm baseline`, or copy it again."


def by_character(*columns: Sequence[str]) -> bool:
    """Whether texts are written without spaces, so that their characters are words."""
    return any(script_of(texts) == "unspaced" for texts in columns)


def tokens(characters: bool) -> str:
    """The regular expression of a word or a punctuation mark; of scripts without spaces of a character if so asked."""
    return TOKENS_BY_CHARACTER if characters else TOKENS


def tfidf(n: int, terms: Sequence[str] | None = None, characters: bool = False) -> TfidfVectorizer:
    """A vectorizer, to be fitted, of n-grams of up to n words and punctuation marks; float32, frequencies as 1 + log.

    Args:
        terms: the n-grams to count; None: those of the texts that it is fitted to.
        characters: see `tokens`.
    """
    options = {"ngram_range": (1, n), "sublinear_tf": True, "dtype": np.float32, "vocabulary": terms}
    return TfidfVectorizer(token_pattern=tokens(characters), **options)


@dataclass(frozen=True)
class LinearModel:
    """A linear classifier of TF-IDF features.

    terms: column (text, text_pair) -> the n-grams that are counted in it. n_grams: the longest.
    idf: column -> float32, one for each of its terms.
    weights: float32 [C, F], over the columns' terms one after the other; of two classes [1, F], the second's.
    biases: float32 [C] or [1].
    classes: int64 [C], which classes these are of `num_labels`; the others had no training text.
    temperature: margins are divided by it before the softmax, which leaves the likeliest class as it is.
    by_character: see `tokens`.
    """

    terms: Mapping[str, Sequence[str]]
    idf: Mapping[str, np.ndarray]
    weights: np.ndarray
    biases: np.ndarray
    classes: np.ndarray
    num_labels: int
    n_grams: int
    temperature: float
    by_character: bool = False

    @cached_property
    def vectorizers(self) -> dict[str, TfidfVectorizer]:
        """Column -> what makes features of it."""
        made = {}
        for column, terms in self.terms.items():
            made[column] = tfidf(self.n_grams, list(terms), self.by_character)
            made[column].idf_ = self.idf[column]
        return made

    @cached_property
    def _columns(self) -> np.ndarray:
        """The weights, float64 [F, C]."""
        return self.weights.T.astype(np.float64)

    def logits(self, columns: Mapping[str, Sequence[str]]) -> np.ndarray:
        """What it says of texts, as logits, float64 [N, num_labels].

        Args:
            columns: text, and of pairs text_pair, of N rows each.
        """
        features = sparse.hstack([made.transform(columns[name]) for name, made in self.vectorizers.items()], format="csr")
        margins = as_margins(features @ self._columns + self.biases)
        found = np.full((len(margins), self.num_labels), UNSEEN)
        found[:, self.classes] = margins / self.temperature
        return found

    def save(self, folder: Path) -> None:
        """Write `linear.json` and `linear.safetensors`."""
        from safetensors.numpy import save

        tensors = {f"idf.{column}": np.asarray(idf, np.float32) for column, idf in self.idf.items()}
        tensors |= {"weights": self.weights, "biases": self.biases, "classes": self.classes}
        atomic_write(folder / WEIGHTS_FILE, save({name: np.ascontiguousarray(one) for name, one in tensors.items()}))
        about = {"n_grams": self.n_grams, "num_labels": self.num_labels, "temperature": self.temperature}
        about |= {"by_character": True} if self.by_character else {}
        terms = {column: list(terms) for column, terms in self.terms.items()}
        atomic_write(folder / LINEAR_FILE, json.dumps({**about, "terms": terms}, ensure_ascii=False) + "\n")

    @classmethod
    def open(cls, folder: Path) -> LinearModel:
        """The one that a folder keeps.

        Raises:
            ModelError: a file is missing or damaged, or the two do not go together.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            about: dict[str, Any] = read_fields(folder / LINEAR_FILE, _FIELDS, ModelError, ["by_character"], LARGEST)
            tensors = load_file(folder / WEIGHTS_FILE)
        except (OSError, SafetensorError, TypeError, AttributeError, ValueError) as error:  # Of types that numpy lacks.
            raise ModelError(f"The linear model in {folder} cannot be read: {error}. {_DAMAGED}") from error
        terms = about.pop("terms")
        idf = {column: tensors.get(f"idf.{column}", np.zeros(0)) for column in terms}
        parts: dict[str, Any] = {name: tensors.get(name, np.zeros(0)) for name in ("weights", "biases", "classes")}
        found = cls(terms=terms, idf=idf, **parts, **about)
        if not found._fits():
            raise ModelError(f"The linear model in {folder} is damaged: its words and its weights do not fit. {_DAMAGED}")
        return found

    def _fits(self) -> bool:
        """Whether its parts go together and are finite."""
        if list(self.terms) not in (["text"], list(COLUMNS)) or not all(self.terms.values()):
            return False
        if self.classes.ndim != 1 or len(self.classes) < 2:
            return False
        rows = 1 if len(self.classes) == 2 else len(self.classes)
        shapes = {column: (len(terms),) for column, terms in self.terms.items()}
        numbers = (*self.idf.values(), self.weights, self.biases)
        return (
            {column: idf.shape for column, idf in self.idf.items()} == shapes
            and self.weights.shape == (rows, sum(map(len, self.terms.values())))
            and self.biases.shape == (rows,)
            and all(len(set(terms)) == len(terms) for terms in self.terms.values())
            and self.classes.dtype == np.int64
            and all(one.dtype == np.float32 for one in numbers)
            and len(set(self.classes.tolist())) == len(self.classes)
            and 0 <= self.classes.min()
            and self.classes.max() < self.num_labels
            # What is larger is no such model's, and its sums would not be finite.
            and all((np.abs(one) < _MOST).all() for one in numbers)
        )


def as_margins(decisions: np.ndarray) -> np.ndarray:
    """Decisions as scikit-learn's classifiers have them, of two classes a single number, as one number a class.

    Args:
        decisions: float [N, C], or of two classes [N] or [N, 1].

    Returns:
        float64 [N, C].
    """
    decisions = np.asarray(decisions, np.float64)
    if decisions.ndim == 2 and decisions.shape[1] > 1:
        return decisions
    second = decisions.reshape(-1, 1) / 2
    return np.hstack([-second, second])


def best_temperature(margins: np.ndarray, classes: np.ndarray, labels: np.ndarray) -> float:
    """The temperature between 0.01 and 100 at which texts of known classes are likeliest.

    Of N texts each is of its class by (N + 1) / (N + 2) and else of any other alike, as Platt has it (1999, "Probabilistic
    Outputs for Support Vector Machines"): of few that are all told apart the lowest would be the likeliest.

    Args:
        margins: float [N, C].
        classes: int [C], which class a column is.
        labels: int [N]; texts of other classes are left out.
    """
    known = np.isin(labels, classes)
    if not known.any():
        return 1.0
    margins, places = margins[known], np.searchsorted(classes, labels[known])
    count, others = margins.shape[0], margins.shape[1] - 1
    targets = np.full(margins.shape, 1 / ((count + 2) * others))
    targets[np.arange(count), places] = (count + 1) / (count + 2)

    def cross_entropy(log_temperature: float) -> float:
        return float(-(targets * log_softmax(margins / math.exp(log_temperature), axis=1)).sum(1).mean())

    bounds = (math.log(_TEMPERATURES[0]), math.log(_TEMPERATURES[1]))
    return math.exp(minimize_scalar(cross_entropy, bounds=bounds, method="bounded").x)
