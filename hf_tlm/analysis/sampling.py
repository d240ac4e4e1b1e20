"""Some texts of a corpus of any size."""

from __future__ import annotations

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.corpora import load_corpus


def sample_corpus(corpus: str, count: int, *, seed: int = 0, least: int = 1, text_column: str = "text") -> list[str]:
    """Draw `count` texts of a corpus, or all if it has fewer, each with the same probability, in the corpus's order.

    The corpus is read through once, and what is drawn is all that is kept.

    Args:
        corpus: a file, folder or Hub id.
        least: texts that are needed.

    Raises:
        AnalysisError: it has fewer. CorpusError: see `load_corpus`.
    """
    rng, read = np.random.default_rng(seed), 0
    kept: list[tuple[float, int, str]] = []
    for _, batch in load_corpus(corpus, text_column=text_column).batches():
        texts = [text for text in batch["text"].to_pylist() if text and text.strip()]
        kept += zip(rng.random(len(texts)), range(read, read + len(texts)), texts, strict=True)
        kept, read = sorted(kept)[:count], read + len(texts)
    if len(kept) < least:
        raise AnalysisError(f"{corpus} has {len(kept)} texts that are not blank; {least} or more are needed.")
    return [text for _, _, text in sorted(kept, key=lambda drawn: drawn[1])]
