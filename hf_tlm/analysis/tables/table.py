"""Scores by settings: mean and deviation over the seeds of a cell.

    table = sensitivity_table(find_results({"rho1": "runs/rho1"}), rows=["rho1"], columns=["task"])
    print(table_to_markdown(table))

As in Tables 3 to 7 of the TLM paper and Table 5 of ISS's. A cell has only runs that were made alike: what differs between
them, other than the seed, has to be a row or a column.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.runs import SPLITS, Result
from hf_tlm.runs.seeds import aggregate

RUN = "run"  # As a row or a column: the run's name, without that of its task.
# Of what differs, the first that tell the runs apart are the rows.
_FIRST = (
    "arm objective clm subset fraction method layer top_k retriever rho1 rho2 stage embedding_init model_config "
    "model_name_or_path learning_rate stage2_learning_rate max_steps stage2_max_steps"
).split()


@dataclass
class Cell:
    """scores: seed -> share of 1. failed: what has no score."""

    task: str
    metric: str | None = None
    scores: dict[Any, float] = field(default_factory=dict)
    failed: list[Result] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any] | None:
        """{"mean", "std", "n", "values"} over seeds; None without any."""
        return aggregate([{"score": score} for score in self.scores.values()])["score"] if self.scores else None


@dataclass(frozen=True)
class SensitivityTable:
    """Values of settings, in order, and the cells that there are.

    rows, columns: names of settings. row_keys, column_keys: a value of each.
    cells: (row key, column key) -> cell; missing where nothing was run.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_keys: tuple[tuple, ...]
    column_keys: tuple[tuple, ...]
    cells: Mapping[tuple[tuple, tuple], Cell]
    split: str

    @property
    def best(self) -> set[tuple[tuple, tuple]]:
        """Of each task the cells with the highest mean, as printed: equals are all best. Of a single cell none is."""
        found = set()
        for task in dict.fromkeys(cell.task for cell in self.cells.values()):
            means = {
                at: f"{100 * s['mean']:.2f}" for at, cell in self.cells.items() if cell.task == task and (s := cell.summary)
            }
            if len(means) > 1:
                highest = max(map(float, means.values()))
                found |= {at for at, mean in means.items() if float(mean) == highest}
        return found

    @property
    def failed(self) -> list[str]:
        """Runs without a score, each with the reason."""
        found = [
            (result, result.error or f"no {self.split} score") for cell in self.cells.values() for result in cell.failed
        ]
        return [f"{r.run}: {error}" if r.seed is None else f"{r.run}, seed {r.seed}: {error}" for r, error in found]

    @property
    def seeds(self) -> set[int]:
        """How many seeds cells have."""
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
        rows, columns: names of settings, or "run" for the runs' names. By default tasks are the columns where there are
            several, and the rows are the fewest settings that tell the runs apart, runs' names where none does.
        split: "validation" or "test".

    Raises:
        AnalysisError: no results; a setting that no run has, or one in rows and columns; runs that differ in something else,
            or have a seed in common, would share a cell; runs of one task with different metrics.
    """
    if not results or split not in SPLITS:
        raise AnalysisError(
            f"A table needs results, and a split of {', '.join(SPLITS)}; received {len(results)}, {split!r}."
        )
    differing = differing_settings(results)
    if columns is None:
        columns = ["task"] if "task" in differing and "task" not in (rows or ()) else []
    if rows is None:
        rows = _telling_apart(results, differing, columns)
    _check_names(results, differing, rows, columns)
    cells: dict[tuple[tuple, tuple], Cell] = {}
    members: dict[tuple[tuple, tuple], list[Result]] = {}
    for result in results:
        at = _key(result, rows), _key(result, columns)
        cell = cells.setdefault(at, Cell(result.task))
        score = result.score(split)
        if score is None:
            cell.failed.append(result)
            if result.error is not None:  # It may know less of its settings.
                continue
        _check_alike(members.setdefault(at, []), result, differing, dict(zip([*rows, *columns], at[0] + at[1], strict=True)))
        members[at].append(result)
        if score is not None:
            cell.metric, cell.scores[result.seed] = result.metric, score
    _check_metrics(cells.values())
    row_keys, column_keys = (tuple(_ordered([at[axis] for at in cells])) for axis in (0, 1))
    return SensitivityTable(tuple(rows), tuple(columns), row_keys, column_keys, cells, split)


def differing_settings(results: Sequence[Result]) -> list[str]:
    """Names of the settings with more than one value, what the papers vary first."""
    # A failed run tells its task and arm, and may tell less of the rest.
    told = [result for result in results if result.error is None] or results
    names = dict.fromkeys([*_FIRST, *sorted({name for result in results for name in result.settings}), "task"])
    return [n for n in names if len({_value(result, n) for result in (results if n in ("arm", "task") else told)}) > 1]


def _telling_apart(results: Sequence[Result], differing: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The first settings that, with the columns, split the runs as all of them do; names where none tell them apart."""
    chosen: list[str] = []
    parts = len({_key(result, columns) for result in results})
    for name in differing:
        finer = len({_key(result, [*columns, *chosen, name]) for result in results})
        if name not in columns and finer > parts:
            chosen, parts = [*chosen, name], finer
    seeds = [(_key(result, [*columns, *chosen]), result.seed) for result in results]
    return chosen if chosen and len(set(seeds)) == len(seeds) else [RUN]


def _check_names(results: Sequence[Result], differing: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> None:
    known = {RUN, "task"}.union(*(result.settings for result in results))
    for name in (*rows, *columns):
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise AnalysisError(
                f"No run has a setting {name!r}.{hint} The runs differ in: {', '.join(differing) or 'their names alone'}."
            )
        if [*rows, *columns].count(name) > 1:
            raise AnalysisError(f"{name!r} can be a row or a column once.")


def _check_alike(others: Sequence[Result], result: Result, differing: Sequence[str], place: Mapping[str, Any]) -> None:
    where = ", ".join(f"{name} = {show_value(value)}" for name, value in place.items()) or "the only cell"
    for other in others:
        mixed = [name for name in differing if _value(other, name) != _value(result, name)]
        if mixed:
            raise AnalysisError(
                f"{other.run} and {result.run} would share a cell ({where}) and differ in {', '.join(mixed[:5])}. Add that "
                "to --table_rows or --table_columns, or leave one of them out."
            )
        if other.seed == result.seed:
            raise AnalysisError(
                f"{other.run} and {result.run} would share a cell ({where}) and both have seed {result.seed}: they are the "
                f"same run twice. Leave one of them out, or add {RUN} to --table_rows."
            )


def _check_metrics(cells) -> None:
    metrics: dict[str, str] = {}
    for cell in cells:
        if cell.metric is not None and metrics.setdefault(cell.task, cell.metric) != cell.metric:
            raise AnalysisError(
                f"Runs on {cell.task} have different metrics, {metrics[cell.task]} and {cell.metric}, which cannot be "
                "compared. Leave some of them out."
            )


def _value(result: Result, name: str) -> Hashable:
    value = {RUN: result.arm, "task": result.task}.get(name, result.settings.get(name))
    return json.dumps(value, sort_keys=True) if isinstance(value, (list, dict)) else value


def _key(result: Result, names: Sequence[str]) -> tuple:
    return tuple(_value(result, name) for name in names)


def _ordered(keys: Sequence[tuple]) -> list[tuple]:
    """Numbers by size, then words by the alphabet, with the numbers in them by size."""
    return sorted(dict.fromkeys(keys), key=lambda key: [_rank(value) for value in key])


def _rank(value: Any) -> tuple:
    number = _number(value)
    if number is not None:
        return 0, number, ()
    parts = re.split(r"(\d+)", show_value(value).lower())
    return 1, 0.0, tuple((int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts))


def _number(value: Any) -> float | None:
    """Also of what YAML reads as text, such as 1e-4."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def show_value(value: Any) -> str:
    """As a person writes it: 3 for 3.0, `true`, `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
