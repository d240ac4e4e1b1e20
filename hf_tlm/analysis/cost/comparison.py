"""Averages over tasks and what they cost, of one's own runs and of the papers', over the same tasks.

found = compare(find_results({"main": "runs/main"}))
print(to_markdown(found))
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_tlm.analysis.cost.published import ROBERTA_LARGE, published_points
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.runs import Result, read_json
from hf_tlm.training.run_folder import places_of
from hf_tlm.training.teacher import teacher_cost
from hf_tlm.utils.markdown import markdown_table
from hf_tlm.utils.run_names import RESULTS_FILE
from hf_tlm.utils.shown import for_markdown

ROBERTA_LARGE_FLOPS = next(point.flops for point in published_points() if point.source == ROBERTA_LARGE)


@dataclass(frozen=True)
class Scored:
    """One point of the picture.

    family: points that a line joins; None for one of one's own. source: where a published point is printed.
    flops: of all training of one task's model, means over tasks and seeds. pretraining: its part that a checkpoint had cost,
        and a teacher, asked and trained.
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
    """tasks: with their metrics; all averages are over these alone. notes: what was left out, and why."""

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
        results: of `find_results`; runs whose names differ in the task alone are one arm.
        split: "validation" or "test".
        tasks: to average over; arms that lack one are left out. Default: those that all arms have.
        pretraining_flops: what a checkpoint that runs started from had cost, by the last part of its name; of one that was
            trained in a folder, which is still there, its results tell. Arms of which it is not known are left out.

    Raises:
        AnalysisError: no arm has scores and costs; no task is common to all arms, or one of `tasks` is of none; one task has
            several metrics; an arm has a seed twice.
    """
    notes: list[str] = []
    arms = _arms(results, split, pretraining_flops or {}, notes)
    if not arms:
        listed = f" {'; '.join(notes)}." if notes else ""
        raise AnalysisError(f"There is no run with a {split} score and a cost to draw.{listed}")
    chosen = _tasks(arms, tasks, notes)
    metrics = {task: _metric(arms, task) for task in chosen}
    found = Comparison(metrics, split, notes=notes)
    for name, of_tasks in arms.items():
        if missing := [task for task in chosen if task not in of_tasks]:
            notes.append(f"{name} is left out: it has no score on {', '.join(missing)}")
        else:
            found.points.append(_scored(name, {task: of_tasks[task] for task in chosen}, split))
    for point in published_points() if published else ():
        score = point.average(metrics) if point.split == split else None
        if score is not None:
            name = point.source.partition(": ")[2]
            found.points.append(Scored(name, point.flops, score, family=point.family, source=point.source))
    if published and not found.published:
        notes.append(f"no published row with FLOPs has {split} scores on these tasks and metrics")
    return found


# arm -> task -> [(result, FLOPs of its checkpoint)]
_Arms = dict[str, dict[str, list[tuple[Result, float]]]]


def _arms(results: Sequence[Result], split: str, given: Mapping[str, float], notes: list[str]) -> _Arms:
    arms: _Arms = {}
    unknown: dict[str, str] = {}
    for result in results:
        before = _checkpoint_flops(result, given)
        if before is None:
            unknown[result.arm] = str(result.settings["model_name_or_path"])
        elif result.error is not None:
            notes.append(f"{result.run} has no score: {result.error}")
        elif result.score(split) is None or not math.isfinite(result.cost.get("flops") or math.nan):
            lacking = "cost" if result.score(split) is not None else f"{split} score"
            notes.append(f"{result.run}, seed {result.seed}, has no {lacking}")
        else:
            of = arms.setdefault(result.arm, {}).setdefault(result.task, [])
            if result.seed in [other.seed for other, _ in of]:
                raise AnalysisError(
                    f"{result.arm} has seed {result.seed} on {result.task} twice, in {of[0][0].folder} and {result.folder}. "
                    "Leave one out, or give the places names of their own, as in --run first=DIR second=DIR."
                )
            of.append((result, before + teacher_cost(result.teacher, "flops")))
    for arm, checkpoint in unknown.items():
        arms.pop(arm, None)
        notes.append(
            f"{arm} is left out: it starts from {Path(checkpoint).name}, whose own FLOPs are not known here "
            f"(--pretraining_flops {Path(checkpoint).name}=...)"
        )
    return arms


def _checkpoint_flops(result: Result, given: Mapping[str, float]) -> float | None:
    """Of all training before the run began; None where it began from something that does not tell."""
    start = result.settings.get("model_name_or_path")
    if start is None:
        return 0.0
    if Path(start).name in given:
        return given[Path(start).name]
    start = places_of(result.folder).get(start, start)
    # As it was called where the run was started, which may be a folder above the run's.
    for base in (Path(), *result.folder.resolve().parents):
        file = base / start / RESULTS_FILE
        if file.is_file() and "flops" in (content := read_json(file)).get("cost", {}):
            start = content.get("model", {}).get("model_name_or_path")
            earlier = 0.0 if start is None else given.get(Path(start).name)
            return None if earlier is None else earlier + content["cost"]["flops"]
    return None


def _tasks(arms: _Arms, tasks: Sequence[str] | None, notes: list[str]) -> list[str]:
    every = list(dict.fromkeys(task for of_tasks in arms.values() for task in of_tasks))
    if tasks is None:
        common = [task for task in every if all(task in of_tasks for of_tasks in arms.values())]
        if not common:
            listed = "; ".join(f"{name}: {', '.join(of_tasks)}" for name, of_tasks in arms.items())
            raise AnalysisError(
                f"No task is common to all arms ({listed}), and averages over different tasks are not comparable. Name the "
                "tasks (--cost_tasks), or compare other runs."
            )
        if len(common) < len(every):
            notes.append(f"not averaged, as some arms lack it: {', '.join(task for task in every if task not in common)}")
        return common
    if missing := [task for task in tasks if task not in every]:
        raise AnalysisError(f"No run has a score on {missing[0]!r}. There are: {', '.join(every)}.")
    if not any(all(task in of_tasks for task in tasks) for of_tasks in arms.values()):
        raise AnalysisError(f"No arm has scores on all of {', '.join(tasks)}.")
    return list(dict.fromkeys(tasks))


def _metric(arms: _Arms, task: str) -> str:
    metrics = {str(result.metric) for of_tasks in arms.values() for result, _ in of_tasks.get(task, ())}
    if len(metrics) > 1:
        raise AnalysisError(
            f"Runs on {task} have different metrics, {' and '.join(sorted(metrics))}. Leave some of them out."
        )
    return metrics.pop()


def _scored(name: str, of_tasks: Mapping[str, Sequence[tuple[Result, float]]], split: str) -> Scored:
    scores = {
        task: {r.seed: 100 * score for r, _ in of if (score := r.score(split)) is not None} for task, of in of_tasks.items()
    }
    shared = set.intersection(*(set(of_seeds) for of_seeds in scores.values()))
    averages = [statistics.fmean(of_seeds[seed] for of_seeds in scores.values()) for seed in shared]
    before = statistics.fmean(statistics.fmean(flops for _, flops in of) for of in of_tasks.values())
    own = statistics.fmean(statistics.fmean(result.cost["flops"] for result, _ in of) for of in of_tasks.values())
    return Scored(
        name,
        flops=before + own,
        score=statistics.fmean(statistics.fmean(of_seeds.values()) for of_seeds in scores.values()),
        deviation=statistics.stdev(averages) if len(averages) > 1 else None,
        seeds=len(shared),
        pretraining=before,
    )


def to_rows(found: Comparison) -> list[dict[str, Any]]:
    """Of a csv, by FLOPs."""
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
    """All points by FLOPs, and over which tasks their averages are."""
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
