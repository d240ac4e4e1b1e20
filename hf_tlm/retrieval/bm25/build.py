"""Building an index from passages: one pass on all cores; postings go to disk tile by tile, the vocabulary stays in memory.

Threads tokenize and invert tiles. In between, the main thread assigns the ids of terms, tile by tile in the corpus's order,
so the files do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import multiprocessing
import os
import shutil
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from numba.core import event
from tqdm.auto import tqdm

from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval.bm25 import tiles
from hf_tlm.retrieval.bm25.files import (
    FILES,
    FORMAT,
    FORMAT_VERSION,
    IDS_FILE,
    META_FILE,
    POSTINGS_FILE,
    Opened,
    check_contents,
    check_replaceable,
    checksum,
    digest_of,
    order_of_ids,
)
from hf_tlm.retrieval.bm25.tiles import Sample, Tile, make_tile, tokens_of
from hf_tlm.retrieval.bm25.tokenize import Vocabulary, keep_terms, term_ids, tokenize_words
from hf_tlm.retrieval.texts import Analyzer, RetrievalError
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.options import check_numbers
from hf_tlm.utils.process import is_first_process
from hf_tlm.utils.shown import dataset_of, kind_of

logger = logging.getLogger(__name__)


class _Words:
    """The vocabulary of words that one thread has seen, and the term id of each word; -1 for stop words."""

    def __init__(self):
        self.vocabulary = Vocabulary()
        self.terms = np.empty(0, np.int32)

    def name(self, terms: Vocabulary, analyzer: Analyzer) -> np.ndarray:
        """Return the term ids of all words seen so far; new terms are added to `terms` in the words' order."""
        first = len(self.terms)
        if analyzer.stemmer is None:
            new = terms_without(self.vocabulary, first, analyzer.stopword_set, terms)
        else:
            new = term_ids(analyzer.terms(self.vocabulary.words(first)), terms)
        self.terms = np.concatenate([self.terms, new])
        return self.terms


def terms_without(words: Vocabulary, first: int, stopwords: frozenset[str], terms: Vocabulary) -> np.ndarray:
    """Compute `term_ids` of words[first:] without creating Python strings; stop words get -1."""
    data, offsets = words.encoded(first)
    stops = words.find(sorted(stopwords))
    stops = stops[stops >= first] - first
    if len(stops) == 0:
        return terms.add(data, offsets)
    kept = np.ones(len(offsets) - 1, bool)
    kept[stops] = False
    lengths = np.diff(offsets)
    data = data[np.repeat(kept, lengths)]
    ids = np.full(len(kept), -1, np.int32)
    ids[kept] = terms.add(data, np.concatenate([[0], np.cumsum(lengths[kept])]))
    return ids


class Builder:
    """A builder that appends passages to the `postings.bin` of a directory.

    terms: the vocabulary; frequencies: int64, number of passages of each term; lengths: int32 arrays, number of tokens of
    each passage; table: rows (offset, num_docs, T, P, M) of the tiles in the file; sample: see `Sample`.
    """

    def __init__(self, folder: Path, analyzer: Analyzer):
        self.folder, self.analyzer = folder, analyzer
        self.terms, self.sample = Vocabulary(), Sample()
        self.frequencies = np.zeros(0, np.int64)
        self.lengths: list[np.ndarray] = []
        self.table: list[list[int]] = []
        self.num_passages = 0

    def add(self, passages: Dataset, num_threads: int, progress) -> None:
        """Index the column "text" and append it to the passages added before.

        Args:
            progress: called with the number of passages of each finished tile.

        Raises:
            OSError: the disk cannot be written.
        """
        texts = passages.select_columns("text").with_format("arrow")
        tile_starts = iter(range(0, len(passages), tiles.TILE))
        tokenizing: deque[tuple[_Words, Future]] = deque()
        inverting: deque[Future] = deque()
        available = deque(_Words() for _ in range(num_threads))
        with open(self.folder / POSTINGS_FILE, "ab") as file, ThreadPoolExecutor(num_threads) as pool:
            while True:
                while available and len(inverting) < num_threads and (start := next(tile_starts, None)) is not None:
                    column = texts[start : min(start + tiles.TILE, len(passages))]["text"]
                    words = available.popleft()
                    tokenizing.append((words, pool.submit(tokenize_words, column, words.vocabulary, self.analyzer.script)))
                if tokenizing and (tokenizing[0][1].done() or not inverting):
                    words, tokens = tokenizing.popleft()
                    ids, offsets = tokens.result()
                    terms = words.name(self.terms, self.analyzer)
                    available.append(words)
                    inverting.append(pool.submit(self._invert, ids, offsets, terms, len(self.terms)))
                elif inverting:
                    progress(self._append(file, *inverting.popleft().result()))
                else:
                    break

    @staticmethod
    def _invert(ids: np.ndarray, offsets: np.ndarray, terms: np.ndarray, num_terms: int):
        """Convert word ids to term ids and build their tile: the arguments of `_append` besides the file."""
        ids, offsets = keep_terms(ids, offsets, terms)
        tile = make_tile(ids, offsets, num_terms)
        return ids, offsets, tile, *tile.to_bytes()

    def _append(self, file, ids, offsets, tile: Tile, shape: list[int], data: bytes) -> int:
        """Write a tile to the file and update all statistics; return its number of passages."""
        documents = np.arange(self.num_passages, self.num_passages + tile.num_docs)
        self.sample.add(documents, ids, offsets)
        self.table.append([file.tell(), *shape])
        file.write(data)
        if len(self.frequencies) < len(self.terms):
            self.frequencies = np.concatenate(
                [self.frequencies, np.zeros(len(self.terms) - len(self.frequencies), np.int64)]
            )
        self.frequencies[tile.terms] += np.diff(tile.starts)
        self.lengths.append(np.diff(offsets).astype(np.int32))
        self.num_passages += tile.num_docs
        return tile.num_docs

    def finish(self) -> dict[str, np.ndarray]:
        """Append the sample's tile, and return the arrays that the index stores besides the postings."""
        documents, tile = self.sample.tile(len(self.terms))
        shape, data = tile.to_bytes()
        with open(self.folder / POSTINGS_FILE, "ab") as file:
            table = [*self.table, [file.tell(), *shape]]
            file.write(data)
        return {
            "table": np.array(table, np.int64),
            "sampled": documents,
            "lengths": np.concatenate(self.lengths),
            "frequencies": self.frequencies,
            **self.terms.trimmed(),
        }

    @classmethod
    def of(cls, index: Opened, folder: Path) -> Builder:
        """Create a builder in another directory with the contents of an index, to add more passages."""
        builder = cls(folder, index.analyzer)
        builder.table = index.table[:-1].tolist()
        shutil.copyfile(index.directory / POSTINGS_FILE, folder / POSTINGS_FILE)
        os.truncate(folder / POSTINGS_FILE, int(index.table[-1, 0]))  # Without the sample's tile.
        builder.num_passages, builder.lengths = len(index), [np.array(index.lengths)]
        builder.frequencies = np.array(index.frequencies)
        words = index.vocabulary
        builder.terms = Vocabulary(np.array(words.arena), np.array(words.starts), np.array(words.slots))
        builder.sample.add(np.array(index.sampled), *tokens_of(index.tile(len(index.table) - 1)))
        return builder


def _check_passages(dataset: Any) -> None:
    """Check that an argument is a Dataset with the columns id and text, or raise a RetrievalError that says what to pass."""
    if not isinstance(dataset, Dataset):
        replacements = {"Corpus": "corpus.to_dataset()", "Subset": "subset.dataset", "Task": "task.train"}
        call = replacements.get(type(dataset).__name__) or dataset_of(dataset)
        raise RetrievalError(
            f"dataset: expected a datasets.Dataset with the columns id and text; received {kind_of(dataset)}. Pass {call}."
        )
    for name in ("id", "text"):
        if name not in dataset.column_names:
            raise RetrievalError(
                f"dataset: expected the columns id and text; the columns are {', '.join(dataset.column_names)}. Rename one "
                "(dataset.rename_column), or pass load_corpus(dataset).to_dataset(), which creates ids."
            )
    if (kind := getattr(dataset.features["text"], "dtype", "list")) not in ("string", "large_string", "string_view", "null"):
        raise RetrievalError(f"dataset: expected texts in the column text; received {kind}. Convert them with dataset.map.")


class _CompileListener(event.Listener):
    """A listener to numba's compiler that logs one warning when it first compiles a function of hf_tlm."""

    told = False

    def on_start(self, event: Any) -> None:
        """Handle the start of a compilation, which happens only for a function that is not in the compiler's cache."""
        function = getattr(event.data["dispatcher"], "py_func", None)
        if not self.told and getattr(function, "__module__", "").startswith("hf_tlm."):
            self.told = True
            logger.warning("Compiling the code for indexing and search, once on this machine: this takes up to a minute.")

    def on_end(self, event: Any) -> None:
        pass


@functools.cache
def tell_of_compiling() -> None:
    """Log one warning when compilation starts, but only in the first process of a job and in none of its children."""
    if is_first_process() and multiprocessing.parent_process() is None:
        event.register("numba:compile", _CompileListener())


def _compile_kernels(passage: Dataset, about: dict[str, Any]) -> None:
    """Compile the kernels by building and opening a temporary index of one passage.

    This happens before the progress bar starts, which would otherwise stand still and estimate hours. The code that opens
    an index is compiled too, or the next command, which finds the index, would have to compile it and warn again.
    """
    # Ignore a full temporary directory: the index itself is written elsewhere, and reports its own errors.
    with contextlib.suppress(OSError, HfTlmError), tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "index"
        check_contents(Opened(directory, write_index(directory, None, passage, about, 1, progress=False)))


def write_index(
    directory: Path,
    old: Opened | None,
    dataset: Dataset,
    about: dict[str, Any],
    num_threads: int | None,
    progress: bool = True,
) -> dict[str, Any]:
    """Write an index of the passages of `old` and of a dataset, atomically, and return its metadata.

    Args:
        old: an index to extend; None: build a new one.
        about: corpus and analyzer, as in the metadata.

    Raises:
        RetrievalError, HfTlmError: see `Index.build`.
    """
    check_numbers(RetrievalError, num_threads=num_threads)
    _check_passages(dataset)
    check_replaceable(directory)
    new = dataset.select_columns("id").with_format("arrow")[:]["id"].cast(pa.large_string())
    ids = pa.chunked_array([*(old.ids.chunks if old else []), *new.chunks], pa.large_string())
    if len(ids) == 0:
        raise RetrievalError(f"The corpus {about['corpus']['name']} has no passages: there is nothing to index.")
    order = order_of_ids(ids)
    tell_of_compiling()
    if progress and len(dataset):
        _compile_kernels(dataset.select([0]), about)
    bar = tqdm(total=len(dataset), desc="Indexing the corpus", unit=" passages", disable=None if progress else True)
    with atomic_directory(directory) as work, bar:
        builder = Builder.of(old, work) if old else Builder(work, Analyzer(**about["analyzer"]))
        builder.add(dataset, num_threads or os.cpu_count() or 1, bar.update)
        arrays = {**builder.finish(), "order": order, "by_place": np.argsort(order).astype(np.int32)}
        for name, array in arrays.items():
            np.save(work / f"{name}.npy", array)
        table = pa.table({"id": ids})
        with pa.OSFile(str(work / IDS_FILE), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        meta = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **about,
            "passages": len(ids),
            "tokens": int(arrays["lengths"].sum(dtype=np.int64)),
            "terms": len(builder.terms),
            "postings": int(arrays["frequencies"].sum()),
            "files": {file: checksum(work / file) for file in FILES},
        }
        # Written last: without this file the directory is not an index.
        sealed = {**meta, "checksum": digest_of(meta)}
        (work / META_FILE).write_text(json.dumps(sealed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return meta
