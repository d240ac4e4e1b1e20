"""Options of recipes that a table gives its steps itself: what a user gives them elsewhere would be lost without a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from hf_tlm.config import read_configs
from hf_tlm.experiments.arms import Arm, ReproductionError, TaskEntry
from hf_tlm.influence import SelectionArguments
from hf_tlm.influence.checks import BY_TEACHER, without_effect
from hf_tlm.tasks import TaskArguments

_OF_ALL = {"task": "--tasks", "output_dir": "--output_dir"}
_OF_ARM = dict.fromkeys(("subset", "method", "fraction"), "an arm's own key `subset`")
_SEEDS = {"seed": "--seeds", "seeds": "--seeds"}
# Recipe -> option -> where the table has it from.
_GIVEN = {
    "retrieve": _OF_ALL,
    "select_influence": _OF_ALL | _OF_ARM | {"tokenizer_name": "--tokenizer_name"},
    "train_tlm": _OF_ALL | _SEEDS | {"subset": _OF_ARM["subset"], "tokenizer_name": "--tokenizer_name"},
    "finetune": _OF_ALL | _SEEDS | {"model_name_or_path": "--pretrained, or an arm's own key `pretrained`"},
}
# Of train_tlm's options those of the tokenizer that all arms of a task share.
OF_TOKENIZER = ("vocab_size", "lowercase")


def check_options(
    tasks: Sequence[TaskEntry],
    arms: Sequence[Arm],
    files: Sequence[str],
    objective_options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Whether every option has an effect where it is given.

    Raises:
        ReproductionError: one that the table gives, one of the shared tokenizer that is an arm's, or an arm's own that
            nothing of it reads.
    """
    for recipe in _GIVEN:
        _check(f"Section {recipe} of {', '.join(files)}", recipe, read_configs(files, recipe))
        for entry in tasks:
            _check(f"Task {entry.task}", recipe, entry.settings.get(recipe, {}))
        for arm in arms:
            _check(f"Arm {arm.name}", recipe, arm.settings.get(recipe, {}), of_arm=True)
    for objective, options in objective_options.items():
        _check(f"Objective {objective}", "train_tlm", options, of_arm=True)
    for arm in arms:
        _check_read(arm)


def _check_read(arm: Arm) -> None:
    """Whether an arm reads what is given to it alone; files and tasks have options for other arms too."""
    method, steps = arm.subset and arm.subset.method, {"finetune"}
    if arm.subset is not None:
        steps = {"train_tlm", *(["retrieve"] if arm.subset.retriever else []), *(["select_influence"] if method else [])}
    if unread := [recipe for recipe in arm.settings if recipe not in steps]:
        raise ReproductionError(
            f"Arm {arm.name}: options of {unread[0]} have no effect, as it is made by {', '.join(sorted(steps))} alone. "
            "Leave them out."
        )
    given = arm.settings.get("select_influence", {})
    idle = without_effect(method, given) if method else []
    if method not in (None, "iss", *BY_TEACHER):  # They train no score model.
        own = {entry.name for cls in (SelectionArguments, TaskArguments) for entry in fields(cls)} | {"teacher"}
        idle += [f"{name} {value}" for name, value in given.items() if name not in own]
    if idle:
        raise ReproductionError(f"Arm {arm.name}: of no effect with method {method}: {', '.join(idle)}. Leave it out.")


def _check(where: str, recipe: str, options: Mapping[str, Any], of_arm: bool = False) -> None:
    for name in options:
        if source := _GIVEN[recipe].get(name):
            raise ReproductionError(f"{where}: {recipe}'s {name} is given by the table ({source}). Leave it out.")
        if of_arm and recipe == "train_tlm" and name in OF_TOKENIZER:
            raise ReproductionError(
                f"{where}: {name} is the tokenizer's, which all arms of a task share. Give it to the task, or in section "
                "train_tlm of a --config file."
            )
