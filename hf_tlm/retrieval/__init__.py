"""Retrieval: a labelled task and a general corpus become a Subset of the corpus."""

from hf_tlm.retrieval.bm25 import Bm25Settings, RetrievalError
from hf_tlm.retrieval.queries import QUERY_MODES, build_queries
from hf_tlm.retrieval.retrieve import RETRIEVERS, default_top_k, retrieve
from hf_tlm.retrieval.subset import Subset

__all__ = [
    "QUERY_MODES",
    "RETRIEVERS",
    "Bm25Settings",
    "RetrievalError",
    "Subset",
    "build_queries",
    "default_top_k",
    "retrieve",
]
