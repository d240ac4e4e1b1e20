"""Which shard reads what of a corpus, its passages on disk, and what the shards have to agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from hf_tlm.corpora.corpus import FEATURES, Corpus, CorpusError, Part
from hf_tlm.retrieval.engines.bm25.tokenize import buffers_of
from hf_tlm.retrieval.engines.sharded.workspace import PASSAGES_FILE, Workspace, read_table, shard_name, write_json
from hf_tlm.retrieval.texts import RetrievalError

READ_ROWS = 10_000
HASH_RANGES = 64


@dataclass
class Piece:
    """A part of a corpus, or every `of`-th batch of its documents, from the `number`-th.

    A piece reads the whole part, which takes a third of the time of indexing it: so the pieces of a bad file agree that it
    is bad, as one reader would.
    """

    part: Part
    number: int = 0
    of: int = 1
    skipped: int = 0

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def size(self) -> float:
        return (self.part.size or 0) / self.of

    def passages(self) -> Iterator[pa.RecordBatch]:
        """As `Part.passages`; then `skipped` has the part's number, counted in one piece only."""
        documents = replace(self.part, max_words=None)
        own = (batch for at, batch in enumerate(documents.passages()) if at % self.of == self.number)
        yield from replace(self.part, documents=lambda: own, id_column=None).passages()
        self.skipped = documents.skipped if self.number == 0 else 0


def plan(parts: Iterable[Part], num_shards: int) -> list[list[Piece]]:
    """Distribute the parts of a corpus over shards of about equal size; the parts are files.

    The largest pieces go first, always to the shard that has least. A file that is larger than what a shard should have is
    cut.
    """
    parts = list(parts)
    fair = max(1, sum(part.size or 0 for part in parts) / num_shards)
    cuts = [(part, min(num_shards, max(1, round((part.size or 0) / fair)))) for part in parts]
    pieces = [Piece(part, number, of) for part, of in cuts for number in range(of)]
    shards: list[list[Piece]] = [[] for _ in range(num_shards)]
    sizes = [0.0] * num_shards
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece.name, piece.number)):
        shard = sizes.index(min(sizes))
        shards[shard].append(piece)
        sizes[shard] += piece.size
    return shards


def write_shard(folder: Path, pieces: Iterable[Piece], skip_bad_files: bool) -> None:
    """A shard's passages and their counts.

    Raises:
        CorpusError: a file cannot be read, unless it is to be skipped; then nothing of it is written.
    """
    sources: Counter[str] = Counter()
    skipped, bad_files = 0, {}
    with open(folder / PASSAGES_FILE, "wb") as file, pa.ipc.new_stream(file, FEATURES.arrow_schema) as writer:
        # The schema goes with the first batch, and has to stay if the first file does not.
        writer.write_batch(pa.RecordBatch.from_pylist([], schema=FEATURES.arrow_schema))
        for piece in pieces:
            start, own = file.tell(), Counter[str]()
            try:
                for batch in piece.passages():
                    writer.write_batch(batch)
                    own += _sources_of(batch)
            except CorpusError as error:
                if not skip_bad_files:
                    raise
                bad_files[piece.name] = str(error)
                file.seek(start)
                file.truncate()
                continue
            sources += own
            skipped += piece.skipped
    _write_counts(folder, sources, skipped, bad_files)


def spread(corpus: Corpus, workspace: Workspace, num_shards: int, cache_dir: str | None = None) -> None:
    """Write every shard's passages from here, in equal shares.

    This is for a corpus that is not of files, or whose files the shards cannot see.

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
                        sources += _sources_of(table)
            first_only = (corpus.skipped, corpus.bad_files) if shard == 0 else (0, {})
            _write_counts(folder, sources, *first_only)


def _sources_of(rows: pa.RecordBatch | pa.Table) -> Counter[str]:
    """Passages per source."""
    return Counter({entry["values"]: entry["counts"] for entry in pc.value_counts(rows["source"]).to_pylist()})


def _write_counts(folder: Path, sources: Counter[str], skipped: int, bad_files: dict[str, str]) -> None:
    counts = {"passages": sources.total(), "skipped": skipped, "sources": dict(sources), "bad_files": bad_files}
    write_json(folder / "counts.json", counts)


@njit(nogil=True, cache=True)
def merge_hits(keys, scores, ends, top_k):
    """The top_k of several lists, each ordered by (score descending, key ascending), in that order: (keys, scores).

    keys, scores: the lists one after another; ends: where each ends.
    """
    best_keys, best_scores = keys[:0].copy(), scores[:0].copy()
    start = 0
    for end in ends:
        size = min(top_k, len(best_keys) + end - start)
        merged_keys, merged_scores = np.empty(size, keys.dtype), np.empty(size, scores.dtype)
        i, j = 0, start
        for k in range(size):
            own = j == end or (
                i < len(best_keys)
                and (best_scores[i] > scores[j] or (best_scores[i] == scores[j] and best_keys[i] < keys[j]))
            )
            if own:
                merged_keys[k], merged_scores[k] = best_keys[i], best_scores[i]
                i += 1
            else:
                merged_keys[k], merged_scores[k] = keys[j], scores[j]
                j += 1
        best_keys, best_scores, start = merged_keys, merged_scores, end
    return best_keys, best_scores


@njit(nogil=True, cache=True)
def _fnv1a(data, offsets, hashes):
    for i in range(len(hashes)):
        value = np.uint64(0xCBF29CE484222325)
        for at in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        hashes[i] = value


def hash_ids(ids: pa.ChunkedArray) -> np.ndarray:
    """uint64 [N], FNV-1a."""
    parts = [np.empty(0, np.uint64)]
    for chunk in ids.chunks:
        parts.append(np.empty(len(chunk), np.uint64))
        _fnv1a(*buffers_of(chunk), parts[-1])
    return np.concatenate(parts)


def check_ids(shards: list[Path]) -> None:
    """Raise RetrievalError if an id is in two shards; within a shard the index has seen to it."""
    hashes = [np.load(shard / "hashes.npy", mmap_mode="r") for shard in shards]
    # A range of hash values at a time: the corpus's ids need not fit in memory.
    limits = [np.uint64(i * (2**64 // HASH_RANGES)) for i in range(1, HASH_RANGES)]
    cuts = [np.concatenate([[0], np.searchsorted(h, limits), [len(h)]]) for h in hashes]
    for i in range(HASH_RANGES):
        values = np.sort(np.concatenate([h[c[i] : c[i + 1]] for h, c in zip(hashes, cuts, strict=True)]))
        repeated = np.unique(values[1:][values[1:] == values[:-1]])
        if len(repeated) == 0:
            continue
        owners: dict[str, int] = {}  # Equal hashes need not be equal ids.
        for number, (shard, own) in enumerate(zip(shards, hashes, strict=True)):
            if np.isin(repeated, own).any():
                ids = read_table(shard / "index" / "ids.arrow")["id"]
                for identifier in ids.filter(pa.array(np.isin(hash_ids(ids), repeated))).to_pylist():
                    if identifier in owners:
                        raise RetrievalError(
                            f"The passage id {identifier!r} occurs twice, in shards {owners[identifier]} and {number}. Ids "
                            "must be unique."
                        )
                    owners[identifier] = number
