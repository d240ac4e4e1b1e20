"""A run over several seeds: figures over them, what it returns, writes as `results.json`, and tells a person."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Self

from hf_tlm.errors import HfTlmError
from hf_tlm.hub.commit import Push
from hf_tlm.runs.baselines import to_beat_line
from hf_tlm.runs.price import price_line
from hf_tlm.runs.records import cost_lines, published_lines
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.run_folder import RESULTS_FILE, copy_best_model
from hf_tlm.training.teacher import cost_line, described
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.options import of_python
from hf_tlm.utils.run_files import SEED_FIGURES, seed_figure, seed_folder
from hf_tlm.utils.shown import kind_of, markdown_table

SPLITS = ("validation", "test")


def aggregate(scores: Sequence[Mapping[str, float]], figure: str = "mean") -> dict[str, dict[str, Any]]:
    """Mean and sample standard deviation (n - 1; None for a single seed) of every score that all seeds have.

    Args:
        figure: "median" or "max" is there too.

    Returns:
        name -> {"mean", "std", "n", "values"}, values in the order given.

    Raises:
        HfTlmError: there are no scores, what is given are none, or there is no such figure.
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


def _check_scores(scores: Any, figure: Any) -> None:
    example = "Give [record['validation'] for record in run.seeds], for instance."
    listed = isinstance(scores, Sequence) and not isinstance(scores, str)
    if not listed or not scores:
        received = "an empty list" if listed else kind_of(scores)
        raise HfTlmError(
            f"scores: expected a list of one mapping of names to numbers a seed; received {received}. {example}"
        )
    for score in scores:
        if not isinstance(score, Mapping):
            raise HfTlmError(
                f"scores: expected a mapping of names to numbers for a seed; received {kind_of(score)}. {example}"
            )
        if wrong := [name for name, value in score.items() if not isinstance(of_python(value), Real)]:
            received = kind_of(score[wrong[0]])
            raise HfTlmError(f"scores: expected numbers; received {received} as {wrong[0]!r:.60}. {example}")
    if figure not in SEED_FIGURES:
        raise HfTlmError(f"figure: expected one of {', '.join(SEED_FIGURES)}; received {figure!r:.60}.")


def _deviation(values: Sequence[float]) -> float | None:
    """NaN where a value is not finite, as the loss of a model that diverged: `statistics.stdev` has no answer then."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def format_score(score: Mapping[str, Any]) -> str:
    """`12.34 ± 0.56` in percent, from a value of `aggregate`; without a deviation for a single seed."""
    text = f"{100 * score['mean']:.2f}"
    return text if score["std"] is None else f"{text} ± {100 * score['std']:.2f}"


def format_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A markdown table, padded to be readable as text; values of `aggregate` become percentages, and no name is markup."""
    values = ([row[column] for column in columns] for row in rows)
    cells = [[format_score(one) if isinstance(one, Mapping) else str(one) for one in row] for row in values]
    return markdown_table(columns, cells, padded=True, longest=500).rstrip("\n")


@dataclass
class SeededRun:
    """A finished run.

    seeds: one record per seed: scores on validation and test, cost.
    summary: split -> metric -> {"mean", "std", "n", "values"}, for validation and test, with the run's `seed_figure`.
    details: what was asked for, and where it ran.
    push: with `push_to_hub`, on the first process: what was published.
    """

    seeds: list[dict[str, Any]]
    summary: dict[str, dict[str, Any]]
    details: dict[str, Any]
    output_dir: Path
    push: Push | None = None

    def __repr__(self) -> str:
        metric = self.details["metric"]
        scores = [f"{split} {format_score(of[metric])}" for split, of in self.summary.items() if metric in of]
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{type(self).__name__}({str(self.output_dir)!r}, {seeds}; {metric}: {', '.join(scores) or 'none'})"

    @property
    def best(self) -> dict[str, Any]:
        """The record of the seed that is best on validation."""
        return max(self.seeds, key=lambda record: record["validation"][self.details["metric"]])

    def to_dict(self) -> dict[str, Any]:
        return {**self.details, "summary": self.summary, "seeds": self.seeds}

    def write(self, args: BaseArguments, card: Callable[[Mapping[str, Any], int], str], source: Path | None = None) -> Self:
        """Make the model of the best seed that of the folder, with `results.json` and its card, and publish it if asked for.

        The first process writes, and the others wait: they may be about to read it.

        card: (the record of the run, seed) -> README.md.
        source: where the folders of the seeds are, if not in that of the run.

        Returns:
            The run, with its `push`.
        """
        from hf_tlm.training.publishing import publish_run  # With the Trainer, which reports and tables do without.

        with args.main_process_first(local=False, desc="publishing the model"):
            if args.process_index == 0:
                record, seed = self.to_dict(), self.best["seed"]
                copy_best_model(seed_folder(source or self.output_dir, seed) / "model", self.output_dir)
                atomic_write(self.output_dir / RESULTS_FILE, json.dumps(record, indent=2) + "\n")
                atomic_write(self.output_dir / "README.md", card(record, seed))
        return replace(self, push=publish_run(self.output_dir, args))

    def to_text(self) -> str:
        """The end of a run, for a person."""
        asked, lines = [self.details["metric"], *self.details.get("further_metrics", ())], []
        # What a metric brings along, too; every classifier has its accuracy.
        metrics = dict.fromkeys([*asked, *(name for name in self.summary["validation"] if name != "accuracy")])
        for split in SPLITS:
            for metric in metrics:
                if score := self.summary.get(split, {}).get(metric):
                    lines.append(f"{split:<12}{metric} {_of_seeds(score, self.details.get('seed_figure'))}")
        if averaged := self.details.get("averaged"):
            said = ", ".join(f"{split} {100 * averaged[split][asked[0]]:.2f}" for split in SPLITS if split in averaged)
            lines.append(f"averaged     {asked[0]} {said}: what the models of all {averaged['n']} seeds say, averaged")
        lines += beside_lines(self.details, self.summary)
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
        lines.append(f"model        {self.output_dir}")
        lines += published_lines(self.push)
        return "\n".join(lines)


def _of_seeds(score: Mapping[str, Any], asked: str | None) -> str:
    """A score, and of how many seeds it is which figure."""
    if score["n"] == 1:
        return format_score(score)
    word, figure = seed_figure(asked)
    if word == "mean":
        return f"{format_score(score)} over {score['n']} seeds"
    return f"{100 * figure(score['values']):.2f}, the {word} of {score['n']} seeds (mean {format_score(score)})"


def beside_lines(record: Mapping[str, Any], summary: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What there was to beat, and what a run and the linear model score together, for a person.

    Args:
        record: of the run, with `metric`, and where they are there `baselines` and `with_linear`.
        summary: the run's.
    """
    lines, metric = [], record["metric"]
    if together := record.get("with_linear"):
        said = ", ".join(f"{split} {format_score(together[split][metric])}" for split in SPLITS if split in together)
        lines.append(f"with linear  {metric} {said}: what a seed's model and the linear model say, averaged")
    if line := to_beat_line(record.get("baselines") or [], metric, summary):
        lines.append(f"to beat      {line}")
    return lines


def summarise(records: Sequence[Mapping[str, Any]], figure: str = "mean") -> dict[str, dict[str, Any]]:
    """Summarise the scores of the seeds: split -> `aggregate` of those on it."""
    return {split: aggregate([record[split] for record in records], figure) for split in SPLITS if split in records[0]}
