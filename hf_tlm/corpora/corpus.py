"""A general corpus: a stream of passages with stable ids."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, Features, Value, config, load_from_disk

from hf_tlm.corpora.passages import split_passages
from hf_tlm.files import HfTlmError, atomic_directory

FEATURES = Features({name: Value("string") for name in ("id", "text", "source")})


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
            CorpusError: there is no passage.
        """
        folder = Path(cache_dir or Path(config.HF_DATASETS_CACHE) / "hf_tlm") / f"corpus-{self.fingerprint}"
        if not folder.is_dir():
            with atomic_directory(folder) as work:
                # The fingerprint stands for the content: `datasets` would otherwise hash the generator's closure.
                rows = Dataset.from_generator(
                    self.__iter__,
                    features=FEATURES,
                    cache_dir=str(work / "cache"),
                    fingerprint=self.fingerprint,
                )
                if len(rows) == 0:
                    raise CorpusError(f"The corpus {self.name} holds no passage ({self.skipped} rows without text).")
                rows.save_to_disk(work / "data")
                del rows
                shutil.rmtree(work / "cache")
        return load_from_disk(str(folder / "data"))
