"""Options of a table of runs, for recipes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.config import read_configs
from hf_tlm.experiments.arms import Arm, ReproductionError, TaskEntry, read_objective
from hf_tlm.utils.options import check_ranges, option

if TYPE_CHECKING:
    from hf_tlm.corpora import CorpusArguments
    from hf_tlm.experiments.plan import Plan


# Options of train_tlm.py that decide when stage 1 ends.
BUDGETS = frozenset(("max_steps", "max_flops", "max_tokens", "max_hours", "num_train_epochs"))


@dataclass
class TableArguments:
    """Settings of the table: its tasks, arms and seeds, and its budget."""

    tasks: list[str] = option(
        help=(
            'Tasks, each a name or folder, or JSON: \'{"task": "imdb", "seeds": [0], "train_tlm": {"rho1": 19}}\'. '
            "A task in the --config files keeps their options, except its seeds."
        )
    )
    arms: list[str] = option(
        help=(
            "task only, random, BM25, 'BM25 + ISS 20%%', "
            "'DSIR 20%%', 'BM25 20%%' (the best ranked), 'random 20%%' (of BM25's), "
            "pretrained, 'majority class', linear; or JSON: "
            '\'{"name": "rho1 = 3", "subset": "BM25", "train_tlm": {"rho1": 3}}\' ("tokenizer": "own": one trained '
            "on its task and subset). Arms of --config files by name."
        ),
        factory=lambda: ["task only", "random", "BM25", "BM25 + ISS 20%"],
    )
    objectives: list[str] = option(
        help=(
            "Objectives; every arm from scratch is trained with each of them: mlm, electra, cocolm; or JSON with "
            'options of train_tlm.py: \'{"objective": "cocolm", "model_config": "..."}\'. Default: train_tlm.py\'s.'
        ),
        factory=list,
    )
    seeds: list[int] = option(help="Seeds, with one run for each.", factory=lambda: [0, 1, 2])
    tasks_dir: str | None = option(None, "Folder of tasks; a task whose name is a folder in it is read from there.")
    pretrained: str | None = option(None, "Encoder of the arm 'pretrained': folder or Hub id. Default: the arm is left out.")
    objective_options: list[str] = option(
        help=(
            "Options of train_tlm.py that override the scale's in the arms of an objective, each as JSON: "
            '\'{"objective": "cocolm", "model_config": "...", "learning_rate": 5e-4}\'.'
        ),
        factory=list,
    )
    tokenizer_name: str | None = option(
        None,
        "Tokenizer of all models from scratch, except in arms with their own. Default: one is trained for each task and "
        "shared by these arms.",
    )
    tokenizer_passages: int = option(
        20_000, "Random passages of the corpus on which the tokenizer is trained, in addition to the task's training texts."
    )
    records_dir: str | None = option(
        None,
        "Folder of the table and of the JSON records of runs, to keep or share without models; analyze.py (tables, cost) "
        "reads it. A run with a record is not repeated, nor on another machine with the same paths of corpus and encoder. "
        "Default: the output_dir.",
    )
    table_name: str = option(
        "results", "Name of the table's files. Tables that share their folders share subsets and finished equal runs."
    )
    max_steps: int | None = option(
        None,
        "max_steps of train_tlm.py for all arms without their own, instead of the --config files'. A budget of another "
        "kind in the files, such as max_flops, also ends stage 1 if it is reached first.",
    )
    max_tokens: float | None = option(None, "max_tokens of train_tlm.py, likewise; max_steps is then 0 by default.")
    max_flops: float | None = option(None, "max_flops of train_tlm.py, likewise; max_steps is then 0 by default.")

    def __post_init__(self):
        check_ranges(self, ReproductionError)

    @property
    def budget(self) -> dict[str, Any]:
        """The budget given on the command line, as options of train_tlm."""
        options = {name: getattr(self, name) for name in ("max_steps", "max_tokens", "max_flops")}
        options = {name: value for name, value in options.items() if value is not None}
        return {"max_steps": 0, **options} if options else {}

    def plan(self, corpus_args: CorpusArguments, output_dir: str, files: Sequence[str]) -> Plan:
        """Return the plan of the table.

        Args:
            files: configuration files with the options of the recipes that run the plan's steps.

        Raises:
            ReproductionError: tasks_dir is not a folder; see `Arm.read`, `TaskEntry.read`, `read_objective` and `make_plan`.
        """
        from hf_tlm.experiments.plan import make_plan

        if self.tasks_dir is not None and not Path(self.tasks_dir).is_dir():
            raise ReproductionError(f"tasks_dir: expected a folder of tasks; {self.tasks_dir} is not a folder.")
        objectives = [read_objective(text) for text in self.objectives]
        arms = [arm for base_arm in self._arms(files) for arm in base_arm.with_objectives(objectives)]
        return make_plan(
            self._tasks(files),
            arms,
            self.seeds,
            output_dir,
            files=files,
            tasks_dir=self.tasks_dir,
            corpus=_select_changed(corpus_args),
            pretrained=self.pretrained,
            objective_options=dict(map(read_objective, self.objective_options)),
            tokenizer_name=self.tokenizer_name,
            tokenizer_passages=self.tokenizer_passages,
            budget=self.budget,
            records_dir=self.records_dir,
            table_name=self.table_name,
        )

    def check_budget(self, files: Sequence[str]) -> None:
        """Check that the length of stage 1 was chosen: a table needs a scale instead of train_tlm.py's default.

        Args:
            files: see `plan`.

        Raises:
            ReproductionError: the length is given neither by the files nor by the command line, nor by an arm that is
                trained from scratch.
        """
        if self.budget or BUDGETS & set(read_configs(files, "train_tlm")):
            return
        for arm in self._arms(files):
            if arm.subset is not None and not BUDGETS & set(arm.settings.get("train_tlm", {})):
                raise ReproductionError(
                    f"The length of stage 1 of the arm {arm.name} is not set: no --config file has one of "
                    f"{', '.join(sorted(BUDGETS))} in its section train_tlm. Add a scale before the table, for instance "
                    "the preset tlm/coffee, or pass --max_flops."
                )

    def _arms(self, files: Sequence[str]) -> list[Arm]:
        """Return the arms; an arm that is defined by name in the files has the files' definition."""
        entries = {str(entry.get("name") or entry.get("subset")): entry for entry in _read_entries(files, "arms")}
        entries_by_name = {name.lower(): entry for name, entry in entries.items()}
        arms = []
        for text in self.arms:
            entry = entries_by_name.get(text.lower())
            try:
                arms.append(Arm.read(text if entry is None else json.dumps(entry)))
            except ReproductionError as error:
                if not entries or entry is not None or text.lstrip().startswith("{"):
                    raise
                names = ", ".join(map(repr, entries))
                raise ReproductionError(f"{error} The --config files define the arms {names}.") from error
        return arms

    def _tasks(self, files: Sequence[str]) -> list[TaskEntry]:
        """Return the tasks, with the files' definitions; a task named on the command line has the table's seeds."""
        entries_by_name = {entry.get("task"): entry for entry in _read_entries(files, "tasks")}
        return [
            TaskEntry.read(json.dumps({**entries_by_name[text], "seeds": None}) if text in entries_by_name else text)
            for text in self.tasks
        ]


def _read_entries(files: Sequence[str], name: str) -> list[dict[str, Any]]:
    """Return the entries of a table's tasks or arms in files that are mappings; other entries are only names."""
    entries = read_configs(files, "reproduce").get(name)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _select_changed(options: Any) -> dict[str, Any]:
    """Return the fields that are not at their defaults."""
    return {
        entry.name: getattr(options, entry.name)
        for entry in fields(options)
        if entry.default is MISSING or getattr(options, entry.name) != entry.default
    }
