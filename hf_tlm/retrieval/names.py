"""What `retriever`, `variant` and the `method` of a selection may be, importing nothing: recipes' `--help` reads it."""

from __future__ import annotations

# BM25 engine -> the variants it offers.
VARIANTS = {
    "bm25": ("lucene", "robertson", "atire", "bm25l", "bm25+", "okapi"),
    "bm25s": ("lucene", "robertson", "atire", "bm25l", "bm25+"),
    "rank_bm25": ("lucene", "okapi", "bm25l", "bm25+"),
}
RETRIEVERS = (*VARIANTS, "sharded", "elasticsearch", "random")
# What passages of a subset can be chosen by -> in words, for "n of them by ...".
SELECTIONS = {
    "iss": "influence on the {split} examples, ISS",
    "confidence": "how certain a teacher is of them",
    "disagreement": "how much teachers differ on them",
    "dsir": "n-gram importance resampling, DSIR",
    "bm25-rank": "their place in the subset",
    "random": "chance",
}
