"""Run a grid of fine-tuning runs: run every point, choose the best on validation, and score only that one on test."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hf_tlm.data.text_checks import told_once
from hf_tlm.errors import ArgumentsError, HfTlmError
from hf_tlm.hub.push import Push
from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments, FinetuneRun, check_finetuning, finetune
from hf_tlm.runs.finetuning.kinds import check_kind
from hf_tlm.runs.grid_points import CHECKPOINT, Grid, GridError, point_name
from hf_tlm.runs.grid_search import check_search, search
from hf_tlm.runs.records import aggregate, baseline_lines, format_table, int8_lines, published_lines
from hf_tlm.runs.sharing import PointsError, run_once, run_shared
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task
from hf_tlm.training.publishing import check_hub, publish_run
from hf_tlm.training.run_folder import RESULTS_FILE, SEED, claim, copy_best_model, settings
from hf_tlm.utils import json_files
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import find_object, read_object
from hf_tlm.utils.locks import Claim, awaited
from hf_tlm.utils.options import check_given
from hf_tlm.utils.run_files import GRID_FILE, TABLE_FILE, seed_figure, seed_folder
from hf_tlm.utils.seals import SEAL, seal_problem
from hf_tlm.utils.shown import shown_values

logger = logging.getLogger(__name__)
STATISTICS = ("median", "mean", "std", "best")
_SEEDS_FORMAT = json_files.record(
    {"seeds": json_files.listed(json_files.record({name: SEED[name] for name in ("seed", "validation")}), 10_000)}
)
POINTS, CARD_FILE = "points", "README.md"


def seed_statistics(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Aggregate scores over seeds like `hf_tlm.runs.records.aggregate`, and add their median and best.

    Args:
        scores: one dict per seed, metric -> score; larger is better.
    """
    return {
        name: {**summary, "median": statistics.median(summary["values"]), "best": max(summary["values"])}
        for name, summary in aggregate(scores).items()
    }


def choose(points: Sequence[Mapping[str, Any]], metric: str, select_by: str) -> Mapping[str, Any]:
    """Return the finished point with the highest validation score, aggregated by `select_by`; of ties the first.

    metric: the task's, whose scores are compared.
    """
    finished = [point for point in points if "validation" in point]
    return max(finished, key=lambda point: point["validation"][metric][select_by])


def to_markdown(record: Mapping[str, Any]) -> str:
    """Return a grid's results as Markdown: a table of its points, the best first, and the test scores of the chosen one.

    Args:
        record: the content of `grid.json`, see `hf_tlm.runs.grid.GridRun`.
    """
    metric, select_by, chosen = record["metric"], record["select_by"], record["chosen"]
    finished, failed = ([point for point in record["points"] if key in point] for key in ("validation", "failed"))
    rows = []
    for point in sorted(finished, key=lambda point: -point["validation"][metric][select_by]):
        state = "chosen" if point["folder"] == chosen["folder"] else ""
        rows.append({**_format_values(point["values"]), **_format_statistics(point["validation"][metric]), "": state})
    rows += [{**_format_values(point["values"]), **dict.fromkeys(STATISTICS, ""), "": "failed"} for point in failed]
    seeds = record["seeds"]
    seed_list = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    lines = [
        f"# {record['task']}: a grid of {len(record['points'])}",
        "",
        f"Validation {metric} over {seed_list}, in percent; chosen is the point with the highest {select_by}. std is the "
        "sample standard deviation.",
        "",
        format_table(rows, [*record["points"][0]["values"], *STATISTICS, ""]),
    ]
    if trials := record.get("trials"):
        trial_rows = [{**_format_values(trial["values"]), metric: _format_percent(trial["score"])} for trial in trials]
        names = list(trials[0]["values"])
        title = f"The values were chosen by {len(trials)} trials of seed {seeds[0]} (Optuna), in the order they were run:"
        lines += ["", title, "", format_table(trial_rows, [*names, metric])]
    if "test" in chosen:
        lines += ["", f"Test scores of the chosen point, which no choice has seen{_format_seed_figure(record)}:"]
        test_rows = [{"metric": name, **_format_statistics(scores)} for name, scores in chosen["test"].items()]
        lines += ["", format_table(test_rows, ["metric", *STATISTICS])]
    if failed:
        lines += ["", "Failed:", "", *(f"- {point['folder']}: {point['failed']}" for point in failed)]
    return "\n".join(lines) + "\n"


def _format_seed_figure(record: Mapping[str, Any]) -> str:
    """Return a clause with the run's figure over several seeds; an empty string where that is their mean."""
    word, statistic = seed_figure(record.get("seed_figure"))
    if word == "mean" or len(record["seeds"]) == 1:
        return ""
    score = record["chosen"]["test"][record["metric"]]
    return (
        f"; the run's figure is the {word} of {score['n']} seeds, "
        f"{record['metric']} {_format_percent(statistic(score['values']))}"
    )


def _format_values(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()}


def _format_statistics(scores: Mapping[str, Any]) -> dict[str, str]:
    return {name: _format_percent(scores[name]) for name in STATISTICS}


def _format_percent(score: float | None) -> str:
    """Format a score in percent; an empty string for None, the standard deviation of a single seed."""
    return "" if score is None else f"{100 * score:.2f}"


@dataclass
class GridRun:
    """The result of `run_grid`.

    record: the content of `grid.json`. points: for each its `values`, its `folder`, and either `validation`, by metric the
        median, mean, std, best and values of the seeds, or `failed`, a message. chosen: `values` and `folder` of the chosen
        point, and `test` in the form of `validation`.
    push: with `push_to_hub`, on the first process: what was published.
    """

    record: dict[str, Any]
    output_dir: Path
    push: Push | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.record

    def to_text(self) -> str:
        """Return the text that is printed at the end of the run."""
        results = find_object(self.output_dir / RESULTS_FILE) or {}
        comparison = baseline_lines(results, results["summary"]) if "summary" in results else []
        comparison += int8_lines(results)
        lines = [to_markdown(self.record), *comparison, f"model        {self.output_dir}", *published_lines(self.push)]
        return "\n".join(lines)


@told_once("hf_tlm.data.text_checks", "hf_tlm.training.prepare")
def run_grid(
    task: Task, checkpoint: CheckpointArguments, args: FinetuneArguments, grid: Grid, trials: int | None = None
) -> GridRun:
    """Fine-tune with every combination of a grid's values and every seed, and publish the combination best on validation.

    Every point is a run of `finetune` in `output_dir/points/<its values>` on train and validation. The chosen point is then
    scored on test. `output_dir` holds the stock model of its best seed with card and `results.json`, as after `finetune`,
    and the grid's table as `results.md` and `grid.json`.

    Processes that make the same call at the same time share the points. After an interruption at any moment the same call
    resumes; a finished point is not repeated, and a larger grid with the same arguments in the same folder keeps the
    finished points.

    Args:
        args: the arguments of every point; the grid's values and seeds replace theirs.
        trials: search first: the number of trials, of one seed each, that Optuna draws from the grid's lists and ranges. The
            values of the best trial are then the only point. See `hf_tlm.runs.grid_search`.

    Raises:
        GridError: the grid varies an option in which points cannot differ, or has ranges without `trials`; a teacher.
        ArgumentsError: the values of a point exclude each other, see `finetune`; for a search every value is checked first.
        ProtocolError: the folder holds a run with other settings.
        HfTlmError: all points failed. Where only some failed, the record says so.
    """
    check_task(task)
    check_given(
        ArgumentsError, checkpoint=(checkpoint, CheckpointArguments), args=(args, FinetuneArguments), grid=(grid, Grid)
    )
    if args.taught:
        raise GridError(
            "A grid does not support a teacher. Search without --teacher, then fine-tune with the chosen values and "
            "--teacher."
        )
    seeds = list(grid.seeds or args.run_seeds)
    output_dir = args.folder
    _check_values(grid, args)
    if trials is not None:
        check_search(grid)
    runs = _create_runs(grid.points() if trials is None else grid.each_value(), checkpoint, args, seeds)
    for point_run in runs:
        check_kind(point_run.args, task.spec.kind)
    claimed = _claim_folder(task, checkpoint, args, grid)

    record: dict[str, Any] = {"task": task.name, "metric": task.metric, "select_by": grid.select_by, "seeds": seeds}
    if args.seed_figure != "mean":
        record["seed_figure"] = args.seed_figure
    if trials is not None:
        with claimed:
            values, record["trials"] = search(task, checkpoint, args, grid, trials, seeds[0])
        runs = _create_runs([values], checkpoint, args, seeds)

    def is_done(point_run: _PointRun) -> bool:
        # An earlier call may have had fewer seeds.
        return [seed["seed"] for seed in _read_seeds(point_run.args.folder)] == seeds

    def run(point_run: _PointRun) -> None:
        finetune(task, point_run.checkpoint, point_run.args, test=False)

    failures: Mapping[Path, HfTlmError] = {}
    try:
        with claimed:
            run_shared(runs, lambda point_run: point_run.args.folder, is_done, run)
    except PointsError as error:
        failures = error.failures
        if len(failures) == len(runs):
            # One error that all points share is raised once.
            first = next(iter(failures.values()))
            raise (first if len(set(map(str, failures.values()))) == 1 else error) from None

    record["points"] = [point_run.record(failures.get(point_run.args.folder)) for point_run in runs]
    best_point = choose(record["points"], task.metric, grid.select_by)
    record["chosen"] = {"values": best_point["values"], "folder": best_point["folder"]}

    def is_published() -> bool:
        published_record = find_object(output_dir / GRID_FILE) or {}
        if isinstance(published_record.get("chosen"), dict):
            published_record["chosen"].pop("test", None)
        if args.export_int8 and "int8" not in (find_object(output_dir / RESULTS_FILE) or {}):
            return False
        return published_record == json.loads(json.dumps(record)) and _is_intact(output_dir)

    def publish() -> None:
        point_run = runs[record["points"].index(best_point)]
        point_run.args.export_int8 = args.export_int8
        chosen = finetune(task, point_run.checkpoint, point_run.args)
        if args.process_index == 0:
            _publish_chosen(record, chosen, output_dir)

    run_once(output_dir, is_published, publish)
    record = read_object(output_dir / GRID_FILE, GridError)
    return GridRun(record, output_dir, publish_run(output_dir, args))


def _check_values(grid: Grid, args: FinetuneArguments) -> None:
    """Check a grid's values, or raise a GridError.

    Refused are values whose points would differ in name only, and options that have no effect on a grid.
    """
    if seeds := {"seed", "seeds"}.intersection(grid.values):
        raise GridError(
            f"A grid cannot vary {', '.join(seeds)}: every point is run with each of the seeds. Pass --seeds, or seeds "
            "next to grid."
        )
    if args.resume_from_checkpoint is not None or args.hub_strategy != "end":
        raise GridError(
            "The checkpoints of a grid's points stay on this machine, where the same command resumes from them. Remove "
            "resume_from_checkpoint and hub_strategy."
        )
    decisive = {*settings(args), CHECKPOINT}
    if ineffective := [name for name in grid.values if name not in decisive]:
        raise GridError(
            f"A grid cannot vary {', '.join(ineffective)}, which does not change the results. Remove it from the grid."
        )


def _claim_folder(task: Task, checkpoint: CheckpointArguments, args: FinetuneArguments, grid: Grid) -> Claim:
    """Claim the output folder for this grid, or check that it belongs to it; one process at a time."""
    # Varied options differ between points, and a later grid in this folder may have more values of them.
    varied = {*grid.values, *(["texts_per_step"] if "total_batch_size" in grid.values else [])}
    details = {
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        "metric": task.metric,
        "arguments": {name: value for name, value in settings(args).items() if name not in varied},
        "model": {name: value for name, value in asdict(checkpoint).items() if name not in varied},
    }
    with args.main_process_first(desc="checking the output folder"):
        check_hub(args, adapter=checkpoint.use_peft, base=checkpoint.model_name_or_path)
        if args.process_index == 0:
            with awaited(args.folder):
                data_keys = ("task_fingerprint", "metric")
                return claim(args.folder, details, data_keys, 0, options=(args, checkpoint))
    return Claim(args.folder)


@dataclass
class _PointRun:
    values: Mapping[str, Any]
    checkpoint: CheckpointArguments
    args: FinetuneArguments

    def record(self, failure: HfTlmError | None) -> dict[str, Any]:
        folder = self.args.folder
        entry = {"values": shown_values(self.values), "folder": f"{POINTS}/{folder.name}"}
        if failure is not None:
            return {**entry, "failed": str(failure)}
        return {**entry, "validation": seed_statistics([seed["validation"] for seed in _read_seeds(folder)])}


def _create_runs(
    points: Sequence[Mapping[str, Any]], checkpoint: CheckpointArguments, args: FinetuneArguments, seeds: list[int]
) -> list[_PointRun]:
    """Return the runs of the points.

    Raises:
        ArgumentsError: a value is invalid, or cannot be combined with the others.
    """
    runs = []
    for point in points:
        folder = str(args.folder / POINTS / point_name(point))
        changes = {option: value for option, value in point.items() if option != CHECKPOINT}
        # Only the result of the complete grid is published, and its model exported.
        changes |= dict.fromkeys(("hub_model_id", "hub_private_repo", "hub_revision"))
        changes |= {"push_to_hub": False, "export_int8": False, "hub_strategy": "end"}
        changes |= {"output_dir": folder, "seeds": list(seeds)}
        point_args = replace(args, **changes)
        args.track_as_part(point_args, folder)
        point_checkpoint = replace(checkpoint, model_name_or_path=point[CHECKPOINT]) if CHECKPOINT in point else checkpoint
        check_finetuning(point_checkpoint, point_args)
        runs.append(_PointRun(point, point_checkpoint, point_args))
    return runs


def _publish_chosen(record: Mapping[str, Any], chosen: FinetuneRun, output_dir: Path) -> None:
    """Copy the chosen point's model, card and results to `output_dir`, and write the table.

    `grid.json` is written last: it marks the folder as complete.
    """
    # An old one, of another grid or from before a kill, would mark a half-written folder as complete.
    (output_dir / GRID_FILE).unlink(missing_ok=True)
    copy_best_model(seed_folder(chosen.output_dir, chosen.best["seed"]) / "model", output_dir)
    for name in (RESULTS_FILE, CARD_FILE):
        atomic_write(output_dir / name, (chosen.output_dir / name).read_bytes())
    test_scores = [seed["test"] for seed in chosen.seeds if "test" in seed]
    test_entry = {"test": seed_statistics(test_scores)} if test_scores else {}
    scored_record = {**record, "chosen": record["chosen"] | test_entry}
    atomic_write(output_dir / TABLE_FILE, to_markdown(scored_record))
    atomic_write(output_dir / GRID_FILE, json.dumps(scored_record, indent=2) + "\n")


def _is_intact(folder: Path) -> bool:
    """Return whether the files published in a folder are intact; log a warning about a damaged one."""
    problem = seal_problem(folder) if (folder / SEAL).is_file() else None  # Folders of early versions have no seal.
    if problem is not None:
        logger.warning("%s. It will be created again.", problem)
    return problem is None and find_object(folder / RESULTS_FILE) is not None


def _read_seeds(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a point's seeds; an empty list where the point is not finished, or its record is damaged."""
    try:
        content = find_object(folder / RESULTS_FILE)
        return [] if content is None else list(_SEEDS_FORMAT(content)["seeds"])
    except json_files.Unfit as unfit:
        field = ".".join(map(str, unfit.keys))
        logger.warning("%s: %s must be %s. The point is run again.", folder / RESULTS_FILE, field, unfit.expected)
        return []
