"""The files of an index: their layout, and the checks when one is opened or replaced.

The kernels do no bounds checks, so the arrays of an index are validated when it is opened, whoever wrote them. A checksum
does not protect against an index from elsewhere, because it is as easily forged as the file. So every number that a kernel
uses as a position is compared with the length of the array, once, tile by tile.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numba import njit
from numpy.lib.format import open_memmap

from hf_tlm.retrieval.bm25.tiles import MANY, Tile
from hf_tlm.retrieval.bm25.tokenize import Vocabulary
from hf_tlm.retrieval.texts import Analyzer, RetrievalError
from hf_tlm.utils import seals
from hf_tlm.utils.json_files import entry, find_format
from hf_tlm.utils.texts import SCRIPTS

# Array -> its dtype and number of dimensions.
_DTYPES: dict[str, tuple[type[np.integer], int]] = {
    "table": (np.int64, 2),
    "sampled": (np.int64, 1),
    "lengths": (np.int32, 1),
    "frequencies": (np.int64, 1),
    "order": (np.int32, 1),
    "by_place": (np.int32, 1),
    "arena": (np.uint8, 1),
    "starts": (np.int64, 1),
    "slots": (np.int64, 2),
}
# Number of elements that are checked at a time.
_BLOCK = 1 << 22
_FIELDS: dict[tuple[str, ...], type | tuple[type, ...]] = {
    **{("corpus", name): str for name in ("name", "fingerprint")},
    **{("corpus", "parts"): list, ("analyzer", "stopwords"): (str, type(None)), ("analyzer", "stemmer"): (str, type(None))},
    **{(name,): int for name in ("passages", "tokens", "terms", "postings")},
}
FORMAT = "hf_tlm.index"
FORMAT_VERSION = 1
META_FILE, POSTINGS_FILE, IDS_FILE = "index.json", "postings.bin", "ids.arrow"
ARRAYS = tuple(_DTYPES)
FILES = (POSTINGS_FILE, IDS_FILE, *(f"{name}.npy" for name in ARRAYS))


class Opened:
    """The files of an index, memory-mapped; see `Index`."""

    def __init__(self, directory: Path, meta: dict[str, Any]):
        self.directory, self.meta = directory, meta
        self.corpus_name, self.fingerprint = meta["corpus"]["name"], meta["corpus"]["fingerprint"]
        self.parts: list[str] = meta["corpus"]["parts"]
        self.analyzer = Analyzer(**meta["analyzer"])
        self.num_tokens = meta["tokens"]
        # Copy-on-write maps, though nothing writes to them: for read-only arrays numba would compile every kernel again.
        arrays: dict[str, np.ndarray] = {name: open_memmap(directory / f"{name}.npy", mode="c") for name in ARRAYS}
        self.arrays, self.table, self.sampled, self.lengths = arrays, arrays["table"], arrays["sampled"], arrays["lengths"]
        self.frequencies, self.order, self.by_place = arrays["frequencies"], arrays["order"], arrays["by_place"]
        self.vocabulary = Vocabulary(arrays["arena"], arrays["starts"], arrays["slots"])
        self.ids = pa.ipc.open_file(pa.memory_map(str(directory / IDS_FILE))).read_all()["id"]
        with open(directory / POSTINGS_FILE, "rb") as file:
            self.postings = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def __len__(self) -> int:
        return self.meta["passages"]

    def tile(self, number: int) -> Tile:
        """Return a tile by number; the last one is the sample's."""
        offset, *shape = self.table[number].tolist()
        return Tile.from_buffer(self.postings, offset, shape)

    def forget(self, tile: int) -> None:
        """Release the memory of a tile that was read, so that resident memory does not grow with the corpus."""
        if hasattr(mmap, "MADV_DONTNEED"):
            start = int(self.table[tile, 0]) // mmap.PAGESIZE * mmap.PAGESIZE
            self.postings.madvise(mmap.MADV_DONTNEED, start, int(self.table[tile + 1, 0]) - start)


class Unsound(Exception):
    """Raised when the contents of an index are invalid; the message says what is wrong."""


def check_meta(directory: Path, meta: Mapping[str, Any], files: tuple[str, ...]) -> None:
    """Check that the metadata of an index has all fields, of the right types, and lists its files.

    Raises:
        RetrievalError: it does not.
    """
    for path, kind in _FIELDS.items():
        value = entry(meta, *path)
        if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
            raise unsound(directory, f"its description has {value!r:.60} as {'.'.join(path)}")
    script = meta["analyzer"].get("script", SCRIPTS[0])
    if (
        set(meta["analyzer"]) - {"script"} != {"stopwords", "stemmer"}
        or script not in SCRIPTS
        or not all(isinstance(part, str) for part in meta["corpus"]["parts"])
    ):
        raise unsound(directory, "its description is of another kind of analyser or corpus")
    listed = meta.get("files")
    if not isinstance(listed, dict) or set(listed) != set(files):
        raise unsound(directory, "its description does not list its files")


def check_contents(index: Opened) -> None:
    """Check that a search of an index stays within its arrays and that its counts are right, or raise a RetrievalError."""
    meta, words, sampled = index.meta, index.vocabulary, index.sampled
    try:
        _check_shapes(meta, index.arrays, index.ids)
        _check_order(index.order, index.by_place)
        _check_ids(index.ids, index.by_place)
        _check_words(words)
        _check_table(index.table, meta, len(sampled), len(index.postings))
        _require(len(np.unique(sampled)) == len(sampled) > 0, "sampled", "distinct")
        _require(sampled.min() >= 0 and sampled.max() < meta["passages"], "sampled", "passages")
        frequencies = np.zeros(meta["terms"], np.int64)
        start = 0
        for tile_index in range(len(index.table) - 1):
            tile = index.tile(tile_index)
            _check_tile(tile, meta["terms"], index.lengths[start : start + tile.num_docs], tile_index)
            frequencies[tile.terms] += np.diff(tile.starts)
            start += tile.num_docs
            index.forget(tile_index)
        _check_tile(index.tile(len(index.table) - 1), meta["terms"], index.lengths[sampled], "of the sample")
        _require(np.array_equal(frequencies, index.frequencies), "frequencies", "the postings of each term")
    except Unsound as problem:
        raise unsound(index.directory, str(problem)) from None


def _check_shapes(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], ids: pa.ChunkedArray) -> None:
    """Check dtypes, dimensions and lengths of the arrays against the metadata, and their sums."""
    for name, (kind, dimensions) in _DTYPES.items():
        array = arrays[name]
        _require(array.dtype == kind and array.ndim == dimensions, name, f"{np.dtype(kind)} of {dimensions} dimensions")
        _require(array.flags.c_contiguous, name, "in C order")
    _require(ids.type == pa.large_string() and ids.null_count == 0, "ids", "texts")
    try:
        ids.validate(full=True)
    except pa.ArrowInvalid:
        raise Unsound("ids must be texts in UTF-8") from None
    passages, terms = meta["passages"], meta["terms"]
    _require(len(ids) == passages > 0, "ids", f"of {passages:,} passages")
    for name in ("lengths", "order", "by_place"):
        _require(len(arrays[name]) == passages, name, f"of {passages:,} passages")
    _require(len(arrays["frequencies"]) == terms, "frequencies", f"of {terms:,} terms")
    _require(int(arrays["frequencies"].min(initial=0)) >= 0, "frequencies", "numbers of passages")
    _require(len(arrays["starts"]) == terms + 1, "starts", f"of {terms:,} terms")
    lengths = arrays["lengths"]
    _require(lengths.min() >= 0 and int(lengths.sum(dtype=np.int64)) == meta["tokens"], "lengths", "the tokens of passages")
    _require(int(arrays["frequencies"].sum()) == meta["postings"], "frequencies", f"of {meta['postings']:,} postings")


def _check_order(order: np.ndarray, by_place: np.ndarray) -> None:
    """Check that the two arrays are inverse to each other, which is true only of permutations."""
    size = len(order)
    for start in range(0, size, _BLOCK):
        positions = order[start : start + _BLOCK]
        _require(positions.min() >= 0 and positions.max() < size, "order", "places")
        expected = np.arange(start, start + len(positions))
        _require(np.array_equal(by_place[positions], expected), "by_place", "the inverse of order")


def _check_ids(ids: pa.ChunkedArray, by_place: np.ndarray) -> None:
    """Check that the ids, in the order of by_place, strictly ascend, so that none is repeated."""
    for start in range(0, len(by_place) - 1, _BLOCK):
        ordered = ids.take(pa.array(by_place[start : start + _BLOCK + 1]))
        _require(pc.all(pc.less(ordered[:-1], ordered[1:])).as_py(), "by_place", "the passages sorted by id")


def _check_words(words: Vocabulary) -> None:
    """Check the vocabulary: valid UTF-8, and a hash table in which every word is found."""
    arena, starts, slots = words.arena, words.starts, words.slots
    _require(starts[0] == 0 and starts[-1] == len(arena) and (np.diff(starts) >= 0).all(), "starts", "where words begin")
    texts = pa.LargeStringArray.from_buffers(len(starts) - 1, pa.py_buffer(starts), pa.py_buffer(arena))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise Unsound("arena must be words in UTF-8") from None
    num_slots, used = len(slots), slots[:, 1]
    _require(slots.shape[1] == 2 and num_slots > 0 and num_slots & (num_slots - 1) == 0, "slots", "a power of two of pairs")
    # There must be free slots, because the search for an unknown word ends at one.
    _require(
        used.min() >= 0 and used.max() < len(starts) and 2 * np.count_nonzero(used) <= num_slots, "slots", "words, half full"
    )
    for start in range(0, len(words), _BLOCK):
        indices = words.find_encoded(*words.encoded(start, min(start + _BLOCK, len(words))))
        _require(np.array_equal(indices, np.arange(start, start + len(indices))), "slots", "the place of each word")


def _check_table(table: np.ndarray, meta: Mapping[str, Any], sampled: int, size: int) -> None:
    """Check that the tiles follow each other without gaps, fill the postings file of `size` bytes, and have all passages."""
    _require(table.shape[1] == 5 and len(table) > 1 and (table >= 0).all(), "table", "rows of five numbers")
    # Checked before the multiplications below, which would overflow for larger numbers.
    _require((table[:, [0, 2, 3, 4]] <= size).all(), "table", "within the postings")
    offsets, documents, terms, postings, many = table.T
    ends = offsets + _align_sizes(4 * terms) + _align_sizes(4 * (terms + 1)) + _align_sizes(2 * postings)
    ends += _align_sizes(postings) + _align_sizes(16 * many)
    _require(offsets[0] == 0 and np.array_equal(offsets[1:], ends[:-1]) and ends[-1] == size, "table", "where tiles are")
    _require(int(documents[:-1].sum()) == meta["passages"] and documents[-1] == sampled, "table", "all passages")
    _require(documents[:-1].min() > 0 and documents.max() < 2**16, "table", f"tiles of up to {2**16 - 1:,} passages")


def _align_sizes(sizes: np.ndarray) -> np.ndarray:
    """Round sizes up to multiples of 64 bytes."""
    return sizes + -sizes % 64


def _check_tile(tile: Tile, num_terms: int, lengths: np.ndarray, number: int | str) -> None:
    """Check the postings of a tile against the lengths of its passages."""
    name, terms, starts = f"tile {number}", tile.terms, tile.starts
    ascend = len(terms) == 0 or (terms[0] >= 0 and terms[-1] < num_terms and (np.diff(terms) > 0).all())
    _require(ascend, name, "ascending terms")
    _require(starts[0] == 0 and starts[-1] == len(tile.docs) and (np.diff(starts) > 0).all(), name, "postings of each term")
    counted = np.zeros(tile.num_docs, np.int64)
    _require(_count(starts, tile.docs, tile.counts, tile.many, counted), name, "ascending passages of each term")
    _require(np.array_equal(counted, lengths), name, "as many terms as its passages have")


@njit(nogil=True, cache=True)
def _count(starts, docs, counts, many, counted):
    """Add the number of tokens of each passage to counted[passage]; return False if a posting is invalid."""
    next_many = 0
    for term in range(len(starts) - 1):
        last = -1
        for posting in range(starts[term], starts[term + 1]):
            doc, count = np.int64(docs[posting]), np.int64(counts[posting])
            if doc <= last or doc >= len(counted) or count == 0:
                return False
            last = doc
            if count == MANY:
                if next_many == len(many) or many[next_many, 0] != posting:
                    return False
                count = many[next_many, 1]
                if count < MANY or count >= 2**31:
                    return False
                next_many += 1
            counted[doc] += count
    return next_many == len(many)


def _require(condition: bool | np.bool_, name: str, expected: str) -> None:
    """Raise Unsound unless the condition holds."""
    if not condition:
        raise Unsound(f"{name} must be {expected}")


def unsound(directory: Path, problem: str) -> RetrievalError:
    """Create the error for an index that differs from what a build writes."""
    return RetrievalError(
        f"The index {directory} is damaged, or was not written by hf_tlm: {problem}. Delete the folder and build the index "
        "again."
    )


class ChangedIndexError(RetrievalError):
    """Raised when another process changed an index since it was opened."""


def checked_meta(directory: Path, fingerprint: str | None, analyzer: Analyzer | None) -> dict[str, Any]:
    """Return the metadata of an index after comparing all files with their checksums.

    Raises:
        RetrievalError: see `Index.load`.
    """
    meta = read_meta(directory)
    if meta is None:
        raise RetrievalError(f"{directory} is not an index: it has no readable {META_FILE} of hf_tlm.")
    if meta.get("format_version") != FORMAT_VERSION:
        raise RetrievalError(
            f"The index {directory} has format version {meta.get('format_version')}; this hf_tlm reads version "
            f"{FORMAT_VERSION}. Delete the folder and build the index again."
        )
    if meta.pop("checksum", None) != digest_of(meta):
        raise RetrievalError(f"{directory / META_FILE} is damaged. Delete the folder and build the index again.")
    check_meta(directory, meta, FILES)
    if fingerprint is not None and fingerprint != meta["corpus"]["fingerprint"]:
        raise RetrievalError(
            f"The index {directory} was built from another corpus, or before its files changed: "
            f"{meta['corpus']['name']} (fingerprint {meta['corpus']['fingerprint']}), not {fingerprint}. Choose another "
            "folder, or delete this one."
        )
    if analyzer is not None and analyzer.to_dict() != meta["analyzer"]:
        raise RetrievalError(
            f"The index {directory} was built with other settings: {describe(meta['analyzer'])}, not "
            f"{describe(analyzer.to_dict())}. Choose another folder, or delete this one."
        )
    for name, expected in meta["files"].items():
        path = directory / name
        actual = checksum(path) if path.is_file() else "no such file"
        if actual != expected:
            raise RetrievalError(
                f"{path} is damaged (checksum {actual}; expected {expected}). Copy the index again, or delete its "
                "folder and build it again."
            )
    return meta


def order_of_ids(ids: pa.ChunkedArray) -> np.ndarray:
    """Return the position of each passage when sorted by id in code point order, which is the tie key: int32 [N].

    Raises:
        RetrievalError: an id occurs twice.
    """
    by_id = pc.array_sort_indices(ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids).to_numpy()
    ordered = ids.take(pa.array(by_id))
    is_repeated = pc.equal(ordered[1:], ordered[:-1]) if len(ids) > 1 else pa.array([], pa.bool_())
    if (index := pc.index(is_repeated, True).as_py()) >= 0:
        raise RetrievalError(
            f"The passage id {ordered[index].as_py()!r} occurs twice, in rows {min(by_id[index : index + 2])} and "
            f"{max(by_id[index : index + 2])}. Ids must be unique."
        )
    order = np.empty(len(by_id), np.int32)
    order[by_id] = np.arange(len(by_id), dtype=np.int32)
    return order


def read_meta(directory: Path) -> dict[str, Any] | None:
    """Return the metadata of an index, of any format version; None if the directory has none."""
    return find_format(directory / META_FILE, FORMAT)


def written(directory: Path) -> tuple[int, int] | None:
    """Return a value that changes whenever an index is written, even with equal contents; None if there is no index."""
    try:
        stat = (directory / META_FILE).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def check_replaceable(directory: Path) -> None:
    """Check that a directory is missing, empty or an index, or raise a RetrievalError."""
    if directory.exists() and read_meta(directory) is None and (not directory.is_dir() or any(directory.iterdir())):
        raise RetrievalError(f"{directory} exists and is not an index. Choose another folder, or empty this one.")


def digest_of(meta: dict[str, Any]) -> str:
    """Return the checksum of the metadata."""
    return xxhash.xxh3_128_hexdigest(json.dumps(meta, sort_keys=True).encode())


def checksum(path: Path) -> str:
    """Return the size and checksum of a file."""
    return f"{path.stat().st_size}-{seals.checksum(path)}"


def describe(analyzer: dict[str, Any]) -> str:
    """Return an analyzer's settings as text for error messages."""
    return ", ".join(f"{name} {value}" for name, value in analyzer.items())
