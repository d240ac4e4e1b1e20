"""What a run logged while it trained, as charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from hf_tlm.analysis.curves.states import read_log
from hf_tlm.analysis.report.about import metric_name
from hf_tlm.analysis.report.charts import Chart, line_chart
from hf_tlm.analysis.report.run_folder import RunFolder
from hf_tlm.utils.run_names import stage_folder

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


def curves(run: RunFolder) -> list[Chart]:
    """Losses of the seed best on validation, and the validation score of all seeds, against steps.

    Raises:
        AnalysisError: a trainer_state.json is damaged; the message names it.
    """
    charts: list[Chart | None] = []
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


def _losses(title: str, log: Sequence[Mapping[str, Any]]) -> Chart | None:
    terms = list(dict.fromkeys(name for entry in log if "loss" in entry for name in entry if name.endswith("_loss")))
    names = [name for name in terms if not name.startswith(("eval_", "train_"))] or ["loss"]
    return _curve(title, "loss (nats)", {NAMES.get(name, name): _points(log, name) for name in names})


def _shares(log: Sequence[Mapping[str, Any]]) -> list[Chart | None]:
    """What objectives log beside their losses: accuracies and the like, and cosines (COCO-LM, Figures 7 and 8)."""
    names = list(dict.fromkeys(name for entry in log if "loss" in entry for name in entry if name.startswith("corpus/")))
    shares = [name for name in names if "accuracy" in name or name.endswith("fraction")]
    cosines = [name for name in names if "cosine" in name]

    def series(chosen: Sequence[str], times: float) -> dict[str, list[tuple[float, float]]]:
        return {
            name.removeprefix("corpus/").replace("_", " "): [(step, times * value) for step, value in _points(log, name)]
            for name in chosen
        }

    return [
        _curve("Accuracies and shares", "%", series(shares, 100)),
        _curve("Cosines of pairs: of one text (positive), of two texts (negative)", "cosine", series(cosines, 1)),
    ]


def _validation(
    title: str, label: str, logs: Mapping[str, Sequence[Mapping[str, Any]]], name: str, times: float = 1
) -> Chart | None:
    series = {of: [(step, times * value) for step, value in _points(log, name)] for of, log in logs.items()}
    return _curve(title, label, series)


def _curve(title: str, label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> Chart | None:
    """A chart against steps; None of fewer than three points: one is a number, and two make a line, not a curve."""
    return line_chart(title, "step", label, series) if any(len(points) > 2 for points in series.values()) else None


def _points(log: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (entry["step"], entry[name])
        for entry in log
        if isinstance(entry.get("step"), Real) and isinstance(entry.get(name), Real)
    ]
