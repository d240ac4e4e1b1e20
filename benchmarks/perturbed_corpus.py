"""Build a corpus of any size from that of HF_TLM_DATA: a random part of it, or all of it and perturbed copies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

CHANGED = 0.2  # Share of a copy's words that are replaced by words of other passages.
BATCH = 10_000


def make_corpus(data: Path, work_dir: Path, size: int) -> tuple[Path, int]:
    """Return (Arrow stream file with columns id, text, source; how many of its `size` passages are real).

    The file is written once. Passages have one random order, so that a smaller corpus is a sample of a larger one. After all
    real ones, copies follow: each word of a copy is replaced, with probability CHANGED, by a word of another passage.
    Lengths stay, as do the overall word frequencies, so that a larger corpus costs as much as a larger real one; no two
    copies are equal.

    Raises:
        FileNotFoundError: there is no corpus/*.parquet in `data`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((data / "corpus").glob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"No {data / 'corpus'}/*.parquet. Set HF_TLM_DATA to the folder with tasks/ and corpus/.")
    real = sum(pq.read_metadata(file).num_rows for file in files)
    path = work_dir / f"corpus-{size}.arrow"
    if path.is_file():
        return path, min(size, real)
    table = pa.concat_tables(pq.read_table(file, columns=["text", "source"]) for file in files)
    texts, sources = table["text"].cast(pa.large_string()).combine_chunks(), table["source"].combine_chunks()
    rng = np.random.default_rng(0)
    order = rng.permutation(real)
    work_dir.mkdir(parents=True, exist_ok=True)
    work = path.with_suffix(f".{os.getpid()}")
    schema = pa.schema([(name, pa.string()) for name in ("id", "text", "source")])
    with pa.OSFile(str(work), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for start in range(0, size, BATCH):
            numbers = np.arange(start, min(start + BATCH, size))
            rows = pa.array(order[numbers % real])
            batch = texts.take(rows).to_pylist()
            if numbers[-1] >= real:
                pool = np.array(" ".join(texts.take(pa.array(rng.integers(0, real, 2000))).to_pylist()).split(), object)
                batch = [perturb(text, pool, rng) if n >= real else text for n, text in zip(numbers, batch, strict=True)]
            columns = [[f"p{n}" for n in numbers], batch, sources.take(rows).to_pylist()]
            arrays = [pa.array(column, pa.string()) for column in columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    work.replace(path)
    return path, min(size, real)


def perturb(text: str, pool: np.ndarray, rng: np.random.Generator) -> str:
    """Return the text with about a share CHANGED of its words replaced by words from the pool."""
    words = np.array(text.split(), object)
    changed = rng.random(len(words)) < CHANGED
    words[changed] = pool[rng.integers(0, len(pool), int(changed.sum()))]
    return " ".join(words.tolist())
