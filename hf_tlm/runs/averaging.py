"""Several models of one task as one, their probabilities or their values averaged; and a run beside the linear model.

Beside it is how far a finished run is ahead of it, and what it says together with it: both of what was answered to the same
texts.
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
from hf_tlm.runs.baselines import linear_answers
from hf_tlm.runs.finetuning.classification import score
from hf_tlm.runs.prediction_source import Source
from hf_tlm.runs.records import aggregate
from hf_tlm.tasks import Task
from hf_tlm.utils.options import named
from hf_tlm.utils.run_files import AGAIN, SEED, predictions_file, read_answers, seed_folder

# Kinds of tasks whose predictions have an average.
KINDS = ("classification", "regression")
# One answer a row: `prediction` (the name of a class), and `probabilities` by class.
Answers = Sequence[Mapping[str, Any]]


def model_names(given: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """The names of one or several models; an ArgumentsError where there is none, or one is a model itself."""
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    found = [name for one in names if (name := named("model_name_or_path", one, ArgumentsError)) is not None]
    if not found:
        raise ArgumentsError("model_name_or_path: expected a model, or several; received none.")
    return found


def average(answers: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The average of what several models say of the same rows: of probabilities, or of values.

    Args:
        answers: of each model one dict a row, as `hf_tlm.runs.finetuning.kinds` has them.

    Returns:
        {"prediction", "probabilities"} of each row, or {"prediction": number}; the first of classes that are level.
    """
    averaged: list[dict[str, Any]] = []
    for row in zip(*answers, strict=True):
        if "probabilities" in row[0]:
            names = list(row[0]["probabilities"])
            shares = np.mean([[one["probabilities"][name] for name in names] for one in row], axis=0)
            probabilities = {name: round(float(share), 6) for name, share in zip(names, shares, strict=True)}
            averaged.append({"prediction": names[int(shares.argmax())], "probabilities": probabilities})
        else:
            averaged.append({"prediction": float(np.mean([one["prediction"] for one in row]))})
    return averaged


def shown_member(name: str) -> str:
    """A model as a card names it among others: of a seed with the name of its run, `reviews/seed-0/model`."""
    parts = Path(name).parts
    return "/".join(parts[-3:]) if len(parts) > 2 and parts[-2].startswith(SEED) else str(displayed_name(name))


def check_alike(names: Sequence[str], sources: Sequence[Source]) -> None:
    """Raise a ModelError for models, named as they were given, without one kind of task and the same classes and columns."""
    first, shown = sources[0], [shown_member(name) for name in names]
    for name, source in zip(shown, sources, strict=True):
        masked = source.prompted or source.fills_masks
        if masked or source.spec.kind not in KINDS:
            kind = "a masked LM" if masked else f"for {source.spec.kind.replace('_', ' ')}"
            raise ModelError(f"Only models for {' and '.join(KINDS)} are averaged; {name} is {kind}. Give one model.")
        if _facts(source) != _facts(first):
            raise ModelError(
                f"Models that are averaged have one kind of task, and the same classes and columns: {shown[0]} has "
                f"{_described(first)}; {name} has {_described(source)}."
            )


def _facts(source: Source) -> tuple[Any, ...]:
    return source.spec.kind, sorted(source.label_names), source.spec.text_columns


def _described(source: Source) -> str:
    classes = f", classes {', '.join(source.label_names):.100}" if source.label_names else ""
    return f"{source.spec.kind}{classes}, texts in {', '.join(source.spec.text_columns)}"


def averaged_scores(task: Task, seeds: Sequence[Path], advice: str = AGAIN) -> dict[str, dict[str, float]]:
    """What the average of several seeds' models scores, from the predictions that they left.

    Args:
        seeds, advice: see `read_average`.

    Returns:
        split -> metric -> score, for validation and test; empty for kinds of tasks without an average, and without a split
        whose predictions are not there for every seed.
    """
    if task.spec.kind not in KINDS:
        return {}
    answers = {split: read_average(seeds, split, advice) for split in ("validation", "test") if split in task.splits}
    return {split: score(task, found, task.splits[split]) for split, found in answers.items() if found is not None}


def read_average(seeds: Sequence[Path], split: str, advice: str = AGAIN) -> list[dict[str, Any]] | None:
    """The average of what several seeds' models left of a split, of one what it left; None where one has none.

    Args:
        seeds: their folders.
        advice: what to do about a damaged file, for the HfTlmError that names it.
    """
    files = [predictions_file(folder, split) for folder in seeds]
    if not files or not all(file.is_file() for file in files):
        return None
    found = [read_answers(folder, split, advice=advice) or [] for folder in seeds]
    sizes = [len(answers) for answers in found]
    if len(set(sizes)) > 1:
        fewest, most = (files[sizes.index(size)] for size in (min(sizes), max(sizes)))
        raise HfTlmError(
            f"{fewest} has {min(sizes):,} lines and {most} has {max(sizes):,}: one of them is damaged. {advice}"
        )
    return found[0] if len(found) == 1 else average(found)


def averaged_seeds(task: Task, run: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `results.json` says of the average of a run's seeds: {"averaged": {"n": seeds, split: scores}}, or nothing."""
    if len(records) < 2:
        return {}
    scores = averaged_scores(task, [seed_folder(run, record["seed"]) for record in records])
    return {"averaged": {"n": len(records), **scores}} if scores else {}


def of_one_class(task: Task, run: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `results.json` says of seeds whose models give all validation texts, of several classes, the same one.

    {"one_class": {seed: class}}, or nothing.
    """
    if task.spec.kind != "classification" or len(set(task.validation["label"])) < 2:
        return {}
    found = {}
    for seed in (record["seed"] for record in records):
        answers = seed_answers(task, [seed_folder(run, seed)], "validation") or []
        if len(classes := {answer["prediction"] for answer in answers}) == 1:
            found[str(seed)] = classes.pop()
    return {"one_class": found} if found else {}


def beside(
    task: Task, run: Path, records: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What `results.json` says of a run and the baselines.

    Args:
        run: its folder, with the predictions of its seeds.
        records: of its seeds.
        found: as of `to_beat`.

    Returns:
        baselines: as they were found, the linear one with the run's `lead`: split -> `Lead`, of the task's metric, of the
            mean over seeds. with_linear: split -> `aggregate` of what each seed's model and the linear one score together.
            Both are of splits that all seeds and the linear model have answered.
    """
    linear, folders = linear_answers(task), [seed_folder(run, record["seed"]) for record in records]
    leads: dict[str, dict[str, float]] = {}
    together: dict[str, dict[str, Any]] = {}
    for split, answers in linear.items():
        ours = [one for folder in folders if (one := seed_answers(task, [folder], split)) is not None]
        if not ours or len(ours) < len(folders) or len(answers) != len(ours[0]):
            continue
        labels = task.splits[split]["label"][:]
        scorers = [scorer(task.metric, labels, classes_of(task, one)) for one in (*ours, answers)]
        leads[split] = paired_bootstrap(scorers[:-1], scorers[-1:], len(labels)).to_dict()
        together[split] = aggregate([_together(task, split, one, answers) for one in ours])
    baselines = [{**one, **({"lead": leads} if leads and one["name"] == LINEAR else {})} for one in found]
    return {"baselines": baselines, **({"with_linear": together} if together else {})}


def with_linear(task: Task, ours: Mapping[str, Answers]) -> dict[str, dict[str, float]]:
    """What the average of a model and the linear model scores: split -> metric -> score.

    Args:
        ours: split -> the answers of the model.
    """
    linear = linear_answers(task)
    return {
        split: _together(task, split, answers, linear[split])
        for split, answers in ours.items()
        if len(linear.get(split, ())) == len(answers)
    }


def _together(task: Task, split: str, *several: Answers) -> dict[str, float]:
    return score(task, average(several), task.splits[split])


def classes_of(task: Task, answers: Answers) -> list[int]:
    """The classes that are predicted, by their indices."""
    return [task.label2id[answer["prediction"]] for answer in answers]


def seed_answers(task: Task, seeds: Sequence[Path], split: str) -> list[dict[str, Any]] | None:
    """What seeds' models, averaged, answer to a split, in the order of its rows.

    None where one, by its folder, has left no predictions of it, or not as many as it has rows, or the task has no classes.
    """
    if task.spec.kind != "classification" or split not in task.splits or (found := read_average(seeds, split)) is None:
        return None
    fits = len(found) == len(task.splits[split]) and all(line["prediction"] in task.label2id for line in found)
    return found if fits else None
