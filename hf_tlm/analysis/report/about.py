"""Report sections on settings, environment, cost and scores of a run, and the curves logged during training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, TypeGuard

from hf_tlm.analysis.report.blocks import (
    Block,
    Chart,
    Code,
    Column,
    Facts,
    Folded,
    Points,
    Section,
    Table,
    Text,
    line_chart,
    make_table,
)
from hf_tlm.analysis.report.predictions import Rows
from hf_tlm.analysis.report.run_folder import BASELINE, TITLES, RunFolder, settings_of
from hf_tlm.analysis.runs import SPLITS, is_number
from hf_tlm.analysis.trainer_logs import checked_grid, checkpoint_points, read_log
from hf_tlm.hub.cards import METRIC_NAMES
from hf_tlm.runs.price import int8_line, price_line
from hf_tlm.runs.records import aggregate, format_score
from hf_tlm.training.run_folder import INT8_PRICE, PRICE
from hf_tlm.utils.json_files import Unfit, entry
from hf_tlm.utils.run_files import GRID_FILE, seed_figure, stage_folder

COST = {
    "steps": Column("steps", "number"),
    "tokens": Column("tokens", "number"),
    "real_tokens": Column("without padding", "number"),
    "flops": Column("FLOPs", "number", "{:.3g}"),
    "flops_ratio": Column("share of RoBERTa-Large's", "number", "{:.2g}"),
    "measured_flops": Column("measured FLOPs", "number", "{:.3g}"),
    "seconds": Column("hours", "number", "{:.3f}"),
    "energy_kwh": Column("kWh", "number", "{:.3g}"),
    "co2_kg": Column("kg of CO2", "number", "{:.3g}"),
}

# Logged loss -> its title; the key is what follows the stream, corpus or task, in the logged name.
LOSSES = {
    "mlm_loss": "masked LM",
    "rtd_loss": "replaced tokens",
    "copy_loss": "copying",
    "lm_loss": "corrected tokens",
    "scl_loss": "contrast of sequences",
    "rdrop_loss": "R-Drop",
}

NATS = "loss (nats)"
Log = Sequence[Mapping[str, Any]]


def what_was_run(run: RunFolder, rows: Mapping[str, Rows]) -> Section:
    """Return the section on task, data, model, command, and all settings (folded).

    Args:
        rows: split -> its rows, for the splits whose texts are available.
    """
    record = run.record
    blocks: list[Block] = [Facts(list(_facts(run, rows)))]
    if isinstance(command := record.get("command"), str):
        blocks.append(Code(command))
    settings = settings_of(run)
    columns = (Column("setting"), Column("value"), Column("default"))
    kinds = (("Settings that differ from the defaults", True, 3), ("Settings at their defaults", False, 2))
    for title, differing, width in kinds:
        if shown := [
            (setting.name, setting.value, setting.default)[:width] for setting in settings if setting.differs is differing
        ]:
            blocks.append(Folded(f"{title} ({len(shown)})", [make_table("", columns[:width], shown)]))
    manifest = record if run.kind == "subset" else record.get("subset")
    if isinstance(manifest, Mapping):
        manifest_columns = (Column("manifest field"), Column("value"))
        facts = [row for row in _flatten(manifest) if not row[0].startswith("files.")]
        blocks.append(Folded("How the subset was created", [make_table("", manifest_columns, facts, characters=500)]))
    if isinstance(grid := record.get("grid"), Mapping):
        blocks.append(Folded("The points of the grid", [_grid_table(grid, run.metric)]))
    return Section("What was run", "run", blocks)


def on_what(run: RunFolder) -> Section | None:
    """Return the section on versions and hardware; None if the record has none."""
    environment = run.record.get("environment") or (run.record.get("versions") if run.kind == "subset" else None)
    if not isinstance(environment, Mapping):
        return None
    facts = [(name.replace("_", " "), str(value)) for name, value in environment.items()]
    return Section("Environment", "environment", [Folded("Versions and hardware", [Facts(facts)])])


def cost(run: RunFolder) -> Section | None:
    """Return the section on steps, tokens, FLOPs and hours of each seed and stage; None if no cost is recorded."""
    costs = {"all": run.record.get("cost")}
    for record in run.seeds:
        costs[seed := f"seed {record['seed']}"] = record.get("cost")
        if len(stages := record.get("stages") or {}) > 1:
            costs |= {f"{seed}, stage {stage}": (part or {}).get("cost") for stage, part in stages.items()}
    rows = [(name, part) for name, part in costs.items() if isinstance(part, Mapping)]
    if not rows:
        return None
    names = [name for name in COST if any(part.get(name) for _, part in rows)]
    values = [(label, *(hours(name, part.get(name)) for name in names)) for label, part in rows]
    table = make_table("Training, by seed and stage", (Column("part"), *(COST[name] for name in names)), values)
    note = (
        "FLOPs are 6 x tokens (with padding) x parameters (each as often as it is applied), as in the TLM paper; measured "
        "FLOPs are those of the forward and backward passes as counted by torch. RoBERTa-Large's pretraining took 4.36e21 "
        "FLOPs."
    )
    return Section("Cost", "cost", [table, Text(note)])


def scores(run: RunFolder) -> Section | None:
    """Return the section on scores: every metric on every split, with mean, deviation and each seed.

    For a pretraining it has the losses. None if nothing is scored.
    """
    if run.kind == "pretrain":
        return _loss_section(run)
    splits = {split: summary_of(run, split) for split in SPLITS}
    if not any(splits.values()):
        return None
    part_name = run.part
    columns = [Column("metric"), Column("split"), Column("mean", "number", "{:.2f}")]
    word, _ = seed_figure(run.record.get("seed_figure"))
    extra_names = ["±", *([word] if word != "mean" else [])] if len(run.seeds) > 1 else []
    columns += [Column(name, "number", "{:.2f}") for name in extra_names]
    columns += [Column(f"{part_name} {record['seed']}", "number", "{:.2f}") for record in run.seeds]
    rows = list(_score_rows(run, splits, len(extra_names)))
    note = f"± is the sample standard deviation over the {part_name}s. " if len(run.seeds) > 1 else ""
    note += "Checkpoints were chosen by the validation score." if _chose_checkpoints(run) else ""
    if (scored := run.record.get("scored_split")) not in (None, "test"):
        note += f" Test scores are on the task's {scored} split: there is no test split with labels."
    return Section("Scores", "scores", [make_table("In percent", columns, rows), *_lead_tables(run), Text(note)])


def _score_rows(run: RunFolder, splits: Mapping[str, Mapping[str, Any]], num_extra: int) -> Iterator[tuple]:
    """Yield a row of scores for each metric and split, then rows for averaged models and baselines in the record.

    Args:
        num_extra: number of statistics between the mean and the seeds' scores: deviation, and the run's own statistic.
    """
    metrics = list(dict.fromkeys(name for summary in splits.values() for name in summary))
    metrics.sort(key=lambda name: (name != run.metric, name == "loss"))
    _, statistic = seed_figure(run.record.get("seed_figure"))
    for metric, (split, summary) in product(metrics, splits.items()):
        if (score := summary.get(metric)) is not None:
            by_seed = [(record.get(split) or {}).get(metric) for record in run.seeds]
            values = [score["mean"], *[score["std"], statistic(score["values"])][:num_extra], *by_seed]
            yield metric_name(metric), split, *(None if value is None else 100 * value for value in values)
            for name, value in (*_averaged_scores(run, split, metric), *_baseline_scores(run, split, metric)):
                yield metric_name(metric), f"{split}: {name}", 100 * value, *[None] * (num_extra + len(by_seed))


def _loss_section(run: RunFolder) -> Section | None:
    """Return the section on the losses of a pretraining; None if none are recorded."""
    rows = [
        (split, name.replace("_", " "), value)
        for split in ("training", "validation")
        for name, value in (run.record.get(split) or {}).items()
    ]
    columns = (Column("split"), Column("measure"), Column("value", "number", "{:.4f}"))
    return Section("Scores", "scores", [make_table("Losses (nats) and shares", columns, rows)]) if rows else None


def _lead_tables(run: RunFolder) -> list[Table]:
    """Return a table of the run's leads over the linear model, in a list; empty if the record has none."""
    leads = {split: lead for split in SPLITS if (lead := _lead(run, split)) is not None}
    rows = [(metric_name(run.metric), split, *(100 * value for value in lead)) for split, lead in leads.items()]
    columns = (Column("metric"), Column("split"), *(Column(name, "number", "{:+.2f}") for name in ("lead", "from", "to")))
    caption = "Lead over the linear model in points, and its 95% interval over resampled texts (paired bootstrap)"
    return [make_table(caption, columns, rows)] if rows else []


def _lead(run: RunFolder, split: str) -> tuple[float, float, float] | None:
    """Return the run's recorded lead over the linear model on a split: (difference, low, high); None without one."""
    for baseline in _baselines(run):
        difference, low, high = (entry(baseline, "lead", split, name) for name in ("difference", "low", "high"))
        if _is_score(difference) and _is_score(low) and _is_score(high):
            return difference, low, high
    return None


def _averaged_scores(run: RunFolder, split: str, metric: str) -> Iterator[tuple[str, float]]:
    """Yield the recorded scores of the seeds' averaged models, and of each and all averaged with the linear model."""
    if _is_score(score := entry(run.record, "averaged", split, metric)):
        yield "average of all seeds' models", score
    if _is_score(score := entry(run.record, "with_linear", split, metric, "mean")):
        yield "averaged with the linear model", score
    if _is_score(score := entry(run.record, "averaged_with_linear", split, metric)):
        yield "average of all seeds' models, averaged with the linear model", score


def _baselines(run: RunFolder) -> list[Any]:
    baselines = run.record.get("baselines")
    return baselines if isinstance(baselines, list) else []


def _baseline_scores(run: RunFolder, split: str, metric: str) -> Iterator[tuple[str, float]]:
    """Yield name and score of each recorded baseline that was scored on the split by the metric."""
    for baseline in _baselines(run):
        if _is_score(score := entry(baseline, "scores", split, metric)):
            name = str(baseline.get("name"))
            yield "linear model" if name == "linear" else name, score


def _is_score(value: Any) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)


def _chose_checkpoints(run: RunFolder) -> bool:
    """Return whether checkpoints were selected by the validation score.

    Stage 1 of TLM alone, fine-tuning with `select_by` last, and zero-shot prompts keep the final model. A baseline has no
    checkpoints.
    """
    if run.kind == BASELINE:
        return False
    arguments = run.record.get("arguments") or {}
    final_model_options = {"stage": "1", "select_by": "last", "method": "zero_shot"}
    return arguments.get("load_best_model_at_end") or not any(
        arguments.get(name) == value for name, value in final_model_options.items()
    )


def highlights(run: RunFolder) -> list[tuple[str, str, str]]:
    """Return the tiles at the top of the page: (name, figure, explanation) of the most important numbers."""
    score_tiles = _loss_tiles(run) if run.kind == "pretrain" else _score_tiles(run)
    return [*score_tiles, *_cost_tiles(run), *(_passage_tile(run) if run.kind == "subset" else ())]


def _score_tiles(run: RunFolder) -> Iterator[tuple[str, str, str]]:
    """Yield the tiles of the score on each split, test first, and after the first one that of the baseline to beat."""
    n, part_name = len(run.seeds), run.part
    word, statistic = seed_figure(run.record.get("seed_figure"))
    scores = {split: summary_of(run, split).get(run.metric or "") for split in reversed(SPLITS)}
    scored = [(split, score) for split, score in scores.items() if score is not None]
    for index, (split, score) in enumerate(scored):
        texts = f"{format_score(score)} %", "" if run.kind == BASELINE else f"{n} {part_name}{'s' * (n > 1)}"
        if word != "mean" and n > 1:
            texts = f"{100 * statistic(score['values']):.2f} %", f"{word} of {texts[1]}, mean {texts[0]}"
        yield f"{split} {metric_name(run.metric)}", *texts
        if index == 0 and (baselines := list(_baseline_scores(run, split, run.metric or ""))):
            name, value = baselines[-1]  # The last baseline is the linear model; its lead is over the mean.
            lead = _lead(run, split) if word == "mean" else None
            unsure = lead is not None and lead[1] <= 0 <= lead[2]
            chance = "; the difference may be due to the choice of these texts" if unsure else ""
            yield "to beat", f"{100 * value:.2f} %", f"{name}, on {split}{chance}"


def _loss_tiles(run: RunFolder) -> Iterator[tuple[str, str, str]]:
    for name, value in (run.record.get("validation") or {}).items():
        if name.endswith("_loss") and value is not None:
            yield f"validation {name.replace('_', ' ')}", f"{value:.3f}", "nats"


def _cost_tiles(run: RunFolder) -> Iterator[tuple[str, str, str]]:
    """Yield the tiles of costs: means over the seeds, or the run's own if no seed has a cost."""
    costs = [record["cost"] for record in run.seeds if isinstance(record.get("cost"), Mapping)]
    costs = costs or [seed_cost for seed_cost in [run.record.get("cost")] if isinstance(seed_cost, Mapping)]
    if costs:
        per_seed = " per seed" if run.seeds else ""
        tokens, flops, seconds = (
            sum(seed_cost.get(name) or 0 for seed_cost in costs) / len(costs) for name in ("real_tokens", "flops", "seconds")
        )
        yield f"tokens{per_seed}", f"{tokens:,.0f}", "without padding"
        yield f"FLOPs{per_seed}", f"{flops:.2e}", ""
        yield f"time{per_seed}", duration(seconds), "of training"


def _passage_tile(run: RunFolder) -> Iterator[tuple[str, str, str]]:
    counts = run.record.get("counts") or {}
    if size := (run.record.get("selection") or {}).get("size", counts.get("union")):
        yield "passages", f"{size:,}", f"of {counts.get('passages') or 0:,}"


def summary_of(run: RunFolder, split: str) -> dict[str, dict[str, Any]]:
    """Return metric -> mean, std, n, values over the finished seeds; empty if none has been scored on the split."""
    scored = [
        {name: value for name, value in record[split].items() if value is not None}
        for record in run.seeds
        if record.get(split)
    ]
    return aggregate(scored) if scored else {}


def metric_name(metric: str | None) -> str:
    return METRIC_NAMES.get(metric or "", (metric or "score").replace("_", " "))


def duration(seconds: float) -> str:
    """Format seconds with the two largest units: hours and minutes, or minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _facts(run: RunFolder, rows: Mapping[str, Rows]) -> Iterator[tuple[str, str]]:
    record = run.record
    manifest = record if run.kind == "subset" else record.get("subset")
    yield "Kind of run", TITLES[run.kind]
    yield from _data_facts(run)
    if rows:
        rare = [
            f"{split} {100 * split_rows.rare_share(split_rows.rare_below):.1f}% "
            f"(in none: {100 * split_rows.rare_share(1):.1f}%)"
            for split, split_rows in rows.items()
        ]
        below = next(iter(rows.values())).rare_below
        yield f"Words in fewer than {below} training texts", ", ".join(rare)
    if run.kind == "tlm" and manifest is None:
        yield "Subset", "none: task data only"
    if isinstance(manifest, Mapping):
        yield from subset_facts(manifest)
    if isinstance(corpus := record.get("corpus"), Mapping) and run.kind == "pretrain":
        yield "Corpus", f"{corpus.get('name')} ({corpus.get('tokens') or 0:,} tokens)"
    yield from _model_facts(run)
    if isinstance(prompt := record.get("prompt"), Mapping):
        yield "Prompt", str(prompt.get("template"))


def _data_facts(run: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield facts about the task, and about rows that were held out, sampled, dropped or repeated."""
    record = run.record
    if isinstance(task := record.get("task"), str):
        yield "Task", f"{task} ({run.task_kind.replace('_', ' ')})"
    if isinstance(held_out := record.get("held_out"), Mapping):
        shares = ", ".join(f"{split} {100 * share:g}%" for split, share in held_out.items())
        yield "Held-out splits", f"{shares} of the texts of each class"
    for split, title in (("train", "Training examples"), ("validation", "Validation examples")):
        if isinstance(sampled := record.get(f"{split}_sampled"), Mapping):
            counts = [sampled.get("examples"), sampled.get("of")]
            if all(type(count) is int for count in counts):
                yield title, f"{counts[0]:,} of {counts[1]:,}, stratified by class"
    for name, title in (
        ("dropped", "Rows left out"),
        ("repeated_texts", "Texts repeated within the split"),
        ("texts_also_in_train", "Texts also in the training split"),
    ):
        if isinstance(by_kind := record.get(name), Mapping):
            rows = [
                (label.replace(".", " "), int(count))
                for label, count in _flatten(by_kind)
                if re.fullmatch("[1-9][0-9]{0,15}", count)
            ]
            if shown := ", ".join(f"{label} {count:,}" for label, count in rows):
                yield title, shown


def _model_facts(run: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield facts about the model: origin, size, and the price of a prediction."""
    model = run.record.get("model") or {}
    if (start := model.get("model_name_or_path")) is not None:
        yield "Model", f"from the checkpoint {start}"
    elif model.get("model_config"):
        yield "Model", f"from scratch, {model['model_config']}"
    if (record := next(iter(run.seeds), run.record)).get("parameters"):
        trained = record.get("trained_parameters") or record["parameters"]
        note = f", {trained:,} of them trained" if trained < record["parameters"] else ""
        yield "Parameters", f"{record['parameters']:,}{note} ({record.get('model_type', 'model')})"
    if "price" in record:
        with suppress(Unfit):  # A record from elsewhere may have any content.
            yield "Cost of a prediction", price_line(PRICE(record["price"]))
    if "int8" in run.record:
        with suppress(Unfit):
            yield "In 8 bits", int8_line(INT8_PRICE(run.record["int8"]), str(run.record.get("metric")))


def subset_facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    corpus, counts = manifest.get("corpus") or {}, manifest.get("counts") or {}
    selection = manifest.get("selection") or {}
    size = selection.get("size", counts.get("union"))
    retrieval = str(manifest.get("retriever"))
    retrieval += f", top {manifest['top_k']:,} of each training text" if manifest.get("top_k") else ""
    retrieval += f", then {selection['method']}" if selection.get("method") else ""
    facts = [("Corpus", f"{corpus.get('name')} ({corpus.get('size') or 0:,} passages)")]
    facts.append(("Subset", f"{size or 0:,} passages ({retrieval})"))
    made_for = manifest.get("task")
    return facts + ([("Retrieved for", str(made_for.get("name")))] if isinstance(made_for, Mapping) else [])


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", str(value)))
    return rows


def _grid_table(grid: Mapping[str, Any], metric: str | None) -> Table:
    points = [point for point in grid.get("points", []) if isinstance(point, Mapping)]
    names: Sequence[str] = list(dict.fromkeys(name for point in points for name in point.get("values", {})))
    chosen_folder = (grid.get("chosen") or {}).get("folder")
    statistics = ("median", "mean", "std")
    columns = [
        *map(Column, names),
        *(Column(f"validation {statistic} /%", "number", "{:.2f}") for statistic in statistics),
        Column(""),
    ]
    rows = []
    for point in points:
        summary = (point.get("validation") or {}).get(metric, {})
        values = (None if summary.get(statistic) is None else 100 * summary[statistic] for statistic in statistics)
        note = "chosen" if point.get("folder") == chosen_folder else "failed" if "failed" in point else ""
        rows.append((*(str(point.get("values", {}).get(name, "")) for name in names), *values, note))
    return make_table("Points of the grid", columns, rows)


def hours(name: str, value: float | None) -> float | None:
    """Convert a figure of `COST` to the unit of its column: seconds to hours."""
    return value / 3600 if name == "seconds" and value is not None else value


def curves(run: RunFolder) -> list[Chart]:
    """Return the charts against steps: losses of the seed best on validation, and the validation scores of all seeds."""
    charts: list[Chart | None] = []
    if isinstance(grid := run.record.get("grid"), Mapping):
        charts.append(_checkpoint_chart(run, grid))
    if run.kind == "pretrain":
        log = read_log(run.path / "training")
        charts += [
            _loss_chart("Losses", log),
            *_share_charts(log),
            _validation_chart("Validation loss", "loss", {"validation": log}, "eval_loss"),
        ]
    started, score = run.started_seeds, f"{metric_name(run.metric)} /%"
    unit = "loss" if run.task_kind == "regression" else NATS  # A squared difference of values.
    shown = run.best_seed if run.best_seed is not None else next(iter(started), None)
    for stage in (1, 2):
        logs = {seed: read_log(stage_folder(run.seed_folder(seed), stage)) for seed in started}
        charts.append(_loss_chart(f"Stage {stage}, seed {shown}: losses", [] if shown is None else logs.get(shown, [])))
        named = {f"seed {seed}": log for seed, log in logs.items()}
        charts.append(_validation_chart(f"Stage {stage}: validation", score, named, f"eval_{run.metric}", 100))
    histories, prefix = {f"seed {record['seed']}": record.get("history") or [] for record in run.seeds}, ""
    if not any(histories.values()):
        # An unfinished fine-tuning has its log in checkpoints.
        histories, prefix = {f"seed {seed}": read_log(run.seed_folder(seed)) for seed in started}, "eval_"
        charts.append(_loss_chart(f"Seed {shown}: losses", histories.get(f"seed {shown}", []), unit))
    charts.append(_validation_chart("Validation", score, histories, f"{prefix}{run.metric}", 100))
    charts.append(_validation_chart("Validation loss", unit, histories, f"{prefix}loss"))
    return [chart for chart in charts if chart is not None]


def _checkpoint_chart(run: RunFolder, grid: Mapping[str, Any]) -> Chart | None:
    """Chart the scores of a pretraining's fine-tuned checkpoints against its steps (COCO-LM, Figure 3)."""
    logs: dict[str, list[dict[str, Any]]] = {}
    with checked_grid(run.path / GRID_FILE):
        for step, point in checkpoint_points(grid).items():
            for seed, value in zip(grid["seeds"], point["validation"][grid["metric"]]["values"], strict=True):
                logs.setdefault(f"seed {seed}", []).append({"step": step, "score": float(value)})
    title = "Fine-tuned checkpoints: validation score by step of the pretraining"
    return _validation_chart(title, f"{metric_name(run.metric)} /%", logs, "score", 100)


def _loss_chart(title: str, log: Log, unit: str = NATS) -> Chart | None:
    terms = list(dict.fromkeys(name for entry in log if "loss" in entry for name in entry if name.endswith("_loss")))
    names = [name for name in terms if not name.startswith(("eval_", "train_"))] or ["loss"]
    return _step_chart(title, unit, {_loss_name(name): _points(log, name) for name in names})


def _loss_name(name: str) -> str:
    """Return the title of a logged loss, such as `task: teacher loss` for task/teacher_loss."""
    *stream, loss = name.split("/")
    return ": ".join([*stream, LOSSES.get(loss, loss.replace("_", " "))])


def _share_charts(log: Log) -> list[Chart | None]:
    """Chart what objectives log beside losses: accuracies, shares and cosines (COCO-LM, Figures 7 and 8)."""
    names = list(dict.fromkeys(name for entry in log if "loss" in entry for name in entry if name.startswith("corpus/")))
    shown = {name: name.removeprefix("corpus/").replace("_", " ") for name in names}
    shares = {shown[name]: _points(log, name, 100) for name in names if "accuracy" in name or name.endswith("fraction")}
    cosines = {shown[name]: _points(log, name) for name in names if "cosine" in name}
    title = "Cosines of pairs from the same text (positive) and from different texts (negative)"
    return [_step_chart("Accuracies and shares", "%", shares), _step_chart(title, "cosine", cosines)]


def _validation_chart(title: str, label: str, logs: Mapping[str, Log], name: str, factor: float = 1) -> Chart | None:
    return _step_chart(title, label, {series_name: _points(log, name, factor) for series_name, log in logs.items()})


def _step_chart(title: str, label: str, series: Mapping[str, Points]) -> Chart | None:
    """Return a chart against steps; None if no series has three points or more, as fewer make no curve."""
    return line_chart(title, "step", label, series) if any(len(points) > 2 for points in series.values()) else None


def _points(log: Log, name: str, factor: float = 1) -> list[tuple[float, float]]:
    entries = (entry for entry in log if is_number(entry.get("step")) and is_number(entry.get(name)))
    return [(entry["step"], factor * entry[name]) for entry in entries]
