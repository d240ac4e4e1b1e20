"""Where the parts of a small chart are, which the template draws, and the charts of what a run logged while it trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_tlm.analysis.report.about import metric_name
from hf_tlm.analysis.report.blocks import Block, Column, Table, make_table
from hf_tlm.analysis.report.run_folder import RunFolder
from hf_tlm.analysis.runs import is_number
from hf_tlm.analysis.trainer_logs import checked_grid, checkpoint_points, read_log
from hf_tlm.utils.run_files import GRID_FILE, stage_folder

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 12, 42
MOST_POINTS, MOST_DOTS, MOST_SERIES = 200, 1500, 7
TABLE_ROWS = 60

Points = Sequence[tuple[float, float]]
Log = Sequence[Mapping[str, Any]]
NAMES = {
    "corpus/mlm_loss": "corpus: masked LM",
    "task/mlm_loss": "task: masked LM",
    "task/task_loss": "task: task loss",
    "corpus/rtd_loss": "corpus: replaced tokens",
    "task/rtd_loss": "task: replaced tokens",
    "corpus/copy_loss": "corpus: copying",
    "corpus/lm_loss": "corpus: corrected tokens",
    "corpus/scl_loss": "corpus: contrast of sequences",
}


@dataclass(frozen=True)
class Chart(Block):
    """Places are in a box of WIDTH x HEIGHT, its origin above and left.

    ticks: (place, label). lines: (name, "x,y x,y ..."). dots: (x, y), of a scatter plot. diagonal: "x,y x,y" of y = x.
    """

    title: str
    x_label: str
    y_label: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    lines: Sequence[tuple[str, str]] = ()
    dots: Sequence[tuple[float, float]] = ()
    numbers: Table | None = None
    diagonal: str | None = None
    note: str = ""
    box: tuple[int, ...] = (WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM)


def line_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> Chart | None:
    """A line for each series, in the order of x; None without finite points. What does not fit is thinned out evenly."""
    finite = {name: _finite(points) for name, points in series.items()}
    finite = {name: points for name, points in finite.items() if points}
    if not finite:
        return None
    left_out = list(finite)[MOST_SERIES:]
    finite = {name: _thinned(sorted(points), MOST_POINTS) for name, points in list(finite.items())[:MOST_SERIES]}
    x, y = (_Axis([point[of] for points in finite.values() for point in points], of) for of in (0, 1))
    rows = [(name, *point) for name, points in finite.items() for point in _thinned(points, TABLE_ROWS // len(finite))]
    columns = (Column("series"), Column(x_label, "number", "{:,g}"), Column(y_label, "number", "{:.5g}"))
    return Chart(
        title,
        x_label,
        y_label,
        x.ticks,
        y.ticks,
        lines=[(name, " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)) for name, points in finite.items()],
        numbers=make_table("", columns, rows),
        note=f"Not drawn: {', '.join(left_out)}." if left_out else "",
    )


def scatter(title: str, x_label: str, y_label: str, points: Points) -> Chart | None:
    """A dot for each point, and the line where both numbers are the same; None without finite points."""
    finite = _finite(points)
    if not finite:
        return None
    drawn = _thinned(finite, MOST_DOTS)
    values = [value for point in finite for value in point]
    x, y = _Axis(values, 0), _Axis(values, 1)
    low, high = min(values), max(values)
    return Chart(
        title,
        x_label,
        y_label,
        x.ticks,
        y.ticks,
        dots=[(round(x(a), 1), round(y(b), 1)) for a, b in drawn],
        diagonal=f"{x(low):.1f},{y(low):.1f} {x(high):.1f},{y(high):.1f}",
        note=f"{len(drawn):,} of {len(finite):,} rows are drawn." if len(drawn) < len(finite) else "",
    )


class _Axis:
    """From values to places, with ticks at round numbers. of: 0 for x, 1 for y."""

    def __init__(self, values: Sequence[float], of: int):
        low, high = min(values), max(values)
        if low == high:
            room = abs(low) * 0.05 or 0.5
            low, high = low - room, high + room
        step = _round_step((high - low) / 5)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if of == 0:
            self.low, self.high = low, high
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        else:
            self.low, self.high = first * step, last * step
        self.start, self.end = (LEFT, WIDTH - RIGHT) if of == 0 else (HEIGHT - BOTTOM, TOP)
        self.ticks = [(round(self(at * step), 1), _label(at * step, step)) for at in range(first, last + 1)]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _label(value: float, step: float) -> str:
    if abs(value) >= 1e6 or 0 < step < 1e-4:
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:,.{digits}f}"


def _finite(points: Sequence[Any]) -> list[tuple[float, float]]:
    pairs = [(float(a), float(b)) for a, b in points]
    return [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _thinned(points: Sequence[Any], most: int) -> list[Any]:
    """Every so many-th point, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]


def curves(run: RunFolder) -> list[Chart]:
    """Losses of the seed best on validation, and the validation score of all seeds, against steps."""
    charts: list[Chart | None] = []
    if isinstance(grid := run.record.get("grid"), Mapping):
        charts.append(_of_checkpoints(run, grid))
    if run.kind == "pretrain":
        log = read_log(run.path / "training")
        charts += [
            _losses("Losses", log),
            *_shares(log),
            _validation("Validation loss", "loss", {"validation": log}, "eval_loss"),
        ]
    started, score = run.started_seeds, f"{metric_name(run.metric)} /%"
    shown = run.best_seed if run.best_seed is not None else next(iter(started), None)
    for stage in (1, 2):
        logs = {seed: read_log(stage_folder(run.seed_folder(seed), stage)) for seed in started}
        charts.append(_losses(f"Stage {stage}, seed {shown}: losses", [] if shown is None else logs.get(shown, [])))
        named = {f"seed {seed}": log for seed, log in logs.items()}
        charts.append(_validation(f"Stage {stage}: validation", score, named, f"eval_{run.metric}", 100))
    histories, prefix = {f"seed {record['seed']}": record.get("history") or [] for record in run.seeds}, ""
    if not any(histories.values()):
        # Fine-tuning that is not finished has its log in checkpoints.
        histories, prefix = {f"seed {seed}": read_log(run.seed_folder(seed)) for seed in started}, "eval_"
        charts.append(_losses(f"Seed {shown}: losses", histories.get(f"seed {shown}", [])))
    charts.append(_validation("Validation", score, histories, f"{prefix}{run.metric}", 100))
    charts.append(_validation("Validation loss", "loss (nats)", histories, f"{prefix}loss"))
    return [chart for chart in charts if chart is not None]


def _of_checkpoints(run: RunFolder, grid: Mapping[str, Any]) -> Chart | None:
    """The scores of a pretraining's fine-tuned checkpoints against its steps (COCO-LM, Figure 3)."""
    logs: dict[str, list[dict[str, Any]]] = {}
    with checked_grid(run.path / GRID_FILE):
        for step, point in checkpoint_points(grid).items():
            for seed, value in zip(grid["seeds"], point["validation"][grid["metric"]]["values"], strict=True):
                logs.setdefault(f"seed {seed}", []).append({"step": step, "score": float(value)})
    title = "Fine-tuned checkpoints: validation against the pretraining's steps"
    return _validation(title, f"{metric_name(run.metric)} /%", logs, "score", 100)


def _losses(title: str, log: Log) -> Chart | None:
    terms = list(dict.fromkeys(name for entry in log if "loss" in entry for name in entry if name.endswith("_loss")))
    names = [name for name in terms if not name.startswith(("eval_", "train_"))] or ["loss"]
    return _curve(title, "loss (nats)", {NAMES.get(name, name): _points(log, name) for name in names})


def _shares(log: Log) -> list[Chart | None]:
    """What objectives log beside their losses: accuracies and the like, and cosines (COCO-LM, Figures 7 and 8)."""
    names = list(dict.fromkeys(name for entry in log if "loss" in entry for name in entry if name.startswith("corpus/")))
    shown = {name: name.removeprefix("corpus/").replace("_", " ") for name in names}
    shares = {shown[name]: _points(log, name, 100) for name in names if "accuracy" in name or name.endswith("fraction")}
    cosines = {shown[name]: _points(log, name) for name in names if "cosine" in name}
    title = "Cosines of pairs: of one text (positive), of two texts (negative)"
    return [_curve("Accuracies and shares", "%", shares), _curve(title, "cosine", cosines)]


def _validation(title: str, label: str, logs: Mapping[str, Log], name: str, times: float = 1) -> Chart | None:
    return _curve(title, label, {of: _points(log, name, times) for of, log in logs.items()})


def _curve(title: str, label: str, series: Mapping[str, Points]) -> Chart | None:
    """A chart against steps; None of fewer than three points: one is a number, and two make a line, not a curve."""
    return line_chart(title, "step", label, series) if any(len(points) > 2 for points in series.values()) else None


def _points(log: Log, name: str, times: float = 1) -> list[tuple[float, float]]:
    known = (entry for entry in log if is_number(entry.get("step")) and is_number(entry.get(name)))
    return [(entry["step"], times * entry[name]) for entry in known]
