"""The result of retrieval: passages with the reasons they were chosen, and a manifest of how."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value

from hf_tlm.files import atomic_directory, sha256
from hf_tlm.retrieval.queries import RetrievalError

FORMAT = 1
MANIFEST = "manifest.json"
DATA = "data/train-00000-of-00001.parquet"
FEATURES = Features(
    {
        "id": Value("string"),
        "text": Value("string"),
        "source": Value("string"),
        "rank": Value("int32"),
        "score": Value("float32"),
        "n_queries": Value("int32"),
        "best_query": Value("string"),
    }
)

_CARD = """---
pretty_name: {title}
tags:
- hf_tlm
- task-retrieved-subset
---

# {title}

{summary}

Columns: `id` (stable in the corpus), `text`, `source`, `rank` (the best, over all queries), `score` (the best BM25
score), `n_queries` (queries with this passage among their top K), `best_query` (id of the training example that ranked
it best). How it was made is in `manifest.json`.

```python
from datasets import load_dataset

subset = load_dataset("path/or/repo-id", split="train")
```
"""


@dataclass
class Subset:
    """Passages of a corpus chosen for a task.

    dataset: columns `id, text, source, rank, score, n_queries, best_query`, best rank first (see `FEATURES`; score and
        best_query are null in a random subset).
    manifest: where it is from and how it was made: corpus, task, query mode, retriever, settings, counts, versions.
        It holds neither times nor paths, so equal runs give equal bytes.
    """

    dataset: Dataset
    manifest: dict[str, Any]

    def save(self, path: str | os.PathLike) -> Path:
        """Write a folder that `Subset.load` and `datasets.load_dataset` read; it appears whole or not at all.

        Raises:
            RetrievalError: `path` holds something else than a subset.
            HfTlmError: the disk cannot be written.
        """
        path = Path(path)
        if path.exists() and not (path / MANIFEST).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise RetrievalError(f"{path} exists and is not a subset; nothing was written. Choose another --output_dir.")
        with atomic_directory(path) as folder:
            data = folder / DATA
            data.parent.mkdir()
            table = self.dataset.with_format("arrow")[:].combine_chunks()
            pq.write_table(table.replace_schema_metadata(None), data, compression="zstd")
            manifest = {**self.manifest, "data": {"file": DATA, "sha256": sha256(data)}}
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            title = f"{self.manifest['corpus']['name']} for {self.manifest['task']['name']}"
            (folder / "README.md").write_text(_CARD.format(title=title, summary=self.summary()), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | os.PathLike) -> Subset:
        """Read a folder that `save` wrote.

        Raises:
            RetrievalError: it is not one, is of another format version, or is damaged.
        """
        path = Path(path)
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise RetrievalError(
                f"{path} is not a subset: cannot read {MANIFEST} ({error}). Make one with recipes/retrieve.py."
            ) from error
        if manifest.get("format") != FORMAT:
            raise RetrievalError(f"{path} has subset format {manifest.get('format')!r}; this version reads {FORMAT}.")
        recorded = manifest.pop("data")
        data = path / recorded["file"]
        if not data.is_file() or sha256(data) != recorded["sha256"]:
            raise RetrievalError(f"{data} is missing or damaged (its checksum is not the manifest's). Retrieve again.")
        dataset = Dataset.from_parquet(str(data), features=FEATURES)
        return cls(dataset, manifest)

    def summary(self) -> str:
        """A few lines for a person."""
        m, counts = self.manifest, self.manifest["counts"]
        share = 100 * counts["union"] / counts["passages"]
        lines = [
            f"{counts['union']:,} of {counts['passages']:,} passages ({share:.1f}%) of {m['corpus']['name']} "
            f"for the task {m['task']['name']}, by {m['retriever']}"
        ]
        if m["retriever"] == "random":
            lines[0] += f" (seed {m['seed']})."
        else:
            lines[0] += f" ({m['bm25']['variant']}, top {m['top_k']:,} of each of {counts['queries']:,} queries)."
            lines.append(
                f"{counts['empty_queries']:,} queries had no word left, {counts['queries_without_hits']:,} others no hit."
            )
        return "\n".join(lines)

    def examples(self, task, count: int) -> list[tuple[str, str, float]]:
        """Up to `count` (training text, passage, score) with the highest scores, each training text once.

        Args:
            task: the `Task` it was retrieved for.
        """
        texts = dict(zip(task.train["id"], task.train["text"], strict=True))
        columns = self.dataset.select_columns(["best_query", "text", "score"])[:]
        rows = sorted(
            (row for row in zip(*columns.values(), strict=True) if row[0] in texts), key=lambda row: (-row[2], row[0])
        )
        chosen: dict[str, tuple[str, str, float]] = {}
        for query, text, score in rows:
            chosen.setdefault(query, (texts[query], text, score))
            if len(chosen) == count:
                break
        return list(chosen.values())


def build_dataset(columns: dict[str, Any]) -> Dataset:
    """A subset's `Dataset` from its columns."""
    return Dataset(pa.table(columns, schema=FEATURES.arrow_schema))
