"""Each view of subsets: its table in markdown, its pictures, and why a subset is not in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.figures import save_figure, to_csv
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.subsets import figures
from hf_tlm.analysis.subsets.case_study import case_studies, case_studies_to_markdown
from hf_tlm.analysis.subsets.influence import QUANTILES, rank_against_influence
from hf_tlm.analysis.subsets.overlap import Overlap, by_corpus, describe_corpora, subset_overlap
from hf_tlm.analysis.subsets.ranks import size_against_k, steps
from hf_tlm.analysis.subsets.sources import source_shares
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.markdown import markdown_table
from hf_tlm.utils.shown import for_markdown

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

Subsets = Mapping[str, "Subset"]


def sizes(subsets: Subsets, folder: Path) -> Findings:
    """subsets_size: size of the union and score against K."""
    curves, reasons = _of_each(subsets, size_against_k)
    files, lines = [], []
    for names, suffix in _pages(curves):
        rows = [
            {
                "subset": name,
                "k": int(k),
                "passages": int(passages),
                "score": _number(score),
                "deviation": _number(deviation),
            }
            for name in names
            for k, passages, score, deviation in zip(*vars(curves[name]).values(), strict=True)
        ]
        figure = figures.draw_size({name: curves[name] for name in names})
        files += save_figure(figure, folder, f"subsets_size{suffix}", rows)
    if curves:
        table = []
        for k in steps(max(len(curve.k) for curve in curves.values())):
            row = [f"{k:,}"]
            for curve in curves.values():
                there = k <= len(curve.k)
                row.append(f"{curve.passages[k - 1]:,}" if there else "")
                row.append(f"{curve.score[k - 1]:.1f}" if there and not np.isnan(curve.score[k - 1]) else "")
            table.append(row)
        head = ["K", *(f"{name}: {what}" for name in curves for what in ("passages", "score at rank K"))]
        lines = ["Passages in the union of the queries' K best, and the mean BM25 score of those whose best rank is K.", ""]
        lines.append(markdown_table(head, table, texts=0))
    return Findings("Size against K", "\n".join([*lines, *reasons]), files)


def sources(subsets: Subsets, folder: Path, top: int) -> Findings:
    """subsets_sources: shares of the sources with the most passages."""
    shares = source_shares(subsets, top)
    groups = by_corpus(subsets)
    known = [[name for name in names if subsets[name].manifest["counts"].get("sources")] for names in groups]
    corpora = {"corpus" if len(groups) == 1 else f"corpus of {', '.join(names)}": names for names in known if names}
    files = []
    for names, suffix in _pages(subsets):
        rows = [share for share in shares if share.subset in names]
        own = {name: [member for member in members if member in names] for name, members in corpora.items()}
        figure = figures.draw_sources(rows, {name: members for name, members in own.items() if members})
        files += save_figure(figure, folder, f"subsets_sources{suffix}", [asdict(row) for row in rows])
    table = []
    for at in range(0, len(shares), len(subsets)):
        row = shares[at : at + len(subsets)]
        first = row[0]
        line = [f"{first.others:,} others" if first.source is None else first.source or "(none)"]
        for share in row:
            line += [f"{share.share:.1%}", "" if share.ratio is None else f"{share.ratio:.2f}"]
        table.append(line)
    head = ["source", *(f"{name}{what}" for name in subsets for what in ("", ": ratio"))]
    text = "Share of the passages, and its ratio to the source's share of the corpus."
    return Findings("Sources", f"{text}\n\n{markdown_table(head, table)}", files)


def influence(subsets: Subsets, folder: Path, bins: int) -> Findings | None:
    """subsets_influence_<name> of each subset with influence; None where no subset has any."""
    scored = {name: subset for name, subset in subsets.items() if "influence" in subset.dataset.column_names}
    if not scored:
        return None
    found, reasons = _of_each(scored, lambda subset: rank_against_influence(subset, bins))
    files, blocks = [], []
    for (name, own), path in zip(found.items(), _file_names(found), strict=True):
        quantiles = [f"quantile_{quantile:g}" for quantile in QUANTILES]
        rows = []
        for group in own.bins:
            row = {"first_rank": group.first, "last_rank": group.last, "passages": group.passages, "mean": group.mean}
            rows.append(row | {"deviation": group.deviation, **dict(zip(quantiles, group.quantiles, strict=True))})
        files += save_figure(figures.draw_influence(own), folder, f"subsets_influence_{path}", rows)
        table = [
            (f"{group.first:,} to {group.last:,}", f"{group.passages:,}", f"{group.mean:.3g}", f"{group.deviation:.3g}")
            for group in own.bins
        ]
        spearman = "not defined, as one of the two does not vary" if np.isnan(own.spearman) else f"{own.spearman:.3f}"
        said = (
            f"**{for_markdown(name)}**: the {own.passages:,} passages that were kept of {own.of:,}. Spearman's correlation "
            f"of rank (1 is the best) and influence: {spearman}."
        )
        head = ["rank", "passages", "mean influence", "deviation"]
        blocks.append(f"{said}\n\n{markdown_table(head, table)}")
    return Findings("BM25 rank against influence", "\n\n".join([*blocks, "\n".join(reasons)]).strip(), files)


def overlaps(subsets: Subsets, folder: Path) -> Findings | None:
    """subsets_overlap: a table of each two subsets of a corpus and, of more than two, a picture; None for one subset."""
    if len(subsets) < 2:
        return None
    groups = by_corpus(subsets)
    blocks, files = [], []
    if len(groups) > 1:
        corpora = for_markdown(describe_corpora(groups, subsets), 1000)
        blocks.append(f"Compared within a corpus only, as an id is another passage in each: {corpora}.")
    for number, names in enumerate((names for names in groups if len(names) > 1), 1):
        found = subset_overlap({name: subsets[name] for name in names})
        rows, path = _overlap_rows(found), "subsets_overlap" + (f"_{number}" if number > 1 else "")
        if len(names) > 2:
            files += save_figure(figures.draw_overlap(found), folder, path, rows)
        else:
            atomic_write(folder / f"{path}.csv", to_csv(rows))
            files.append(folder / f"{path}.csv")
        table = [
            [row["first"], row["second"], f"{row['in_both']:,}"]
            + ["" if value is None else f"{value:.3f}" for value in list(row.values())[5:]]
            for row in rows
        ]
        head = ["A", "B", "in both", "Jaccard", "A's in B", "B's in A", "Jaccard per query"]
        blocks.append(markdown_table(head, table, texts=2))
    return Findings("Overlap", "\n\n".join(blocks), files)


def case_study(subsets: Subsets, folder: Path, task: Task | None, number: int, passages: int, seed: int) -> Findings:
    """subsets_case_study_<name>.md of each subset that was retrieved for the task."""
    title = "Case study"
    if task is None:
        return Findings(title, "Not shown: it needs the task's texts, --task.")
    found, reasons = _of_each(subsets, lambda subset: case_studies(subset, task, number, passages=passages, seed=seed))
    files, lines = [], []
    for (name, studies), path in zip(found.items(), _file_names(found), strict=True):
        files.append(folder / f"subsets_case_study_{path}.md")
        intro = "Words that a task text and its passage both have are bold, stop words aside."
        text = f"# {for_markdown(name)}: task texts and what was retrieved for them\n\n{intro}\n\n"
        atomic_write(files[-1], text + case_studies_to_markdown(studies))
        lines.append(f"{for_markdown(name)}: {len(studies):,} task texts with their passages in `{files[-1].name}`.")
    return Findings(title, "\n".join(["\n\n".join(lines), *reasons]).strip(), files)


def _of_each(subsets: Subsets, view: Callable[[Subset], Any]) -> tuple[dict[str, Any], list[str]]:
    """What a view finds by name of subset, and lines that say why there is nothing for the others."""
    found, reasons = {}, []
    for name, subset in subsets.items():
        try:
            found[name] = view(subset)
        except HfTlmError as error:
            reasons.append(f"- {for_markdown(name)} is not shown. {for_markdown(str(error), 1000)}")
    return found, [""] * bool(found and reasons) + reasons


def _pages(subsets: Mapping[str, Any]) -> Iterator[tuple[list[str], str]]:
    """So many names as a figure can tell apart, and what to add to the figure's name."""
    names = list(subsets)
    for page, start in enumerate(range(0, len(names), figures.IN_A_FIGURE), 1):
        yield names[start : start + figures.IN_A_FIGURE], f"_{page}" if page > 1 else ""


def _file_names(subsets: Mapping[str, Any]) -> list[str]:
    """A different one for each subset."""
    names = [re.sub(r"[^\w.-]+", "-", name).strip("-.") or "subset" for name in subsets]
    return [name if name not in names[:at] else f"{name}-{at + 1}" for at, name in enumerate(names)]


def _overlap_rows(found: Overlap) -> list[dict[str, Any]]:
    """A row for each two subsets."""
    sizes = found.passages.diagonal()
    return [
        {
            "first": found.names[a],
            "second": found.names[b],
            "first_passages": int(sizes[a]),
            "second_passages": int(sizes[b]),
            "in_both": int(found.passages[a, b]),
            "jaccard": float(found.jaccard[a, b]),
            "first_in_second": float(found.containment[a, b]),
            "second_in_first": float(found.containment[b, a]),
            "jaccard_per_query": _number(found.per_query[a, b]),
        }
        for a, b in combinations(range(len(found.names)), 2)
    ]


def _number(value: float) -> float | None:
    """None, which is empty in a csv, for NaN."""
    return None if np.isnan(value) else float(value)
