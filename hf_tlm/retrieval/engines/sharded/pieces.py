"""Which shard reads what of a corpus, and a shard's passages on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hf_tlm.corpora.corpus import FEATURES, Corpus, CorpusError, Part
from hf_tlm.retrieval.engines.sharded.workspace import PASSAGES_FILE, Workspace, shard_name, write_json

READ_ROWS = 10_000


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
        return _bytes_of(self.part) / self.of

    def passages(self) -> Iterator[pa.RecordBatch]:
        """As `Part.passages`; then `skipped` has the part's number, counted in one piece only."""
        documents = replace(self.part, max_words=None)
        own = (batch for at, batch in enumerate(documents.passages()) if at % self.of == self.number)
        yield from replace(self.part, documents=lambda: own, id_column=None).passages()
        self.skipped = documents.skipped if self.number == 0 else 0


def _bytes_of(part: Part) -> int:
    """The size of a part that is a file."""
    assert part.size is not None
    return part.size


def plan(parts: Iterable[Part], num_shards: int) -> list[list[Piece]]:
    """Distribute the parts of a corpus over shards of about equal size; the parts are files.

    The largest pieces go first, always to the shard that has least. A file that is larger than what a shard should have is
    cut.
    """
    parts = list(parts)
    fair = max(1, sum(map(_bytes_of, parts)) / num_shards)
    cuts = [(part, min(num_shards, max(1, round(_bytes_of(part) / fair)))) for part in parts]
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
                    for entry in pc.value_counts(batch["source"]).to_pylist():
                        own[entry["values"]] += entry["counts"]
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
                        for entry in pc.value_counts(table["source"]).to_pylist():
                            sources[entry["values"]] += entry["counts"]
            first_only = (corpus.skipped, corpus.bad_files) if shard == 0 else (0, {})
            _write_counts(folder, sources, *first_only)


def _write_counts(folder: Path, sources: Counter[str], skipped: int, bad_files: dict[str, str]) -> None:
    counts = {"passages": sources.total(), "skipped": skipped, "sources": dict(sources), "bad_files": bad_files}
    write_json(folder / "counts.json", counts)
