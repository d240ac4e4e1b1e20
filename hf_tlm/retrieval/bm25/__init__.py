"""Our own BM25 index: text to terms to tiles of postings on disk, and the exact top K of thousands of long queries.

    tokenize -> tiles -> build -> files    text to an index on disk
    search -> kernel                       queries to hits
    index                                  `Index`, which is both

`benchmarks/retrieval_design.md` explains why it is fast.
"""
