"""Our own BM25 index: text to terms to tiles of postings on disk, and the exact top K of thousands of long queries.

    tokenize -> vocabulary -> tiles -> build -> files    text to an index on disk
    query_terms -> search -> kernel                      queries to hits
    index                                                `Index`, which is both

`benchmarks/retrieval_design.md` explains why it is fast.
"""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.retrieval.engines.bm25.index import Index
    from hf_tlm.retrieval.engines.bm25.tokenize import TokenizedTexts, tokenize_texts

__getattr__, __dir__, __all__ = export_lazily(__name__)
