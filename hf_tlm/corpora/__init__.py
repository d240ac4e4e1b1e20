"""General corpora, as streams of passages."""

from hf_tlm.corpora.arguments import CorpusArguments
from hf_tlm.corpora.corpus import Corpus, CorpusError
from hf_tlm.corpora.loading import load_corpus
from hf_tlm.corpora.passages import split_passages

__all__ = ["Corpus", "CorpusArguments", "CorpusError", "load_corpus", "split_passages"]
