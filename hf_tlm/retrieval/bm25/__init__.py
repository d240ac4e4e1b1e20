"""Our own BM25 index on disk, and its exact top-K search for thousands of long queries.

    tokenize -> tiles -> build -> files    build: from texts to an index on disk
    search -> kernel                       search: from queries to hits
    index                                  `Index`, the interface to both

`benchmarks/retrieval_design.md` explains why it is fast.
"""
