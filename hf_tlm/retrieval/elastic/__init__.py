"""Retrieval from an Elasticsearch cluster."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.retrieval.elastic.client import ElasticSettings, check_settings
    from hf_tlm.retrieval.elastic.index import index_corpus
    from hf_tlm.retrieval.elastic.search import ElasticHits, fetch, retrieve_elastic

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "client": ["ElasticSettings", "check_settings"],
        "index": ["index_corpus"],
        "search": ["ElasticHits", "fetch", "retrieve_elastic"],
    },
)
