"""Score against cost (TLM, Figure 1): average your own runs over tasks, beside the papers' points, and draw them.

The published scores and FLOPs of TLM's Table 2 and ISS's Table 3 come from `hf_tlm.experiments.PUBLISHED`. Rows of ISS's
Table 3 that repeat TLM's are left out, as is its Table 4, whose FLOPs do not include those of the checkpoints that were
trained further.

    found = compare(find_results({"main": "runs/main"}))
    print(to_markdown(found))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, CostArguments, Findings, named
from hf_tlm.analysis.figures import MARKERS, PALETTE, WIDE, WIDTH, add_legend, label_decades, new_figure, save_figure, style
from hf_tlm.analysis.runs import Result, find_results
from hf_tlm.errors import AnalysisError
from hf_tlm.experiments.published import PUBLISHED
from hf_tlm.models import MLM_SUBFOLDER
from hf_tlm.runs.teachers.models import training_costs
from hf_tlm.tasks import TASKS
from hf_tlm.training.run_folder import places_of, run_of
from hf_tlm.training.teacher import teacher_cost
from hf_tlm.utils.json_files import entry
from hf_tlm.utils.shown import for_markdown, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROBERTA_LARGE = "TLM Table 2: RoBERTa-Large"
# The points of a family are joined by a line, with FLOPs increasing from left to right.
FAMILIES: dict[str, tuple[str, ...]] = {
    "BERT": ("TLM Table 2: BERT-Base", "TLM Table 2: BERT-Large"),
    "RoBERTa": ("TLM Table 2: RoBERTa-Base", ROBERTA_LARGE),
    "TLM": ("TLM Table 2: TLM (small-scale)", "TLM Table 2: TLM (medium-scale)", "TLM Table 2: TLM (large-scale)"),
    "TLM, 20% of the data": (
        "ISS Table 3: TLM (small-20%)",
        "ISS Table 3: TLM (medium-20%)",
        "ISS Table 3: TLM (large-20%)",
    ),
    "TLM large, as BERT-Base": ("ISS Table 3: TLM (large, BERT-Base)",),
    "ISS": ("ISS Table 3: ISS (small-scale)", "ISS Table 3: ISS (medium-scale)", "ISS Table 3: ISS (large-scale)"),
}
# Table IV of "BERT, ELECTRA and ALE" (electra_ale): GLUE validation scores, the best of 10 runs, shares of 1 as printed;
# FLOPs are those of pretraining. The metrics are those of the paper's table of tasks.
ALE_COLUMNS = "flops mrpc cola mnli sst2 qqp qnli rte stsb average"
ALE_ROWS = {
    "BERT_small": "2.3e17 0.838 0.317 0.785 0.908 0.877 0.862 0.610 0.862 0.757",
    "ELECTRA_small": "2.3e17 0.824 0.509 0.770 0.877 0.888 0.847 0.592 0.840 0.768",
    "ELECTRA_small, 2x time": "4.6e17 0.831 0.561 0.769 0.869 0.887 0.851 0.592 0.848 0.776",
    "ALE_small": "2.3e17 0.738 0.305 0.745 0.834 0.878 0.824 0.567 0.810 0.713",
}
ALE_METRICS = {"cola": "matthews", "stsb": "pearson"}  # All others are accuracies.
# arm -> task -> [(result, FLOPs of its checkpoint)]
_Arms = dict[str, dict[str, list[tuple[Result, float]]]]
GREY = "#606060"


@dataclass(frozen=True)
class Point:
    """One published row of a table.

    source: paper, table and row.
    split: the split of the scores.
    flops: of all training, as printed.
    scores: task -> percent.
    metrics: task -> the metric of its score.
    """

    family: str
    source: str
    split: str
    flops: float
    scores: Mapping[str, float]
    metrics: Mapping[str, str]

    def average(self, tasks: Mapping[str, str]) -> float | None:
        """Return the mean over tasks in percent; None if the row lacks one of them, or has it on another metric.

        Args:
            tasks: task -> metric.
        """
        names = {task.removeprefix("glue_"): metric for task, metric in tasks.items()}
        if any(self.metrics.get(task) != metric for task, metric in names.items()):
            return None
        return fmean(self.scores[task] for task in names)


def published_points() -> Sequence[Point]:
    """Return all published points, grouped by family, in the order of their FLOPs."""
    points = []
    for family, rows in FAMILIES.items():
        for key in rows:
            row = PUBLISHED[key]
            assert row.flops is not None  # All rows of a family have FLOPs.
            scores = {
                task: published_score[0] for task in row.cells if task != "average" and (published_score := row.score(task))
            }
            metrics = {task: TASKS[task].metric for task in scores}
            points.append(Point(family, key, row.measure, row.flops, scores, metrics))
    names = ALE_COLUMNS.split()
    for model, text in ALE_ROWS.items():
        cells = dict(zip(names, map(float, text.split()), strict=True))
        flops = cells.pop("flops")
        scores = {task: 100 * score for task, score in cells.items() if task != "average"}
        metrics = {task: ALE_METRICS.get(task, "accuracy") for task in scores}
        family = model.partition(",")[0].replace("_", " ")
        points.append(Point(family, f"BERT, ELECTRA and ALE Table IV: {model}", "validation", flops, scores, metrics))
    return points


ROBERTA_LARGE_FLOPS = next(point.flops for point in published_points() if point.source == ROBERTA_LARGE)


@dataclass(frozen=True)
class Scored:
    """One point of the figure.

    family: points that a line joins; None for your own runs.
    source: where a published point is printed.
    flops: of all training of one task's model, mean over tasks and seeds.
    pretraining: the part of `flops` spent on the initial checkpoint and on a teacher, for its training and its predictions.
    score, deviation: percent, averages over tasks; the deviation is that of the seeds' averages (n - 1), over the `seeds`
        that all tasks have; None for one seed and for published points.
    """

    name: str
    flops: float
    score: float
    deviation: float | None = None
    seeds: int = 0
    pretraining: float = 0.0
    family: str | None = None
    source: str | None = None

    @property
    def ratio(self) -> float:
        """FLOPs relative to RoBERTa-Large's (TLM, Table 2)."""
        return self.flops / ROBERTA_LARGE_FLOPS


@dataclass
class Comparison:
    """All points of a comparison.

    tasks: task -> metric; all averages are over exactly these tasks.
    notes: what was left out, and why.
    """

    tasks: dict[str, str]
    split: str
    points: list[Scored] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def own(self) -> list[Scored]:
        return [point for point in self.points if point.source is None]

    @property
    def published(self) -> list[Scored]:
        return [point for point in self.points if point.source is not None]


def compare(
    results: Sequence[Result],
    *,
    split: str = "test",
    tasks: Sequence[str] | None = None,
    pretraining_flops: Mapping[str, float] | None = None,
    published: bool = True,
) -> Comparison:
    """Average the score of every arm, and of every published row, over the same tasks.

    Args:
        results: from `find_results`; runs whose names differ only in the task are one arm.
        split: "validation" or "test".
        tasks: tasks to average over; arms that lack one are left out. Default: those that all arms have.
        pretraining_flops: last part of a checkpoint's name -> FLOPs of its training. A checkpoint that was trained in a
            folder that still exists needs no entry: its results are read. Arms with unknown FLOPs are left out.

    Raises:
        AnalysisError: no arm has scores and costs; no task is common to all arms, or one of `tasks` has no scores; a task
            has several metrics; an arm has a seed twice.
    """
    notes: list[str] = []
    arms = _group_by_arm(results, split, pretraining_flops or {}, notes)
    if not arms:
        listed = f" {'; '.join(notes)}." if notes else ""
        raise AnalysisError(f"No run has both a {split} score and a cost.{listed}")
    chosen = _choose_tasks(arms, tasks, notes)
    metrics = {task: _common_metric(arms, task) for task in chosen}
    comparison = Comparison(metrics, split, notes=notes)
    for name, results_by_task in arms.items():
        if missing := [task for task in chosen if task not in results_by_task]:
            notes.append(f"{name} is left out: it has no score on {', '.join(missing)}")
        else:
            comparison.points.append(_average_scores(name, {task: results_by_task[task] for task in chosen}, split))
    for point in published_points() if published else ():
        score = point.average(metrics) if point.split == split else None
        if score is not None:
            name = point.source.partition(": ")[2]
            comparison.points.append(Scored(name, point.flops, score, family=point.family, source=point.source))
    if published and not comparison.published:
        notes.append(f"no published row with FLOPs has {split} scores on these tasks and metrics")
    return comparison


def _group_by_arm(results: Sequence[Result], split: str, known_flops: Mapping[str, float], notes: list[str]) -> _Arms:
    arms: _Arms = {}
    unknown: dict[str, str] = {}
    for result in results:
        checkpoint_flops = _checkpoint_flops(result, known_flops)
        if checkpoint_flops is None:
            unknown[result.arm] = str(result.settings["model_name_or_path"])
        elif result.error is not None:
            notes.append(f"{result.run} has no score: {result.error}")
        elif result.score(split) is None or not math.isfinite(result.cost.get("flops") or math.nan):
            lacking = "cost" if result.score(split) is not None else f"{split} score"
            notes.append(f"{result.run}, seed {result.seed}, has no {lacking}")
        else:
            pairs = arms.setdefault(result.arm, {}).setdefault(result.task, [])
            if result.seed in [other.seed for other, _ in pairs]:
                raise AnalysisError(
                    f"{result.arm} has seed {result.seed} on {result.task} twice, in {pairs[0][0].folder} and "
                    f"{result.folder}. Remove one of them, or name the folders differently, as in --run first=DIR "
                    "second=DIR."
                )
            pairs.append((result, checkpoint_flops + teacher_cost(result.teacher, "flops")))
    for arm, checkpoint in unknown.items():
        arms.pop(arm, None)
        notes.append(
            f"{arm} is left out: it starts from {Path(checkpoint).name}, whose own FLOPs are not known here "
            f"(--pretraining_flops {Path(checkpoint).name}=...)"
        )
    return arms


def _checkpoint_flops(result: Result, known_flops: Mapping[str, float]) -> float | None:
    """Return the FLOPs of all training before the run began; None if they are unknown.

    A checkpoint that is a run with several seeds, from which the best was chosen, has the cost of all of them.
    """
    start, folder = result.settings.get("model_name_or_path"), result.folder
    flops = 0.0
    visited: set[Path] = set()
    while start is not None:
        if Path(start).name in known_flops:
            return flops + known_flops[Path(start).name]
        start = places_of(folder).get(start, start)
        # The path is relative to the directory where the run was started, which may be a parent of the run's folder.
        for base in (Path(), *folder.resolve().parents):
            checkpoint = base / start
            checkpoint = checkpoint.parent if checkpoint.name == MLM_SUBFOLDER else checkpoint
            cost, _ = training_costs([(str(checkpoint), checkpoint)])
            if cost is not None:
                break
        else:
            return None
        folder, record = run_of(checkpoint)
        if folder in visited:  # Folders that were renamed or copied may seem to start from each other.
            return None
        visited.add(folder)
        flops += cost["flops"]
        start = entry(record, "model", "model_name_or_path")
    return flops


def _choose_tasks(arms: _Arms, tasks: Sequence[str] | None, notes: list[str]) -> list[str]:
    all_tasks = list(dict.fromkeys(task for results_by_task in arms.values() for task in results_by_task))
    if tasks is None:
        common = [task for task in all_tasks if all(task in results_by_task for results_by_task in arms.values())]
        if not common:
            listed = "; ".join(f"{name}: {', '.join(results_by_task)}" for name, results_by_task in arms.items())
            raise AnalysisError(
                f"No task is common to all arms ({listed}), and averages over different tasks are not comparable. Name the "
                "tasks (--cost_tasks), or compare other runs."
            )
        if len(common) < len(all_tasks):
            notes.append(
                f"not averaged, as some arms lack it: {', '.join(task for task in all_tasks if task not in common)}"
            )
        return common
    if missing := [task for task in tasks if task not in all_tasks]:
        raise AnalysisError(f"No run has a score on {missing[0]!r}. Tasks with scores: {', '.join(all_tasks)}.")
    if not any(all(task in results_by_task for task in tasks) for results_by_task in arms.values()):
        raise AnalysisError(f"No arm has scores on all of {', '.join(tasks)}.")
    return list(dict.fromkeys(tasks))


def _common_metric(arms: _Arms, task: str) -> str:
    metrics = {str(result.metric) for results_by_task in arms.values() for result, _ in results_by_task.get(task, ())}
    if len(metrics) > 1:
        raise AnalysisError(
            f"Runs on {task} have different metrics, {' and '.join(sorted(metrics))}. Remove some of these runs."
        )
    return metrics.pop()


def _average_scores(name: str, results_by_task: Mapping[str, Sequence[tuple[Result, float]]], split: str) -> Scored:
    scores = {
        task: {r.seed: 100 * score for r, _ in results if (score := r.score(split)) is not None}
        for task, results in results_by_task.items()
    }
    shared = set.intersection(*(set(by_seed) for by_seed in scores.values()))
    averages = [fmean(by_seed[seed] for by_seed in scores.values()) for seed in shared]
    checkpoint_flops = fmean(fmean(flops for _, flops in results) for results in results_by_task.values())
    run_flops = fmean(fmean(result.cost["flops"] for result, _ in results) for results in results_by_task.values())
    return Scored(
        name,
        flops=checkpoint_flops + run_flops,
        score=fmean(fmean(by_seed.values()) for by_seed in scores.values()),
        deviation=stdev(averages) if len(averages) > 1 else None,
        seeds=len(shared),
        pretraining=checkpoint_flops,
    )


def to_rows(found: Comparison) -> list[dict[str, Any]]:
    """Return the points as CSV rows, sorted by FLOPs."""
    return [
        {
            "name": point.name,
            "published": point.source or "",
            "flops": point.flops,
            "pretraining_flops": point.pretraining if point.source is None else "",
            "flops_ratio": point.ratio,
            "score": point.score,
            "deviation": "" if point.deviation is None else point.deviation,
            "seeds": point.seeds or "",
            "split": found.split,
            "tasks": " ".join(found.tasks),
        }
        for point in sorted(found.points, key=lambda point: point.flops)
    ]


def to_markdown(found: Comparison) -> str:
    """Format all points as a Markdown table sorted by FLOPs, with a text that names the tasks of the averages."""
    tasks = ", ".join(f"{task} ({metric.replace('_', ' ').replace('f1', 'F1')})" for task, metric in found.tasks.items())
    rows = []
    for point in sorted(found.points, key=lambda point: point.flops):
        score = f"{point.score:.2f}" + ("" if point.deviation is None else f" ± {point.deviation:.2f} ({point.seeds} seeds)")
        source = (point.source or "").partition(":")[0]
        rows.append([point.name, f"{point.flops:.3g}", f"{point.ratio:.2g}", score, source])
    head = ["", "FLOPs", "of RoBERTa-Large's", "score", "published in"]
    text = (
        f"Averages of {found.split} scores in percent over {tasks}: every point is the average over exactly these. "
        "FLOPs are 6 x tokens x parameters of training, of checkpoints too that a run started from, without retrieval and "
        "selection."
    )
    if found.published:
        text += " Rows with a source are published figures, from other corpora and models; they were not measured here. "
        text += "FLOPs that the papers print for TLM and ISS are means over their eight tasks, not over these."
    notes = "\n".join(f"- {for_markdown(note, 1000)}" for note in dict.fromkeys(found.notes))
    return f"{markdown_table(head, rows, texts=[0, 4])}\n{text}\n" + (f"\n{notes}\n" if notes else "")


@style()
def cost_figure(found: Comparison) -> Figure:
    """Draw all points by FLOPs: your own runs filled and coloured, published ones hollow and grey.

    If there are several runs of your own, a second panel shows their scores alone, with the seeds' deviation, as they are
    close together in the first panel.
    """
    several = len(found.own) > 1
    height = max(2.6, 1.0 + 0.2 * len(found.own)) + (0.5 if found.published else 0.0)
    figure, axes = new_figure(1, 1 + several, width=WIDE if several else WIDTH, height=height, squeeze=False)
    _draw_by_flops(axes[0, 0], found)
    if several:
        _draw_own_runs(axes[0, 1], found)
    elif found.own:
        axes[0, 0].set_title(f"{found.own[0].name} (filled)")
    if found.published:
        handles = [line for line in axes[0, 0].lines if not line.get_label().startswith("_")]
        title = "published, not measured here"
        add_legend(figure, handles=handles, title=title, ncols=3 if several else 2)
    return figure


def _point_style(index: int) -> dict[str, Any]:
    """Return colour and marker of a point; the marker shifts each time the colours repeat."""
    return {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]}


def _draw_by_flops(axes: Axes, comparison: Comparison) -> None:
    for index, point in enumerate(comparison.own):
        axes.plot(point.ratio, point.score, linestyle="", label="_own", zorder=3, **_point_style(index))
    for index, family in enumerate(dict.fromkeys(point.family for point in comparison.published)):
        points = sorted((point for point in comparison.published if point.family == family), key=lambda point: point.flops)
        axes.plot(
            [point.ratio for point in points],
            [point.score for point in points],
            color=GREY,
            linewidth=0.6,
            marker=MARKERS[index % len(MARKERS)],
            markerfacecolor="none",
            markeredgewidth=0.8,
            label=family,
        )
    axes.set_xscale("log")
    axes.margins(x=0.06, y=0.1)
    axes.set_xlabel("training FLOPs relative to RoBERTa-Large")
    label_decades(axes.xaxis)
    axes.set_ylabel(_score_label(comparison))


def _draw_own_runs(axes: Axes, comparison: Comparison) -> None:
    """Draw a row for each of your own runs, the best on top."""
    order = sorted(range(len(comparison.own)), key=lambda index: comparison.own[index].score)
    for position, index in enumerate(order):
        point = comparison.own[index]
        axes.errorbar(point.score, position, xerr=point.deviation, linestyle="", elinewidth=0.8, **_point_style(index))
    names = [f"{comparison.own[index].name}\n{comparison.own[index].flops:.2g} FLOPs" for index in order]
    axes.set_yticks(range(len(order)), names)
    axes.margins(x=0.08, y=0.12)
    axes.set_xlabel(_score_label(comparison))
    axes.set_title("own runs" + (", mean ± standard deviation" if any(point.deviation for point in comparison.own) else ""))


def _score_label(comparison: Comparison) -> str:
    tasks = (
        f"{next(iter(comparison.tasks))}," if len(comparison.tasks) == 1 else f"average of {len(comparison.tasks)} tasks,"
    )
    return f"{tasks} {comparison.split} score (%)"


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: CostArguments) -> Findings:
    """Write cost.png, cost.svg, and cost.csv with the points."""
    if not args.run:
        raise AnalysisError("--what cost needs --run: runs, or a folder of runs.")
    comparison = compare(
        find_results(args.runs),
        split=options.cost_split,
        tasks=options.cost_tasks,
        pretraining_flops={
            name: _parse_flops(name, text) for name, text in named(options.pretraining_flops, "pretraining_flops").items()
        },
        published=options.published,
    )
    files = save_figure(cost_figure(comparison), args.folder, "cost", to_rows(comparison))
    return Findings("Score against cost", to_markdown(comparison), files)


def _parse_flops(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise AnalysisError(
            f"--pretraining_flops: expected checkpoint=FLOPs, such as {name}=1.54e21; received {name}={text}."
        )
    return value
