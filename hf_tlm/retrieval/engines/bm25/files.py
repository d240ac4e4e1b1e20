"""The files of an index: what is checked when one is opened, and who may write one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from hf_tlm.retrieval.analyzer import Analyzer, RetrievalError
from hf_tlm.retrieval.engines.bm25.contents import check_meta


class ChangedIndexError(RetrievalError):
    """An index that another process changed since it was opened."""


FORMAT = "hf_tlm.index"
FORMAT_VERSION = 1
META_FILE, POSTINGS_FILE, IDS_FILE = "index.json", "postings.bin", "ids.arrow"
ARRAYS = ("table", "sampled", "lengths", "frequencies", "order", "by_place", "arena", "starts", "slots")
FILES = (POSTINGS_FILE, IDS_FILE, *(f"{name}.npy" for name in ARRAYS))
READ_BYTES = 1 << 22


def checked_meta(directory: Path, fingerprint: str | None, analyzer: Analyzer | None) -> dict[str, Any]:
    """The description of an index whose every byte is as it was written.

    Raises:
        RetrievalError: see `Index.load`.
    """
    meta = read_meta(directory)
    if meta is None:
        raise RetrievalError(f"{directory} is not an index: it has no readable {META_FILE} of hf_tlm.")
    if meta.get("format_version") != FORMAT_VERSION:
        raise RetrievalError(
            f"The index {directory} has format version {meta.get('format_version')}; this hf_tlm reads version "
            f"{FORMAT_VERSION}. Delete the folder and build it again."
        )
    if meta.pop("checksum", None) != digest_of(meta):
        raise RetrievalError(f"{directory / META_FILE} is damaged. Delete the folder and build the index again.")
    check_meta(directory, meta, FILES)
    if fingerprint is not None and fingerprint != meta["corpus"]["fingerprint"]:
        raise RetrievalError(
            f"The index {directory} was built from another corpus: {meta['corpus']['name']} (fingerprint "
            f"{meta['corpus']['fingerprint']}), not {fingerprint}. Choose another folder, or delete this one."
        )
    if analyzer is not None and asdict(analyzer) != meta["analyzer"]:
        raise RetrievalError(
            f"The index {directory} was built with other settings: {describe(meta['analyzer'])}, not "
            f"{describe(asdict(analyzer))}. Choose another folder, or delete this one."
        )
    for name, expected in meta["files"].items():
        path = directory / name
        found = checksum(path) if path.is_file() else "no such file"
        if found != expected:
            raise RetrievalError(
                f"{path} is damaged (checksum {found}; expected {expected}). Copy the index again, or delete the "
                "folder and build it again."
            )
    return meta


def order_of_ids(ids: pa.ChunkedArray) -> np.ndarray:
    """int32 [N]: the place of each passage when sorted by id in code point order, the tie key.

    Raises:
        RetrievalError: an id occurs twice.
    """
    by_id = pc.array_sort_indices(ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids).to_numpy()
    ordered = ids.take(pa.array(by_id))
    same = pc.equal(ordered[1:], ordered[:-1]) if len(ids) > 1 else pa.array([], pa.bool_())
    if (at := pc.index(same, True).as_py()) >= 0:
        raise RetrievalError(
            f"The passage id {ordered[at].as_py()!r} occurs twice, in rows {min(by_id[at : at + 2])} and "
            f"{max(by_id[at : at + 2])}. Ids must be unique."
        )
    order = np.empty(len(by_id), np.int32)
    order[by_id] = np.arange(len(by_id), dtype=np.int32)
    return order


def read_meta(directory: Path) -> dict[str, Any] | None:
    try:
        meta = json.loads((directory / META_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT else None


def written(directory: Path) -> tuple[int, int] | None:
    """What tells one writing of a folder from the next, equal ones too; None where there is nothing."""
    try:
        stat = (directory / META_FILE).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def check_replaceable(directory: Path) -> None:
    if directory.exists() and read_meta(directory) is None and (not directory.is_dir() or any(directory.iterdir())):
        raise RetrievalError(f"{directory} exists and is not an index. Choose another folder, or empty this one.")


def digest_of(meta: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(meta, sort_keys=True).encode())


def checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return f"{path.stat().st_size}-{digest.hexdigest()}"


def describe(analyzer: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in analyzer.items())
