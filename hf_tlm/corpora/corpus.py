"""A general corpus: passages with stable ids, in parts that are read and cached separately."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value, concatenate_datasets
from tqdm.auto import tqdm

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.arrow_files import cache_folder, find_rows, seal_rows
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.shown import counted
from hf_tlm.utils.texts import split_passages

FEATURES = Features({name: Value("string") for name in ("id", "text", "source")})
SCHEMA = FEATURES.arrow_schema
BATCH = 1000

logger = logging.getLogger(__name__)


class CorpusError(HfTlmError):
    """Raised when a corpus cannot be found or read."""


class Columns(NamedTuple):
    """Names of the columns of texts, ids and sources; several of texts, for files that differ, have commas between them."""

    text: str
    id: str | None
    source: str

    def texts(self) -> list[str]:
        """Return the names of columns of texts; a name with a comma may be that of one column."""
        return list(dict.fromkeys([self.text, *map(str.strip, self.text.split(","))]))

    def all(self) -> list[str]:
        """Return all names."""
        return [*self.texts(), *filter(None, self[1:])]


@dataclass
class Part:
    """A part of a corpus: one of its files, or the complete corpus if it does not consist of files.

    name: path of the file, relative to the common directory of all files.
    fingerprint: hash of this part's name, content and settings, independent of the other parts.
    documents: creates an iterator over batches of complete documents (columns id, text, source); id and text may be null.
    size: size of the file in bytes; None if there is no file.
    max_words: see `Corpus`.
    id_column: column of the ids, which then must be unique and not null; None if ids are built from row numbers.
    skipped: number of documents without text in the last full pass.
    """

    name: str
    fingerprint: str
    documents: Callable[[], Iterator[pa.RecordBatch]]
    size: int | None = None
    max_words: int | None = None
    id_column: str | None = None
    skipped: int = field(default=0, init=False)

    def passages(self, seen: set[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield batches of passages (columns id, text, source), none of them empty.

        Args:
            seen: ids of other parts; with an id column, this part's ids are added to it.

        Raises:
            CorpusError: the file cannot be read, a column is missing or holds no text, an id is null or repeated.
        """
        self.skipped, position = 0, 0
        seen = set() if seen is None else seen
        for batch in self.documents():
            if self.id_column is not None:
                self._check_ids(batch["id"], position, seen)
            position += len(batch)
            # Null for null texts; both `true_count` and `filter` then drop the document.
            has_text = pc.invert(pc.equal(pc.utf8_trim_whitespace(batch["text"]), ""))
            if has_text.true_count < len(batch):
                self.skipped += len(batch) - has_text.true_count
                batch = batch.filter(has_text)
            if len(batch):
                yield batch if self.max_words is None else _split_batch(batch, self.max_words)

    def cached(self, cache_dir: str | Path | None = None) -> bool:
        """Return whether `to_dataset` has cached this part before."""
        return self._folder(cache_dir).is_dir()

    def to_dataset(self, cache_dir: str | Path | None = None, advance: Callable[[int], object] | None = None) -> Dataset:
        """Return the part's passages, possibly none, as a memory-mapped `Dataset`, built once per fingerprint.

        Args:
            cache_dir: None: a directory in the cache of `datasets`.
            advance: called with the number of passages of every batch that is converted.

        Raises:
            CorpusError: see `passages`.
            HfTlmError: the cache cannot be written.
        """
        folder = self._folder(cache_dir)
        dataset = self._find_cached(folder)
        if dataset is None:
            num_rows = 0
            # Not written with `Dataset.from_generator`, because that wraps a CorpusError in its own errors.
            with atomic_directory(folder) as work:
                with pa.OSFile(str(work / "passages.arrow"), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
                    for batch in self.passages():
                        writer.write_batch(batch)
                        num_rows += len(batch)
                        if advance:
                            advance(len(batch))
                seal_rows(work / "passages.arrow", num_rows)
                counts = {"skipped": self.skipped, "passages": num_rows}
                (work / "counts.json").write_text(json.dumps(counts), encoding="utf-8")
            dataset = self._find_cached(folder)
        return dataset

    def _find_cached(self, folder: Path) -> Dataset | None:
        """Return the dataset that `to_dataset` cached, and restore `skipped`; None if there is none, or it is incomplete."""
        counts = find_object(folder / "counts.json")
        if counts is None or type(counts.get("skipped")) is not int:
            return None
        dataset = find_rows(folder / "passages.arrow", counts.get("passages"))
        if dataset is not None and dataset.column_names == list(FEATURES):
            self.skipped = counts["skipped"]
            return dataset
        return None

    def _folder(self, cache_dir: str | Path | None) -> Path:
        """Return the directory in which this part is cached."""
        return cache_folder(cache_dir) / f"part-{self.fingerprint}"

    def _check_ids(self, ids: pa.Array, first_row: int, seen: set[str]) -> None:
        """Raise a CorpusError for an id that is null or in `seen`, and add the others to it."""
        for row, identifier in enumerate(ids.to_pylist(), first_row):
            if identifier is None or identifier in seen:
                kind = "null" if identifier is None else f"a second {identifier!r}"
                raise CorpusError(
                    f"{self.name}, row {row} (counted from 0): {kind} in the id column {self.id_column!r}; ids must be "
                    "unique."
                )
            seen.add(identifier)


@dataclass
class Corpus:
    """A corpus of passages `{"id", "text", "source"}`, which can be iterated any number of times.

    name: name of the corpus in manifests and cards.
    fingerprint: hash of content and settings, the same on every machine. A file contributes its name, its size, and its
        first and last 64 KiB: if only its middle changes and its size does not, rename the file.
    documents: creates an iterator over complete documents with the same three keys; text may be None. Not with `parts`.
    max_words: documents are cut into passages of at most this many words, with ids `<id>#<n>`; None: they are not cut.
    cut: whether the documents are passages already, with such ids, of documents that were cut before.
    parts: one for every file; a single one if the corpus does not consist of files.
    skip_bad_files: leave out a part that cannot be read completely, instead of raising its CorpusError. Iterating then reads
        every part twice, first to find out whether it can be read to its end.
    skipped: number of documents without text in the last full pass.
    bad_files: names and errors of the parts that were left out in the last full pass. They do not change the fingerprint.
    """

    name: str
    fingerprint: str
    documents: Callable[[], Iterator[dict[str, str | None]]] | None = None
    max_words: int | None = None
    parts: tuple[Part, ...] = ()
    skip_bad_files: bool = False
    cut: bool = False
    skipped: int = field(default=0, init=False)
    bad_files: dict[str, str] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        files = [] if None in (sizes := [part.size for part in self.parts]) else [counted(len(sizes), "file")]
        words = [] if self.max_words is None else [f"passages of at most {self.max_words} words"]
        return f"Corpus({', '.join([repr(self.name), *files, *words])})"

    def __post_init__(self) -> None:
        if self.documents is not None:
            batches = partial(_batch_documents, self.documents)
            self.parts = (Part(self.name, self.fingerprint, batches, max_words=self.max_words),)

    def __iter__(self) -> Iterator[dict[str, str]]:
        for _, batch in self.batches(seen=set()):
            yield from batch.to_pylist()

    def batches(self, first_part: int = 0, seen: set[str] | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (number of the part, batch of passages) in order.

        Args:
            first_part: number of the part to start from.
            seen: see `Part.passages`; None: only repetitions of an id within a part are found.
        """
        self.skipped, self.bad_files = 0, {}
        for index, part in enumerate(self.parts[first_part:], first_part):
            if self.skip_bad_files and not self._is_readable(part):
                continue
            for batch in part.passages(seen):
                yield index, batch
            self.skipped += part.skipped

    def to_dataset(self, cache_dir: str | Path | None = None) -> Dataset:
        """Return all passages as a memory-mapped `Dataset` (columns id, text, source); every part is built once.

        Args:
            cache_dir: None: a directory in the cache of `datasets`.

        Raises:
            CorpusError: there is no passage, an id is repeated, or the corpus cannot be read.
            HfTlmError: the cache cannot be written.
        """
        self.skipped, self.bad_files = 0, {}
        parts, datasets = [], []
        all_cached = all(part.cached(cache_dir) for part in self.parts)
        with tqdm(desc="Reading the corpus", unit=" passages", disable=all_cached) as bar:
            for file_number, part in enumerate(self.parts, 1):
                bar.set_postfix_str(f"file {file_number} of {len(self.parts)}", refresh=False)
                try:
                    dataset = part.to_dataset(cache_dir, bar.update)
                except CorpusError as error:
                    self._leave_out(part, error)
                    continue
                self.skipped += part.skipped
                if len(dataset):
                    parts.append(part)
                    datasets.append(dataset)
        if not datasets:
            left_out = f", files left out: {len(self.bad_files)}" if self.bad_files else ""
            raise CorpusError(f"The corpus {self.name} has no passages (rows without text: {self.skipped}{left_out}).")
        dataset = concatenate_datasets(datasets) if len(datasets) > 1 else datasets[0]
        if len(parts) > 1 and parts[0].id_column is not None:
            _check_ids(parts, dataset)
        return dataset

    def _is_readable(self, part: Part) -> bool:
        """Return whether a full pass over the part succeeds, because no passage of a bad file may be yielded before."""
        try:
            for _ in part.passages():
                pass
        except CorpusError as error:
            self._leave_out(part, error)
        return part.name not in self.bad_files

    def _leave_out(self, part: Part, error: CorpusError) -> None:
        """Record and log a part that cannot be read, or raise its error unless skip_bad_files is set."""
        if not self.skip_bad_files:
            raise error
        self.bad_files[part.name] = str(error)
        logger.warning("%s is left out of the corpus: %s", part.name, error)


def _check_ids(parts: list[Part], dataset: Dataset) -> None:
    """Raise a CorpusError for an id that occurs in two parts; repetitions within a part were found when it was read."""
    if pc.count_distinct(dataset.data["id"]).as_py() < len(dataset):
        seen: set[str] = set()
        for part in parts:  # Read the parts again, for the error with the file and the row.
            for _ in part.passages(seen):
                pass


def _batch_documents(documents: Callable[[], Iterator[dict[str, str | None]]]) -> Iterator[pa.RecordBatch]:
    """Yield documents in record batches."""
    rows = documents()
    while batch := list(islice(rows, BATCH)):
        yield pa.RecordBatch.from_pylist(batch, schema=SCHEMA)


def _split_batch(batch: pa.RecordBatch, max_words: int) -> pa.RecordBatch:
    """Cut a batch of documents into a batch of passages."""
    passages = [
        {"id": f"{document['id']}#{index}", "text": text, "source": document["source"]}
        for document in batch.to_pylist()
        for index, text in enumerate(split_passages(document["text"], max_words))
    ]
    return pa.RecordBatch.from_pylist(passages, schema=SCHEMA)
