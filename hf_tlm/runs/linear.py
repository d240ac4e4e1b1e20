"""A fitted linear classifier on TF-IDF features: its predictions, and its files, which contain no pickles.

Shapes: N texts, C classes, F n-grams.
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

# Words, and single punctuation marks: entity markers such as [[ ]] are informative on some tasks.
TOKENS = r"(?u)\w+|[^\w\s]"
# In scripts without spaces between words a run of letters is a clause, which rarely occurs twice, so each character is a
# token. This holds for the scripts that `script_of` calls unspaced, as in retrieval; models of other texts are unaffected.
TOKENS_BY_CHARACTER = rf"(?u)[^\W{UNSPACED_SET}]+|\w|[^\w\s]"
WEIGHTS_FILE = "linear.safetensors"
COLUMNS = ("text", "text_pair")
# Logit of a class without a training text.
UNSEEN = -1e4
_MAX_WEIGHT = 1e9  # Upper bound of a weight's absolute value.
MAX_FILE_BYTES = 1 << 30  # Maximal size of the file of n-grams in bytes.
# Bounds of the temperature.
_TEMPERATURES = (1e-2, 1e2)
# The file may come from an untrusted source.
_FIELDS = {
    "n_grams": whole(1, 3),
    "num_labels": whole(2, 100_000),
    "temperature": real(1e-3, 1e3),
    "terms": mapped(listed(words(MAX_FILE_BYTES), MAX_FILE_BYTES), len(COLUMNS)),
    "by_character": one_of(True),
}
_DAMAGED = "Create it again with `hf-tlm baseline`, or copy it again."


def by_character(*columns: Sequence[str]) -> bool:
    """Return whether the texts of a column are in a script without spaces, so that characters are the tokens."""
    return any(script_of(texts) == "unspaced" for texts in columns)


def token_pattern(characters: bool) -> str:
    """Return the regular expression of a token: a word or a punctuation mark.

    characters: in scripts without spaces each character is a token.
    """
    return TOKENS_BY_CHARACTER if characters else TOKENS


def tfidf(n: int, terms: Sequence[str] | None = None, characters: bool = False) -> TfidfVectorizer:
    """Return an unfitted TF-IDF vectorizer of n-grams of up to n words and punctuation marks.

    Its features are float32, with term frequencies as 1 + log.

    Args:
        terms: the vocabulary of n-grams; None: the n-grams of the texts that the vectorizer is fitted to.
        characters: see `token_pattern`.
    """
    options = {"ngram_range": (1, n), "sublinear_tf": True, "dtype": np.float32, "vocabulary": terms}
    return TfidfVectorizer(token_pattern=token_pattern(characters), **options)


@dataclass(frozen=True)
class LinearModel:
    """A linear classifier on TF-IDF features.

    terms: column (text, text_pair) -> its n-grams. n_grams: the length of the longest.
    idf: column -> float32, one for each of its terms.
    weights: float32 [C, F], over the terms of all columns, concatenated; for two classes [1, F], those of the second.
    biases: float32 [C] or [1].
    classes: int64 [C], the indices of these classes among `num_labels`; the others had no training text.
    temperature: margins are divided by it before the softmax; the most probable class does not depend on it.
    by_character: see `token_pattern`.
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
        """The fitted vectorizer of each column."""
        vectorizers = {}
        for column, terms in self.terms.items():
            vectorizers[column] = tfidf(self.n_grams, list(terms), self.by_character)
            vectorizers[column].idf_ = self.idf[column]
        return vectorizers

    @cached_property
    def _weight_matrix(self) -> np.ndarray:
        """The weights, float64 [F, C]."""
        return self.weights.T.astype(np.float64)

    def logits(self, columns: Mapping[str, Sequence[str]]) -> np.ndarray:
        """Return the logits of texts, float64 [N, num_labels].

        Args:
            columns: `text`, and for pairs `text_pair`, with N rows each.
        """
        features = sparse.hstack(
            [vectorizer.transform(columns[name]) for name, vectorizer in self.vectorizers.items()], format="csr"
        )
        margins = as_margins(features @ self._weight_matrix + self.biases)
        logits = np.full((len(margins), self.num_labels), UNSEEN)
        logits[:, self.classes] = margins / self.temperature
        return logits

    def save(self, folder: Path) -> None:
        """Write `linear.json` and `linear.safetensors`."""
        from safetensors.numpy import save

        tensors = {f"idf.{column}": np.asarray(idf, np.float32) for column, idf in self.idf.items()}
        tensors |= {"weights": self.weights, "biases": self.biases, "classes": self.classes}
        atomic_write(folder / WEIGHTS_FILE, save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}))
        fields = {"n_grams": self.n_grams, "num_labels": self.num_labels, "temperature": self.temperature}
        fields |= {"by_character": True} if self.by_character else {}
        terms = {column: list(terms) for column, terms in self.terms.items()}
        atomic_write(folder / LINEAR_FILE, json.dumps({**fields, "terms": terms}, ensure_ascii=False) + "\n")

    @classmethod
    def open(cls, folder: Path) -> LinearModel:
        """Load the model that `save` wrote to a folder.

        Raises:
            ModelError: a file is missing or damaged, or the two do not match.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            fields: dict[str, Any] = read_fields(folder / LINEAR_FILE, _FIELDS, ModelError, ["by_character"], MAX_FILE_BYTES)
            tensors = load_file(folder / WEIGHTS_FILE)
        except (OSError, SafetensorError, TypeError, AttributeError, ValueError) as error:  # Some for dtypes numpy lacks.
            raise ModelError(f"The linear model in {folder} cannot be read: {error}. {_DAMAGED}") from error
        terms = fields.pop("terms")
        idf = {column: tensors.get(f"idf.{column}", np.zeros(0)) for column in terms}
        arrays: dict[str, Any] = {name: tensors.get(name, np.zeros(0)) for name in ("weights", "biases", "classes")}
        model = cls(terms=terms, idf=idf, **arrays, **fields)
        if not model._is_consistent():
            raise ModelError(f"The linear model in {folder} is damaged: its words do not match its weights. {_DAMAGED}")
        return model

    def _is_consistent(self) -> bool:
        if list(self.terms) not in (["text"], list(COLUMNS)) or not all(self.terms.values()):
            return False
        if self.classes.ndim != 1 or len(self.classes) < 2:
            return False
        num_rows = 1 if len(self.classes) == 2 else len(self.classes)
        shapes = {column: (len(terms),) for column, terms in self.terms.items()}
        arrays = (*self.idf.values(), self.weights, self.biases)
        return (
            {column: idf.shape for column, idf in self.idf.items()} == shapes
            and self.weights.shape == (num_rows, sum(map(len, self.terms.values())))
            and self.biases.shape == (num_rows,)
            and all(len(set(terms)) == len(terms) for terms in self.terms.values())
            and self.classes.dtype == np.int64
            and all(array.dtype == np.float32 for array in arrays)
            and len(set(self.classes.tolist())) == len(self.classes)
            and 0 <= self.classes.min()
            and self.classes.max() < self.num_labels
            # Larger numbers do not come from a fit, and their sums could be infinite.
            and all((np.abs(array) < _MAX_WEIGHT).all() for array in arrays)
        )


def as_margins(decisions: np.ndarray) -> np.ndarray:
    """Convert scikit-learn's decision values, a single number for two classes, to one margin per class.

    Args:
        decisions: float [N, C], or for two classes [N] or [N, 1].

    Returns:
        float64 [N, C].
    """
    decisions = np.asarray(decisions, np.float64)
    if decisions.ndim == 2 and decisions.shape[1] > 1:
        return decisions
    second = decisions.reshape(-1, 1) / 2
    return np.hstack([-second, second])


def best_temperature(margins: np.ndarray, classes: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature between 0.01 and 100 that minimises the cross-entropy of labelled texts.

    The targets are smoothed after Platt (1999, "Probabilistic Outputs for Support Vector Machines"): of N texts each has
    (N + 1) / (N + 2) for its class, and the rest is divided evenly among the others. Without smoothing, the lowest
    temperature would win whenever a few texts are all classified correctly.

    Args:
        margins: float [N, C].
        classes: int [C], the class of each column.
        labels: int [N]; texts of other classes are left out. Where none remain, the temperature is 1.
    """
    is_known = np.isin(labels, classes)
    if not is_known.any():
        return 1.0
    margins, columns = margins[is_known], np.searchsorted(classes, labels[is_known])
    num_texts, num_others = margins.shape[0], margins.shape[1] - 1
    targets = np.full(margins.shape, 1 / ((num_texts + 2) * num_others))
    targets[np.arange(num_texts), columns] = (num_texts + 1) / (num_texts + 2)

    def cross_entropy(log_temperature: float) -> float:
        return float(-(targets * log_softmax(margins / math.exp(log_temperature), axis=1)).sum(1).mean())

    bounds = (math.log(_TEMPERATURES[0]), math.log(_TEMPERATURES[1]))
    return math.exp(minimize_scalar(cross_entropy, bounds=bounds, method="bounded").x)
