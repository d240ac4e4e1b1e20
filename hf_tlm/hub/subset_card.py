"""The dataset card of a subset, from its manifest and its report."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from hf_tlm.hub.rendering import hub_dataset, license_sentence, render

SIZES = (("1K", 1e3), ("10K", 1e4), ("100K", 1e5), ("1M", 1e6), ("10M", 1e7), ("100M", 1e8), ("1B", 1e9))


def subset_card(
    manifest: Mapping[str, Any],
    report: str,
    info: Mapping[str, Any],
    *,
    engine: str = "",
    selection: str | None = None,
    config: str | None = None,
    data_files: str = "data/train-*.parquet",
    license: str | None = None,
) -> str:
    """The README.md of a subset.

    Args:
        manifest: the subset's.
        report: markdown of what retrieval found, whose first two lines, a title, are left out.
        info: `dataset_info` of the metadata, see `describe_data`; empty where it is not known.
        engine: the engine and its settings in words; not read for a random or released subset.
        selection: in words, how the subset was made smaller.
        config: name of its configuration in the repo; None for a repo of this subset alone.
        data_files: where its parquet files are in the repo.
    """
    from huggingface_hub import DatasetCardData

    task, corpus, counts = manifest["task"], manifest["corpus"], manifest["counts"]
    random, released = (manifest["retriever"] == kind for kind in ("random", "released"))
    method = (manifest.get("selection") or {}).get("method")
    name, source = config or "default", hub_dataset(corpus["name"])
    title = f"{corpus['name']}: {'random passages' if random else 'passages retrieved'} for {task['name']}"
    data = DatasetCardData(
        pretty_name=title,
        license=license,
        tags=["hf_tlm", "tlm", "retrieval", "random" if random else "bm25", *([method] if method else [])],
        task_categories=["fill-mask"],
        size_categories=[size_category(counts["union"])],
        source_datasets=[source.partition("@")[0] if source else "extended|other"],
        configs=[{"config_name": name, "data_files": [{"split": "train", "path": data_files}]}],
        dataset_info={"config_name": name, **info} if info else None,
    )
    return render(
        "subset.md",
        data,
        title=title,
        manifest=manifest,
        task=task,
        corpus=corpus,
        counts=counts,
        random=random,
        released=released,
        engine=engine,
        selection=selection,
        influence=method == "iss",
        by_teacher=method in ("confidence", "disagreement"),
        config=config,
        found=re.sub("^#", "##", report.split("\n", 2)[2].strip(), flags=re.MULTILINE),
        license_sentence=license_sentence(license),
        citations=["tlm", *({method} & {"iss", "dsir"})],
    )


def describe_data(columns: Mapping[str, str | None], parquet: str | os.PathLike) -> dict[str, Any]:
    """`dataset_info` of one parquet file and its columns: name -> type as `datasets` has it, None for no plain one."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(parquet)
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    split = {"name": "train", "num_bytes": size, "num_examples": metadata.num_rows}
    info = {"splits": [split], "download_size": os.path.getsize(parquet), "dataset_size": size}
    if None in columns.values():
        return info  # `datasets` reads the types from the file.
    return {"features": [{"name": name, "dtype": kind} for name, kind in columns.items()], **info}


def size_category(rows: int) -> str:
    """The Hub's name for a number of rows."""
    below = ""
    for name, bound in SIZES:
        if rows < bound:
            return f"{below}n<{name}"
        below = f"{name}<"
    return "n>1B"
