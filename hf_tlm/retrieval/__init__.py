"""Retrieval: choose a Subset of a general corpus for a labelled task."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.retrieval.arguments import RetrievalArguments, SubsetArguments
    from hf_tlm.retrieval.bm25.index import Index
    from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
    from hf_tlm.retrieval.report import retrieval_report
    from hf_tlm.retrieval.retrieve import default_top_k, retrieve
    from hf_tlm.retrieval.settings import RETRIEVERS, Bm25Settings, ElasticSettings, Sharding
    from hf_tlm.retrieval.subset import Subset
    from hf_tlm.retrieval.texts import QUERY_MODES, Analyzer, RetrievalError, build_queries

__getattr__, __dir__, __all__ = export_lazily(__name__)
