"""The directory that the machines of a sharded retrieval share, and how the corpus is distributed over its shards.

See `steps` for its layout.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_tlm.corpora.corpus import FEATURES, Corpus, CorpusError, Part
from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval.bm25.tokenize import TokenizedTexts
from hf_tlm.retrieval.hits import Statistics
from hf_tlm.retrieval.texts import RetrievalError
from hf_tlm.utils.files import atomic_directory, atomic_write
from hf_tlm.utils.locks import locked
from hf_tlm.utils.problems import describe_error
from hf_tlm.utils.seals import SEAL, seal_problem, write_seal

PASSAGES_FILE = "passages.arrow"
READ_ROWS = 10_000
MARKER = "_complete"


@dataclass(frozen=True)
class Workspace:
    """A directory of named subdirectories that are written atomically.

    location: a path on a disk that all machines share, or a URL of fsspec (`hf://...`, `s3://...`).
    """

    location: str

    @property
    def local(self) -> bool:
        """Whether the location is a path, not a URL."""
        return "://" not in self.location

    def path(self, name: str) -> str:
        """Return the path or URL of a file or subdirectory."""
        return f"{self.location.rstrip('/')}/{name}"

    def has(self, name: str) -> bool:
        """Return whether a subdirectory exists."""
        return Path(self.path(name)).is_dir() if self.local else self._files.exists(self.path(f"{name}/{MARKER}"))

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield a temporary directory to fill, which gets this name once the block ends without an error.

        Raises:
            HfTlmError: the disk cannot be written.
        """
        if self.local:
            try:
                with atomic_directory(self.path(name)) as folder:
                    yield folder
                    write_seal(folder)
            except HfTlmError:
                # A task that was considered lost may have finished it first, with the same contents.
                if not self.has(name):
                    raise
            return
        with tempfile.TemporaryDirectory() as work:
            yield Path(work)
            write_seal(work)
            for file in sorted(path for path in Path(work).rglob("*") if path.is_file()):
                self._files.put_file(str(file), self.path(f"{name}/{file.relative_to(work).as_posix()}"))
            self._files.pipe_file(self.path(f"{name}/{MARKER}"), b"")

    def reading(self, name: str) -> Path:
        """Return the path of a subdirectory or, if it is remote, of a local copy that is deleted when this process exits.

        Raises:
            RetrievalError: a file in it has changed since it was written. A process checks each directory only once.
        """
        if self.local:
            return _check_seal(Path(self.path(name)), self.location)
        copy = _create_copy_folder(self.location) / name
        if not copy.is_dir():
            with atomic_directory(copy) as folder:
                for file in self._files.find(self.path(name)):
                    target = folder / file.rpartition(f"/{name}/")[2]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._files.get_file(file, str(target))
        return _check_seal(copy, self.location)

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file of the workspace; None if it does not exist. Raise a ValueError if it holds no object."""
        if self.local:
            content = read_json(Path(self.path(name))) if Path(self.path(name)).is_file() else None
        else:
            content = json.loads(self._files.cat_file(self.path(name))) if self._files.exists(self.path(name)) else None
        if content is not None and not isinstance(content, dict):
            raise ValueError(f"{self.path(name)} holds no JSON object")
        return content

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file of the workspace."""
        if self.local:
            atomic_write(self.path(name), _to_json(value))
        else:
            self._files.pipe_file(self.path(name), _to_json(value).encode())

    @property
    def _files(self):
        """The fsspec file system of a remote location, with a fresh cache."""
        from fsspec.core import url_to_fs

        files = url_to_fs(self.location)[0]
        files.invalidate_cache()  # Other machines write here too.
        return files


def _check_seal(folder: Path, location: str) -> Path:
    """Return a directory after checking its seal, because kernels and memory maps do no bounds checks.

    Raises:
        RetrievalError: the directory is damaged.
    """
    with contextlib.suppress(OSError):  # There is no seal if an earlier version wrote the directory.
        status = os.stat(folder / SEAL)
        if (problem := _cached_problem(str(folder), status.st_ino, status.st_mtime_ns)) is not None:
            raise RetrievalError(
                f"{problem}: it is damaged. Delete {location} and repeat the same call, or choose another folder."
            )
    return folder


@functools.cache
def _cached_problem(folder: str, *_: int) -> str | None:
    """Return `seal_problem(folder)`, cached; the further arguments are only cache keys."""
    return seal_problem(folder)


@functools.cache
def _create_copy_folder(location: str) -> Path:
    """Return the temporary directory of a remote location's copies, deleted when this process exits."""
    folder = tempfile.mkdtemp(prefix="hf-tlm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def open_workspace(work_dir: str | os.PathLike, executor: str) -> Workspace:
    """Return the workspace at `work_dir`: a remote location for the executor jobs, a directory for others.

    Raises:
        RetrievalError: the machines of this executor cannot all access it.
    """
    location = str(work_dir)
    if ("://" in location) != (executor == "jobs"):
        kind = (
            "a remote work_dir, such as hf://buckets/<user>/<bucket>/<folder>"
            if executor == "jobs"
            else "a folder as work_dir"
        )
        raise RetrievalError(f"The {executor} executor needs {kind}; received {location}.")
    return Workspace(location if executor == "jobs" else str(Path(location).expanduser().absolute()))


@contextlib.contextmanager
def lock(workspace: Workspace) -> Iterator[None]:
    """Lock the workspace during the block, so that one run uses it at a time.

    The system releases the lock when a run is killed. A remote workspace is not locked.

    Raises:
        LockError: see `locked`.
        RetrievalError: the directory cannot be created.
    """
    if not workspace.local:
        yield
        return
    folder = Path(workspace.location)
    with locked(folder, "choose another work_dir"):
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            reason = describe_error(error, folder, "Choose another work_dir")
            raise RetrievalError(f"Cannot write under {folder}: {reason}.") from error
        yield


@dataclass
class Piece:
    """A piece of a part of a corpus: every `of`-th batch of its documents, starting with batch `number`.

    A piece reads the complete part, which takes a third of the time of indexing it. So all pieces of an unreadable file
    find that it is unreadable, as a single reader would.
    """

    part: Part
    number: int = 0
    of: int = 1
    skipped: int = 0

    @property
    def name(self) -> str:
        """The name of the part."""
        return self.part.name

    @property
    def size(self) -> float:
        """The piece's share of the size of the part, in bytes."""
        return (self.part.size or 0) / self.of

    def passages(self) -> Iterator[pa.RecordBatch]:
        """Yield the piece's passages, see `Part.passages`, then set `skipped`: the part's for its first piece, else 0."""
        documents = replace(self.part, max_words=None)
        batches = (batch for index, batch in enumerate(documents.passages()) if index % self.of == self.number)
        yield from replace(self.part, documents=lambda: batches, id_column=None).passages()
        self.skipped = documents.skipped if self.number == 0 else 0


def plan(parts: Iterable[Part], num_shards: int) -> list[list[Piece]]:
    """Distribute the parts of a corpus, which are files, over shards of about equal size.

    A file larger than the mean size of a shard is cut into pieces. The pieces are assigned in order of size, largest first,
    always to the smallest shard.
    """
    parts = list(parts)
    mean_size = max(1, sum(part.size or 0 for part in parts) / num_shards)
    cuts = [(part, min(num_shards, max(1, round((part.size or 0) / mean_size)))) for part in parts]
    pieces = [Piece(part, number, of) for part, of in cuts for number in range(of)]
    shards: list[list[Piece]] = [[] for _ in range(num_shards)]
    sizes = [0.0] * num_shards
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece.name, piece.number)):
        shard = sizes.index(min(sizes))
        shards[shard].append(piece)
        sizes[shard] += piece.size
    return shards


def write_shard(folder: Path, pieces: Iterable[Piece], skip_bad_files: bool) -> None:
    """Write a shard's passages and their counts.

    Raises:
        CorpusError: a file cannot be read. With skip_bad_files it is left out completely instead.
    """
    sources: Counter[str] = Counter()
    skipped, bad_files = 0, {}
    with open(folder / PASSAGES_FILE, "wb") as file, pa.ipc.new_stream(file, FEATURES.arrow_schema) as writer:
        # The schema is written with the first batch; write it now, so that it stays if the first file is truncated away.
        writer.write_batch(pa.RecordBatch.from_pylist([], schema=FEATURES.arrow_schema))
        for piece in pieces:
            start, piece_sources = file.tell(), Counter[str]()
            try:
                for batch in piece.passages():
                    writer.write_batch(batch)
                    piece_sources += _count_sources(batch)
            except CorpusError as error:
                if not skip_bad_files:
                    raise
                bad_files[piece.name] = str(error)
                file.seek(start)
                file.truncate()
                continue
            sources += piece_sources
            skipped += piece.skipped
    _write_counts(folder, sources, skipped, bad_files)


def spread(corpus: Corpus, workspace: Workspace, num_shards: int, cache_dir: str | None = None) -> None:
    """Write every shard's passages from this process, in equal shares.

    This is for a corpus that does not consist of files, or whose files the shards cannot access.

    Raises:
        CorpusError: see `Corpus.to_dataset`.
    """
    missing = [shard for shard in range(num_shards) if not workspace.has(shard_name("passages", shard))]
    if not missing:
        return
    passages = corpus.to_dataset(cache_dir).with_format("arrow")
    for shard in missing:
        first, last = (len(passages) * i // num_shards for i in (shard, shard + 1))
        sources: Counter[str] = Counter()
        with workspace.writing(shard_name("passages", shard)) as folder:
            with pa.OSFile(str(folder / PASSAGES_FILE), "wb") as sink:
                with pa.ipc.new_stream(sink, FEATURES.arrow_schema) as writer:
                    for start in range(first, last, READ_ROWS):
                        table = passages[start : min(start + READ_ROWS, last)]
                        writer.write_table(table.cast(FEATURES.arrow_schema).combine_chunks())
                        sources += _count_sources(table)
            first_only = (corpus.skipped, corpus.bad_files) if shard == 0 else (0, {})
            _write_counts(folder, sources, *first_only)


def shard_name(kind: str, shard: int) -> str:
    """Return the name of a shard's subdirectory."""
    return f"{kind}/{shard:05d}"


def write_queries(folder: Path, queries: TokenizedTexts) -> None:
    """Write tokenized queries to a directory."""
    np.save(folder / "ids.npy", queries.ids)
    np.save(folder / "offsets.npy", queries.offsets)
    write_json(folder / "vocabulary.json", {"terms": queries.vocabulary})


def read_queries(workspace: Workspace) -> TokenizedTexts:
    """Read the tokenized queries of a run."""
    folder = workspace.reading("queries")
    terms = read_json(folder / "vocabulary.json")["terms"]
    return TokenizedTexts(np.load(folder / "ids.npy"), np.load(folder / "offsets.npy"), terms)


def read_statistics(workspace: Workspace) -> Statistics:
    """Read the statistics of all shards together."""
    folder = workspace.reading("statistics")
    counts = read_json(folder / "counts.json")
    frequencies = np.load(folder / "frequencies.npy")
    return Statistics(counts["num_passages"], counts["num_tokens"], frequencies, counts["average_idf"])


def open_passages(folder: Path) -> Dataset:
    """Open the passages of a directory, memory-mapped."""
    return Dataset.from_file(str(folder / PASSAGES_FILE))


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table to a file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read_table(path: Path) -> pa.Table:
    """Read an Arrow table from a file, memory-mapped."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def read_array(path: Path, kind: type) -> np.ndarray:
    """Open a file of raw numbers as a memory-mapped array; an empty array for an empty file."""
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object to a JSON file."""
    path.write_text(_to_json(value), encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def _to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _count_sources(rows: pa.RecordBatch | pa.Table) -> Counter[str]:
    """Count the passages of each source."""
    return Counter({entry["values"]: entry["counts"] for entry in pc.value_counts(rows["source"]).to_pylist()})


def _write_counts(folder: Path, sources: Counter[str], skipped: int, bad_files: dict[str, str]) -> None:
    counts = {"passages": sources.total(), "skipped": skipped, "sources": dict(sources), "bad_files": bad_files}
    write_json(folder / "counts.json", counts)
