"""A general corpus: a stream of passages with stable ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Features, Value, config

from hf_tlm.corpora.passages import split_passages
from hf_tlm.files import HfTlmError, atomic_directory

FEATURES = Features({name: Value("string") for name in ("id", "text", "source")})
_BATCH = 1000


class CorpusError(HfTlmError):
    """A corpus that cannot be found or read."""


@dataclass
class Corpus:
    """Passages `{"id", "text", "source"}`, iterated any number of times.

    name: what the manifest and cards call it.
    fingerprint: changes with content and settings; the same on every machine.
    documents: makes an iterator over whole documents with the same three keys; text may be None.
    max_words: documents are cut into passages of at most so many words, with ids `<id>#<n>`; None leaves them whole.
    skipped: documents without text met in the last full pass.
    """

    name: str
    fingerprint: str
    documents: Callable[[], Iterator[dict[str, str | None]]]
    max_words: int | None = None
    skipped: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[dict[str, str]]:
        self.skipped = 0
        for document in self.documents():
            text = document["text"]
            if text is None or not text.strip():
                self.skipped += 1
            elif self.max_words is None:
                yield document
            else:
                for number, passage in enumerate(split_passages(text, self.max_words)):
                    yield {"id": f"{document['id']}#{number}", "text": passage, "source": document["source"]}

    def to_dataset(self, cache_dir: str | Path | None = None) -> Dataset:
        """All passages as a memory-mapped `Dataset` (columns id, text, source), built once per fingerprint.

        Args:
            cache_dir: default a folder of the `datasets` cache.

        Raises:
            CorpusError: there is no passage, or the corpus cannot be read.
        """
        folder = Path(cache_dir or Path(config.HF_DATASETS_CACHE) / "hf_tlm") / f"corpus-{self.fingerprint}"
        path = folder / "passages.arrow"
        if not path.is_file():
            # Written here rather than by `Dataset.from_generator`, which hides a CorpusError inside its own errors.
            with atomic_directory(folder) as work, pa.OSFile(str(work / path.name), "wb") as sink:
                total = 0
                with pa.ipc.new_stream(sink, FEATURES.arrow_schema) as writer:
                    passages = iter(self)
                    while rows := list(islice(passages, _BATCH)):
                        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=FEATURES.arrow_schema))
                        total += len(rows)
                if total == 0:
                    raise CorpusError(f"The corpus {self.name} holds no passage ({self.skipped} rows without text).")
        return Dataset.from_file(str(path))
