"""Retrieval from an Elasticsearch cluster."""

from hf_tlm.retrieval.elastic.client import ElasticSettings, check_settings
from hf_tlm.retrieval.elastic.index import index_corpus
from hf_tlm.retrieval.elastic.search import ElasticHits, fetch, retrieve_elastic

__all__ = ["ElasticHits", "ElasticSettings", "check_settings", "fetch", "index_corpus", "retrieve_elastic"]
