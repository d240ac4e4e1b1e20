"""Engines of BM25: ours, packages, shards on many machines, Elasticsearch; each finds the union of top K."""
