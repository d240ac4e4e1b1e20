"""Retrieval from an Elasticsearch cluster."""
