"""General corpora, as streams of passages."""

from hf_tlm.corpora.arguments import CorpusArguments
from hf_tlm.corpora.corpus import Corpus, CorpusError, Part
from hf_tlm.corpora.loading import load_corpus
from hf_tlm.corpora.passages import split_passages

__all__ = ["Corpus", "CorpusArguments", "CorpusError", "Part", "load_corpus", "split_passages"]
