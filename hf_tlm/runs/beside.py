"""How far models are ahead of others that answered the same texts, and what they answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_tlm.metrics import paired_bootstrap, scorer
from hf_tlm.runs.averaging import read_average
from hf_tlm.runs.baselines import said_to_beat
from hf_tlm.tasks import Task
from hf_tlm.utils.run_names import seed_folder


def beside(
    task: Task, run: Path, records: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The baselines of a finished run, each with the run's lead: split -> `Lead`, of the task's metric.

    Args:
        run: its folder, with the predictions of its seeds.
        records: of its seeds.
        found: as of `to_beat`.
    """
    said, seeds = said_to_beat(task), [seed_folder(run, record["seed"]) for record in records]
    return [
        {**one, "lead": leads} if (leads := _leads(task, seeds, said.get(one["name"], {}))) else dict(one) for one in found
    ]


def _leads(task: Task, seeds: Sequence[Path], said: Mapping[str, Sequence[int]]) -> dict[str, dict[str, float]]:
    leads = {}
    for split, predicted in said.items():
        labels = task.splits[split]["label"][:]
        ours = [classes_said(task, [folder], split) for folder in seeds]
        known = [one for one in ours if one is not None]
        if known and len(known) == len(ours) and len(predicted) == len(labels):
            of_run = [scorer(task.metric, labels, one) for one in known]
            of_baseline = scorer(task.metric, labels, predicted)
            leads[split] = paired_bootstrap(of_run, [of_baseline], len(labels)).to_dict()
    return leads


def classes_said(task: Task, seeds: Sequence[Path], split: str) -> list[int] | None:
    """Indices of the classes that seeds' models, averaged, predict of a split, in the order of its rows.

    Args:
        seeds: their folders.

    Returns:
        None where one has left no predictions of it, or of other rows, or the task is of another kind than classification.
    """
    if task.spec.kind != "classification" or split not in task.splits or (found := read_average(seeds, split)) is None:
        return None
    index = {name: at for at, name in enumerate(task.label_names)}
    classes = [index.get(line["prediction"], -1) for line in found]
    return classes if len(classes) == len(task.splits[split]) and -1 not in classes else None
