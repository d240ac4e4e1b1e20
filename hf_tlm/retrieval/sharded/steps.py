"""The steps of a sharded retrieval, as pipeline steps of datatrove, and the layout of the directory that they share.

    run.json             what the outputs of the run depend on: corpus, queries, settings
    queries/             the tokenized queries
    passages/<shard>/    passages.arrow (id, text, source), counts.json
    index/<shard>/       the shard's index (none without passages), frequencies of the queries' terms, hashes of the ids
    statistics/          corpus statistics, summed over the shards
    hits/<shard>/        the shard's top K of every query, with the summed statistics
    union/               union.arrow: the passages in the top K of any query, as (shard, row) with ranks and scores
    texts/<shard>/       passages.arrow: the shard's passages of the union
    logs/<stage>/        datatrove's logs and completion markers

Every directory is written atomically. They hold only data. In logs, datatrove's slurm and jobs executors also store the
pickled pipeline that their tasks load: only trusted users may have write access there.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datatrove.pipeline.base import PipelineStep
from numba import njit

from hf_tlm.corpora.corpus import FEATURES
from hf_tlm.retrieval.bm25.files import order_of_ids
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import buffers_of
from hf_tlm.retrieval.hits import HitUnion, average_idf
from hf_tlm.retrieval.settings import Bm25Settings
from hf_tlm.retrieval.sharded.workspace import (
    PASSAGES_FILE,
    Piece,
    Workspace,
    open_passages,
    read_array,
    read_json,
    read_queries,
    read_statistics,
    read_table,
    shard_name,
    write_json,
    write_shard,
    write_table,
)
from hf_tlm.retrieval.texts import Analyzer, RetrievalError

COPY_ROWS = 1 << 22
HASH_RANGES = 64


@dataclass(eq=False, repr=False)
class Step(PipelineStep):
    """A step that writes the directory `output(rank)`, unless an earlier run has completed it."""

    type = "hf_tlm"
    kind: ClassVar[str]

    workspace: Workspace

    def __post_init__(self):
        super().__init__()

    def output(self, rank: int) -> str:
        """Return the name of the directory that a task writes."""
        return shard_name(self.kind, rank)

    def done(self, rank: int) -> bool:
        """Return whether a task's output is complete."""
        return self.workspace.has(self.output(rank))

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> None:
        """Run a task, unless its output is complete."""
        with self.track_time(unit="task"):
            if not self.done(rank):
                with self.workspace.writing(self.output(rank)) as folder:
                    self.work(folder, rank, world_size)

    @abstractmethod
    def work(self, folder: Path, rank: int, world_size: int) -> None:
        """Write the output's files into a directory."""


@dataclass(eq=False, repr=False)
class IndexShard(Step):
    """The step that writes a shard's passages, unless they exist, and builds their index.

    pieces: the pieces of the corpus of every shard; None if all passages are written already.
    """

    name, kind = "index", "index"

    pieces: list[list[Piece]] | None
    skip_bad_files: bool
    analyzer: Analyzer
    all_terms: bool
    num_threads: int | None

    def work(self, folder: Path, rank: int, world_size: int) -> None:
        passages_name = shard_name("passages", rank)
        if not self.workspace.has(passages_name):
            assert self.pieces is not None  # It is None only if all passages are written.
            with self.workspace.writing(passages_name) as work:
                write_shard(work, self.pieces[rank], self.skip_bad_files)
        passages = open_passages(self.workspace.reading(passages_name))
        vocabulary = read_queries(self.workspace).vocabulary
        frequencies, tokens, hashes = np.zeros(len(vocabulary), np.int64), 0, np.empty(0, np.uint64)
        words: list[str] = []
        document_frequencies = np.empty(0, np.int64)
        if len(passages):
            index = Index.build(
                folder / "index",
                passages,
                corpus_name=f"shard {rank} of {world_size}",
                fingerprint=str(rank),
                analyzer=self.analyzer,
                num_threads=self.num_threads,
                progress=False,
            )
            frequencies, tokens, hashes = index.document_frequencies(vocabulary), index.num_tokens, hash_ids(index.ids)
            if self.all_terms:
                words, document_frequencies = index.terms()
        np.save(folder / "frequencies.npy", frequencies)
        np.save(folder / "hashes.npy", np.sort(hashes))
        if self.all_terms:
            table = {"term": pa.array(words, pa.large_string()), "frequency": document_frequencies}
            write_table(folder / "terms.arrow", pa.table(table))
        write_json(folder / "counts.json", {"passages": len(passages), "tokens": tokens})


@dataclass(eq=False, repr=False)
class SumStatistics(Step):
    """The step that sums the statistics of all shards; an id that occurs in two shards is an error."""

    name, kind = "statistics", "statistics"

    num_shards: int
    all_terms: bool

    def output(self, rank: int) -> str:
        return self.kind

    def work(self, folder: Path, rank: int, world_size: int) -> None:
        shards = [self.workspace.reading(shard_name("index", shard)) for shard in range(self.num_shards)]
        check_ids(shards)
        counts = [read_json(shard / "counts.json") for shard in shards]
        num_passages = sum(count["passages"] for count in counts)
        if num_passages == 0:
            raise RetrievalError("The corpus has no passages: there is nothing to retrieve.")
        average = None
        if self.all_terms:
            terms = read_table(shards[0] / "terms.arrow")
            for shard in shards[1:]:
                terms = pa.concat_tables([terms, read_table(shard / "terms.arrow")])
                terms = terms.group_by("term").aggregate([("frequency", "sum")]).rename_columns(["term", "frequency"])
            average = average_idf(terms["frequency"].to_numpy(), num_passages)
        np.save(folder / "frequencies.npy", sum(np.load(shard / "frequencies.npy") for shard in shards))
        values = {
            "num_passages": num_passages,
            "num_tokens": sum(count["tokens"] for count in counts),
            "average_idf": average,
        }
        write_json(folder / "counts.json", values)


@dataclass(eq=False, repr=False)
class SearchShard(Step):
    """The step that searches a shard with the summed statistics.

    Files: offsets.npy int64 [Q + 1]; scores.bin float32 and places.bin int32, the hits of query q at offsets[q] to
    offsets[q + 1], best first; rows.npy int32 and ids.arrow, the rows and ids of the passages that were hit. places.bin has
    positions in these two.
    """

    name, kind = "search", "hits"

    top_k: int
    settings: Bm25Settings
    max_query_terms: int | None
    num_threads: int | None
    query_batch_size: int | None

    def work(self, folder: Path, rank: int, world_size: int) -> None:
        queries = read_queries(self.workspace)
        shard = self.workspace.reading(shard_name("index", rank))
        offsets = np.zeros(len(queries) + 1, np.int64)
        is_hit, ids = np.zeros(0, bool), pa.chunked_array([], pa.large_string())
        with open(folder / "documents.bin", "wb") as documents_file, open(folder / "scores.bin", "wb") as scores_file:
            if (shard / "index").is_dir():
                index = Index.load(shard / "index")
                is_hit, ids = np.zeros(len(index), bool), index.ids
                hits = index.search(
                    queries,
                    self.top_k,
                    settings=self.settings,
                    statistics=read_statistics(self.workspace),
                    max_query_terms=self.max_query_terms,
                    num_threads=self.num_threads,
                    query_batch_size=self.query_batch_size,
                )
                for query, (documents, scores) in enumerate(hits):
                    is_hit[documents] = True
                    offsets[query + 1] = len(documents)
                    documents_file.write(documents.astype(np.int32).tobytes())
                    scores_file.write(scores.astype(np.float32).tobytes())
        np.cumsum(offsets, out=offsets)
        rows = np.flatnonzero(is_hit).astype(np.int32)
        position_of = np.cumsum(is_hit, dtype=np.int32) - 1
        with open(folder / "places.bin", "wb") as file:
            documents = read_array(folder / "documents.bin", np.int32)
            for start in range(0, len(documents), COPY_ROWS):
                file.write(position_of[documents[start : start + COPY_ROWS]].tobytes())
        (folder / "documents.bin").unlink()
        np.save(folder / "offsets.npy", offsets)
        np.save(folder / "rows.npy", rows)
        write_table(folder / "ids.arrow", pa.table({"id": ids.take(pa.array(rows))}))


@dataclass(eq=False, repr=False)
class MergeHits(Step):
    """The step that merges the K best hits of every query from all shards, and computes their union."""

    name, kind = "merge", "union"

    num_shards: int
    top_k: int

    def output(self, rank: int) -> str:
        return self.kind

    def work(self, folder: Path, rank: int, world_size: int) -> None:
        shards = [self.workspace.reading(shard_name("hits", shard)) for shard in range(self.num_shards)]
        rows = [np.load(shard / "rows.npy") for shard in shards]
        ids = pa.concat_tables([read_table(shard / "ids.arrow") for shard in shards])["id"]
        # A passage's key is its position among all hit passages sorted by id: it breaks ties without comparing strings.
        keys = order_of_ids(ids)
        by_id = np.argsort(keys)
        shard_keys = np.split(keys, np.cumsum([len(r) for r in rows])[:-1])
        offsets = [np.load(shard / "offsets.npy") for shard in shards]
        positions = [read_array(shard / "places.bin", np.int32) for shard in shards]
        scores = [read_array(shard / "scores.bin", np.float32) for shard in shards]

        lengths = np.diff(read_queries(self.workspace).offsets)
        union, without_hits = HitUnion(len(by_id)), []
        for query in range(len(lengths)):
            ranges = [slice(o[query], o[query + 1]) for o in offsets]
            ends = np.cumsum([r.stop - r.start for r in ranges])
            hit_keys = np.concatenate([k[p[r]] for k, p, r in zip(shard_keys, positions, ranges, strict=True)])
            values = np.concatenate([s[r] for s, r in zip(scores, ranges, strict=True)])
            documents, values = merge_hits(hit_keys, values, ends, self.top_k)
            union.add(query, documents, values)
            if lengths[query] and len(documents) == 0:
                without_hits.append(query)

        chosen = union.order(np.arange(len(by_id)))
        hit_order = by_id[chosen]
        table = {
            "shard": np.repeat(np.arange(self.num_shards, dtype=np.int32), [len(r) for r in rows])[hit_order],
            "row": np.concatenate(rows)[hit_order],
            **union.columns(chosen),
        }
        write_table(folder / "union.arrow", pa.table(table))
        write_json(folder / "counts.json", {"without_hits": without_hits})


class GatherTexts(Step):
    """The step that extracts a shard's passages of the union, in the shard's order."""

    name, kind = "gather", "texts"

    def work(self, folder: Path, rank: int, world_size: int) -> None:
        union = read_table(self.workspace.reading("union") / "union.arrow")
        rows = np.sort(union.filter(pc.equal(union["shard"], rank))["row"].to_numpy())
        batches = open_passages(self.workspace.reading(shard_name("passages", rank))).data.to_batches()
        ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
        cuts = np.split(rows, np.searchsorted(rows, ends))
        with pa.OSFile(str(folder / PASSAGES_FILE), "wb") as sink:
            with pa.ipc.new_stream(sink, FEATURES.arrow_schema) as writer:
                for batch, batch_rows, end in zip(batches, cuts, ends, strict=False):
                    if len(batch_rows):
                        writer.write_batch(batch.take(pa.array(batch_rows - (end - len(batch)))).cast(FEATURES.arrow_schema))


@njit(nogil=True, cache=True)
def merge_hits(keys, scores, ends, top_k):
    """Merge several lists, each ordered by (score descending, key ascending), into their top_k in the same order.

    Args:
        keys, scores: the concatenated lists.
        ends: end of each list.

    Returns:
        (keys, scores).
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
    """Write the 64-bit FNV-1a hash of every string into `hashes`."""
    for i in range(len(hashes)):
        value = np.uint64(0xCBF29CE484222325)
        for at in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        hashes[i] = value


def hash_ids(ids: pa.ChunkedArray) -> np.ndarray:
    """Hash passage ids with FNV-1a: uint64 [N]."""
    parts = [np.empty(0, np.uint64)]
    for chunk in ids.chunks:
        parts.append(np.empty(len(chunk), np.uint64))
        _fnv1a(*buffers_of(chunk), parts[-1])
    return np.concatenate(parts)


def check_ids(shards: list[Path]) -> None:
    """Raise a RetrievalError if an id occurs in two shards; repetitions within a shard are found when it is indexed."""
    hashes = [np.load(shard / "hashes.npy", mmap_mode="r") for shard in shards]
    # Process one range of hash values at a time, so that the corpus's ids need not fit in memory.
    limits = [np.uint64(i * (2**64 // HASH_RANGES)) for i in range(1, HASH_RANGES)]
    cuts = [np.concatenate([[0], np.searchsorted(h, limits), [len(h)]]) for h in hashes]
    for i in range(HASH_RANGES):
        values = np.sort(np.concatenate([h[c[i] : c[i + 1]] for h, c in zip(hashes, cuts, strict=True)]))
        repeated = np.unique(values[1:][values[1:] == values[:-1]])
        if len(repeated) == 0:
            continue
        owners: dict[str, int] = {}  # Compare ids, because equal hashes do not imply equal ids.
        for shard_index, (shard, shard_hashes) in enumerate(zip(shards, hashes, strict=True)):
            if np.isin(repeated, shard_hashes).any():
                ids = read_table(shard / "index" / "ids.arrow")["id"]
                for identifier in ids.filter(pa.array(np.isin(hash_ids(ids), repeated))).to_pylist():
                    if identifier in owners:
                        raise RetrievalError(
                            f"The passage id {identifier!r} occurs twice, in shards {owners[identifier]} and {shard_index}. "
                            "Ids must be unique."
                        )
                    owners[identifier] = shard_index
