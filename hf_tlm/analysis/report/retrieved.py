"""Retrieved passages with the queries that found them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.analysis.report.blocks import Column, Table, make_table
from hf_tlm.files import HfTlmError

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

EXAMPLES = 60
MOST_BYTES = 300_000
COLUMNS = (
    Column("rank", "number"),
    Column("query", wide=True),
    Column("passage", wide=True),
    Column("score", "number", "{:.2f}"),
    Column("queries that hit it", "number"),
    Column("source"),
)


def retrieved_table(subset: Subset, task: Task | None, characters: int, most_bytes: int = MOST_BYTES) -> Table:
    """Passages spread evenly over a subset's order, from the best rank to the last, with their queries where there are any
    and `task` has them."""
    total = len(subset)
    chosen = np.unique(np.linspace(0, total - 1, min(total, EXAMPLES)).round().astype(int)) if total else []
    rows = subset.dataset.select(chosen)
    queries = dict.fromkeys(rows["id"][:], None)
    if task is not None:
        asked = rows.select([at for at, query in enumerate(rows["best_query"][:]) if query is not None])
        try:
            found = dataclasses.replace(subset, dataset=asked).examples(task, len(asked))
        except HfTlmError:
            found = []  # Retrieved for another task, whose texts are not at hand.
        queries |= {row["id"]: query for row, (query, _, _) in zip(asked, found, strict=False)}
    influence = "influence" in rows.column_names
    columns = [*COLUMNS, *([Column("influence", "number", "{:.3g}")] if influence else [])]
    values = (
        (
            *(row["rank"], queries[row["id"]] or row["best_query"], row["text"], row["score"], row["n_queries"]),
            *(row["source"], *([row["influence"]] if influence else [])),
        )
        for row in rows
    )
    caption = "Passages, spread evenly over the subset from the best rank to the last, and the task texts that found them"
    return make_table(
        caption,
        columns,
        values,
        total=total,
        most=EXAMPLES,
        characters=characters,
        most_bytes=most_bytes,
        searchable=True,
    )
