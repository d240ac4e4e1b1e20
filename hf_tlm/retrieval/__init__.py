"""Retrieval: a labelled task and a general corpus become a Subset of the corpus."""

from hf_tlm.retrieval.analyzer import Analyzer, RetrievalError
from hf_tlm.retrieval.arguments import RetrievalArguments
from hf_tlm.retrieval.bm25 import Bm25Settings
from hf_tlm.retrieval.elastic.client import ElasticSettings
from hf_tlm.retrieval.engines import Sharding
from hf_tlm.retrieval.index.index import Index
from hf_tlm.retrieval.index.tokenize import tokenize_texts
from hf_tlm.retrieval.queries import QUERY_MODES, build_queries
from hf_tlm.retrieval.report import retrieval_report
from hf_tlm.retrieval.retrieve import RETRIEVERS, default_top_k, retrieve
from hf_tlm.retrieval.subset import Subset

__all__ = [
    "QUERY_MODES",
    "RETRIEVERS",
    "Analyzer",
    "Bm25Settings",
    "ElasticSettings",
    "Index",
    "RetrievalArguments",
    "RetrievalError",
    "Sharding",
    "Subset",
    "build_queries",
    "default_top_k",
    "retrieval_report",
    "retrieve",
    "tokenize_texts",
]
