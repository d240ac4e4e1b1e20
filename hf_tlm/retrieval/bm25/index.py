"""A BM25 index on disk: built once, memory-mapped, searched exactly under any variant and parameters.

    index.json      metadata: format, corpus, analyzer, counts, and the size and checksum of every other file
    postings.bin    tiles of postings (see tiles.py); the last one is the sample's
    ids.arrow       the passages' ids
    *.npy           table of the tiles; sampled; lengths; frequencies; order and by_place of the ids; arena, starts and
                    slots of the terms

k1, b and the variant are not stored, so one index serves every task and setting. A directory is replaced atomically, and a
lock beside it makes a second builder wait for the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset

from hf_tlm.retrieval.bm25.build import tell_of_compiling, write_index
from hf_tlm.retrieval.bm25.files import (
    META_FILE,
    ChangedIndexError,
    Opened,
    check_contents,
    checked_meta,
    describe,
    digest_of,
    read_meta,
    unsound,
    written,
)
from hf_tlm.retrieval.bm25.search import QueryTerms, TileArguments, query_terms, search_batch
from hf_tlm.retrieval.bm25.tokenize import TokenizedTexts
from hf_tlm.retrieval.hits import Hits, Statistics, average_idf, length_norms
from hf_tlm.retrieval.settings import Bm25Settings
from hf_tlm.retrieval.texts import Analyzer, RetrievalError
from hf_tlm.utils.locks import awaited
from hf_tlm.utils.options import check_given, check_numbers, named
from hf_tlm.utils.shown import kind_of

KEY_BYTES = 64 * 2**20  # Memory for the candidates of a batch.
MAX_BATCH = 2048


def _folder(directory: Any) -> Path:
    """Check the argument `directory` and return it as an absolute path."""
    return Path(named("directory", directory, RetrievalError, needed=True, what="the folder of an index")).absolute()


def _create_metadata(name: str, fingerprint: str, parts: list[str] | None, analyzer: Analyzer) -> dict[str, Any]:
    """Return the metadata of corpus and analyzer, after checking the arguments."""
    check_given(RetrievalError, analyzer=(analyzer, Analyzer))
    for argument, value, attribute in (("corpus_name", name, "name"), ("fingerprint", fingerprint, "fingerprint")):
        if not isinstance(value, str):
            raise RetrievalError(f"{argument}: expected a text; received {kind_of(value)}. Pass corpus.{attribute}.")
    corpus = {"name": name, "fingerprint": fingerprint, "parts": parts or [fingerprint]}
    return {"corpus": corpus, "analyzer": analyzer.to_dict()}


class Index(Opened):
    """An opened BM25 index; created by `build`, `load` or `open_or_build`.

    directory, analyzer, num_tokens; corpus_name, fingerprint and parts (fingerprints) of the corpus; ids: large_string
    array of the passages' ids, in their order; order: int32 [N], the passages' positions when sorted by id; by_place: the
    inverse of order; len(): number of passages. An opened index does not change when its directory is extended or replaced.
    """

    _compiled: ClassVar[bool] = False  # Whether the search kernels are compiled in this process.

    @classmethod
    def build(
        cls,
        directory: str | os.PathLike,
        dataset: Dataset,
        *,
        corpus_name: str,
        fingerprint: str,
        analyzer: Analyzer | None = None,
        parts: list[str] | None = None,
        num_threads: int | None = None,
        progress: bool = True,
    ) -> Index:
        """Build an index of the columns "id" and "text" of a dataset. An existing index is replaced once it is complete.

        Args:
            corpus_name: the corpus's name, for messages.
            fingerprint: the corpus's fingerprint; `load` compares it.
            parts: fingerprints of the corpus's parts in their order, so that an extended corpus is recognised; None: the
                corpus is one part.
            num_threads: None: all cores. Each thread takes some 100 MB of memory for the tiles that it holds.

        Raises:
            RetrievalError: an argument has the wrong type, there is no passage, an id occurs twice, or the directory holds
                something other than an index.
            HfTlmError: the disk cannot be written; a previous index then stays intact.
        """
        directory = _folder(directory)
        metadata = _create_metadata(corpus_name, fingerprint, parts, analyzer or Analyzer())
        with awaited(directory):
            return cls(directory, write_index(directory, None, dataset, metadata, num_threads, progress))

    @classmethod
    def load(
        cls, directory: str | os.PathLike, *, fingerprint: str | None = None, analyzer: Analyzer | None = None
    ) -> Index:
        """Open an index after verifying the checksums of all files.

        Args:
            fingerprint, analyzer: what the index must have been built with; None accepts any.

        Raises:
            RetrievalError: it is not an index, or is of another format version, damaged, or of another corpus or analyzer.
        """
        directory = Path(named("directory", directory, RetrievalError, needed=True, what="the folder of an index"))
        while True:
            version = written(directory)
            try:
                index = cls._open_checked(directory, checked_meta(directory, fingerprint, analyzer))
            except (ValueError, OSError):  # RetrievalError is a ValueError too.
                if written(directory) == version:
                    raise
            else:
                if written(directory) == version:
                    return index
            # Another process replaced the index meanwhile: try again.

    @classmethod
    def _open_checked(cls, directory: Path, meta: dict[str, Any]) -> Index:
        """Open an index with this metadata, and check the contents of its files."""
        try:
            index = cls(directory, meta)
        except Exception as error:  # NumPy and Arrow raise errors of many types for files that are not in their format.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise unsound(directory, f"its files cannot be read ({str(error)[:200]})") from error
        check_contents(index)
        return index

    @classmethod
    def open_or_build(
        cls,
        directory: str | os.PathLike,
        dataset: Dataset,
        *,
        corpus_name: str,
        fingerprint: str,
        analyzer: Analyzer | None = None,
        parts: list[str] | None = None,
        num_threads: int | None = None,
    ) -> Index:
        """Open the index in this directory, or build one if there is none; of several processes one builds, the others wait.

        For the arguments see `build`.

        Raises:
            RetrievalError, HfTlmError: as `load` and `build`.
        """
        directory, analyzer = _folder(directory), analyzer or Analyzer()
        if not (directory / META_FILE).exists():  # A read-only directory cannot hold a lock, and needs none.
            with awaited(directory):
                if not (directory / META_FILE).exists():
                    metadata = _create_metadata(corpus_name, fingerprint, parts, analyzer)
                    return cls(directory, write_index(directory, None, dataset, metadata, num_threads))
        return cls.load(directory, fingerprint=fingerprint, analyzer=analyzer)

    def extend(
        self,
        dataset: Dataset,
        *,
        fingerprint: str,
        corpus_name: str | None = None,
        parts: list[str] | None = None,
        num_threads: int | None = None,
    ) -> Index:
        """Append passages to the index in its directory, and return the extended index.

        Args:
            dataset: the new passages.
            fingerprint: fingerprint of the complete corpus, old and new passages.
            corpus_name: None: the present name.
            parts: fingerprints of the new parts; None: `fingerprint`.
            num_threads: see `build`.

        Raises:
            ChangedIndexError: another process has changed the index since it was opened.
            RetrievalError, HfTlmError: see `build`; this index then stays unchanged.
        """
        with awaited(self.directory):
            if read_meta(self.directory) != self.meta | {"checksum": digest_of(self.meta)}:
                raise ChangedIndexError(f"The index {self.directory} has changed since it was opened: load it again.")
            parts = self.parts + (parts or [fingerprint])
            metadata = _create_metadata(corpus_name or self.corpus_name, fingerprint, parts, self.analyzer)
            return type(self)(self.directory, write_index(self.directory, self, dataset, metadata, num_threads))

    def terms(self) -> tuple[list[str], np.ndarray]:
        """Return the vocabulary, in the order of first occurrence, and the number of passages of each term (int64)."""
        return self.vocabulary.words(), np.array(self.frequencies)

    def document_frequencies(self, terms: list[str]) -> np.ndarray:
        """Return the number of passages of each term (int64); 0 for an unknown term."""
        ids = self.vocabulary.find(terms)
        frequencies = np.zeros(len(ids), np.int64)
        frequencies[ids >= 0] = self.frequencies[ids[ids >= 0]]
        return frequencies

    def statistics(self, terms: list[str], variant: str = "lucene") -> Statistics:
        """Return the statistics for scores of this index alone.

        Args:
            terms: the queries' vocabulary.
            variant: BM25 variant; average_idf is computed only for "okapi".
        """
        average = average_idf(self.frequencies, len(self)) if variant == "okapi" else None
        return Statistics(len(self), self.num_tokens, self.document_frequencies(terms), average)

    def search(
        self,
        queries: TokenizedTexts,
        top_k: int,
        *,
        settings: Bm25Settings | None = None,
        statistics: Statistics | None = None,
        max_query_terms: int | None = None,
        num_threads: int | None = None,
        query_batch_size: int | None = None,
    ) -> Iterator[Hits]:
        """Return the exact hits of every query, in the order of the queries; threads and batch size do not change them.

        Args:
            queries: from `tokenize_texts` with this index's analyzer.
            top_k: K; larger than the corpus means all of it.
            settings: BM25 variant and parameters; None: the defaults, with this index's analyzer.
            statistics: statistics of a larger corpus that this index is a part of; None: those of the index.
            max_query_terms: maximum number of terms kept of each query, those of highest idf (then the first).
            num_threads: None: all cores; each thread searches its own batches of queries.
            query_batch_size: queries that one thread searches at once in each tile. A batch costs memory for its candidates
                and results, 24 bytes x K x queries, and time for preparing each tile, so small batches are slow.

        Raises:
            RetrievalError: a number is below 1, or the settings have another analyzer.
        """
        settings = settings or Bm25Settings(**asdict(self.analyzer))
        check_numbers(
            RetrievalError,
            top_k=top_k,
            max_query_terms=max_query_terms,
            num_threads=num_threads,
            query_batch_size=query_batch_size,
        )
        if settings.analyzer != self.analyzer:
            raise RetrievalError(
                f"The index {self.directory} was built with {describe(self.analyzer.to_dict())}; received settings with "
                f"{describe(settings.analyzer.to_dict())}. Build another index with these settings."
            )
        statistics = statistics or self.statistics(queries.vocabulary, settings.variant)
        terms = query_terms(queries, self.vocabulary.find(queries.vocabulary), settings, statistics, max_query_terms)
        threads = num_threads or os.cpu_count() or 1
        self._compile(terms, settings, statistics)
        return self._search(terms, min(top_k, len(self)), settings, statistics, threads, query_batch_size)

    def _compile(self, terms: QueryTerms, settings: Bm25Settings, statistics: Statistics) -> None:
        """Compile the kernels by searching one tile for the longest query, once per process.

        Otherwise compilation would start under a progress bar, which would stand still.
        """
        tell_of_compiling()
        if not Index._compiled and len(terms.constants) and len(self.table) > 1:
            Index._compiled = True
            longest, rows = int(np.diff(terms.starts).argmax()), slice(0, int(self.table[0, 1]))
            tile = self.tile(0), length_norms(settings, self.lengths[rows], statistics), self.order[rows]
            for _ in search_batch(terms.slice(longest, longest + 1), 1, 1, lambda _: tile, tile, self.by_place):
                pass

    def _search(
        self, terms: QueryTerms, top_k, settings, statistics, threads: int, batch_size: int | None
    ) -> Iterator[Hits]:
        """Search batches of queries in threads, and yield the hits in the order of the queries."""
        num_queries = len(terms.constants)
        if num_queries == 0:
            return
        size = batch_size or max(16, min(MAX_BATCH, KEY_BYTES // (16 * top_k)))
        rounds = -(-num_queries // (size * threads))
        size = -(-num_queries // (rounds * threads))  # Equal batches, so that no thread waits for a larger one.

        sizes = self.table[:-1, 1]
        starts = np.cumsum(sizes) - sizes  # The first passage of every tile.

        def arguments(tile: int, rows: slice | np.ndarray) -> TileArguments:
            return self.tile(tile), length_norms(settings, self.lengths[rows], statistics), self.order[rows]

        def tile_of(tile: int) -> TileArguments:
            if tile:
                self.forget(tile - 1)
            return arguments(tile, slice(starts[tile], starts[tile] + sizes[tile]))

        sample = arguments(len(self.table) - 1, self.sampled) if len(self) >= 4 * len(self.sampled) else None

        def run(first: int) -> list[Hits]:
            batch = terms.slice(first, min(first + size, num_queries))
            return list(search_batch(batch, top_k, len(self.table) - 1, tile_of, sample, self.by_place))

        with ThreadPoolExecutor(threads) as pool:
            firsts = list(range(0, num_queries, size))
            running = [pool.submit(run, first) for first in firsts[:threads]]
            for following in [*firsts[threads:], *[None] * len(running)]:
                hits = running.pop(0).result()
                if following is not None:
                    running.append(pool.submit(run, following))
                yield from hits
