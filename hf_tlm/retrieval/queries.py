"""From training texts to queries (TLM, section 3.1). Labels are never used."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from hf_tlm.files import HfTlmError

QUERY_MODES = ("text", "rake")


class RetrievalError(HfTlmError):
    """A retrieval that cannot be done as asked, or a subset that cannot be read or written."""


def build_queries(texts: Iterable[str], mode: str = "text", num_phrases: int = 20) -> list[str]:
    """One query per text.

    Args:
        mode: `text` is the whole text; `rake` keeps the `num_phrases` best key phrases of RAKE (Rose et al. 2010), the
            paper's choice for long texts.

    Raises:
        RetrievalError: an unknown mode.
    """
    if mode not in QUERY_MODES:
        raise RetrievalError(f"query_mode must be one of {', '.join(QUERY_MODES)}; received {mode!r}.")
    if mode == "text":
        return list(texts)
    from rake_nltk import Rake
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    # Stop words and tokenisers are handed in: rake-nltk would fetch NLTK's from the network.
    rake = Rake(
        stopwords=set(ENGLISH_STOP_WORDS),
        punctuations=set(string.punctuation),
        sentence_tokenizer=lambda text: re.split(r"(?<=[.!?])\s+|\n+", text),
        word_tokenizer=lambda text: re.findall(r"\w+|[^\w\s]", text),
        include_repeated_phrases=False,
    )
    queries = []
    for text in texts:
        rake.extract_keywords_from_text(text)
        # Ties in score come in hash order from rake-nltk: break them by the phrase.
        ranked = sorted(rake.get_ranked_phrases_with_scores(), key=lambda item: (-item[0], item[1]))
        queries.append(" ".join(phrase for _, phrase in ranked[:num_phrases]))
    return queries
