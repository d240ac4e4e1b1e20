"""Retrieved passages with the queries that found them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.report.blocks import Column, Marked, Table, make_table
from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval.highlight import mark_shared, marked_terms, stemmer_of

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


def made_for(subset: Subset, task: Task) -> bool:
    """Whether the passages were retrieved for this task, as far as is known: rows of others may have the same ids."""
    return (subset.manifest.get("task") or {}).get("fingerprint") in (None, task.fingerprint)


def retrieved_table(subset: Subset, task: Task | None, characters: int, most_bytes: int = MOST_BYTES) -> Table:
    """Tabulate passages of a subset with the task texts that found them, the words that both have marked.

    They are spread evenly over its order, from the best rank to the last. Where `task` is not the subset's, there are
    the texts' ids alone.
    """
    total = len(subset)
    chosen = np.unique(np.linspace(0, total - 1, min(total, EXAMPLES)).round().astype(int)) if total else np.empty(0, int)
    rows = subset.dataset.select(chosen)
    shown = _with_queries(subset, rows, task) if task is not None and made_for(subset, task) else {}
    influence = "influence" in rows.column_names
    columns = [*COLUMNS, *([Column("influence", "number", "{:.3g}")] if influence else [])]
    values = (
        (
            *(row["rank"], *shown.get(row["id"], (row["best_query"], row["text"])), row["score"], row["n_queries"]),
            *(row["source"], *([row["influence"]] if influence else [])),
        )
        for row in rows
    )
    caption = "Passages, spread evenly over the subset from its first to its last, and the task texts that found them"
    caption += "; words that both have are marked" if shown else ""
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


def _with_queries(subset: Subset, rows: Any, task: Task) -> dict[str, tuple[Marked, Marked]]:
    """Passage -> its query and its text, marked; nothing for a passage without a query."""
    asked = rows.select([at for at, query in enumerate(rows["best_query"][:]) if query is not None])
    try:
        found = dataclasses.replace(subset, dataset=asked).examples(task, len(asked))
        terms_of = marked_terms(stemmer_of(subset.manifest))
    except HfTlmError:
        return {}  # Without such a row, or without the stemmer that the retrieval had.
    shown = {}
    for identifier, (query, passage, _) in zip(asked["id"][:], found, strict=True):
        of_query, (of_passage,) = mark_shared(query, [passage], terms_of)
        shown[identifier] = Marked(of_query), Marked(of_passage)
    return shown
