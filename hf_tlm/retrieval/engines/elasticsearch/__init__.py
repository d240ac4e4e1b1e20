"""Retrieval from an Elasticsearch cluster."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.retrieval.engines.elasticsearch.client import ElasticSettings, check_settings
    from hf_tlm.retrieval.engines.elasticsearch.index import index_corpus
    from hf_tlm.retrieval.engines.elasticsearch.search import fetch, retrieve_elastic

__getattr__, __dir__, __all__ = export_lazily(__name__)
