"""What `retriever` and `variant` may be, importing nothing: recipes' `--help` reads it."""

from __future__ import annotations

# BM25 engine -> the variants it offers.
VARIANTS = {
    "bm25": ("lucene", "robertson", "atire", "bm25l", "bm25+", "okapi"),
    "bm25s": ("lucene", "robertson", "atire", "bm25l", "bm25+"),
    "rank_bm25": ("lucene", "okapi", "bm25l", "bm25+"),
}
ENGINES = (*VARIANTS, "sharded", "elasticsearch")
RETRIEVERS = (*ENGINES, "random")
