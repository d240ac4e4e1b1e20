"""What a grid came to: figures over the seeds of every point, the choice, and a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hf_tlm.runs.seeds import aggregate, format_table

FIGURES = ("median", "mean", "std", "best")


def figures(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """As `hf_tlm.runs.seeds.aggregate`, with the median and the best of the seeds.

    Args:
        scores: of every seed, by metric; larger is better.
    """
    return {
        name: {**summary, "median": statistics.median(summary["values"]), "best": max(summary["values"])}
        for name, summary in aggregate(scores).items()
    }


def choose(points: Sequence[Mapping[str, Any]], metric: str, select_by: str) -> Mapping[str, Any]:
    """The finished point whose figure on validation is highest, the first of equal ones."""
    finished = [point for point in points if "validation" in point]
    return max(finished, key=lambda point: point["validation"][metric][select_by])


def to_markdown(record: Mapping[str, Any]) -> str:
    """The table of a grid, its best point first, and the test scores of that one.

    Args:
        record: `grid.json`, see `hf_tlm.runs.grid.GridRun`.
    """
    metric, select_by, chosen = record["metric"], record["select_by"], record["chosen"]
    finished = [point for point in record["points"] if "validation" in point]
    ranked = sorted(finished, key=lambda point: -point["validation"][metric][select_by])
    rows = []
    for point in ranked:
        scores = point["validation"][metric]
        shown = {name: _percent(scores[name]) for name in FIGURES}
        rows.append({**_cells(point), **shown, "": "chosen" if point["folder"] == chosen["folder"] else ""})
    rows += [
        {**_cells(point), **dict.fromkeys(FIGURES, ""), "": "failed"} for point in record["points"] if "failed" in point
    ]
    seeds = record["seeds"]
    listed = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    lines = [
        f"# {record['task']}: a grid of {len(record['points'])}",
        "",
        f"Validation {metric} over {listed}, in percent; chosen is the point with the highest {select_by}. std is the "
        "sample standard deviation.",
        "",
        format_table(rows, [*record["points"][0]["values"], *FIGURES, ""]),
    ]
    if trials := record.get("trials"):
        trial_rows = [{**{n: _short(v) for n, v in t["values"].items()}, metric: _percent(t["score"])} for t in trials]
        names = list(trials[0]["values"])
        title = f"The values were chosen by {len(trials)} trials of seed {seeds[0]} (Optuna), in the order they were run:"
        lines += ["", title, "", format_table(trial_rows, [*names, metric])]
    if "test" in chosen:
        lines += ["", "Test scores of the chosen point, which no choice has seen:", "", _test_table(chosen["test"])]
    failed = [point for point in record["points"] if "failed" in point]
    if failed:
        lines += ["", "Failed:", "", *(f"- {point['folder']}: {point['failed']}" for point in failed)]
    return "\n".join(lines) + "\n"


def _test_table(summary: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [{"metric": name, **{f: _percent(scores[f]) for f in FIGURES}} for name, scores in summary.items()]
    return format_table(rows, ["metric", *FIGURES])


def _cells(point: Mapping[str, Any]) -> dict[str, str]:
    return {name: _short(value) for name, value in point["values"].items()}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _percent(score: float | None) -> str:
    """Empty for the deviation of a single seed."""
    return "" if score is None else f"{100 * score:.2f}"
