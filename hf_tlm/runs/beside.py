"""A finished run beside the models without a network: how far it is ahead of them, and what it says together with one.

Both are of what was answered to the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_tlm.metrics import paired_bootstrap, scorer
from hf_tlm.runs.arguments import LINEAR
from hf_tlm.runs.averaging import average, read_average
from hf_tlm.runs.baselines import linear_answers
from hf_tlm.runs.finetuning.classification import score
from hf_tlm.runs.summary import aggregate
from hf_tlm.tasks import Task
from hf_tlm.utils.run_files import seed_folder

# One answer a row: `prediction` (the name of a class), and `probabilities` by class.
Answers = Sequence[Mapping[str, Any]]


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
