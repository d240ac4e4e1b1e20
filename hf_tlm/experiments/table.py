"""The table of a plan: mean and deviation over seeds, costs, and the papers' figures beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hf_tlm.experiments.arms import BASELINES
from hf_tlm.experiments.plan import Plan
from hf_tlm.experiments.published import PAPERS, PUBLISHED, Published
from hf_tlm.metrics import Lead, paired_bootstrap, scorer
from hf_tlm.runs.arguments import LINEAR
from hf_tlm.runs.records import aggregate, format_score, format_table
from hf_tlm.training.teacher import teacher_cost
from hf_tlm.utils.json_files import entry
from hf_tlm.utils.shown import flat, for_markdown, one_line

if TYPE_CHECKING:
    import jinja2

SCORES = ("validation", "test")
MEASURES = (*SCORES, "subset hours")  # Measures of published figures.
OVER_LINEAR, WITH_LINEAR = "over linear", "with linear"
_PRICED_LENGTH = "128"  # Number of tokens of the text whose time is shown.
MAX_COMMANDS = 4  # Most commands that a page names; processes that share a table may have different ones.


@dataclass
class Row:
    """The results of one arm on one task.

    subset_seconds: wall-clock seconds of its subset; for a part of BM25's subset, without the seconds of BM25.
    seeds: number of runs that it will have.
    runs: records of its finished runs. failed: (seed, error).
    lead: its lead over the linear model of the same task, if the records of all runs have predictions.
    """

    task: str
    arm: str
    published: tuple[str, ...]
    subset_seconds: float | None = None
    seeds: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    lead: Lead | None = None

    @property
    def finished(self) -> str:
        """How many seeds are finished; for an average, how many models it averages."""
        if self.runs and "averaged" in self.runs[0]:
            return f"all {self.runs[0]['averaged']}"
        return f"{len(self.runs)}" + (f" of {self.seeds}" if len(self.runs) < self.seeds else "")

    def score(self, split: str) -> dict[str, Any] | None:
        """Return mean, deviation, n and values of the task's metric; None if no run has a score."""
        scores = [run[split] for run in self.runs if split in run]
        return aggregate(scores)[self.runs[0]["metric"]] if scores else None

    def with_linear(self, split: str | None = None) -> dict[str, Any] | None:
        """Scores of each model averaged with the linear one: mean, deviation, n and values. By default on the last split."""
        splits = [split or ("test" if "test" in run else "validation") for run in self.runs]
        scores = [entry(run, "with_linear", name, run["metric"]) for run, name in zip(self.runs, splits, strict=True)]
        is_complete = scores and all(isinstance(score, float) for score in scores)
        return aggregate([{"score": score} for score in scores])["score"] if is_complete else None

    def cost(self, name: str) -> float | None:
        """Return the mean over seeds of an entry of `Cost`."""
        return fmean(run["cost"][name] for run in self.runs) if self.runs else None

    def teacher_cost(self, name: str) -> float | None:
        """Return seconds or FLOPs of the teacher's predictions and training, mean over seeds; None without a teacher."""
        costs = [teacher_cost(run["teacher"], name) for run in self.runs if "teacher" in run]
        return fmean(costs) if costs else None

    def published_scores(self, measure: str) -> list[str]:
        """Return the published figures of this arm for its task, each with its table."""
        texts = [PUBLISHED[name].show(self.task) for name in self.published if PUBLISHED[name].measure == measure]
        return [text for text in texts if text is not None]

    def to_dict(self) -> dict[str, Any]:
        first = self.runs[0] if self.runs else {}
        return {
            "task": self.task,
            "arm": self.arm,
            "metric": first.get("metric"),
            "seeds": self.seeds,
            "finished": [run["seed"] for run in self.runs],
            "failed": dict(self.failed),
            **{split: self.score(split) for split in SCORES},
            "with_linear": self.with_linear(),
            "with_linear_validation": self.with_linear("validation"),
            "over_linear": self.lead and self.lead.to_dict(),
            "published": {name: PUBLISHED[name].show(self.task) for name in self.published},
            "parameters": first.get("parameters"),
            "subset_seconds": self.subset_seconds,
            "passages": (first.get("subset") or {}).get("passages"),
            "cost": {name: self.cost(name) for name in ("steps", "tokens", "real_tokens", "flops", "seconds")},
            **{f"teacher_{name}": self.teacher_cost(name) for name in ("flops", "seconds")},
        }


class Table:
    """The rows of all tasks and arms of a plan.

    Args:
        records: records of the plan's steps, by name; None for a step that has not ended.
    """

    def __init__(self, plan: Plan, records: Mapping[str, dict[str, Any] | None]):
        self.plan, self.total = plan, len(plan.trainings)
        rows: dict[tuple[str, str], Row] = {}
        for step in plan.trainings:
            assert step.arm is not None and step.seed is not None
            subset = records[step.inputs["subset"]] if "subset" in step.inputs else None
            row = Row(step.task_name, step.arm.name, step.arm.published, subset["wall_seconds"] if subset else None)
            row = rows.setdefault((row.task, row.arm), row)
            row.seeds += 1
            record = records[step.name]
            if record is not None and record["status"] == "finished":
                row.runs.append(record)
            elif record is not None:
                row.failed.append((step.seed, record["error"]))
        tasks = list(dict.fromkeys(task for task, _ in rows))
        self.rows = sorted(rows.values(), key=lambda row: tasks.index(row.task))
        linear = {row.task: row for row in self.rows if row.arm == LINEAR}
        for row in self.rows:
            if row.arm not in BASELINES and row.task in linear:
                row.lead = _compute_lead(row.runs, linear[row.task].runs)
        self.records = [record for step in plan.trainings if (record := records[step.name]) is not None]

    @property
    def _has_teachers(self) -> bool:
        return any("teacher" in run for row in self.rows for run in row.runs)

    def _has_entry(self, *names: str) -> bool:
        return any(entry(run, *names) for row in self.rows for run in row.runs)

    @property
    def failures(self) -> list[str]:
        return [f"{row.task}, {row.arm}, seed {seed}: {error}" for row in self.rows for seed, error in row.failed]

    @cached_property
    def published(self) -> list[Published]:
        """The published rows that are shown for a task of the table."""
        names = dict.fromkeys(name for row in self.rows for name in row.published if PUBLISHED[name].show(row.task))
        return [PUBLISHED[name] for name in names]

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": [row.to_dict() for row in self.rows],
            "failures": self.failures,
            "left_out": list(self.plan.left_out),
            # Predictions for every text are only in the records.
            "runs": [{name: value for name, value in record.items() if name != "answers"} for record in self.records],
        }

    def to_text(self) -> str:
        """Return Markdown: the table, what failed or is missing, and what the numbers are."""
        table = format_table([self._cells(row) for row in self.rows], self._columns)
        return "\n\n".join([table, *self._progress(for_markdown), *filter(None, [self._notes()])])

    def to_summary(self) -> str:
        """Return a summary for a screen: scores in percent, a line for each arm, and what failed or is missing.

        There is one column for each task, with test scores, or validation scores of a task without a test split. A table of
        a single task has columns for both.
        """
        rows = {(row.task, row.arm): row for row in self.rows}
        tasks, arms = list(dict.fromkeys(row.task for row in self.rows)), list(dict.fromkeys(row.arm for row in self.rows))
        heads: dict[str, tuple[str, str]] = {}
        for task in tasks:
            runs = [run for row in self.rows if row.task == task for run in row.runs]
            splits = [split for split in SCORES if any(split in run for run in runs)] or ["validation"]
            for split in splits if len(tasks) == 1 else splits[-1:]:
                head = split if len(tasks) == 1 else task if split == "test" else f"{task} {split}"
                heads[f"{head} ({runs[0]['metric']})" if runs else head] = (task, split)
        lines = [
            {"arm": arm, **{name: _format_row_score(rows.get((task, arm)), split) for name, (task, split) in heads.items()}}
            for arm in arms
        ]
        return "\n\n".join([format_table(lines, ["arm", *heads]), *self._progress()])

    def _progress(self, show: Callable[[str, int], str] = one_line) -> list[str]:
        """Return paragraphs that say how many runs are finished, what failed and what is left out."""
        finished = sum(len(row.runs) for row in self.rows)
        remaining = self.total - finished - len(self.failures)
        state = f"{finished} of {self.total} runs are finished" + f", {len(self.failures)} failed" * bool(self.failures)
        paragraphs = [state + (f", {remaining} to be done." if remaining else ".")]
        if self.failures:
            paragraphs.append("Failed:\n\n" + "\n".join(f"- {show(text, 1000)}" for text in self.failures))
        if self.plan.left_out:
            paragraphs.append("Left out:\n\n" + "\n".join(f"- {show(text, 1000)}" for text in self.plan.left_out))
        return paragraphs

    @cached_property
    def _columns(self) -> list[str]:
        published = [f"published {m}" for m in MEASURES if any(row.published_scores(m) for row in self.rows)]
        costs = ("passages", "subset hours", "real tokens", "FLOPs", "hours")
        # Records of earlier versions have no price, or a price in 8 bits without memory.
        memory = ("memory MB int8",) if self._has_entry("int8", "memory_megabytes") else ()
        price = ("MB", "ms a text") if self._has_entry("price") else ()
        int8 = ("MB int8", *memory, "ms a text int8", "int8 drop") if self._has_entry("int8") else ()
        teacher = ("teacher FLOPs", "teacher hours") if self._has_teachers else ()
        lead = (OVER_LINEAR,) if any(row.lead for row in self.rows) else ()
        with_linear = (WITH_LINEAR,) if any(row.with_linear() for row in self.rows) else ()
        return [
            *("task", "metric", "arm", "seeds", *SCORES),
            *lead,
            *with_linear,
            *published,
            *costs,
            *teacher,
            *price,
            *int8,
        ]

    def _cells(self, row: Row) -> dict[str, Any]:
        values = row.to_dict()
        cost, lead = values["cost"], [f"{100 * points:+.1f}" for points in (values["over_linear"] or {}).values()]
        return {
            "task": row.task,
            "metric": values["metric"] or "",
            "arm": row.arm,
            "seeds": row.finished,
            **{split: values[split] or ("failed" if row.failed and not row.runs else "") for split in SCORES},
            OVER_LINEAR: "{} ({} to {})".format(*lead) if lead else "",
            WITH_LINEAR: values["with_linear"] or "",
            **{f"published {measure}": "; ".join(row.published_scores(measure)) for measure in MEASURES},
            "passages": "" if values["passages"] is None else f"{values['passages']:,}",
            "subset hours": _format_hours(row.subset_seconds),
            "real tokens": "" if cost["real_tokens"] is None else f"{cost['real_tokens']:,.0f}",
            "FLOPs": "" if cost["flops"] is None else f"{cost['flops']:.3g}",
            "hours": _format_hours(cost["seconds"]),
            "teacher FLOPs": f"{values['teacher_flops']:.3g}" if values["teacher_flops"] else "",
            "teacher hours": _format_hours(values["teacher_seconds"]),
            "MB": _format_mean(row, "price", "megabytes"),
            "ms a text": _format_mean(row, "price", "milliseconds", _PRICED_LENGTH),
            "MB int8": _format_mean(row, "int8", "megabytes"),
            "memory MB int8": _format_mean(row, "int8", "memory_megabytes"),
            "ms a text int8": _format_mean(row, "int8", "milliseconds", _PRICED_LENGTH),
            "int8 drop": _format_mean(row, "int8", "drop"),
        }

    def _notes(self) -> str:
        """Return notes on how the runs were made, on the table's columns, and on how much larger the papers' runs were."""
        runs = [run for row in self.rows for run in row.runs]
        scratch = [run for run in runs if run["kind"] == "train_tlm"]
        environments = [run["environment"] for run in runs]
        corpora = [corpus for run in scratch if (corpus := (run["subset"] or {}).get("corpus"))]
        text = _template().render(
            **{"runs": runs, "rows": self.rows, "scratch": scratch, "columns": self._columns, "published": self.published},
            most=MAX_COMMANDS,
            # Includes commands of other tables whose runs are also in this one.
            commands=Counter(flat(run["started_by"]).replace("`", "'") for run in runs).most_common(),
            # 12 digits, and `+` if there were changes.
            commits=dict.fromkeys(run["commit"][:12] + run["commit"][40:] for run in runs if run["commit"]),
            machines=dict.fromkeys(
                machine.get("accelerator") or f"{machine['processor']}, {machine['cpu_cores']} cores"
                for machine in environments
            ),
            stage_1=any(list(run.get("stages", ())) == ["1"] for run in runs),
            baselines=[run for run in runs if run["kind"] == "baseline"],
            int8=[run["int8"] for run in runs if run.get("int8")],
            flops=fmean(run["cost"]["flops"] for run in scratch) if scratch else None,
            parameters=fmean(run["parameters"] for run in scratch) if scratch else None,
            corpora=dict.fromkeys(f"{corpus['size']:,} passages ({for_markdown(corpus['name'])})" for corpus in corpora),
        )
        return text.strip("\n")


@cache
def _template() -> jinja2.Template:
    """Return the template of the notes below a table."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("hf_tlm.experiments"), trim_blocks=True)
    environment.globals |= {"papers": PAPERS, "times": _format_ratio, "span": _format_range}
    environment.globals["smallest"] = PUBLISHED["TLM Table 2: TLM (small-scale)"].flops
    return environment.get_template("notes.md")


def _format_row_score(row: Row | None, split: str) -> str:
    """Format a score, with the number of finished seeds if some are missing."""
    if row is None or not row.runs:
        return "failed" if row and row.failed else ""
    score = row.score(split)
    return format_score(score) + (f" ({row.finished})" if len(row.runs) < row.seeds else "") if score else ""


def _compute_lead(runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> Lead | None:
    """Return the lead of runs over others of the same task; None if predictions are missing, or are of other texts."""
    sides = [[run["answers"] for run in side if _is_answers(run.get("answers"))] for side in (runs, others)]
    if not all(sides) or [len(side) for side in sides] != [len(runs), len(others)]:
        return None
    if len({(answers["split"], answers["labels"]) for side in sides for answers in side}) > 1:
        return None
    predictions = tuple(tuple(answers["predictions"] for answers in side) for side in sides)
    return _bootstrap_lead(runs[0]["metric"], sides[0][0]["labels"], *predictions)


def _is_answers(value: Any) -> bool:
    """Return whether a value holds a run's predictions as records store them: as many predictions as labels."""
    if not isinstance(value, Mapping) or not all(isinstance(value.get(n), str) for n in ("split", "labels", "predictions")):
        return False
    labels, predictions = value["labels"].split(), value["predictions"].split()
    are_numbers = all(word.isdecimal() and len(word) < 6 for word in (*labels, *predictions))
    return are_numbers and 0 < len(labels) == len(predictions)


@cache
def _bootstrap_lead(metric: str, labels: str, first: tuple[str, ...], second: tuple[str, ...]) -> Lead:
    """Compute a lead by paired bootstrap; cached, because the table is built again after every run."""
    truth = [int(label) for label in labels.split()]
    ours, others = ([scorer(metric, truth, list(map(int, run.split()))) for run in side] for side in (first, second))
    return paired_bootstrap(ours, others, len(truth))


def _format_ratio(ratio: float) -> str:
    """Format a ratio with two significant digits: 290,000, 21, 0.35."""
    return f"{float(f'{ratio:.1e}'):,.15g}"


def _format_hours(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 3600:.2g}"


def _format_mean(row: Row, *names: str) -> str:
    """Format the mean over seeds of an entry of the records, by its nested keys; empty if a record lacks it."""
    values = [value for run in row.runs if (value := entry(run, *names)) is not None]
    return f"{fmean(values):.3g}" if values and len(values) == len(row.runs) else ""


def _format_range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
