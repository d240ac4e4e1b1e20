"""A sensitivity table as markdown, LaTeX and rows of a csv."""

from __future__ import annotations

import itertools
from typing import Any

from hf_tlm.analysis.runs import NOT_FINISHED
from hf_tlm.analysis.tables.table import Cell, SensitivityTable, show_value
from hf_tlm.runs.seeds import format_score
from hf_tlm.utils.markdown import markdown_table
from hf_tlm.utils.shown import Markdown, for_markdown

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", "±": "$\\pm$"},
}


def table_to_markdown(table: SensitivityTable) -> str:
    """The table, the best of each task in bold, and below it what the numbers are."""
    head = [*table.rows, *(" / ".join(map(show_value, key)) for key in table.column_keys)]
    if not table.columns:
        head[-1] = _only_task(table)
    rows, best = [], table.best
    for row in table.row_keys:
        cells = [Markdown(_cell(table, (row, column), best, "**{}**", for_markdown)) for column in table.column_keys]
        rows.append([*map(show_value, row), *cells])
    text = markdown_table(head, rows, len(table.rows)).rstrip("\n")
    return "\n\n".join([text, caption(table), *failures(table)]) + "\n"


def table_to_latex(table: SensitivityTable) -> str:
    """A `tabular` for the package booktabs, with a comment that says what the numbers are. Everything is escaped."""
    lines = [f"% {line}" for line in (caption(table), *" ".join(failures(table)).splitlines()) if line]
    lines += [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{'l' * len(table.rows)}{'r' * len(table.column_keys)}}}",
        "\\toprule",
    ]
    levels = list(zip(*table.column_keys, strict=True)) if table.columns else [(_only_task(table),)]
    for level, values in enumerate(levels):
        last = level == len(levels) - 1
        names = [_latex(name) for name in table.rows] if last else [""] * len(table.rows)
        heads = [_latex(show_value(value)) for value in values] if last else _spans(values)
        lines.append(" & ".join([*names, *heads]) + " \\\\")
    lines.append("\\midrule")
    best = table.best
    for row in table.row_keys:
        cells = [_cell(table, (row, column), best, "\\textbf{{{}}}", _latex) for column in table.column_keys]
        lines.append(" & ".join([*(_latex(show_value(value)) for value in row), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def table_to_rows(table: SensitivityTable) -> list[dict[str, Any]]:
    """A row for each cell: its settings, the score in percent, in full precision, and every seed's."""
    best, rows = table.best, []
    for row, column in itertools.product(table.row_keys, table.column_keys):
        cell = table.cells.get((row, column))
        if cell is None:
            continue
        summary = cell.summary or {"mean": None, "std": None, "n": 0, "values": []}
        settings = dict(zip((*table.rows, *table.columns), (*row, *column), strict=True))
        rows.append(
            {name: show_value(value) for name, value in settings.items()}
            | {"task": cell.task, "metric": cell.metric or "", "split": table.split}
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
    text = f"Scores on {table.split} in percent ({scores or 'none'}), mean ± standard deviation (n - 1) over seeds"
    if len(table.seeds) == 1:
        text += f", n = {next(iter(table.seeds))}"
    return f"{text}. The best of each task is bold."


def failures(table: SensitivityTable) -> list[str]:
    """One paragraph, or nothing."""
    failed = table.failed
    return ["Without a score:\n\n" + "\n".join(f"- {text}" for text in failed)] if failed else []


def _cell(table: SensitivityTable, at: tuple[tuple, tuple], best: set, bold: str, escape) -> str:
    """Blank where nothing was run."""
    cell: Cell | None = table.cells.get(at)
    if cell is None:
        return ""
    summary = cell.summary
    if summary is None:
        return "failed" if any(result.error != NOT_FINISHED for result in cell.failed) else NOT_FINISHED
    mean, *deviation = format_score(summary).split()
    count = f" (n = {summary['n']})" if len(table.seeds) > 1 else ""
    return " ".join([bold.format(mean) if at in best else mean, *map(escape, deviation)]) + count


def _only_task(table: SensitivityTable) -> str:
    return ", ".join(dict.fromkeys(cell.task for cell in table.cells.values()))


def _spans(values: tuple) -> list[str]:
    """Neighbours with one value under one head."""
    groups = [(value, len(list(group))) for value, group in itertools.groupby(values)]
    return [f"\\multicolumn{{{size}}}{{c}}{{{_latex(show_value(value))}}}" for value, size in groups]


def _latex(text: str) -> str:
    if text == "inf":
        return "$\\infty$"
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _percent(value: float | None) -> float | str:
    return "" if value is None else 100 * value
