"""Retrieval from a corpus that is larger than one machine, on datatrove's executors."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.retrieval.engines.sharded.sharded import retrieve_sharded

__getattr__, __dir__, __all__ = export_lazily(__name__)
