"""A module whose import loads all code of indexing and searching, compiled kernels included.

It is imported once, in the process that local tasks fork from, to save half a second in each task.
"""

import contextlib
import tempfile
from pathlib import Path

from datasets import Dataset

from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.sharded.steps import hash_ids
from hf_tlm.retrieval.texts import Analyzer


def _warm() -> None:
    """Build and search a tiny index, which loads the compiled kernels."""
    passages = Dataset.from_dict({"id": ["0", "1"], "text": ["two words", "more words"]})
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(
            Path(folder) / "index", passages, corpus_name="warm", fingerprint="warm", num_threads=1, progress=False
        )
        hash_ids(index.ids)
        for _ in index.search(tokenize_texts(["words"], Analyzer()), 1, num_threads=1):
            pass


# A full temporary directory must not fail the run here: warming up is optional.
with contextlib.suppress(OSError, HfTlmError):
    _warm()
