"""Views of subsets: for each view its Markdown table, its figures, and the reason where a subset cannot be shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis import subset_measures as measures
from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, Findings, SubsetsArguments
from hf_tlm.analysis.figures import PALETTE, WIDTH, add_legend, new_figure, save_figure, save_files, series_style, style
from hf_tlm.errors import AnalysisError, HfTlmError
from hf_tlm.retrieval.report import steps
from hf_tlm.utils.shown import counted, for_markdown, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----")
CORPUS_COLORS = ("#b0b0b0", "#d8d8d8")
BAR = 0.06  # Height of a bar, inches.
LONGEST_LABEL = 26
LETTER = 0.055  # Width of a letter of a label, inches.
IN_A_FIGURE = 6  # Most subsets in one figure.
SIDE_BY_SIDE = 8  # Most subsets whose matrices are still legible side by side.
Subsets = Mapping[str, "Subset"]


@style()
def draw_size(curves: Mapping[str, measures.SizeAgainstK]) -> Figure:
    """Draw the size of the union against K (upper panel), and the score at each rank with its deviation (lower panel)."""
    figure, (above, below) = new_figure(2, 1, height=3.6, sharex=True)
    for index, (name, curve) in enumerate(curves.items()):
        line_style, has_score = series_style(index), ~np.isnan(curve.score)
        marked_steps = np.array(steps(len(curve.k)))
        above.plot(curve.k, curve.passages, label=label(name), markevery=marked_steps - 1, **line_style)
        if has_score.any():
            k, score, deviation = (values[has_score] for values in (curve.k, curve.score, curve.deviation))
            below.plot(k, score, markevery=np.flatnonzero(np.isin(k, marked_steps)).tolist(), **line_style)
            below.fill_between(k, score - deviation, score + deviation, color=line_style["color"], alpha=0.15, linewidth=0)
    above.set(xscale="log", ylabel="passages in the union", ylim=(0, None))
    below.set(xscale="log", xlabel="K, or rank k (log scale)", ylabel="BM25 score at rank k", ylim=(0, None))
    ticks = steps(max(len(curve.k) for curve in curves.values()))
    below.set_xticks(ticks if len(ticks) < 8 else [tick for tick in ticks if str(tick).strip("0") == "1"], minor=False)
    below.set_xticks([], minor=True)
    for axes in (above, below):
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    _add_legend(figure, above, len(curves))
    return figure


@style()
def draw_sources(shares: Sequence[measures.SourceShare], corpora: Mapping[str, Sequence[str]]) -> Figure:
    """Draw the sources' shares as bars, those of the corpora first.

    Args:
        corpora: name of a corpus -> the subsets of this corpus whose manifests count its sources.
    """
    groups = [{share.subset: share for share in own} for _, own in groupby(shares, key=lambda share: share.source)]
    bars: list[Any] = [(name, [own[names[0]].corpus_share for own in groups]) for name, names in corpora.items()]
    bars += [(name, [own[name].share for own in groups]) for name in groups[0]]
    height = 0.9 + len(groups) * (len(bars) + 1) * BAR + 0.12 * len(bars)
    figure, axes = new_figure(height=height)
    positions = np.arange(len(groups)) * (len(bars) + 1.0)
    for index, (name, values) in enumerate(bars):
        own = index - len(corpora)
        bar_style = (
            {"color": CORPUS_COLORS[index % len(CORPUS_COLORS)]}
            if own < 0
            else {"facecolor": PALETTE[own % len(PALETTE)], "hatch": HATCHES[own % len(HATCHES)], "edgecolor": "white"}
        )
        axes.barh(positions + index, 100 * np.array(values), height=1, linewidth=0.3, label=label(name), **bar_style)
    firsts = [next(iter(own.values())) for own in groups]
    names = [label(_source_name(first)) for first in firsts]
    axes.set_yticks(positions + (len(bars) - 1) / 2, names)
    axes.set(xlabel="share of passages (%)", ylim=(positions[-1] + len(bars), -1))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    _add_legend(figure, axes, len(bars))
    return figure


def _source_name(share: measures.SourceShare) -> str:
    return counted(share.others, "other") if share.source is None else share.source or "(none)"


def _format_ranks(group: measures.RankBin, to: str) -> str:
    """Format the range of ranks of a group."""
    return f"{group.first:,}" if group.first == group.last else f"{group.first:,}{to}{group.last:,}"


@style()
def draw_influence(found: measures.RankInfluence) -> Figure:
    """Draw, by group of ranks, the median, the middle 50% and 90% of the influence, and its mean with standard deviation."""
    figure, axes = new_figure()
    positions = np.arange(len(found.bins))
    quantiles = np.array([group.quantiles for group in found.bins])
    for low, high, color, description in ((0, 4, "#dcdcdc", "5 to 95%"), (1, 3, "#a8a8a8", "25 to 75%")):
        axes.bar(positions, quantiles[:, high] - quantiles[:, low], 0.7, quantiles[:, low], color=color, label=description)
    axes.hlines(quantiles[:, 2], positions - 0.35, positions + 0.35, color="black", linewidth=0.8, label="median")
    mean, deviation = (np.array([getattr(group, name) for group in found.bins]) for name in ("mean", "deviation"))
    mean_style = series_style(1) | {"linestyle": ""}
    axes.errorbar(positions, mean, deviation, elinewidth=0.9, capsize=2, label="mean, standard deviation", **mean_style)
    axes.use_sticky_edges = False  # Else bars would have no margin below.
    axes.set_xticks(
        positions, [_format_ranks(group, "–") for group in found.bins], rotation=45, ha="right", rotation_mode="anchor"
    )
    axes.set(xlabel="BM25 rank", ylabel="influence\n(loss per learning rate)")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=False)
    axes.grid(False, axis="x")
    _add_legend(figure, axes, 4)
    return figure


@style()
def draw_overlap(found: measures.Overlap) -> Figure:
    """Draw an annotated matrix for each measure of overlap; the one per query only if it is defined."""
    matrices = {"Jaccard index": found.jaccard, "share of the row in the column": found.containment}
    off_diagonal = found.per_query[~np.eye(len(found.names), dtype=bool)]
    if not np.isnan(off_diagonal).all():
        matrices["Jaccard index per query"] = found.per_query
    num_columns = len(matrices) if len(found.names) <= SIDE_BY_SIDE else 1
    num_rows = len(matrices) // num_columns
    names = [label(name, 18) for name in found.names]
    width = 2 * WIDTH + 0.2 if num_columns > 1 else WIDTH
    label_width = 0.2 + LETTER * max(map(len, names))  # Width of the row labels, inches.
    cell = (width - label_width) / num_columns / len(names)
    height = num_rows * (0.3 + cell * len(names)) + label_width
    figure, grid = new_figure(num_rows, num_columns, width=width, height=height, sharex=True, sharey=True, squeeze=False)
    size = min(7, 26 * cell)
    for axes, (title, values) in zip(grid.flat, matrices.items(), strict=True):
        axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            formatted = "–" if np.isnan(value) else f"{value:.2f}"
            axes.text(
                column, row, formatted, ha="center", va="center", fontsize=size, color="white" if value > 0.6 else "black"
            )
        axes.set_title(title, fontsize=7)
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def label(text: str, longest: int = LONGEST_LABEL) -> str:
    """Put a text on one line, with its middle cut out if it is long: names of files often differ at their ends."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _add_legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Add a legend above the plot, outside the data."""
    add_legend(figure, *axes.get_legend_handles_labels(), loc="outside upper center", ncols=2 if entries > 1 else 1)


def sizes(subsets: Subsets, folder: Path) -> Findings:
    """Write subsets_size: the size of the union and the score against K."""
    curves, reasons = _apply_view(subsets, measures.size_against_k)
    files, lines = [], []
    for names, suffix in _split_names(curves):
        rows = [
            {
                "subset": name,
                "k": int(k),
                "passages": int(passages),
                "score": _nan_to_none(score),
                "deviation": _nan_to_none(deviation),
            }
            for name in names
            for k, passages, score, deviation in zip(*vars(curves[name]).values(), strict=True)
        ]
        figure = draw_size({name: curves[name] for name in names})
        files += save_figure(figure, folder, f"subsets_size{suffix}", rows)
    if curves:
        table = []
        for k in steps(max(len(curve.k) for curve in curves.values())):
            row = [f"{k:,}"]
            for curve in curves.values():
                is_reached = k <= len(curve.k)
                row.append(f"{curve.passages[k - 1]:,}" if is_reached else "")
                row.append(f"{curve.score[k - 1]:.1f}" if is_reached and not np.isnan(curve.score[k - 1]) else "")
            table.append(row)
        head = ["K", *(f"{name}: {measure}" for name in curves for measure in ("passages", "score at rank K"))]
        lines = ["Passages in the union of the queries' K best, and the mean BM25 score of those whose best rank is K.", ""]
        lines.append(markdown_table(head, table, texts=0))
    return Findings("Size against K", "\n".join([*lines, *reasons]), files)


def sources(subsets: Subsets, folder: Path, top: int) -> Findings:
    """Write subsets_sources: the shares of the sources with the most passages."""
    shares = measures.source_shares(subsets, top)
    groups = measures.by_corpus(subsets)
    recorded = [[name for name in names if subsets[name].manifest["counts"].get("sources")] for names in groups]
    corpora = {"corpus" if len(groups) == 1 else f"corpus of {', '.join(names)}": names for names in recorded if names}
    files = []
    for names, suffix in _split_names(subsets):
        rows = [share for share in shares if share.subset in names]
        shown_corpora = {name: [member for member in members if member in names] for name, members in corpora.items()}
        figure = draw_sources(rows, {name: members for name, members in shown_corpora.items() if members})
        files += save_figure(figure, folder, f"subsets_sources{suffix}", [asdict(row) for row in rows])
    text = "Share of the passages, and its ratio to the source's share of the corpus."
    return Findings("Sources", f"{text}\n\n{_source_table(subsets, shares)}", files)


def _source_table(subsets: Subsets, shares: Sequence[measures.SourceShare]) -> str:
    """Return a Markdown table with a row for each source: its share and ratio in each subset."""
    table = []
    for _, group in groupby(shares, key=lambda share: share.source):
        row = list(group)
        line = [_source_name(row[0])]
        for share in row:
            line += [f"{share.share:.1%}", "" if share.ratio is None else f"{share.ratio:.2f}"]
        table.append(line)
    head = ["source", *(f"{name}{suffix}" for name in subsets for suffix in ("", ": ratio"))]
    return markdown_table(head, table)


def influence(subsets: Subsets, folder: Path, bins: int) -> Findings | None:
    """Write subsets_influence_<name> for each subset with influence; return None if no subset has it."""
    scored = {name: subset for name, subset in subsets.items() if "influence" in subset.dataset.column_names}
    if not scored:
        return None
    results, reasons = _apply_view(scored, lambda subset: measures.rank_against_influence(subset, bins))
    files, blocks = [], []
    for (name, result), path in zip(results.items(), _file_names(results), strict=True):
        quantiles = [f"quantile_{quantile:g}" for quantile in measures.QUANTILES]
        rows = []
        for group in result.bins:
            row = {"first_rank": group.first, "last_rank": group.last, "passages": group.passages, "mean": group.mean}
            rows.append(row | {"deviation": group.deviation, **dict(zip(quantiles, group.quantiles, strict=True))})
        files += save_figure(draw_influence(result), folder, f"subsets_influence_{path}", rows)
        table = [
            (_format_ranks(group, " to "), f"{group.passages:,}", f"{group.mean:.3g}", f"{group.deviation:.3g}")
            for group in result.bins
        ]
        spearman = "not defined, as one of the two does not vary" if np.isnan(result.spearman) else f"{result.spearman:.3f}"
        summary = (
            f"**{for_markdown(name)}**: the {result.passages:,} passages that were kept of {result.of:,}. Spearman's "
            f"correlation of rank (1 is the best) and influence: {spearman}."
        )
        head = ["rank", "passages", "mean influence", "deviation"]
        blocks.append(f"{summary}\n\n{markdown_table(head, table)}")
    return Findings("BM25 rank against influence", "\n\n".join([*blocks, "\n".join(reasons)]).strip(), files)


def overlaps(subsets: Subsets, folder: Path) -> Findings | None:
    """Write subsets_overlap: a table of all pairs of subsets of a corpus and, for more than two, a figure.

    Returns None for a single subset.
    """
    if len(subsets) < 2:
        return None
    groups = measures.by_corpus(subsets)
    blocks, files = [], []
    if len(groups) > 1:
        corpora = for_markdown(measures.describe_corpora(groups, subsets), 1000)
        blocks.append(f"Compared within a corpus only, as an id is another passage in each: {corpora}.")
    for group_number, names in enumerate((names for names in groups if len(names) > 1), 1):
        overlap = measures.subset_overlap({name: subsets[name] for name in names})
        rows, path = _overlap_rows(overlap), "subsets_overlap" + (f"_{group_number}" if group_number > 1 else "")
        if len(names) > 2:
            files += save_figure(draw_overlap(overlap), folder, path, rows)
        else:
            files += save_files(folder, {f"{path}.csv": rows})
        table = [
            [row["first"], row["second"], f"{row['in_both']:,}"]
            + ["" if value is None else f"{value:.3f}" for value in list(row.values())[5:]]
            for row in rows
        ]
        head = ["A", "B", "in both", "Jaccard", "A's in B", "B's in A", "Jaccard per query"]
        blocks.append(markdown_table(head, table, texts=2))
    return Findings("Overlap", "\n\n".join(blocks), files)


def case_study(subsets: Subsets, folder: Path, task: Task | None, number: int, passages: int, seed: int) -> Findings:
    """Write subsets_case_study_<name>.md for each subset that was retrieved for the task."""
    title = "Case study"
    if task is None:
        return Findings(title, "Not shown: it needs the task's texts, --task.")
    results, reasons = _apply_view(
        subsets, lambda subset: measures.case_studies(subset, task, number, passages=passages, seed=seed)
    )
    files, lines = [], []
    for (name, studies), path in zip(results.items(), _file_names(results), strict=True):
        intro = "Words that a task text and its passage both have are bold, stop words aside."
        text = f"# {for_markdown(name)}: task texts and what was retrieved for them\n\n{intro}\n\n"
        files += save_files(folder, {f"subsets_case_study_{path}.md": text + measures.case_studies_to_markdown(studies)})
        lines.append(f"{for_markdown(name)}: {len(studies):,} task texts with their passages in `{files[-1].name}`.")
    return Findings(title, "\n".join(["\n\n".join(lines), *reasons]).strip(), files)


def _apply_view(subsets: Subsets, view: Callable[[Subset], Any]) -> tuple[dict[str, Any], list[str]]:
    """Apply a view to each subset: return its results by name, and Markdown lines that say why others are not shown."""
    views, reasons = {}, []
    for name, subset in subsets.items():
        try:
            views[name] = view(subset)
        except HfTlmError as error:
            reasons.append(f"- {for_markdown(name)} is not shown. {for_markdown(str(error), 1000)}")
    return views, [""] * bool(views and reasons) + reasons


def _split_names(subsets: Mapping[str, Any]) -> Iterator[tuple[list[str], str]]:
    """Split the names into groups that fit one figure; yield each with the suffix of the figure's file name."""
    names = list(subsets)
    for page, start in enumerate(range(0, len(names), IN_A_FIGURE), 1):
        yield names[start : start + IN_A_FIGURE], f"_{page}" if page > 1 else ""


def _file_names(subsets: Mapping[str, Any]) -> list[str]:
    """Return a unique file name for each subset."""
    files: list[str] = []
    for number, name in enumerate(subsets, 1):
        file = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "subset"
        while file in files:
            file += f"-{number}"
        files.append(file)
    return files


def _overlap_rows(overlap: measures.Overlap) -> list[dict[str, Any]]:
    """Return a CSV row for each pair of subsets."""
    sizes = overlap.passages.diagonal()
    return [
        {
            "first": overlap.names[a],
            "second": overlap.names[b],
            "first_passages": int(sizes[a]),
            "second_passages": int(sizes[b]),
            "in_both": int(overlap.passages[a, b]),
            "jaccard": float(overlap.jaccard[a, b]),
            "first_in_second": float(overlap.containment[a, b]),
            "second_in_first": float(overlap.containment[b, a]),
            "jaccard_per_query": _nan_to_none(overlap.per_query[a, b]),
        }
        for a, b in combinations(range(len(overlap.names)), 2)
    ]


def _nan_to_none(value: float) -> float | None:
    """Convert NaN to None, which is written as an empty CSV field."""
    return None if np.isnan(value) else float(value)


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: SubsetsArguments) -> Findings:
    """Write subsets.md with all views, and their figures: size against K, sources, influence, overlap, case study.

    Where a view does not apply to a subset, its text says why.
    """
    subsets = args.opened_subsets
    if not subsets:
        raise AnalysisError("--what subsets needs --subsets: folders of subsets, or datasets of the Hub.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: there is nothing to show.")
    labelled = task.load() if task.task is not None and options.case_studies else None
    views = [
        sizes(subsets, args.folder),
        sources(subsets, args.folder, options.top_sources),
        influence(subsets, args.folder, options.rank_bins),
        overlaps(subsets, args.folder),
    ]
    if options.case_studies:
        number, passages, seed = options.case_studies, options.case_passages, args.seed
        views.append(case_study(subsets, args.folder, labelled, number, passages, seed))
    text = "\n\n".join(f"### {view.title}\n\n{view.text}" for view in views if view is not None) + "\n"
    files = save_files(args.folder, {"subsets.md": f"# Subsets\n\n{text}"})
    return Findings("Subsets", text, files + [path for view in views if view for path in view.files])
