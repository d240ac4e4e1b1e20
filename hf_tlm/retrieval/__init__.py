"""Retrieval: a labelled task and a general corpus become a Subset of the corpus."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.retrieval.analyzer import Analyzer, RetrievalError
    from hf_tlm.retrieval.arguments import RetrievalArguments
    from hf_tlm.retrieval.bm25 import Bm25Settings
    from hf_tlm.retrieval.elastic.client import ElasticSettings
    from hf_tlm.retrieval.engines import Sharding
    from hf_tlm.retrieval.index.index import Index
    from hf_tlm.retrieval.index.tokenize import tokenize_texts
    from hf_tlm.retrieval.names import RETRIEVERS
    from hf_tlm.retrieval.queries import QUERY_MODES, build_queries
    from hf_tlm.retrieval.report import retrieval_report
    from hf_tlm.retrieval.retrieve import default_top_k, retrieve
    from hf_tlm.retrieval.subset import Subset

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "analyzer": ["Analyzer", "RetrievalError"],
        "arguments": ["RetrievalArguments"],
        "bm25": ["Bm25Settings"],
        "elastic.client": ["ElasticSettings"],
        "engines": ["Sharding"],
        "index.index": ["Index"],
        "index.tokenize": ["tokenize_texts"],
        "names": ["RETRIEVERS"],
        "queries": ["QUERY_MODES", "build_queries"],
        "report": ["retrieval_report"],
        "retrieve": ["default_top_k", "retrieve"],
        "subset": ["Subset"],
    },
)
