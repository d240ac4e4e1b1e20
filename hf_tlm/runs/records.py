"""Records of runs: the saved settings for predictions, the predictions, scores over seeds, and the printed summary."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from datasets import Dataset
from scipy.special import softmax

from hf_tlm.errors import HfTlmError
from hf_tlm.hub.push import Push
from hf_tlm.metrics import Lead
from hf_tlm.models import ModelError
from hf_tlm.runs.arguments import LINEAR
from hf_tlm.runs.price import int8_line, price_line
from hf_tlm.tasks import Task, TaskSpec
from hf_tlm.training.base_arguments import SeedsArguments
from hf_tlm.training.run_folder import RESULTS_FILE, copy_best_model
from hf_tlm.training.teacher import cost_line, described
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import listed, mapped, maybe, read_fields, real, record, truth, whole, words
from hf_tlm.utils.options import to_python
from hf_tlm.utils.run_files import SEED_FIGURES, seed_figure, seed_folder
from hf_tlm.utils.shown import kind_of, markdown_table, shown_argument, shown_values

SAVED_FILE = "finetuned.json"
# The file may come from an untrusted source: it has the fields that reading a file of the task needs, and no paths of data.
_NAME = words(1000)
_NAMES = listed(_NAME, 1000)
_TASK_FIELDS = {
    **{"name": _NAME, "kind": _NAME, "text_columns": _NAMES, "other_text_columns": listed(_NAMES, 100)},
    **{"label_column": _NAME, "id_column": maybe(_NAME), "metric": _NAME, "further_metrics": _NAMES},
    **{"classes": listed(_NAME, 100_000), "columns": mapped(_NAME, 100)},
}
# The arguments that predictions depend on.
_ARGUMENT_FIELDS = {
    **{"max_length": whole(1, 1 << 15), "doc_stride": whole(0, 1 << 15), "max_query_length": whole(1, 1 << 15)},
    **{"max_answer_length": whole(1, 1 << 15), "n_best": whole(1, 1000), "null_threshold": maybe(real(-math.inf, math.inf))},
    **{"option_apart": truth, "crf": truth},
}
PREDICTING = tuple(_ARGUMENT_FIELDS)
_SAVED_FIELDS = {
    "task": record(_TASK_FIELDS, optional=sorted({*_TASK_FIELDS} - {"name"})),
    "label_names": listed(_NAME, 100_000),
    "arguments": record(_ARGUMENT_FIELDS, optional=PREDICTING),
}
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers")
# Options whose values are secrets.
SECRET_OPTIONS = ("--hub_token", "--hub-token")
SPLITS = ("validation", "test")


def saved_settings(task: Task, arguments: Mapping[str, Any]) -> str:
    """Return the content of `SAVED_FILE`: the task's columns and classes, and the arguments that are in `PREDICTING`."""
    spec = {name: value for name, value in asdict(task.spec).items() if name not in ("path", "data_files")}
    predicting = {name: arguments[name] for name in PREDICTING if name in arguments}
    saved = {"task": spec, "label_names": list(task.label_names), "arguments": predicting}
    return json.dumps(saved, indent=2) + "\n"


def read_saved(folder: Path) -> tuple[TaskSpec, tuple[str, ...], dict[str, Any]]:
    """Read the task's spec, the names of its labels, and the arguments of predictions from a finished folder.

    Raises:
        ModelError: the folder has no such file, or the file does not have the form that `saved_settings` writes.
        TaskError: see `TaskSpec`.
    """
    try:
        saved = read_fields(folder / SAVED_FILE, _SAVED_FIELDS, ModelError)
    except OSError as error:
        raise ModelError(
            f"Cannot read {SAVED_FILE} of {folder} ({error.strerror}), which describes what the model was trained on."
        ) from error
    return TaskSpec(path="", **saved["task"]), saved["label_names"], saved["arguments"]


def environment(*, use_cpu: bool = False) -> dict[str, str | int]:
    """Return versions and hardware for model cards, without host names and paths; with `use_cpu` also without GPUs."""
    import torch

    from hf_tlm.version import __version__

    info: dict[str, str | int] = {"hf_tlm": __version__, **{name: version(name) for name in PACKAGES}}
    info["python"] = platform.python_version()
    info["processor"] = _processor_name()
    info["cpu_cores"] = os.cpu_count() or 0
    info["torch_threads"] = torch.get_num_threads()
    if torch.cuda.is_available() and not use_cpu:
        info["accelerator"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    info["processes"] = int(os.environ.get("WORLD_SIZE", "1"))
    return info


def _processor_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def provenance_entries(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `results.json` on a run's arguments, command and environment; paths without local folders."""
    sections = {name: shown_values(details[name]) for name in ("arguments", "model")}
    machine = environment(use_cpu=details["arguments"].get("use_cpu", False))
    return {**sections, "command": command_line(), "environment": machine}


def command_line() -> str:
    """Return the command of this process for a record, without the folders of this machine and without tokens."""
    command = Path(sys.argv[0]).name.split()  # `train_tlm.py`, or `hf-tlm train`.
    if command and command[0].endswith("kernel_launcher.py"):
        return command[0]  # In a notebook the arguments are the kernel's: a connection file that differs each time.
    for previous, argument in zip(sys.argv, sys.argv[1:], strict=False):
        name, equals, _ = argument.partition("=")
        if name in SECRET_OPTIONS and equals:
            argument = f"{name}=<hidden>"
        elif previous in SECRET_OPTIONS:
            argument = "<hidden>"
        command.append(shown_argument(argument))
    return shlex.join(command)


def logits_to_predictions(logits: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Convert logits to {"prediction": name of the class, "probabilities": {name: probability}} for each row.

    Args:
        logits: float [N, C].
        names: the names of the classes.
    """
    return [
        {
            "prediction": names[int(row.argmax())],
            "probabilities": {name: round(float(share), 6) for name, share in zip(names, row, strict=True)},
        }
        for row in softmax(logits, axis=-1)
    ]


def gold(kind: str, label_names: Sequence[str], row: Mapping[str, Any]) -> Any:
    """Return the gold label of a row in the form of a prediction; None where it has no label."""
    if kind == "question_answering":
        return row.get("answers")
    if kind == "tagging":
        tags = row.get("tags")
        return None if tags is None else [label_names[tag] if tag >= 0 else None for tag in tags]
    label = row.get("label")
    return label if label is None or kind == "regression" else label_names[label]


def predictions_jsonl(kind: str, label_names: Sequence[str], rows: Dataset, predictions: Sequence[Mapping[str, Any]]) -> str:
    """Return one JSON line per row: `id`, `label` where it is known, and the fields of the prediction."""
    lines = []
    for row, prediction in zip(rows, predictions, strict=True):
        label = gold(kind, label_names, row)
        label_entry = {} if label is None else {"label": label}
        lines.append(json.dumps({"id": row["id"], **label_entry, **prediction}, ensure_ascii=False) + "\n")
    return "".join(lines)


def logged_scores(entry: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the losses and scores of a log entry that have a prefix, without the prefix and without timings."""
    names = [name for name in entry if name.startswith(prefix) and not name.endswith(("runtime", "per_second", "_time"))]
    return {name.removeprefix(prefix): entry[name] for name in names}


def aggregate(scores: Sequence[Mapping[str, float]], figure: str = "mean") -> dict[str, dict[str, Any]]:
    """Compute mean and sample standard deviation (n - 1; None for a single seed) of every score that all seeds have.

    Args:
        scores: one dict per seed, name -> score.
        figure: "median" or "max" is added to the result.

    Returns:
        name -> {"mean", "std", "n", "values"}, values in the order given.

    Raises:
        HfTlmError: there are no scores, `scores` is no list of mappings to numbers, or `figure` is unknown.
    """
    _check_scores(scores, figure)
    summary = {}
    for name in scores[0]:
        if all(name in score for score in scores):
            values = [float(score[name]) for score in scores]
            summary[name] = {
                "mean": statistics.fmean(values),
                "std": _deviation(values),
                "n": len(values),
                "values": values,
                figure: SEED_FIGURES[figure][1](values),
            }
    return summary


def summarise(records: Sequence[Mapping[str, Any]], figure: str = "mean") -> dict[str, dict[str, Any]]:
    """Aggregate the scores of the seeds on each split: split -> `aggregate` of the scores on it."""
    return {split: aggregate([record[split] for record in records], figure) for split in SPLITS if split in records[0]}


def _check_scores(scores: Any, figure: Any) -> None:
    example = "Give [record['validation'] for record in run.seeds], for instance."
    is_list = isinstance(scores, Sequence) and not isinstance(scores, str)
    if not is_list or not scores:
        received = "an empty list" if is_list else kind_of(scores)
        raise HfTlmError(
            f"scores: expected a list with a mapping of names to numbers for each seed; received {received}. {example}"
        )
    for score in scores:
        if not isinstance(score, Mapping):
            raise HfTlmError(
                f"scores: expected a mapping of names to numbers for a seed; received {kind_of(score)}. {example}"
            )
        if invalid := [name for name, value in score.items() if not isinstance(to_python(value), Real)]:
            received = kind_of(score[invalid[0]])
            raise HfTlmError(f"scores: expected numbers; received {received} as {invalid[0]!r:.60}. {example}")
    if figure not in SEED_FIGURES:
        raise HfTlmError(f"figure: expected one of {', '.join(SEED_FIGURES)}; received {figure!r:.60}.")


def _deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for a single value.

    It is NaN where a value is not finite, such as the loss of a diverged model, for which `statistics.stdev` fails.
    """
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def format_score(score: Mapping[str, Any]) -> str:
    """Format a value of `aggregate` in percent as `12.34 ± 0.56`; without the deviation for a single seed."""
    text = f"{100 * score['mean']:.2f}"
    return text if score["std"] is None else f"{text} ± {100 * score['std']:.2f}"


def format_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return a Markdown table, padded to be readable as text.

    Values of `aggregate` become percentages, and text is escaped, so that no name is read as markup.
    """
    values = ([row[column] for column in columns] for row in rows)
    cells = [[format_score(one) if isinstance(one, Mapping) else str(one) for one in row] for row in values]
    return markdown_table(columns, cells, padded=True, longest=500).rstrip("\n")


@dataclass
class SeededRun:
    """A finished run over several seeds.

    seeds: one record per seed: scores on validation and test, cost.
    summary: split -> metric -> {"mean", "std", "n", "values"}, for validation and test, with the run's `seed_figure`.
    details: the run's settings, its command and its environment.
    push: with `push_to_hub`, on the first process: what was published.
    """

    seeds: list[dict[str, Any]]
    summary: dict[str, dict[str, Any]]
    details: dict[str, Any]
    output_dir: Path
    push: Push | None = None

    def __repr__(self) -> str:
        metric = self.details["metric"]
        scores = [f"{split} {format_score(metrics[metric])}" for split, metrics in self.summary.items() if metric in metrics]
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{type(self).__name__}({str(self.output_dir)!r}, {seeds}; {metric}: {', '.join(scores) or 'none'})"

    @property
    def best(self) -> dict[str, Any]:
        """The record of the seed that is best on validation."""
        return max(self.seeds, key=lambda record: record["validation"][self.details["metric"]])

    def to_dict(self) -> dict[str, Any]:
        return {**self.details, "summary": self.summary, "seeds": self.seeds}

    def write(
        self,
        args: SeedsArguments,
        card: Callable[[Mapping[str, Any], int], str],
        int8_entry: Callable[[Path], Mapping[str, Any]],
        source: Path | None = None,
    ) -> Self:
        """Copy the best seed's model to the run's folder, write `results.json` and the card, and publish if requested.

        The first process writes while the others wait, since they may read the files next.

        Args:
            card: (record of the run, seed) -> text of README.md.
            int8_entry: folder of the best model -> what `export_int8` adds to the record of the run.
            source: the folder that holds the folders of the seeds. Default: the run's.

        Returns:
            The run, with its `push`.
        """
        from hf_tlm.training.publishing import publish_run  # Imports the Trainer, which reports and tables do not need.

        with args.main_process_first(local=False, desc="publishing the model"):
            if args.process_index == 0:
                seed = self.best["seed"]
                model = seed_folder(source or self.output_dir, seed) / "model"
                if args.export_int8:
                    self.details |= int8_entry(model)
                record = self.to_dict()
                copy_best_model(model, self.output_dir)
                atomic_write(self.output_dir / RESULTS_FILE, json.dumps(record, indent=2) + "\n")
                atomic_write(self.output_dir / "README.md", card(record, seed))
        return replace(self, push=publish_run(self.output_dir, args))

    def to_text(self) -> str:
        """Return the text that is printed at the end of the run."""
        lines, metric = [], self.details["metric"]
        # Further scores that a metric returns are shown, too, except accuracy, which every classifier has.
        others = [name for name in self.summary["validation"] if name != "accuracy"]
        metrics = dict.fromkeys([metric, *self.details.get("further_metrics", ()), *others])
        for split in SPLITS:
            for name in metrics:
                if score := self.summary.get(split, {}).get(name):
                    lines.append(f"{split:<12}{name} {_format_seeds_score(score, self.details.get('seed_figure'))}")
        for seed, name in self.details.get("one_class", {}).items():
            lines.append(
                f"one class    the model of seed {seed} predicts {name} for every validation text: it does not distinguish "
                "the classes. More steps or another learning rate may help."
            )
        if averaged := self.details.get("averaged"):
            scores = ", ".join(f"{split} {100 * averaged[split][metric]:.2f}" for split in SPLITS if split in averaged)
            lines.append(f"averaged     {metric} {scores}: averaged predictions of the {averaged['n']} seeds' models")
        lines += baseline_lines(self.details, self.summary)
        if teacher := self.details.get("teacher"):
            lines.append(f"teacher      {described(teacher)}{cost_line(teacher)}")
        if rounds := self.details.get("rounds"):
            scores = ", ".join(f"{number}: {100 * one['validation']:.2f}" for number, one in enumerate(rounds, 1))
            lines.append(f"round        {self.details['round']} is the best of {len(rounds)} on validation ({scores})")
        cost, trained, parameters = (self.seeds[-1][name] for name in ("cost", "trained_parameters", "parameters"))
        if trained < parameters:
            lines.append(f"parameters   {trained:,} of {parameters:,} trained ({100 * trained / parameters:.2g}%)")
        lines += cost_lines(cost, " a seed")
        if price := self.best.get("price"):
            lines.append(f"a prediction {price_line(price)}")
        lines += int8_lines(self.details)
        lines.append(f"model        {self.output_dir}")
        lines += published_lines(self.push)
        return "\n".join(lines)


def _format_seeds_score(score: Mapping[str, Any], figure_name: str | None) -> str:
    """Format a score with the number of seeds and the figure (mean, median or maximum) over them."""
    if score["n"] == 1:
        return format_score(score)
    word, statistic = seed_figure(figure_name)
    if word == "mean":
        return f"{format_score(score)} over {score['n']} seeds"
    return f"{100 * statistic(score['values']):.2f}, the {word} of {score['n']} seeds (mean {format_score(score)})"


def int8_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the printed line on the model in 8 bits, for the record of a run with `export_int8`."""
    return [f"in 8 bits    {int8_line(record['int8'], record['metric'])}"] if "int8" in record else []


def baseline_lines(record: Mapping[str, Any], summary: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the printed lines on the baselines, and on the score of the run averaged with the linear model.

    Args:
        record: the record of the run, with `metric`, and optionally what `hf_tlm.runs.averaging.baseline_entries` returns.
        summary: the run's summary.
    """
    lines, metric = [], record["metric"]
    if averaged := record.get("with_linear"):
        score_list = ", ".join(f"{split} {format_score(averaged[split][metric])}" for split in SPLITS if split in averaged)
        lines.append(f"with linear  {metric} {score_list}: averaged predictions of each seed's model and the linear model")
    if averaged := record.get("averaged_with_linear"):
        score_list = ", ".join(f"{split} {100 * averaged[split][metric]:.2f}" for split in SPLITS if split in averaged)
        lines.append(
            f"both         {metric} {score_list}: the {averaged['n']} seeds' models as one, averaged with the linear one"
        )
    if line := to_beat_line(record.get("baselines") or [], metric, summary):
        lines.append(f"to beat      {line}")
    return lines


def to_beat_line(baselines: Sequence[Mapping[str, Any]], metric: str, summary: Mapping[str, Any]) -> str | None:
    """Return a line on the baselines' scores on test, else validation, and on the lead of the run or of the linear model.

    Args:
        baselines: those from `to_beat`, or from `hf_tlm.runs.averaging.baseline_entries`, with the run's leads.
        summary: the run's summary, split -> metric -> {"mean", ...}.

    Returns:
        None where the run and the baselines have no scores on the same split.
    """
    for split in ("test", "validation"):
        scores = {baseline["name"]: baseline["scores"].get(split, {}).get(metric) for baseline in baselines}
        scores = {name: score for name, score in scores.items() if score is not None}
        mean = summary.get(split, {}).get(metric, {}).get("mean")
        if scores and mean is not None:
            line = ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items()) + f" ({metric} on {split})"
            leads = {baseline["name"]: baseline.get("lead", {}).get(split) for baseline in baselines}
            clause = _format_lead(round(mean, 4) - round(scores.get(LINEAR, -np.inf), 4), leads.get(LINEAR))
            return f"{line}; {clause}" if clause else line
    return None


def _format_lead(difference: float, lead: Mapping[str, float] | None) -> str | None:
    """Return a clause on a run's lead over the linear model, or None.

    Args:
        difference: the run's score minus the linear model's; -0.02 for two points behind it.
        lead: the fields of the run's `Lead`, where it was computed.
    """
    if difference == 0:
        return "the linear model has the same score"
    ahead = "the linear model is ahead" if difference < 0 else "the run is ahead of the linear model"
    if lead is None:
        return ahead if difference < 0 else None
    run_lead = Lead(**lead)
    leader_lead = run_lead if difference > 0 else run_lead.reversed
    caveat = "" if leader_lead.sure else ", which may be due to the choice of these texts"
    return f"{ahead} by {100 * leader_lead.difference:.2f} points{caveat} ({leader_lead.interval})"


def cost_lines(cost: Mapping[str, float], each: str = "") -> list[str]:
    """Return the printed lines on a run's cost, from `Cost.to_dict`. each: the unit of the cost, such as " a seed"."""
    measured = f", {cost['measured_flops']:.3g} measured" if cost.get("measured_flops") else ""
    lines = [
        f"{'cost' + each:<13}{cost['steps']:,} steps, {cost['tokens']:,} tokens ({cost['real_tokens']:,} without padding), "
        f"{cost['flops']:.3g} FLOPs ({cost['flops_ratio']:.2g} of RoBERTa-Large){measured}, {cost['seconds']:.0f} s"
    ]
    if "energy_kwh" in cost:
        co2 = f", {cost['co2_kg']:.3g} kg of CO2" if "co2_kg" in cost else ""
        share = 100 * cost["estimated_kwh"] / (cost["energy_kwh"] or 1.0)
        lines.append(f"energy       {cost['energy_kwh']:.3g} kWh{each} ({share:.0f}% of it estimated){co2}")
    return lines


def published_lines(push: Push | None) -> list[str]:
    """Return the printed line on where a result was published; an empty list if it was not."""
    if push is None:
        return []
    return [f"published    {push.url} " + (f"(commit {push.commit[:12]})" if push.commit else "(already has this content)")]
