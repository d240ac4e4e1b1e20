"""Retrieved passages with the queries that found them."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.report.blocks import Column, Marked, Table, make_table
from hf_tlm.analysis.report.charts import Chart, line_chart
from hf_tlm.errors import HfTlmError
from hf_tlm.influence import SelectionArguments
from hf_tlm.retrieval import RetrievalArguments
from hf_tlm.retrieval.report import MarkedTerms, mark_shared

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

EXAMPLES, SOURCES = 60, 20
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
    """Passages spread evenly over a subset and the texts that found them, marked; of another `task` only the texts' ids."""
    total = len(subset)
    chosen = np.unique(np.linspace(0, total - 1, min(total, EXAMPLES)).round().astype(int)) if total else np.empty(0, int)
    rows = subset.dataset.select(chosen)
    shown = _with_queries(subset, rows, task) if task is not None and made_for(subset, task) else {}
    scored = [name for name in ("influence", "teacher_score") if name in rows.column_names]
    columns = [*COLUMNS, *(Column(name.replace("_", " "), "number", "{:.3g}") for name in scored)]
    values = (
        (
            *(row["rank"], *shown.get(row["id"], (row["best_query"], row["text"])), row["score"], row["n_queries"]),
            *(row["source"], *(row[name] for name in scored)),
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


def size_chart(subset: Subset) -> Chart | None:
    """Against K how many of a subset's passages are some text's K best; None without ranks."""
    ranks = np.sort([rank for rank in subset.dataset["rank"][:] if rank is not None])
    if (subset.manifest.get("top_k") or 0) < 2 or not len(ranks):
        return None
    places = np.unique(np.geomspace(1, max(ranks[-1], 2), 60).round().astype(int))
    points = list(zip(places.tolist(), np.searchsorted(ranks, places, side="right").tolist(), strict=True))
    return line_chart("Size against K", "K, passages of each training text", "passages of the subset", {"subset": points})


def source_table(subset: Subset) -> Table:
    """The sources with the most passages; beside them what the corpus holds of each, where the manifest has it."""
    found = Counter(source or "" for source in subset.dataset["source"][:])
    corpus = subset.manifest["counts"].get("sources") or {}
    columns = [Column("source"), Column("passages", "number"), Column("share /%", "number", "{:.1f}")]
    columns += [Column("share of the corpus /%", "number", "{:.1f}")] if corpus else []
    of_corpus = sum(corpus.values())
    rows = [
        (name or "(none)", count, 100 * count / len(subset), *([100 * corpus.get(name, 0) / of_corpus] if corpus else []))
        for name, count in found.most_common()
    ]
    return make_table("Sources", columns, rows, most=SOURCES)


def subset_command(manifest: Mapping[str, Any]) -> str | None:
    """The commands that make a subset again, as its manifest tells: names of task and corpus stand for their places."""
    if manifest["retriever"] == "released":
        return None
    task, corpus, random = manifest["task"]["name"], manifest["corpus"], manifest["retriever"] == "random"
    asked: dict[str, Any] = {"task": task, "retriever": manifest["retriever"]}
    asked["elastic_index" if manifest["retriever"] == "elasticsearch" else "corpus"] = corpus["name"]
    asked["passage_words"] = corpus.get("passage_words", None if manifest["retriever"] == "elasticsearch" else 0)
    names = ("num_passages", "seed") if random else ("query_mode", "max_query_terms", "k1", "b", "delta", "stemmer")
    asked |= {name: manifest.get(name) for name in names}
    if not random:
        asked |= {"top_k": manifest.get("top_k_requested") or manifest.get("top_k"), "bm25_variant": manifest["variant"]}
        asked["keep_stopwords"] = manifest.get("stopwords") is None and "analyzed_by" not in manifest
    asked["decontaminate"] = manifest.get("decontamination") is not None
    asked["deduplicate"] = (manifest.get("deduplication") or {}).get("threshold")
    lines = [_command("retrieve", asked, RetrievalArguments)]
    if selection := manifest.get("selection"):
        from hf_tlm.training import ScoreModelArguments

        chosen = {"task": task, "subset": "SUBSET", **_selection_options(selection)}
        lines.append(_command("select-influence", chosen, SelectionArguments, ScoreModelArguments))
    return "\n".join(lines)


def _selection_options(selection: Mapping[str, Any]) -> dict[str, Any]:
    """Options of select-influence, as a manifest's `selection` tells them; of a model trained for it those it names."""
    of = "method fraction top_k num_passages balance corpus_batch_size task_batch_size task_split group_loss"
    options = {name: selection.get(name) for name in (*of.split(), "mask_task_texts", "layer", "projection_dim")}
    renamed = {"selection_seed": "seed", "score_mlm_probability": "mlm_probability", "score_max_length": "max_length"}
    options |= {option: selection.get(name) for option, name in renamed.items()}
    parameters = selection.get("parameters")
    options["parameters"] = ",".join(map(str, parameters)) if isinstance(parameters, list) else None
    if teacher := selection.get("teacher"):
        options["teacher_trust"] = selection.get("trust")
        asked = [
            f"{one['name']}@{one['revision']}" if one.get("revision") else one["name"] for one in teacher.get("teachers", [])
        ]
        return options | {"teacher": asked or [(teacher.get("file") or {}).get("name", "linear")]}
    model = selection.get("score_model")
    if isinstance(model, Mapping):
        trained = "rho2 mlm_probability learning_rate warmup_steps num_train_epochs max_steps max_length seed"
        return options | {name: model.get(name) for name in trained.split()}
    return options | {"score_model": model}


def _command(name: str, values: Mapping[str, Any], *arguments: type) -> str:
    """A command with the options that are not at their defaults."""
    defaults = {entry.name: entry.default for each in arguments for entry in dataclasses.fields(each)}
    given = {option: value for option, value in values.items() if value is not None and value != defaults.get(option)}
    words: list[str] = []
    for option, value in given.items():
        words += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(["hf-tlm", name, *(word.lower() if word in ("True", "False") else word for word in words)])


def _with_queries(subset: Subset, rows: Any, task: Task) -> dict[str, tuple[Marked, Marked]]:
    """Passage -> its query and its text, marked; nothing for a passage without a query."""
    asked = rows.select([at for at, query in enumerate(rows["best_query"][:]) if query is not None])
    try:
        found = dataclasses.replace(subset, dataset=asked).examples(task, len(asked))
        terms_of = MarkedTerms.of(subset.manifest)
    except HfTlmError:
        return {}  # Without such a row, or without the stemmer that the retrieval had.
    shown = {}
    for identifier, (query, passage, _) in zip(asked["id"][:], found, strict=True):
        of_query, (of_passage,) = mark_shared(query, [passage], terms_of)
        shown[identifier] = Marked(of_query), Marked(of_passage)
    return shown
