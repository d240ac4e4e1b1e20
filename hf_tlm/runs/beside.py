"""A finished run beside the models without a network: how far it is ahead of them, and what it says together with one.

Both are of what was answered to the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_tlm.metrics import paired_bootstrap, scorer
from hf_tlm.runs.averaging import average, read_average
from hf_tlm.runs.baseline_arguments import LINEAR
from hf_tlm.runs.baselines import said_to_beat
from hf_tlm.runs.finetuning.classification import score
from hf_tlm.runs.summary import aggregate
from hf_tlm.tasks import Task
from hf_tlm.utils.run_names import seed_folder

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
        baselines: as they were found, each with the run's `lead`: split -> `Lead`, of the task's metric, of the mean over
            seeds. with_linear: split -> `aggregate` of what each seed's model and the linear model score, averaged; only
            where both are there.
    """
    seeds, said = [seed_folder(run, record["seed"]) for record in records], said_to_beat(task)
    ours = {split: [seed_answers(task, [folder], split) for folder in seeds] for split in task.splits}
    known = {split: [one for one in several if one is not None] for split, several in ours.items()}
    whole = {split: several for split, several in known.items() if several and len(several) == len(seeds)}
    leads = {name: _leads(task, whole, answers) for name, answers in said.items()}
    together = [with_linear(task, {split: several[at] for split, several in whole.items()}) for at in range(len(seeds))]
    scores = {split: aggregate([one[split] for one in together]) for split in (together[0] if together else {})}
    return {
        "baselines": [{**one, **({"lead": lead} if (lead := leads.get(one["name"])) else {})} for one in found],
        **({"with_linear": scores} if scores else {}),
    }


def _leads(task: Task, ours: Mapping[str, Sequence[Answers]], said: Mapping[str, Answers]) -> dict[str, dict[str, float]]:
    leads = {}
    for split, answers in said.items():
        labels = task.splits[split]["label"][:]
        if split in ours and len(answers) == len(labels):
            of_run = [scorer(task.metric, labels, classes_of(task, one)) for one in ours[split]]
            of_baseline = [scorer(task.metric, labels, classes_of(task, answers))]
            leads[split] = paired_bootstrap(of_run, of_baseline, len(labels)).to_dict()
    return leads


def with_linear(task: Task, ours: Mapping[str, Answers]) -> dict[str, dict[str, float]]:
    """What the average of a model and the linear model scores: split -> metric -> score.

    Args:
        ours: split -> the answers of the model.
    """
    said = said_to_beat(task).get(LINEAR, {})
    return {
        split: score(task, average([answers, said[split]]), task.splits[split])
        for split, answers in ours.items()
        if len(said.get(split, ())) == len(answers)
    }


def classes_of(task: Task, answers: Answers) -> list[int]:
    """The classes that are predicted, by their indices."""
    return [task.label2id[answer["prediction"]] for answer in answers]


def seed_answers(task: Task, seeds: Sequence[Path], split: str) -> list[dict[str, Any]] | None:
    """What seeds' models, averaged, answer to a split, in the order of its rows.

    Args:
        seeds: their folders.

    Returns:
        None where one has left no predictions of it, or not as many as it has rows, or the task is of another kind than
        classification.
    """
    if task.spec.kind != "classification" or split not in task.splits or (found := read_average(seeds, split)) is None:
        return None
    fits = len(found) == len(task.splits[split]) and all(line["prediction"] in task.label2id for line in found)
    return found if fits else None
