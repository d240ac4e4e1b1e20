"""Corpora as streams of passages."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.corpora.arguments import CorpusArguments, PassageArguments
    from hf_tlm.corpora.corpus import Corpus, CorpusError, Part
    from hf_tlm.corpora.demo import demo_corpus
    from hf_tlm.corpora.loading import load_corpus
    from hf_tlm.utils.texts import split_passages

__getattr__, __dir__, __all__ = export_lazily(__name__)
