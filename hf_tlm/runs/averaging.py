"""Average the predictions of several models of one task, and compare a run with the linear model.

The comparison gives how far a finished run is ahead of the linear model, and the score of both averaged. Both are computed
from saved predictions for the same texts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_tlm.errors import ArgumentsError, HfTlmError, ModelError
from hf_tlm.hub.repo_id import displayed_name
from hf_tlm.metrics import paired_bootstrap, scorer
from hf_tlm.runs.arguments import LINEAR
from hf_tlm.runs.baselines import linear_predictions
from hf_tlm.runs.finetuning.classification import score
from hf_tlm.runs.prediction_source import Source
from hf_tlm.runs.records import aggregate
from hf_tlm.tasks import Task
from hf_tlm.utils.options import named
from hf_tlm.utils.run_files import REPAIR_ADVICE, SEED, predictions_file, read_prediction_records, seed_folder

# Kinds of tasks whose predictions can be averaged.
KINDS = ("classification", "regression")
# One answer per row: `prediction` (the name of a class), and `probabilities` by class.
Predictions = Sequence[Mapping[str, Any]]


def model_names(models: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """Return the names of one or several models as a list.

    Raises:
        ArgumentsError: no name was given, or one is a model object instead of a name.
    """
    candidates = list(models) if isinstance(models, Iterable) and not isinstance(models, str) else [models]
    names = [name for model in candidates if (name := named("model_name_or_path", model, ArgumentsError)) is not None]
    if not names:
        raise ArgumentsError("model_name_or_path: expected one or more models; received none.")
    return names


def average(predictions: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Average the predictions of several models for the same rows: their probabilities, or their values.

    Args:
        answers: for each model one dict per row, in the format of `hf_tlm.runs.finetuning.kinds`.

    Returns:
        {"prediction", "probabilities"} for each row, or {"prediction": number}; of tied classes the first is predicted.
    """
    averaged: list[dict[str, Any]] = []
    for row in zip(*predictions, strict=True):
        if "probabilities" in row[0]:
            names = list(row[0]["probabilities"])
            means = np.mean([[prediction["probabilities"][name] for name in names] for prediction in row], axis=0)
            probabilities = {name: round(float(mean), 6) for name, mean in zip(names, means, strict=True)}
            averaged.append({"prediction": names[int(means.argmax())], "probabilities": probabilities})
        else:
            averaged.append({"prediction": float(np.mean([prediction["prediction"] for prediction in row]))})
    return averaged


def shown_member(name: str) -> str:
    """Return the name of an averaged model on a card; that of a seed contains its run's, such as `reviews/seed-0/model`."""
    parts = Path(name).parts
    return "/".join(parts[-3:]) if len(parts) > 2 and parts[-2].startswith(SEED) else str(displayed_name(name))


def check_alike(names: Sequence[str], sources: Sequence[Source]) -> None:
    """Check that models have one kind of task and the same classes and text columns, or raise a ModelError.

    names: the models as the user gave them, for the message.
    """
    first, shown_names = sources[0], [shown_member(name) for name in names]
    for name, source in zip(shown_names, sources, strict=True):
        is_masked_lm = source.prompted or source.fills_masks
        if is_masked_lm or source.spec.kind not in KINDS:
            kind = "a masked LM" if is_masked_lm else f"a model for {source.spec.kind.replace('_', ' ')}"
            raise ModelError(
                f"Only models for {' and '.join(KINDS)} can be averaged; {name} is {kind}. Pass a single model."
            )
        if _comparison_key(source) != _comparison_key(first):
            raise ModelError(
                f"Models to average must have the same kind of task, classes and columns: {shown_names[0]} has "
                f"{_describe_source(first)}; {name} has {_describe_source(source)}."
            )


def _comparison_key(source: Source) -> tuple[Any, ...]:
    return source.spec.kind, sorted(source.label_names), source.spec.text_columns


def _describe_source(source: Source) -> str:
    classes = f", classes {', '.join(source.label_names):.100}" if source.label_names else ""
    return f"{source.spec.kind}{classes}, texts in {', '.join(source.spec.text_columns)}"


def averaged_scores(task: Task, seeds: Sequence[Path], advice: str = REPAIR_ADVICE) -> dict[str, dict[str, float]]:
    """Return the scores of the averaged predictions of several seeds' models, computed from their saved predictions.

    Args:
        seeds, advice: see `read_average`.

    Returns:
        split -> metric -> score, for validation and test. It is empty for kinds of tasks whose predictions cannot be
        averaged, and lacks a split for which some seed has no predictions.
    """
    if task.spec.kind not in KINDS:
        return {}
    predictions = {split: read_average(seeds, split, advice) for split in ("validation", "test") if split in task.splits}
    return {
        split: score(task, averaged, task.splits[split]) for split, averaged in predictions.items() if averaged is not None
    }


def read_average(seeds: Sequence[Path], split: str, advice: str = REPAIR_ADVICE) -> list[dict[str, Any]] | None:
    """Return the average of the saved predictions of several seeds for a split; those of a single seed as they are.

    Args:
        seeds: their folders.
        advice: what to do about a damaged file, for the message.

    Returns:
        One dict per row; None where a seed has no predictions for the split.

    Raises:
        HfTlmError: a file is damaged, or the files differ in their number of lines.
    """
    files = [predictions_file(folder, split) for folder in seeds]
    if not files or not all(file.is_file() for file in files):
        return None
    predictions = [read_prediction_records(folder, split, advice=advice) or [] for folder in seeds]
    sizes = [len(rows) for rows in predictions]
    if len(set(sizes)) > 1:
        shortest, longest = (files[sizes.index(size)] for size in (min(sizes), max(sizes)))
        raise HfTlmError(
            f"{shortest} has {min(sizes):,} lines and {longest} has {max(sizes):,}: one of them is damaged. {advice}"
        )
    return predictions[0] if len(predictions) == 1 else average(predictions)


def averaged_entry(task: Task, run: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry of `results.json` for the average of a run's seeds.

    Returns:
        {"averaged": {"n": number of seeds, split: scores}}; an empty dict for fewer than two seeds, or without scores.
    """
    if len(records) < 2:
        return {}
    scores = averaged_scores(task, [seed_folder(run, record["seed"]) for record in records])
    return {"averaged": {"n": len(records), **scores}} if scores else {}


def one_class_entry(task: Task, run: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry of `results.json` for seeds whose models predict one class for all validation texts.

    Returns:
        {"one_class": {seed: class}}; an empty dict where there is no such seed, where the validation split has only one
        class, or where the task is no classification.
    """
    if task.spec.kind != "classification" or len(set(task.validation["label"])) < 2:
        return {}
    classes_by_seed = {}
    for seed in (record["seed"] for record in records):
        predictions = seed_predictions(task, [seed_folder(run, seed)], "validation") or []
        if len(classes := {prediction["prediction"] for prediction in predictions}) == 1:
            classes_by_seed[str(seed)] = classes.pop()
    return {"one_class": classes_by_seed} if classes_by_seed else {}


def baseline_entries(
    task: Task, run: Path, records: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the entries of `results.json` that compare a run with the baselines.

    Args:
        run: its folder, with the predictions of its seeds.
        records: the records of its seeds.
        baselines: the baselines as `to_beat` returns them.

    Returns:
        baselines: those given, where the linear model also has the run's `lead`: split -> `Lead` of the mean over seeds, in
            the task's metric. with_linear: split -> `aggregate` of the scores of each seed's model averaged with the linear
            one. averaged_with_linear, for several seeds: their number `n`, and split -> scores of the average of all their
            models, averaged with the linear one. All hold only splits for which all seeds and the linear model have
            predictions.
    """
    linear, folders = linear_predictions(task), [seed_folder(run, record["seed"]) for record in records]
    leads: dict[str, dict[str, float]] = {}
    averaged: dict[str, dict[str, Any]] = {}
    all_averaged: dict[str, dict[str, float]] = {}
    for split, by_linear in linear.items():
        by_seed = [one for folder in folders if (one := seed_predictions(task, [folder], split)) is not None]
        if not by_seed or len(by_seed) < len(folders) or len(by_linear) != len(by_seed[0]):
            continue
        labels = task.splits[split]["label"][:]
        scorers = [scorer(task.metric, labels, class_indices(task, one)) for one in (*by_seed, by_linear)]
        leads[split] = paired_bootstrap(scorers[:-1], scorers[-1:], len(labels)).to_dict()
        averaged[split] = aggregate([_score_average(task, split, one, by_linear) for one in by_seed])
        if len(by_seed) > 1:
            all_averaged[split] = _score_average(task, split, average(by_seed), by_linear)
    compared_baselines = [{**one, **({"lead": leads} if leads and one["name"] == LINEAR else {})} for one in baselines]
    entries: dict[str, Any] = {"baselines": compared_baselines}
    entries |= {"with_linear": averaged} if averaged else {}
    return entries | ({"averaged_with_linear": {"n": len(folders), **all_averaged}} if all_averaged else {})


def score_with_linear(task: Task, predictions: Mapping[str, Predictions]) -> dict[str, dict[str, float]]:
    """Return the scores of a model's predictions averaged with those of the linear model: split -> metric -> score.

    Args:
        predictions: split -> the model's predictions. A split that the linear model has not predicted in full is left out.
    """
    linear = linear_predictions(task)
    return {
        split: _score_average(task, split, rows, linear[split])
        for split, rows in predictions.items()
        if len(linear.get(split, ())) == len(rows)
    }


def _score_average(task: Task, split: str, *predictions: Predictions) -> dict[str, float]:
    return score(task, average(predictions), task.splits[split])


def class_indices(task: Task, predictions: Predictions) -> list[int]:
    """Return the indices of the predicted classes."""
    return [task.label2id[prediction["prediction"]] for prediction in predictions]


def seed_predictions(task: Task, seeds: Sequence[Path], split: str) -> list[dict[str, Any]] | None:
    """Return the averaged predictions of several seeds' models for a split, in the order of its rows.

    seeds: their folders.

    Returns:
        None where a seed has no predictions for the split or not one per row, where they name a class that the task lacks,
        or where the task is no classification.
    """
    if task.spec.kind != "classification" or split not in task.splits or (predictions := read_average(seeds, split)) is None:
        return None
    is_complete = len(predictions) == len(task.splits[split]) and all(
        prediction["prediction"] in task.label2id for prediction in predictions
    )
    return predictions if is_complete else None
