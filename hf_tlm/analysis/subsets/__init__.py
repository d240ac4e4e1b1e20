"""Subset views: what was retrieved for what, size against K, sources, rank against influence, overlap."""
