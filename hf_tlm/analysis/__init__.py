"""Analysis: what a selection has chosen, in words a reader can judge."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.analysis.influential_words import AnalysisError, InfluentialWord, label_pmi, to_markdown, word_frequencies

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "influential_words": ["AnalysisError", "InfluentialWord", "label_pmi", "to_markdown", "word_frequencies"],
    },
)
