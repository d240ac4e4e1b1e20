"""Sensitivity tables (TLM, Tables 3 to 7; ISS, Table 5): scores by settings, as Markdown, LaTeX and CSV rows.

    table = sensitivity_table(find_results({"rho1": "runs/rho1"}), rows=["rho1"], columns=["task"])
    print(table_to_markdown(table))

A cell holds only runs with the same settings, apart from the seed: a setting in which runs differ has to be a row or a
column.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, Findings, TablesArguments
from hf_tlm.analysis.figures import save_files
from hf_tlm.analysis.runs import NOT_FINISHED, SPLITS, Result, find_results
from hf_tlm.errors import AnalysisError
from hf_tlm.runs.records import aggregate, format_score
from hf_tlm.utils.run_files import seed_figure
from hf_tlm.utils.shown import Markdown, flat, for_markdown, markdown_table, suggestion

RUN = "run"  # As a row or a column: the run's name without its task's.
# Settings in order of preference: the first ones that distinguish the runs become the rows.
_PREFERRED_SETTINGS = (
    "arm objective clm subset fraction method layer top_k retriever rho1 rho2 stage embedding_init model_config "
    "model_name_or_path learning_rate stage2_learning_rate max_steps stage2_max_steps"
).split()
_LATEX_ESCAPES = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", "±": "$\\pm$"},
}


@dataclass
class Cell:
    """One cell of a table.

    Attributes:
        scores: seed -> share of 1.
        failed: results without a score.
    """

    task: str
    metric: str | None = None
    scores: dict[Any, float] = field(default_factory=dict)
    failed: list[Result] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any] | None:
        """{"mean", "std", "n", "values"} over the seeds; None if no seed has a score."""
        return aggregate([{"score": score} for score in self.scores.values()])["score"] if self.scores else None


@dataclass(frozen=True)
class SensitivityTable:
    """A table of scores: the values of its settings in order, and its cells.

    rows, columns: names of settings.
    row_keys, column_keys: tuples with a value for each of them.
    cells: (row key, column key) -> cell; a combination without a run is missing.
    seed_figure: the statistic over seeds that all runs report; "mean" if they report different ones.
    reported: all statistics that the runs with scores report.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_keys: tuple[tuple, ...]
    column_keys: tuple[tuple, ...]
    cells: Mapping[tuple[tuple, tuple], Cell]
    split: str
    seed_figure: str = "mean"
    reported: tuple[str, ...] = ()

    @property
    def best(self) -> set[tuple[tuple, tuple]]:
        """Cells with the highest score of each task, as printed, ties included; none for a task with a single cell."""
        best_cells = set()
        for task in dict.fromkeys(cell.task for cell in self.cells.values()):
            printed = {key: self.figure(s) for key, cell in self.cells.items() if cell.task == task and (s := cell.summary)}
            if len(printed) > 1:
                highest = max(map(float, printed.values()))
                best_cells |= {key for key, value in printed.items() if float(value) == highest}
        return best_cells

    def figure(self, summary: Mapping[str, Any]) -> str:
        """Return the cell's statistic over seeds (`seed_figure`) in percent, with two decimals."""
        return f"{100 * seed_figure(self.seed_figure)[1](summary['values']):.2f}"

    @property
    def failed(self) -> list[str]:
        """Runs without a score, each with the reason, one string each."""
        failures = [
            (result, result.error or f"no {self.split} score") for cell in self.cells.values() for result in cell.failed
        ]
        return [f"{r.run}: {error}" if r.seed is None else f"{r.run}, seed {r.seed}: {error}" for r, error in failures]

    @property
    def seeds(self) -> set[int]:
        """The different numbers of seeds that cells have."""
        return {len(cell.scores) for cell in self.cells.values() if cell.scores}


def sensitivity_table(
    results: Sequence[Result],
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    split: str = "validation",
) -> SensitivityTable:
    """Arrange results by settings.

    Args:
        rows, columns: names of settings, or "run" for the runs' names. By default the columns are the tasks if there are
            several, and the rows are the fewest settings that distinguish the runs, or the runs' names if none do.
        split: "validation" or "test".

    Raises:
        AnalysisError: there are no results; no run has a setting, or it is both a row and a column; runs that differ in
            another setting, or have the same seed, would share a cell; runs of one task have different metrics.
    """
    if not results or split not in SPLITS:
        raise AnalysisError(
            f"A table needs results and one of the splits {', '.join(SPLITS)}; received {len(results)} results and the "
            f"split {split!r}."
        )
    differing = differing_settings(results)
    if columns is None:
        columns = ["task"] if "task" in differing and "task" not in (rows or ()) else []
    if rows is None:
        rows = _distinguishing_settings(results, differing, columns)
    _check_names(results, differing, rows, columns)
    cells: dict[tuple[tuple, tuple], Cell] = {}
    members: dict[tuple[tuple, tuple], list[Result]] = {}
    for result in results:
        key = _key(result, rows), _key(result, columns)
        cell = cells.setdefault(key, Cell(result.task))
        score = result.score(split)
        if score is None:
            cell.failed.append(result)
            if result.error is not None:  # Its record may lack some of its settings.
                continue
        _check_same_settings(
            members.setdefault(key, []), result, differing, dict(zip([*rows, *columns], key[0] + key[1], strict=True))
        )
        members[key].append(result)
        if score is not None:
            cell.metric, cell.scores[result.seed] = result.metric, score
    _check_metrics(cells.values())
    row_keys, column_keys = (tuple(_sort_keys([key[axis] for key in cells])) for axis in (0, 1))
    scored = [result for result in results if result.score(split) is not None]
    statistics = tuple(sorted({result.seed_figure for result in scored if result.seed_figure is not None}))
    statistic = statistics[0] if len(statistics) == 1 else "mean"
    return SensitivityTable(tuple(rows), tuple(columns), row_keys, column_keys, cells, split, statistic, statistics)


def differing_settings(results: Sequence[Result]) -> list[str]:
    """Return the names of the settings with more than one value, those that the papers vary first."""
    # A failed run always records its task and arm, but maybe not its other settings.
    complete = [result for result in results if result.error is None] or results
    names = dict.fromkeys([*_PREFERRED_SETTINGS, *sorted({name for result in results for name in result.settings}), "task"])
    return [
        n
        for n in names
        if len({_setting_value(result, n) for result in (results if n in ("arm", "task") else complete)}) > 1
    ]


def _distinguishing_settings(results: Sequence[Result], differing: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the first settings that, with the columns, distinguish all runs; ["run"] if no settings do."""
    chosen: list[str] = []
    num_groups = len({_key(result, columns) for result in results})
    for name in differing:
        num_finer = len({_key(result, [*columns, *chosen, name]) for result in results})
        if name not in columns and num_finer > num_groups:
            chosen, num_groups = [*chosen, name], num_finer
    seeds = [(_key(result, [*columns, *chosen]), result.seed) for result in results]
    return chosen if chosen and len(set(seeds)) == len(seeds) else [RUN]


def _check_names(results: Sequence[Result], differing: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> None:
    available = {RUN, "task"}.union(*(result.settings for result in results))
    for name in (*rows, *columns):
        if name not in available:
            hint = suggestion(name, available)
            raise AnalysisError(
                f"No run has a setting {name!r}.{hint} The runs differ in: {', '.join(differing) or 'their names alone'}."
            )
        if [*rows, *columns].count(name) > 1:
            raise AnalysisError(f"{name!r} can be used only once, as a row or a column.")


def _check_same_settings(
    others: Sequence[Result], result: Result, differing: Sequence[str], cell_settings: Mapping[str, Any]
) -> None:
    where = ", ".join(f"{name} = {show_value(value)}" for name, value in cell_settings.items()) or "the only cell"
    for other in others:
        mixed = [name for name in differing if _setting_value(other, name) != _setting_value(result, name)]
        if mixed:
            raise AnalysisError(
                f"{other.run} and {result.run} would share a cell ({where}) and differ in {', '.join(mixed[:5])}. Add "
                "this to --table_rows or --table_columns, or remove one of the runs."
            )
        if other.seed == result.seed:
            raise AnalysisError(
                f"{other.run} and {result.run} would share a cell ({where}) and both have seed {result.seed}: they are the "
                f"same run twice. Remove one of them, or add {RUN} to --table_rows."
            )


def _check_metrics(cells) -> None:
    metrics: dict[str, str] = {}
    for cell in cells:
        if cell.metric is not None and metrics.setdefault(cell.task, cell.metric) != cell.metric:
            raise AnalysisError(
                f"Runs on {cell.task} have different metrics, {metrics[cell.task]} and {cell.metric}, which cannot be "
                "compared. Remove some of these runs."
            )


def _setting_value(result: Result, name: str) -> Hashable:
    value = {RUN: result.arm, "task": result.task}.get(name, result.settings.get(name))
    return json.dumps(value, sort_keys=True) if isinstance(value, (list, dict)) else value


def _key(result: Result, names: Sequence[str]) -> tuple:
    return tuple(_setting_value(result, name) for name in names)


def _sort_keys(keys: Sequence[tuple]) -> list[tuple]:
    """Return the unique keys, sorted: numbers by value, then texts alphabetically, with numbers inside them by value."""
    return sorted(dict.fromkeys(keys), key=lambda key: [_rank(value) for value in key])


def _rank(value: Any) -> tuple:
    number = _parse_number(value)
    if number is not None:
        return 0, number, ()
    parts = re.split(r"(\d+)", show_value(value).lower())
    return 1, 0.0, tuple((int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts))


def _parse_number(value: Any) -> float | None:
    """Return the value as a number, also from text that YAML does not parse as one, such as 1e-4; None for others."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def show_value(value: Any) -> str:
    """Format a value for reading: 3 for 3.0, `true`, `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def table_to_markdown(table: SensitivityTable) -> str:
    """Format the table as Markdown, with the best score of each task in bold and a caption below."""
    head = [*table.rows, *(" / ".join(map(show_value, key)) for key in table.column_keys)]
    if not table.columns:
        head[-1] = _task_names(table)
    rows, best = [], table.best
    for row in table.row_keys:
        cells = [Markdown(_format_cell(table, (row, column), best, "**{}**", for_markdown)) for column in table.column_keys]
        rows.append([*map(show_value, row), *cells])
    text = markdown_table(head, rows, len(table.rows)).rstrip("\n")
    return "\n\n".join([text, caption(table), *failures(table)]) + "\n"


def table_to_latex(table: SensitivityTable) -> str:
    """Format the table as a `tabular` for the package booktabs, with the caption as a comment; all text is escaped."""
    lines = [f"% {line}" for line in (caption(table), *(["Without a score:"] if table.failed else []))]
    lines += [f"% - {flat(text)}" for text in table.failed]
    lines += [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{'l' * len(table.rows)}{'r' * len(table.column_keys)}}}",
        "\\toprule",
    ]
    levels = list(zip(*table.column_keys, strict=True)) if table.columns else [(_task_names(table),)]
    for level, values in enumerate(levels):
        last = level == len(levels) - 1
        names = [_escape_latex(name) for name in table.rows] if last else [""] * len(table.rows)
        heads = [_escape_latex(show_value(value)) for value in values] if last else _merge_headers(values)
        lines.append(" & ".join([*names, *heads]) + " \\\\")
    lines.append("\\midrule")
    best = table.best
    for row in table.row_keys:
        cells = [_format_cell(table, (row, column), best, "\\textbf{{{}}}", _escape_latex) for column in table.column_keys]
        lines.append(" & ".join([*(_escape_latex(show_value(value)) for value in row), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def table_to_rows(table: SensitivityTable) -> list[dict[str, Any]]:
    """Return a CSV row for each cell: its settings, its statistics in percent at full precision, and each seed's score."""
    best, rows, (word, statistic) = table.best, [], seed_figure(table.seed_figure)
    for row, column in itertools.product(table.row_keys, table.column_keys):
        cell = table.cells.get((row, column))
        if cell is None:
            continue
        summary = cell.summary or {"mean": None, "std": None, "n": 0, "values": []}
        settings = dict(zip((*table.rows, *table.columns), (*row, *column), strict=True))
        rows.append(
            {name: show_value(value) for name, value in settings.items()}
            | {"task": cell.task, "metric": cell.metric or "", "split": table.split}
            | {word: _percent(statistic(summary["values"]) if summary["values"] else None)}
            | {"mean": _percent(summary["mean"]), "std": _percent(summary["std"]), "n": summary["n"]}
            | {"best": (row, column) in best}
            | {"seeds": " ".join(map(str, cell.scores)), "scores": " ".join(str(_percent(v)) for v in summary["values"])}
            | {"failed": len(cell.failed)}
        )
    return rows


def caption(table: SensitivityTable) -> str:
    metrics: dict[str, list[str]] = {}
    for cell in table.cells.values():
        if cell.metric is not None and cell.task not in metrics.setdefault(cell.metric, []):
            metrics[cell.metric].append(cell.task)
    scores = "; ".join(
        f"{metric.replace('_', ' ').replace('f1', 'F1')} of {', '.join(tasks)}" for metric, tasks in metrics.items()
    )
    word, _ = seed_figure(table.seed_figure)
    statistic = "mean ± standard deviation (n - 1)" if word == "mean" else f"{word} (mean ± standard deviation, n - 1)"
    text = f"Scores on {table.split} in percent ({scores or 'none'}), {statistic} over seeds"
    if len(table.seeds) == 1:
        text += f", n = {next(iter(table.seeds))}"
    if len(table.reported) > 1:
        text += f"; means, since the runs' own figures differ ({', '.join(table.reported)})"
    return f"{text}. The best of each task is bold."


def failures(table: SensitivityTable) -> list[str]:
    """Return one paragraph of Markdown that lists the runs without a score, or an empty list."""
    failed = [for_markdown(text, 1000) for text in table.failed]
    return ["Without a score:\n\n" + "\n".join(f"- {text}" for text in failed)] if failed else []


def _format_cell(table: SensitivityTable, key: tuple[tuple, tuple], best: set, bold: str, escape) -> str:
    """Format a cell; empty if there was no run."""
    cell: Cell | None = table.cells.get(key)
    if cell is None:
        return ""
    summary = cell.summary
    if summary is None:
        return "failed" if any(result.error != NOT_FINISHED for result in cell.failed) else NOT_FINISHED
    statistic, (mean, *deviation) = table.figure(summary), format_score(summary).split()
    if seed_figure(table.seed_figure)[0] != "mean" and summary["n"] > 1:
        deviation = [f"({mean}", *deviation[:-1], f"{deviation[-1]})"]
    count = f" (n = {summary['n']})" if len(table.seeds) > 1 else ""
    return " ".join([bold.format(statistic) if key in best else statistic, *map(escape, deviation)]) + count


def _task_names(table: SensitivityTable) -> str:
    return ", ".join(dict.fromkeys(cell.task for cell in table.cells.values()))


def _merge_headers(values: tuple) -> list[str]:
    """Return the LaTeX headers of a level, with equal neighbours merged into one."""
    groups = [(value, len(list(group))) for value, group in itertools.groupby(values)]
    return [f"\\multicolumn{{{size}}}{{c}}{{{_escape_latex(show_value(value))}}}" for value, size in groups]


def _escape_latex(text: str) -> str:
    if text == "inf":
        return "$\\infty$"
    return "".join(_LATEX_ESCAPES.get(character, character) for character in " ".join(text.split()))


def _percent(value: float | None) -> float | str:
    return "" if value is None else 100 * value


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: TablesArguments) -> Findings:
    """Write table.md, table.tex and table.csv of the runs."""
    if not args.run:
        raise AnalysisError("--what tables needs --run: runs, or a folder of runs.")
    results = find_results(args.runs)
    table = sensitivity_table(results, options.table_rows, options.table_columns, split=options.table_split)
    text = table_to_markdown(table)
    title = "Scores by " + ", ".join((*table.rows, *table.columns))
    files = save_files(
        args.folder, {"table.md": text, "table.tex": table_to_latex(table), "table.csv": table_to_rows(table)}
    )
    return Findings(title, text, files)
