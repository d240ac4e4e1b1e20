"""Retrieval from a corpus that is larger than one machine, on datatrove's executors."""

from hf_tlm.retrieval.sharded.sharded import ShardedHits, retrieve_sharded

__all__ = ["ShardedHits", "retrieve_sharded"]
