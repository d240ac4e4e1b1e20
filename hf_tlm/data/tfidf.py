"""TF-IDF features of texts, for models that are no network."""

from __future__ import annotations

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

# Words, and punctuation marks each by itself: entity marks such as [[ ]] say much on some tasks.
TOKENS = r"(?u)\w+|[^\w\s]"


def tfidf(n: int) -> TfidfVectorizer:
    """A vectorizer, to be fitted, of n-grams of up to n words and punctuation marks; float32, frequencies as 1 + log."""
    return TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, n), sublinear_tf=True, dtype=np.float32)
