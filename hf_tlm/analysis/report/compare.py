"""Comparison of two runs on the same rows: where each is better, and whether the difference may be chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from hf_tlm.analysis.arguments import ReportPageArguments
from hf_tlm.analysis.report.about import COST, highlights, hours, metric_name, subset_facts, summary_of
from hf_tlm.analysis.report.blocks import Block, Column, Row, Section, Table, Text, make_table, texts_table
from hf_tlm.analysis.report.errors import Predicted, groups_of
from hf_tlm.analysis.report.predictions import SCORES, Group, Predictions, Rows, difference, heading, read_predictions
from hf_tlm.analysis.report.run_folder import BASELINE, TITLES, RunFolder, settings_of
from hf_tlm.errors import AnalysisError
from hf_tlm.metrics import paired_bootstrap
from hf_tlm.metrics.scores import RESAMPLES, Lead
from hf_tlm.utils.run_files import seed_figure
from hf_tlm.utils.shown import counted, one_line

Runs = tuple[RunFolder, RunFolder]
Both = tuple[Predictions, Predictions]
LONGEST_NAME = 40
_COST_FORMATS = {"steps": "{:,.0f}", "tokens": "{:,.0f}", "flops": "{:.3g}", "flops_ratio": "{:.2g}", "seconds": "{:.3f}"}


@dataclass(frozen=True)
class Agreement:
    """Numbers of rows that both models, only the first, only the second, or neither predicted correctly."""

    both: int
    first: int
    second: int
    neither: int

    @classmethod
    def of(cls, first: np.ndarray, second: np.ndarray) -> Agreement:
        """Count the rows, given whether each model predicted a row correctly, bool [N]."""
        return cls(*(int(part.sum()) for part in (first & second, first & ~second, ~first & second, ~first & ~second)))

    @property
    def p(self) -> float:
        """McNemar's exact p (1947; two-sided, binomial) of the rows that only one model predicted correctly."""
        from scipy.stats import binomtest

        only_one = self.first + self.second
        return float(binomtest(self.first, only_one, 0.5).pvalue) if only_one else 1.0


@dataclass(frozen=True)
class Pairing:
    """The predictions of two runs with their rows in the same order.

    first, second: float [seeds, N], scores; first_right, second_right: bool.
    order: for each row of the first run, its index in the second.
    seeds: pairs of seed indices to compare: the common seeds, else the best seed of each; all combinations if one of the
        runs is deterministic.
    names: of these pairs.
    """

    first: np.ndarray
    second: np.ndarray
    first_right: np.ndarray
    second_right: np.ndarray
    order: np.ndarray
    seeds: Sequence[tuple[int, int]]
    names: Sequence[str]

    def agreements(self) -> list[Agreement]:
        """Return the agreement of each pair of seeds."""
        return [Agreement.of(self.first_right[a], self.second_right[b]) for a, b in self.seeds]


def pair(first: Predictions, second: Predictions, best: tuple[int | None, int | None]) -> Pairing:
    """Align the rows of two runs.

    Args:
        best: the seed of each run that is best on validation, for runs without common seeds.

    Raises:
        AnalysisError: the runs predicted different rows.
    """
    row_index = {identifier: index for index, identifier in enumerate(second.ids)}
    if first.kind != second.kind or len(row_index) != len(first.ids) or set(row_index) != set(first.ids):
        raise AnalysisError(
            f"Two runs must have predictions of the same rows; their {first.split} predictions are of different rows "
            f"({len(first.ids):,} and {len(second.ids):,}). Pass two runs on the same task."
        )
    order = np.array([row_index[identifier] for identifier in first.ids])
    pairs = [(seed, seed) for seed in first.seeds if seed in second.seeds]
    if either := first.seedless or second.seedless:
        pairs = [(a, b) for a in first.seeds for b in second.seeds]
    elif not pairs:
        chosen = zip(best, (first.seeds, second.seeds), strict=True)
        # One seed of each run.
        pairs = [tuple(seed if seed in seeds else seeds[0] for seed, seeds in chosen)]  # type: ignore[list-item]
    return Pairing(
        first.scores,
        second.scores[:, order],
        first.right,
        second.right[:, order],
        order,
        [(first.seeds.index(a), second.seeds.index(b)) for a, b in pairs],
        [f"{b if first.seedless else a}" if a == b or either else f"{a} and {b}" for a, b in pairs],
    )


def lead_of(first: Predictions, second: Predictions, metric: str, order: np.ndarray) -> Lead | None:
    """Return the second run's lead over the first over resampled rows, seeds averaged.

    Returns None if the metric cannot be computed from individual rows.
    """
    names = first.names or second.names
    ahead, behind = second.scorers(metric, names, order.tolist()), first.scorers(metric, names)
    return paired_bootstrap(ahead, behind, len(order)) if ahead and behind else None


def compare_runs(
    run: RunFolder, second: RunFolder, predicted: Predicted, options: ReportPageArguments, missing: list[str]
) -> tuple[Section | None, Lead | None]:
    """Compare two runs on the test split if both have predictions of it, else on validation; see `against`.

    Returns (None, None), and adds a sentence to `missing`, if no split has predictions of both.

    Raises:
        AnalysisError: the runs have different tasks.
    """
    fingerprint, other = run.record.get("task_fingerprint"), second.record.get("task_fingerprint")
    if fingerprint != other:
        raise AnalysisError(
            f"Two runs must have the same task; {run.name} is on {run.record.get('task')} (fingerprint {fingerprint}), "
            f"{second.name} on {second.record.get('task')} (fingerprint {other})."
        )
    for split in ("test", "validation"):
        predictions, absent = read_predictions(second, split) if split in predicted else (None, [])
        if predictions is not None:
            missing += [f"{second.name}: {sentence}" for sentence in [*second.missing, *absent]]
            judged, rows = predicted[split]
            return against((run, second), (judged, predictions), rows, options)
    missing.append(f"A comparison: {run.name} and {second.name} have no predictions on the same split.")
    return None, None


def highlights_of_both(runs: tuple[RunFolder, RunFolder]) -> list[tuple[str, str, str]]:
    """Return the tiles of two runs, those of the same kind next to each other, with the runs' names."""
    labelled = [
        (name, kind, (f"{kind}: {name}", figure, explanation))
        for name, run in zip(labels(runs), runs, strict=True)
        for kind, figure, explanation in highlights(run)
        if kind != "to beat" or run is runs[0]
    ]
    kinds = list(dict.fromkeys(kind for _, kind, _ in labelled))
    tiles = [tile for _, _, tile in sorted(labelled, key=lambda entry: kinds.index(entry[1]))]
    return [("to beat", *tile[1:]) if tile[0].startswith("to beat") else tile for tile in tiles]


def against(runs: Runs, predictions: Both, rows: Rows | None, options: ReportPageArguments) -> tuple[Section, Lead | None]:
    """Return the section that compares two runs on one split, and the lead of the second run's score, see `lead_of`.

    `rows` are in the order of the first run's predictions. The lead is None if it does not belong to the scores of the
    page: they are of another split, or of seeds without predictions.
    """
    first, second = predictions
    pairing, names = pair(first, second, (runs[0].best_seed, runs[1].best_seed)), labels(runs)
    note = (
        f"Both runs on {counted(len(pairing.order), 'row')} of {first.split}; differences are {names[1]} minus {names[0]}."
    )
    blocks: list[Block] = [Text(note), _settings_table(runs), _score_table(runs, first.split)]
    lead = lead_of(first, second, runs[0].metric or "", pairing.order)
    if lead is not None:
        blocks.append(
            Text(
                f"95% interval of the difference in {metric_name(runs[0].metric)}: {100 * lead.low:+.2f} to "
                f"{100 * lead.high:+.2f} points, over {RESAMPLES:,} resamples of these rows (paired bootstrap). It is for "
                "these models and does not include the variation between seeds."
            )
        )
    blocks += _cost_tables(runs)
    if first.larger_is_better:
        blocks.append(_agreement_table(pairing, names))
        blocks.append(
            Text(
                "p is McNemar's exact two-sided p of the rows that only one of two models predicts correctly: the "
                "probability of a split at least as uneven if both are equally good. It is for one pair of models and does "
                "not include the variation between seeds."
            )
        )
    groups = {"All rows": [Group("all", np.arange(len(pairing.order)))]} | groups_of(first, rows)
    tables = [_group_table(pairing, names, first.kind, criterion, members) for criterion, members in groups.items()]
    blocks.append(Row(tables))
    for better in (True, False):
        blocks.append(_examples_table(pairing, names, predictions, rows, options, better))
    complete = all(len(predicted.seeds) == len(run.seeds) for predicted, run in zip(predictions, runs, strict=True))
    is_lead_of_runs = complete and first.split == _split_of(runs)
    return Section(f"Comparison with {names[1]}", "against", blocks), lead if is_lead_of_runs else None


def labels(runs: Runs) -> tuple[str, str]:
    """Return the runs' names for tiles, columns and sentences; equal names are prefixed with their parent folders."""
    a, b = (one_line(run.name, LONGEST_NAME) for run in runs)
    if a == b:
        a, b = (one_line(f"{run.path.resolve().parent.name}/{run.name}", LONGEST_NAME) for run in runs)
    return (a, b) if a != b else ("first", "second")


def verdict(runs: Runs, lead: Lead | None = None) -> str | None:
    """Return sentences that say which run is ahead, by how much, and whether seeds or chance may explain it.

    Returns None if the runs have no split or metric in common.
    """
    split, metric = _split_of(runs), runs[0].metric
    if split is None or metric != runs[1].metric:
        return None
    (a, b), scores = labels(runs), [summary_of(run, split).get(metric or "") for run in runs]
    if None in scores:
        return None
    word, statistic = _common_statistic(runs, scores)
    values = [100 * statistic(score["values"]) for score in scores if score]
    gap = values[1] - values[0]
    score_name = ("" if word == "mean" else f"the {word} of ") + f"{split} {metric_name(metric)}"
    figures = f"{values[1]:.2f} for {b}, {values[0]:.2f} for {a}"
    if f"{abs(gap):.2f}" == "0.00":
        return f"{a} and {b} are equal in {score_name}: {figures}."
    ahead, behind = (b, a) if gap > 0 else (a, b)
    sentences = [f"{ahead} is ahead of {behind} in {score_name} by {abs(gap):.2f} points: {figures}."]
    if not all(run.kind == BASELINE for run in runs):
        sentences.append(_compare_with_seeds(runs, scores, abs(gap)))
    if lead is not None and word == "mean":
        chance = (
            "is more than the choice of these texts explains" if lead.sure else "may be due to the choice of these texts"
        )
        sentences.append(f"The lead {chance} ({(lead if gap > 0 else lead.reversed).interval}).")
    return " ".join(sentences)


def _compare_with_seeds(runs: Runs, scores: Sequence[Any], lead: float) -> str:
    """Return a sentence that compares a lead, in points, with the standard deviation over seeds; baselines have none."""
    deviations = [100 * score["std"] for score in scores if score["std"] is not None]
    if not deviations:
        one = "It has" if any(run.kind == BASELINE for run in runs) else "Both have"
        return f"{one} one seed, so the variation between seeds is not known."
    more = "no more" if lead <= max(deviations) else "more"
    return f"That is {more} than the standard deviation over seeds ({max(deviations):.2f})."


def _split_of(runs: Runs) -> str | None:
    """Return "test" if both runs have test scores, else "validation" if both have those, else None."""
    return next((split for split in ("test", "validation") if all(summary_of(run, split) for run in runs)), None)


def _common_statistic(runs: Runs, scores: Sequence[Any]) -> tuple[str, Callable[[Sequence[float]], float]]:
    """Return (name, function) of the statistic over seeds for both runs.

    A statistic other than the mean is used only if both runs report it for the same number of seeds: the maximum over more
    seeds is higher.
    """
    names, counts = {str(run.record.get("seed_figure")) for run in runs}, {score["n"] for score in scores if score}
    return seed_figure(*names) if len(names) == len(counts) == 1 and counts != {1} else seed_figure("mean")


def _score_table(runs: Runs, split: str) -> Table:
    """Return a table of the metrics that both runs have: mean, or the statistic that both report, and deviation."""
    summaries = [summary_of(run, split) for run in runs]
    first, second = labels(runs)
    columns = [Column("metric"), *(Column(name, "number", "{:.2f}") for name in (first, "±", second, "±"))]
    columns.append(Column("difference", "number", "{:+.2f}"))
    shared = {name: (summaries[0][name], summaries[1][name]) for name in summaries[0] if name in summaries[1]}
    shared.pop("loss", None)
    word, statistic = _common_statistic(runs, [score for both in shared.values() for score in both])
    rows = []
    for metric, (a, b) in shared.items():
        value_a, value_b = statistic(a["values"]), statistic(b["values"])
        values = [value_a, a["std"], value_b, b["std"], value_b - value_a]
        rows.append((metric_name(metric), *(None if value is None else 100 * value for value in values)))
    suffix = "" if word == "mean" else f", the {word} of the seeds"
    return make_table(f"{split} scores of both runs, in percent{suffix}", columns, rows)


def _settings_table(runs: Runs) -> Table:
    """Return a table of the settings that differ; one that only a single run has is listed unless it is a default."""
    settings = [{setting.name: setting for setting in settings_of(run)} for run in runs]
    shared = settings[0].keys() & settings[1].keys()
    first, second = (
        {
            **_data_facts(run),
            **{name: setting.value for name, setting in run_settings.items() if setting.differs or name in shared},
        }
        for run, run_settings in zip(runs, settings, strict=True)
    )
    rows = [(name, first.get(name), second.get(name)) for name in {**first, **second} if first.get(name) != second.get(name)]
    return make_table("Settings that differ", [Column("setting"), *map(Column, labels(runs))], rows, characters=300)


def _data_facts(run: RunFolder) -> dict[str, str]:
    manifest = run.record.get("subset")
    facts = subset_facts(manifest) if manifest else [("Subset", "none")] if run.kind == "tlm" else []
    return {"kind of run": TITLES[run.kind], **{name: value for name, value in facts if name in ("Corpus", "Subset")}}


def _cost_tables(runs: Runs) -> list[Table]:
    """Return a table of costs, means over the seeds, in a list; empty unless both runs have costs."""
    costs = [[record["cost"] for record in run.seeds if record.get("cost")] for run in runs]
    if not all(costs):
        return []
    rows = []
    for name, run_costs in zip(labels(runs), costs, strict=True):
        recorded = [[cost[key] for cost in run_costs if cost.get(key) is not None] for key in _COST_FORMATS]
        means = [sum(values) / len(values) if values else None for values in recorded]
        rows.append((name, *(hours(key, mean) for key, mean in zip(_COST_FORMATS, means, strict=True))))
    columns = [Column("run"), *(replace(COST[key], format=_COST_FORMATS[key]) for key in _COST_FORMATS)]
    return [make_table("Cost of both runs, means over seeds", columns, rows)]


def _agreement_table(pairing: Pairing, names: tuple[str, str]) -> Table:
    columns = [Column("seed"), Column("both correct", "number"), *(Column(f"only {name}", "number") for name in names)]
    columns += [Column("neither", "number"), Column("p", "number", "{:.2g}")]
    rows = [
        (name, *astuple(agreement), agreement.p) for name, agreement in zip(pairing.names, pairing.agreements(), strict=True)
    ]
    return make_table("Rows that both models, one, or neither predict correctly", columns, rows)


def _group_table(pairing: Pairing, names: tuple[str, str], kind: str, criterion: str, groups: list[Group]) -> Table:
    factor = 100 if kind != "regression" else 1
    several = len(pairing.seeds) > 1
    columns = [Column(heading(criterion)), Column("rows", "number")]
    columns += [Column(name, "number", "{:.2f}") for name in names]
    columns += [Column("difference", "number", "{:+.2f}"), *([Column("±", "number", "{:.2f}")] if several else [])]
    rows = []
    for group in groups:
        differences = difference(pairing.first[:, group.rows], pairing.second[:, group.rows], pairing.seeds)
        figures = differences[: 4 if several else 3]
        rows.append((group.name, len(group.rows), *(None if value is None else factor * value for value in figures)))
    caption = f"{SCORES[kind]} of both runs" + (
        f" by {criterion[0].lower()}{criterion[1:]}" if criterion != "All rows" else ""
    )
    caption += ", in percent" if factor == 100 else ""
    return make_table(caption, columns, rows, characters=200)


def _examples_table(
    pairing: Pairing,
    names: tuple[str, str],
    predictions: Both,
    rows: Rows | None,
    options: ReportPageArguments,
    better: bool,
) -> Table:
    """Return a table of the rows on which the second run is better (or worse) on average, largest difference first.

    It shows the predictions of the pair of seeds that differ most.
    """
    first, second = predictions
    sign = (1 if better else -1) * (1 if first.larger_is_better else -1)
    differences = sign * (pairing.second.mean(axis=0) - pairing.first.mean(axis=0))
    chosen = [int(index) for index in np.argsort(-differences, kind="stable") if differences[index] > 1e-12]
    pairs = np.array(pairing.seeds)
    seeds = np.argmax(sign * (pairing.second[pairs[:, 1]] - pairing.first[pairs[:, 0]]), axis=0)  # [N], indices of `names`
    ours = list(first.by_seed.values())
    theirs = [{row.id: row for row in of_seed} for of_seed in second.by_seed.values()]
    several = len(pairing.seeds) > 1
    columns = [Column("id"), *([Column("text", wide=True)] if rows else []), *([Column("seed")] if several else [])]
    columns += [Column(name) for name in ("gold", *names)]
    columns += [Column(f"{SCORES[first.kind]}: {name}", "number", "{:.2f}") for name in names]

    def values() -> Iterator[tuple]:
        for index in chosen:
            a, b = pairing.seeds[seeds[index]]
            judged = ours[a][index]
            shown = (judged.id, *([rows.texts[index]] if rows else []), *([pairing.names[seeds[index]]] if several else []))
            predicted = (judged.gold, judged.predicted, theirs[b][judged.id].predicted)
            yield (*shown, *predicted, float(pairing.first[:, index].mean()), float(pairing.second[:, index].mean()))

    caption = f"Rows where {names[1]} is {'better' if better else 'worse'} than {names[0]}"
    caption += ": predictions of the seed with the largest difference, scores over all seeds" if several else ""
    return texts_table(caption, columns, values(), len(chosen), options)
