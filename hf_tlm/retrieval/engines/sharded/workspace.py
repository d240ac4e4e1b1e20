"""The folder in which the machines of a sharded retrieval meet; see `steps` for what is in it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval.engines.bm25.tokenize import TokenizedTexts
from hf_tlm.retrieval.hits import Statistics
from hf_tlm.retrieval.texts import RetrievalError
from hf_tlm.utils.files import atomic_directory, atomic_write
from hf_tlm.utils.locks import locked
from hf_tlm.utils.problems import told
from hf_tlm.utils.seals import SEAL, seal_problem, write_seal

PASSAGES_FILE = "passages.arrow"
MARKER = "_complete"


@dataclass(frozen=True)
class Workspace:
    """Named folders that are there as a whole or not at all.

    location: a path on a disk that all machines share, or a URL of fsspec (`hf://...`, `s3://...`).
    """

    location: str

    @property
    def local(self) -> bool:
        return "://" not in self.location

    def path(self, name: str) -> str:
        return f"{self.location.rstrip('/')}/{name}"

    def has(self, name: str) -> bool:
        """Whether there is such a folder."""
        return Path(self.path(name)).is_dir() if self.local else self._files.exists(self.path(f"{name}/{MARKER}"))

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A folder to fill, which is there under this name once the block has ended without an error.

        Raises:
            HfTlmError: the disk cannot be written.
        """
        if self.local:
            try:
                with atomic_directory(self.path(name)) as folder:
                    yield folder
                    write_seal(folder)
            except HfTlmError:
                # A task that was given up for lost may have lived to finish it first, and it is the same.
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
        """The folder, or a copy of it that lasts as long as this process.

        Raises:
            RetrievalError: a file in it has changed since it was written; a process looks once at a folder.
        """
        if self.local:
            return _sound(Path(self.path(name)), self.location)
        copy = _copies(self.location) / name
        if not copy.is_dir():
            with atomic_directory(copy) as folder:
                for file in self._files.find(self.path(name)):
                    target = folder / file.rpartition(f"/{name}/")[2]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._files.get_file(file, str(target))
        return _sound(copy, self.location)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file beside the folders; None if it is not there, a ValueError if it holds no object."""
        if self.local:
            found = read_json(Path(self.path(name))) if Path(self.path(name)).is_file() else None
        else:
            found = json.loads(self._files.cat_file(self.path(name))) if self._files.exists(self.path(name)) else None
        if found is not None and not isinstance(found, dict):
            raise ValueError(f"{self.path(name)} holds no JSON object")
        return found

    def write(self, name: str, value: dict[str, Any]) -> None:
        """A JSON file beside the folders."""
        if self.local:
            atomic_write(self.path(name), _json(value))
        else:
            self._files.pipe_file(self.path(name), _json(value).encode())

    @property
    def _files(self):
        from fsspec.core import url_to_fs

        files = url_to_fs(self.location)[0]
        files.invalidate_cache()  # Other machines write here too.
        return files


def _sound(folder: Path, location: str) -> Path:
    """A folder, after a look at its seal: kernels and memory maps read without looking where."""
    with contextlib.suppress(OSError):  # It has none: an earlier version wrote it.
        status = os.stat(folder / SEAL)
        if (problem := _problem(str(folder), status.st_ino, status.st_mtime_ns)) is not None:
            raise RetrievalError(
                f"{problem}: it is damaged. Delete {location}, and the same call makes it again; or choose another folder."
            )
    return folder


@functools.cache
def _problem(folder: str, *_: int) -> str | None:
    return seal_problem(folder)


@functools.cache
def _copies(location: str) -> Path:
    folder = tempfile.mkdtemp(prefix="hf-tlm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def open_workspace(work_dir: str | os.PathLike, executor: str) -> Workspace:
    """Return the workspace at `work_dir`: a remote location for the executor jobs, a folder for others.

    Raises:
        RetrievalError: the machines of this executor cannot all see it.
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
    """One run at a time; the system drops the lock when a run is killed. A remote folder has none.

    Raises:
        LockError: see `locked`.
        RetrievalError: the folder cannot be made.
    """
    if not workspace.local:
        yield
        return
    folder = Path(workspace.location)
    with locked(folder, "choose another work_dir"):
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            reason = told(error, folder, "Choose another work_dir")
            raise RetrievalError(f"Cannot write under {folder}: {reason}.") from error
        yield


def shard_name(kind: str, shard: int) -> str:
    return f"{kind}/{shard:05d}"


def write_queries(folder: Path, queries: TokenizedTexts) -> None:
    np.save(folder / "ids.npy", queries.ids)
    np.save(folder / "offsets.npy", queries.offsets)
    write_json(folder / "vocabulary.json", {"terms": queries.vocabulary})


def read_queries(workspace: Workspace) -> TokenizedTexts:
    folder = workspace.reading("queries")
    terms = read_json(folder / "vocabulary.json")["terms"]
    return TokenizedTexts(np.load(folder / "ids.npy"), np.load(folder / "offsets.npy"), terms)


def read_statistics(workspace: Workspace) -> Statistics:
    """Of all shards together."""
    folder = workspace.reading("statistics")
    counts = read_json(folder / "counts.json")
    frequencies = np.load(folder / "frequencies.npy")
    return Statistics(counts["num_passages"], counts["num_tokens"], frequencies, counts["average_idf"])


def open_passages(folder: Path) -> Dataset:
    """Memory-mapped."""
    return Dataset.from_file(str(folder / PASSAGES_FILE))


def write_table(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read_table(path: Path) -> pa.Table:
    """Memory-mapped."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def read_array(path: Path, kind: type) -> np.ndarray:
    """A file of numbers only, memory-mapped."""
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(_json(value), encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
