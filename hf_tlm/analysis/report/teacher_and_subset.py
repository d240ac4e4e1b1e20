"""Report sections on the inputs of a run: its teacher, and the passages of its subset with the commands that made it."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.arguments import ReportPageArguments
from hf_tlm.analysis.report import about
from hf_tlm.analysis.report.blocks import (
    Block,
    Chart,
    Code,
    Column,
    Facts,
    Row,
    Section,
    Table,
    Text,
    line_chart,
    make_table,
)
from hf_tlm.analysis.report.run_folder import RunFolder, recorded_subset
from hf_tlm.errors import AnalysisError, HfTlmError
from hf_tlm.influence import SelectionArguments
from hf_tlm.retrieval import RetrievalArguments
from hf_tlm.retrieval.report import MarkedTerms, Spans, mark_shared
from hf_tlm.training.teacher import described, doubts
from hf_tlm.utils.json_files import listed, mapped, read_fields, real, record, truth, whole, words
from hf_tlm.utils.run_files import TEACHER_FILE

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

_COUNTS = mapped(whole(0, 2**40), 10_000)
_SHARE = real(0, 1)
_COST = {"seconds": real(0, 1e12), "flops": real(0, 1e30)}
_EXAMPLE = record({"text": words(1000), "probability": _SHARE, "taught": truth})
# Fields of `teacher.json` that the page shows, checked because the file may come from elsewhere; others are settings.
_REPORT_FIELDS = {
    **{"model": words(10_000), "held_out": words(100), "held_out_accuracy": _SHARE, "largest_class": _SHARE},
    "held_out_correlation": real(-1, 1),
    **{"passages": whole(0, 2**40), "passages_by_class": _COUNTS, "subset_by_class": _COUNTS},
    **{"class_shares": mapped(_SHARE, 10_000), "marks_without_passages": listed(words(1000), 1000)},
    **{"marks": listed(words(1000), 1000), "marked_sentences": whole(0, 2**40)},
    **{"confidence_by_tenth": listed(whole(0, 2**40), 10), "examples": mapped(listed(_EXAMPLE, 100), 10_000)},
    **_COST,
    "training": record(_COST),
    "earlier": listed(record({"model": words(10_000)}), 1000),
}
# Most rows in the tables of passages and of sources, and most bytes of the passages.
EXAMPLES, SOURCES = 60, 20
MOST_BYTES = 300_000
COLUMNS = (
    Column("rank", "number"),
    Column("query", wide=True),
    Column("passage", wide=True),
    Column("score", "number", "{:.2f}"),
    Column("queries that found it", "number"),
    Column("source"),
)


def teacher(run: RunFolder) -> Section | None:
    """Return the section on the teacher; None for a run without one.

    Raises:
        AnalysisError: `teacher.json` is damaged.
    """
    path = (run.home if run.best_seed is None else run.seed_folder(run.best_seed).parent) / TEACHER_FILE
    if not isinstance(run.record.get("teacher"), Mapping) or not path.is_file():
        return None
    report: dict[str, Any] = read_fields(path, _REPORT_FIELDS, AnalysisError, optional=_REPORT_FIELDS.keys() - {"model"})
    blocks: list[Any] = [Text(described(report)), *map(Text, doubts(report))]
    if seconds := report.get("seconds"):
        flops = f" and {report['flops']:.3g} FLOPs (2 x tokens x parameters)" if report.get("flops") else ""
        trained = report.get("training")
        training = (
            f"; its training took {trained['seconds']:,.0f} seconds and {trained['flops']:.3g} FLOPs" if trained else ""
        )
        note = "The costs of the run do not include this."
        blocks.append(Text(f"The teacher's answers took {seconds:,.0f} seconds{flops}{training}. {note}"))
    if subset := report.get("subset_by_class"):
        total, taught = max(1, sum(subset.values())), report.get("passages_by_class") or {}
        shares = report.get("class_shares") or {}
        columns = (
            Column("class"),
            Column("share of task", "share"),
            Column("share of subset", "share"),
            Column("used", "number"),
        )
        by_class = [(name, shares.get(name), count / total, taught.get(name, 0)) for name, count in subset.items()]
        blocks.append(
            make_table("Predicted classes of the passages, and how many passages are used in training", columns, by_class)
        )
    if tenths := report.get("confidence_by_tenth"):
        by_tenth = [(f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}", count) for tenth, count in enumerate(tenths) if count]
        tenth_columns = (Column("probability of the predicted class"), Column("passages", "number"))
        blocks.append(make_table("Confidence of the teacher", tenth_columns, by_tenth))
    if examples := report.get("examples"):
        example_columns = (Column("class"), Column("probability", "share"), Column("used"), Column("passage", wide=True))
        shown = [(name, example) for name, of_class in examples.items() for example in of_class]
        rows = [
            (name, example["probability"], "yes" if example["taught"] else "no", example["text"]) for name, example in shown
        ]
        caption = "The most certain passages of each class, and the least certain one"
        blocks.append(make_table(caption, example_columns, rows, searchable=True))
    return Section("The teacher", "teacher", blocks)


def retrieved(
    run: RunFolder, task: Task | None, subsets: Mapping[str, Subset], options: ReportPageArguments, missing: list[str]
) -> Section | None:
    """Return the section on the passages of each subset and, for a run that built it, the commands that do so again.

    Adds sentences to `missing` about what is not available. Returns None without a subset.
    """
    if not subsets and run.kind == "subset":
        from hf_tlm.retrieval import Subset

        subsets = {run.name: Subset.load(run.path)}
    if not subsets and run.kind == "tlm" and run.record.get("subset"):
        recorded = recorded_subset(run)
        subsets = {} if recorded is None else {"the run's subset": recorded}
        if recorded is None:
            missing.append(
                "Retrieved passages: the run's subset was not found, or has changed. Pass its folder as --subsets."
            )
    if not subsets:
        return None
    blocks: list[Block] = []
    for name, subset in subsets.items():
        queries = any(query is not None for query in subset.dataset[:1]["best_query"])
        if queries and (task is None or not made_for(subset, task)):
            missing.append(
                f"The task texts that found the passages of {name}: they are shown by id. Pass the task that these were "
                "retrieved for as --task."
            )
        if run.kind == "subset":
            command, chart = subset_command(subset.manifest), size_chart(subset)
            chosen = subset.manifest.get("selection") or {}
            note = " (its score model with the options that the manifest has)"
            intro = f"To create the subset again{note if isinstance(chosen.get('score_model'), dict) else ''}:"
            blocks += [Text(intro), Code(command)] if command else []
            blocks.append(Row([source_table(subset), *([chart] if chart else [])]))
        else:
            blocks += [Text(f"Passages of {name}:"), Facts(about.subset_facts(subset.manifest))]
        blocks.append(retrieved_table(subset, task, options.report_characters, MOST_BYTES // len(subsets)))
    return Section("Retrieved passages", "retrieved", blocks)


def made_for(subset: Subset, task: Task) -> bool:
    """Return whether the passages were retrieved for this task, as far as is known: other tasks may have the same ids."""
    return (subset.manifest.get("task") or {}).get("fingerprint") in (None, task.fingerprint)


def retrieved_table(subset: Subset, task: Task | None, characters: int, most_bytes: int = MOST_BYTES) -> Table:
    """Return a table of passages, evenly spaced over a subset, and the task texts that found them, with words marked.

    For another `task`, or none, the texts are shown by their ids.
    """
    total = len(subset)
    chosen = np.unique(np.linspace(0, total - 1, min(total, EXAMPLES)).round().astype(int)) if total else np.empty(0, int)
    rows = subset.dataset.select(chosen)
    shown = _mark_queries(subset, rows, task) if task is not None and made_for(subset, task) else {}
    scored = [name for name in ("influence", "teacher_score") if name in rows.column_names]
    columns = [*COLUMNS, *(Column(name.replace("_", " "), "number", "{:.3g}") for name in scored)]
    values = (
        (
            *(row["rank"], *shown.get(row["id"], (row["best_query"], row["text"])), row["score"], row["n_queries"]),
            *(row["source"], *(row[name] for name in scored)),
        )
        for row in rows
    )
    caption = "Passages at even distances in the subset, and the task texts that found them"
    caption += "; shared words are marked" if shown else ""
    bounds = {"total": total, "most": EXAMPLES, "characters": characters, "most_bytes": most_bytes}
    return make_table(caption, columns, values, **bounds, searchable=True)


def size_chart(subset: Subset) -> Chart | None:
    """Chart the number of a subset's passages that are among a text's top K, against K; None if there are no ranks."""
    ranks = np.sort([rank for rank in subset.dataset["rank"][:] if rank is not None])
    if (subset.manifest.get("top_k") or 0) < 2 or not len(ranks):
        return None
    cutoffs = np.unique(np.geomspace(1, max(ranks[-1], 2), 60).round().astype(int))
    points = list(zip(cutoffs.tolist(), np.searchsorted(ranks, cutoffs, side="right").tolist(), strict=True))
    return line_chart("Size against K", "K (passages per training text)", "passages of the subset", {"subset": points})


def source_table(subset: Subset) -> Table:
    """Return a table of the sources with the most passages, beside their share of the corpus if the manifest has it."""
    counts = Counter(source or "" for source in subset.dataset["source"][:])
    corpus = subset.manifest["counts"].get("sources") or {}
    columns = [Column("source"), Column("passages", "number"), Column("share /%", "number", "{:.1f}")]
    columns += [Column("share of the corpus /%", "number", "{:.1f}")] if corpus else []
    of_corpus = sum(corpus.values())
    rows = [
        (name or "(none)", count, 100 * count / len(subset), *([100 * corpus.get(name, 0) / of_corpus] if corpus else []))
        for name, count in counts.most_common()
    ]
    return make_table("Sources", columns, rows, most=SOURCES)


def subset_command(manifest: Mapping[str, Any]) -> str | None:
    """Return the commands that build a subset again, from its manifest; names of task and corpus stand for their paths.

    Returns None for a released subset.
    """
    if manifest["retriever"] == "released":
        return None
    task, corpus, random = manifest["task"]["name"], manifest["corpus"], manifest["retriever"] == "random"
    options: dict[str, Any] = {"task": task, "retriever": manifest["retriever"]}
    options["elastic_index" if manifest["retriever"] == "elasticsearch" else "corpus"] = corpus["name"]
    options["passage_words"] = corpus.get("passage_words", None if manifest["retriever"] == "elasticsearch" else 0)
    names = ("num_passages", "seed") if random else ("query_mode", "max_query_terms", "k1", "b", "delta", "stemmer")
    options |= {name: manifest.get(name) for name in names}
    if not random:
        options |= {"top_k": manifest.get("top_k_requested") or manifest.get("top_k"), "bm25_variant": manifest["variant"]}
        options["keep_stopwords"] = manifest.get("stopwords") is None and "analyzed_by" not in manifest
    options["decontaminate"] = manifest.get("decontamination") is not None
    options["deduplicate"] = (manifest.get("deduplication") or {}).get("threshold")
    lines = [_format_command("retrieve", options, RetrievalArguments)]
    if selection := manifest.get("selection"):
        from hf_tlm.training import ScoreModelArguments

        chosen = {"task": task, "subset": "SUBSET", **_selection_options(selection)}
        lines.append(_format_command("select-influence", chosen, SelectionArguments, ScoreModelArguments))
    return "\n".join(lines)


def _selection_options(selection: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of select-influence from a manifest's `selection`, including those of its score model."""
    names = "method fraction top_k num_passages balance corpus_batch_size task_batch_size task_split group_loss"
    options = {name: selection.get(name) for name in (*names.split(), "mask_task_texts", "layer", "projection_dim")}
    renamed = {"selection_seed": "seed", "score_mlm_probability": "mlm_probability", "score_max_length": "max_length"}
    options |= {option: selection.get(name) for option, name in renamed.items()}
    parameters = selection.get("parameters")
    options["parameters"] = ",".join(map(str, parameters)) if isinstance(parameters, list) else None
    if teacher := selection.get("teacher"):
        options["teacher_trust"] = selection.get("trust")
        teachers = [
            f"{member['name']}@{member['revision']}" if member.get("revision") else member["name"]
            for member in teacher.get("teachers", [])
        ]
        return options | {"teacher": teachers or [(teacher.get("file") or {}).get("name", "linear")]}
    model = selection.get("score_model")
    if isinstance(model, Mapping):
        model_fields = "rho2 mlm_probability mlm_probability_end whole_word_mask learning_rate warmup_steps"
        model_fields += " num_train_epochs max_steps max_length seed"
        return options | {name: model.get(name) for name in model_fields.split()}
    return options | {"score_model": model}


def _format_command(name: str, values: Mapping[str, Any], *arguments: type) -> str:
    """Format a command with the options that differ from their defaults."""
    defaults = {entry.name: entry.default for cls in arguments for entry in dataclasses.fields(cls)}
    options = {option: value for option, value in values.items() if value is not None and value != defaults.get(option)}
    words: list[str] = []
    for option, value in options.items():
        words += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(["hf-tlm", name, *(word.lower() if word in ("True", "False") else word for word in words)])


def _mark_queries(subset: Subset, rows: Any, task: Task) -> dict[str, tuple[Spans, Spans]]:
    """Return passage id -> (query, passage text), with shared words marked; passages without a query are left out."""
    with_query = rows.select([index for index, query in enumerate(rows["best_query"][:]) if query is not None])
    try:
        examples = dataclasses.replace(subset, dataset=with_query).examples(task, len(with_query))
        terms_of = MarkedTerms.of(subset.manifest)
    except HfTlmError:
        return {}  # The task lacks such a row, or the stemmer of the retrieval is not installed.
    shown = {}
    for identifier, (query, passage, _) in zip(with_query["id"][:], examples, strict=True):
        query_spans, (passage_spans,) = mark_shared(query, [passage], terms_of)
        shown[identifier] = query_spans, passage_spans
    return shown
