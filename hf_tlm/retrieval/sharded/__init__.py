"""Sharded retrieval from a corpus that is larger than one machine, on datatrove's executors."""
