"""Locate the data of the benchmarks, and draw the sample of the corpus for those that pretrain."""

from __future__ import annotations

import os
from pathlib import Path

from results_file import ROOT


def data_dir() -> Path:
    """Return the directory with tasks/ and corpus/."""
    return Path(os.environ.get("HF_TLM_DATA", ROOT.parent / "shared" / "data"))


def corpus_sample(path: Path, passages: int) -> str:
    """Return the path of a Parquet file with at most `passages` passages of the real corpus, drawn at random.

    It is written if it does not exist, and then the same for every model.
    """
    import pyarrow.parquet as pq

    from hf_tlm.corpora import load_corpus

    if not path.is_file():
        rows = load_corpus(f"{data_dir()}/corpus/*.parquet").to_dataset().shuffle(seed=0)
        rows = rows.select(range(min(passages, len(rows)))).flatten_indices()
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.data.table, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)
    return str(path)
