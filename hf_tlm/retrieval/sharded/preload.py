"""A module whose import loads what indexing and searching run, compiled code too.

It does so once, in the process that local tasks fork from, rather than for half a second in each of them.
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
    passages = Dataset.from_dict({"id": ["0", "1"], "text": ["two words", "more words"]})
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(
            Path(folder) / "index", passages, corpus_name="warm", fingerprint="warm", num_threads=1, progress=False
        )
        hash_ids(index.ids)
        for _ in index.search(tokenize_texts(["words"], Analyzer()), 1, num_threads=1):
            pass


# No space for temporary files is no reason to fail before there is anything to do.
with contextlib.suppress(OSError, HfTlmError):
    _warm()
