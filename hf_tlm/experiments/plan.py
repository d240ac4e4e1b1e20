"""The plan of a table: the tokenizers and subsets that it needs, each once, and one training per seed, task and arm."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from hf_tlm.commands import command_of
from hf_tlm.config import read_configs, written
from hf_tlm.experiments.arms import SECTIONS, Arm, ReproductionError, Settings, TaskEntry, check_arms, slug
from hf_tlm.influence import SelectionArguments
from hf_tlm.influence.checks import BY_TEACHER, without_effect
from hf_tlm.tasks import TaskArguments
from hf_tlm.training.teacher_arguments import NONE

_TABLE_SOURCES = {"task": "--tasks", "output_dir": "--output_dir"}
_ARM_SOURCES = dict.fromkeys(("subset", "method", "fraction"), "an arm's own key `subset`")
_SEED_SOURCES = {"seed": "--seeds", "seeds": "--seeds"}
# Recipe -> option -> what gives the option in a table.
_OPTION_SOURCES = {
    "retrieve": _TABLE_SOURCES,
    "select_influence": _TABLE_SOURCES | _ARM_SOURCES | {"tokenizer_name": "--tokenizer_name"},
    "train_tlm": _TABLE_SOURCES | _SEED_SOURCES | {"subset": _ARM_SOURCES["subset"], "tokenizer_name": "--tokenizer_name"},
    "finetune": _TABLE_SOURCES | _SEED_SOURCES | {"model_name_or_path": "--pretrained, or an arm's own key `pretrained`"},
}
# Options of train_tlm for the tokenizer, which the arms of a task share unless they have their own.
TOKENIZER_OPTIONS = ("vocab_size", "lowercase")
TOKENIZER = "tokenizer"
# The options that describe a task, apart from its name or folder.
TASK_OPTIONS = tuple(entry.name for entry in fields(TaskArguments) if entry.name != "task")
# The kind of a step that averages an arm's seeds; there is no recipe for it.
AVERAGE = "average"
TRAININGS = ("train_tlm", "finetune", "baseline", AVERAGE)
# Options that may differ between two starts: they change output, storage or speed, but not what is computed.
_UNTRACKED_OPTIONS = (
    "report_to disable_tqdm log_level logging_steps save_strategy save_steps save_total_limit dataloader_num_workers "
    "per_device_eval_batch_size index_dir num_threads query_batch_size work_dir score_batch_size"
).split()


def check_options(
    tasks: Sequence[TaskEntry],
    arms: Sequence[Arm],
    files: Sequence[str],
    objective_options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise a ReproductionError for an option that the table sets, one of the shared tokenizer, or one that is not read."""
    for recipe in _OPTION_SOURCES:
        _check_recipe_options(f"Section {recipe} of {', '.join(files)}", recipe, read_configs(files, recipe))
        for entry in tasks:
            _check_recipe_options(f"Task {entry.task}", recipe, entry.settings.get(recipe, {}))
        for arm in arms:
            _check_recipe_options(f"Arm {arm.name}", recipe, arm.settings.get(recipe, {}), shared=arm.tokenizer == "shared")
    for objective, options in objective_options.items():
        _check_recipe_options(f"Objective {objective}", "train_tlm", options, shared=True)
    for arm in arms:
        _check_arm_options(arm)


def _check_arm_options(arm: Arm) -> None:
    """Raise a ReproductionError for an arm's own option that it does not read; files and tasks serve other arms too."""
    method, recipes = arm.subset and arm.subset.method, {"finetune"}
    if arm.subset is not None:
        recipes = {"train_tlm", *(["retrieve"] if arm.subset.retriever else []), *(["select_influence"] if method else [])}
    if unread := [recipe for recipe in arm.settings if recipe not in recipes]:
        raise ReproductionError(
            f"Arm {arm.name}: options of {unread[0]} have no effect, because it only runs {', '.join(sorted(recipes))}. "
            "Remove them."
        )
    if arm.tokenizer == "own" and arm.settings.get("train_tlm", {}).get("model_name_or_path"):
        raise ReproductionError(f"Arm {arm.name}: a checkpoint has its own tokenizer. Remove the key tokenizer.")
    options = arm.settings.get("select_influence", {})
    ignored = without_effect(method, options) if method else []
    if method not in (None, "iss", *BY_TEACHER):  # These methods train no score model.
        known_options = {entry.name for cls in (SelectionArguments, TaskArguments) for entry in fields(cls)} | {"teacher"}
        ignored += [f"{name} {value}" for name, value in options.items() if name not in known_options]
    if ignored:
        raise ReproductionError(f"Arm {arm.name}: without effect with method {method}: {', '.join(ignored)}. Remove it.")


def _check_recipe_options(where: str, recipe: str, options: Mapping[str, Any], shared: bool = False) -> None:
    """Raise a ReproductionError for an option that the table sets, or that belongs to a `shared` tokenizer."""
    for name in options:
        if source := _OPTION_SOURCES[recipe].get(name):
            raise ReproductionError(f"{where}: {recipe}'s {name} is set by the table ({source}). Remove it.")
        if shared and recipe == "train_tlm" and name in TOKENIZER_OPTIONS:
            raise ReproductionError(
                f"{where}: {name} belongs to the tokenizer, which all arms of a task share. Set it for the task, or in "
                "section train_tlm of a --config file, or give the arm the key tokenizer: own."
            )


@dataclass(frozen=True)
class Step:
    """A step of a plan, which writes its own folder.

    kind: the recipe that runs it from a command line, or `tokenizer` or `average`.
    name: task/subsets/bm25, task/arm/seed-0, ...: its folder below the table's.
    task: the task's name or folder, as recipes accept it.
    options: options of the recipe, which override the configuration files.
    inputs: option -> name of the step whose folder is the option's value; several teachers are `teacher <number>`.
    arm, seed: the arm and the seed of a training.
    """

    kind: str
    name: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    arm: Arm | None = None
    seed: int | None = None

    @property
    def task_name(self) -> str:
        return self.name.partition("/")[0]

    @property
    def teachers(self) -> list[str]:
        """Names of the trainings whose model teaches this one; if there are several, the average of their models does."""
        return [name for option, name in self.inputs.items() if option.partition(" ")[0] == "teacher"]


@dataclass(frozen=True)
class Plan:
    """The steps of a table and their folders.

    phases: groups of steps; the steps of a phase need only steps of earlier phases.
    output_dir: folder of the steps' folders.
    files: configuration files, whose sections are the options of the recipes.
    left_out: what is not run, and why.
    records_dir: folder of the steps' JSON records and of the table; None for `output_dir`.
    table_name: name of the table's files in that folder; several tables may share both folders.
    """

    phases: tuple[tuple[Step, ...], ...]
    output_dir: Path
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    records_dir: Path | None = None
    table_name: str = "results"

    @property
    def preparations(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind not in TRAININGS)

    @property
    def trainings(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind in TRAININGS)

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for phase in self.phases for step in phase)

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        return {step.name: step for step in self.steps}

    @property
    def records(self) -> Path:
        return self.records_dir or self.output_dir

    @property
    def records_option(self) -> str:
        return "--output_dir" if self.records_dir is None else "--records_dir"

    def folder(self, step: Step) -> Path:
        return self.output_dir / step.name

    def record_file(self, step: Step) -> Path:
        """Return the path of the step's JSON record, the last file that a step writes."""
        kind = "runs" if step.kind in TRAININGS else "preparations"
        return self.records / kind / f"{step.name.replace('/', '.')}.json"

    def values(self, step: Step) -> dict[str, Any]:
        """Return all options of the step's recipe that the plan sets, in addition to the configuration files."""
        inputs: dict[str, Any] = {
            option: str(self.output_dir / name) for option, name in step.inputs.items() if name not in step.teachers
        }
        if teachers := [str(self.output_dir / name) for name in step.teachers]:
            inputs["teacher"] = teachers if len(teachers) > 1 else teachers[0]
        return {"task": step.task, **inputs, **step.options}

    def command(self, step: Step) -> str | None:
        """Return the command that runs this step alone; None for a tokenizer or an average, which have no recipe."""
        if step.kind in (TOKENIZER, AVERAGE):
            return None
        arguments = ["hf-tlm", str(command_of(step.kind)), *(["--config", *self.files] if self.files else [])]
        values = self.values(step)
        if step.kind == "retrieve" and "passage_words" not in {**read_configs(self.files, step.kind), **values}:
            values["passage_words"] = 0  # The value in tables, which differs from the recipe's default.
        for name, value in {**values, "output_dir": str(self.folder(step))}.items():
            arguments += [f"--{name}", *map(written, value if isinstance(value, list) else [value])]
        return shlex.join(arguments)

    def settings(self, step: Step) -> dict[str, Any]:
        """Return the settings that identify a finished step: options of the files and of the plan, as JSON values.

        A null stands for the option's default, as if it were not given, and is left out.
        """
        merged = {**read_configs(self.files, step.kind), **step.options, **step.inputs}
        tracked = {name: value for name, value in merged.items() if name not in _UNTRACKED_OPTIONS and value is not None}
        return json.loads(json.dumps(tracked, default=str))

    def fingerprint(self, step: Step) -> str:
        """Return a digest of the step's recipe, task name and settings, and of the fingerprints of its inputs.

        Runs of two tables with equal fingerprints are the same run, whatever their arms are called. Files in settings count
        by their paths only; `check` compares the data of tasks.
        """
        return self._fingerprints[step.name]

    @cached_property
    def _fingerprints(self) -> Mapping[str, str]:
        """The fingerprints of all steps by name; cached, because computing them reads the configuration files."""
        fingerprints: dict[str, str] = {}
        for step in self.steps:  # The inputs of a step belong to earlier phases.
            settings = self.settings(step) | {option: fingerprints[name] for option, name in step.inputs.items()}
            content = {"kind": step.kind, "task": step.task_name, "settings": settings}
            fingerprints[step.name] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        return fingerprints


def make_plan(
    tasks: Sequence[TaskEntry],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    output_dir: str | Path,
    *,
    files: Sequence[str] = (),
    tasks_dir: str | None = None,
    corpus: Mapping[str, Any] | None = None,
    pretrained: str | None = None,
    objective_options: Mapping[str, Mapping[str, Any]] | None = None,
    tokenizer_name: str | None = None,
    tokenizer_passages: int = 20_000,
    budget: Mapping[str, Any] | None = None,
    records_dir: str | Path | None = None,
    table_name: str = "results",
) -> Plan:
    """Return the plan of a table, without reading data, except for the folder names in `tasks_dir`.

    A step that several arms need appears once. Trainings are ordered by seed, so that every arm has its first seed before
    any arm has its second.

    Args:
        tasks_dir: folder of tasks; a task whose name is a folder in it is read from there.
        corpus: options of `CorpusArguments`.
        objective_options: objective -> options of train_tlm for the arms with this objective: a body, a learning rate.
        pretrained: checkpoint of the arms that fine-tune an encoder and do not name one; None leaves these arms out.
        tokenizer_name: tokenizer of every model that is trained from scratch, except in arms with their own. None: for each
            task one is trained on its training texts and `tokenizer_passages` random passages of the corpus, so that arms
            differ only in what their names say.
        budget: options of train_tlm for all arms.
        records_dir, table_name: see `Plan`.

    Raises:
        ReproductionError: there is no task, arm or seed, one is given twice, no arm is left, or the table's name is not
            valid; or see `check_arms` and `check_options`.
    """
    if not table_name or slug(table_name).replace("-", "_") != table_name:
        raise ReproductionError(f"A table's name may have lower-case letters, digits and `_`; received {table_name!r}.")
    if not (tasks and arms and seeds):
        raise ReproductionError(f"A table needs tasks, arms and seeds; received {len(tasks)}, {len(arms)} and {len(seeds)}.")
    arms, left_out = (arms, []) if pretrained is not None else _drop_arms_without_encoder(arms)
    _check_distinct("arm", [slug(arm.name) for arm in arms])
    by_name = check_arms(arms)
    table_tasks = [_Task(entry, tasks_dir, seeds) for entry in tasks]
    _check_distinct("task", [task.name for task in table_tasks])
    for task in table_tasks:
        _check_distinct("seed", task.seeds)
    check_options(tasks, arms, files, objective_options or {})
    shared = (arm.subset and (arm.tokenizer == "shared" or arm.subset.method == "iss") for arm in arms)
    if tokenizer_name is not None and not any(shared):
        raise ReproductionError("--tokenizer_name has no effect, because no arm uses a shared tokenizer. Remove it.")
    steps = _Steps(
        by_name,
        pretrained,
        dict(corpus or {}),
        tokenizer_name,
        tokenizer_passages,
        dict(budget or {}),
        objective_options or {},
        *(read_configs(files, recipe) for recipe in ("select_influence", "train_tlm")),
    )
    trainings = steps.trainings(table_tasks, arms)
    averages, skipped_averages = steps.averages(table_tasks, arms)
    teacher_names = {teacher for step in trainings for teacher in step.teachers}
    training_phases = ([step for step in trainings if (step.name in teacher_names) is teaches] for teaches in (True, False))
    phases = tuple(tuple(phase) for phase in (*steps.phases, *training_phases, averages) if phase)
    records = None if records_dir is None else Path(records_dir)
    return Plan(phases, Path(output_dir), tuple(files), (*left_out, *skipped_averages), records, table_name)


def _drop_arms_without_encoder(arms: Sequence[Arm]) -> tuple[list[Arm], list[str]]:
    """Remove the arms that need the table's encoder, which is not given; return the others, and why arms are left out."""
    missing = [arm.name for arm in arms if arm.pretrained == ""]
    for kind in ("average", "teacher", "average"):  # An average may teach, and pupils may be averaged.
        missing += [arm.name for arm in arms if arm.name not in missing and getattr(arm, kind) in missing]
    remaining = [arm for arm in arms if arm.name not in missing]
    if not remaining:
        raise ReproductionError(
            f"{', '.join(missing)}: no pretrained encoder was given. Pass --pretrained, or choose other arms."
        )
    return remaining, [f"{name}: no pretrained encoder was given (--pretrained)" for name in missing]


class _Task:
    """A task of the table. name: used in folder names. path: the name or folder that recipes accept.

    seeds: the table's seeds, for a task without its own.
    """

    def __init__(self, entry: TaskEntry, tasks_dir: str | None, seeds: Sequence[int]):
        local = Path(tasks_dir or "", entry.task)
        self.path = str(local) if tasks_dir is not None and local.is_dir() else entry.task
        # The entry is the name of a registered task, a folder, or a Hub id with a revision.
        self.name = slug(Path(entry.task.partition("@")[0]).name).replace("-", "_")
        self.seeds = entry.seeds or seeds
        self.settings: Settings = dict.fromkeys(SECTIONS, {}) | dict(entry.settings)

    def training_name(self, arm: str, seed: int) -> str:
        """Return the name of an arm's training."""
        return f"{self.name}/{slug(arm)}/seed-{seed}"


@dataclass
class _Steps:
    """A builder of the steps of a table's arms, which adds shared steps when they are first needed.

    budget, objective_options: options of train_tlm that tasks and arms may override.
    select_influence, train_tlm: the sections of the configuration files.
    """

    arms: Mapping[str, Arm]
    pretrained: str | None
    corpus: dict[str, Any]
    tokenizer_name: str | None
    tokenizer_passages: int
    budget: dict[str, Any]
    objective_options: Mapping[str, Mapping[str, Any]]
    select_influence: Mapping[str, Any]
    train_tlm: Mapping[str, Any]
    shared: dict[str, Step] = field(default_factory=dict)

    @property
    def phases(self) -> list[list[Step]]:
        """Three phases: tokenizers; retrieved subsets; subsets that are drawn or selected in comparison with those."""
        phases: list[list[Step]] = [[], [], []]
        for step in self.shared.values():
            phases[0 if step.kind == TOKENIZER else 2 if {"like", "subset"} & set(step.inputs) else 1].append(step)
        return phases

    def trainings(self, tasks: Sequence[_Task], arms: Sequence[Arm]) -> list[Step]:
        """Return the trainings of all tasks and arms, ordered by the position of their seed."""
        return [
            self.training(task, arm, task.seeds[seed_index])
            for seed_index in range(max(len(task.seeds) for task in tasks))
            for task in tasks
            for arm in arms
            # A baseline is deterministic and needs one seed.
            if seed_index < len(task.seeds) and arm.average is None and (arm.baseline is None or seed_index == 0)
        ]

    def training(self, task: _Task, arm: Arm, seed: int) -> Step:
        """Return the training of one seed."""
        folder = task.training_name(arm.name, seed)
        if arm.baseline is not None:
            return Step("baseline", folder, task.path, {**self._data_options(task), "baseline": arm.baseline}, {}, arm, seed)
        if arm.subset is None:
            options = {**task.settings["finetune"], **arm.settings.get("finetune", {})}
            options |= {"model_name_or_path": arm.pretrained or self.pretrained, "seed": seed}
            return Step("finetune", folder, task.path, options, {}, arm, seed)
        tokenizer = ({}, {}) if arm.tokenizer == "own" else self._tokenizer(task)
        options = dict(task.settings["train_tlm"])
        if arm.subset.retriever is None:
            options["rho1"] = 0
        if arm.objective is not None:
            options["objective"] = arm.objective
        options |= {**arm.settings.get("train_tlm", {}), "seed": seed}
        objective = {**self.train_tlm, **options}.get("objective", "mlm")
        options = {**tokenizer[0], **self.budget, **self.objective_options.get(objective, {}), **options}
        subset = self._add_subset(task, arm)
        inputs = {**tokenizer[1], **({} if subset is None else {"subset": subset}), **self._teacher_inputs(task, arm, seed)}
        return Step("train_tlm", folder, task.path, options, inputs, arm, seed)

    def averages(self, tasks: Sequence[_Task], arms: Sequence[Arm]) -> tuple[list[Step], list[str]]:
        """Return the averages of all tasks and arms, each named by its first seed; and what is left out, and why."""
        averages, left_out = [], []
        for task, arm in product(tasks, [arm for arm in arms if arm.average is not None]):
            if len(task.seeds) == 1:
                left_out.append(f"{arm.name}, {task.name}: an average is of several seeds, and there is one")
                continue
            members = {f"seed_{seed}": task.training_name(str(arm.average), seed) for seed in task.seeds}
            first = task.seeds[0]
            averages.append(
                Step(AVERAGE, task.training_name(arm.name, first), task.path, self._data_options(task), members, arm, first)
            )
        return averages, left_out

    def _data_options(self, task: _Task) -> dict[str, Any]:
        """Return the options of a task that describe its data; the files' section train_tlm may give them too."""
        options = {**self.train_tlm, **task.settings["train_tlm"]}
        return {name: options[name] for name in TASK_OPTIONS if name in options}

    def _teacher_inputs(self, task: _Task, arm: Arm, seed: int) -> dict[str, str]:
        """Return a pupil's teacher inputs: the training of the same seed, or all trainings that an average teacher has."""
        if arm.teacher is None:
            return {}
        teacher = self.arms[arm.teacher]
        if teacher.average is None or len(task.seeds) == 1:
            return {"teacher": task.training_name(teacher.average or teacher.name, seed)}
        return {f"teacher {index}": task.training_name(teacher.average, other) for index, other in enumerate(task.seeds)}

    def _tokenizer(self, task: _Task) -> tuple[dict[str, str], dict[str, str]]:
        """Return the tokenizer of a task, as options and inputs of a step: one of the two is empty."""
        if self.tokenizer_name is not None:
            return {"tokenizer_name": self.tokenizer_name}, {}
        passages = self.tokenizer_passages if self.corpus.get("corpus") else 0
        merged = {**self.train_tlm, **task.settings["train_tlm"]}
        data_options = [option for option in TASK_OPTIONS if option != "metric"]
        options = {name: merged[name] for name in (*TOKENIZER_OPTIONS, "max_length", *data_options) if name in merged}
        step = Step(TOKENIZER, f"{task.name}/tokenizer", task.path, {"passages": passages, **options, **self.corpus})
        return {}, {"tokenizer_name": self._add_step(step)}

    def _add_subset(self, task: _Task, arm: Arm) -> str | None:
        """Return the name of the step of an arm's subset; None for task data only."""
        selection = arm.subset
        assert selection is not None
        if selection.retriever is None:
            return None
        if not self.corpus.get("corpus"):
            raise ReproductionError(f"Arm {arm.name} needs a corpus: pass --corpus.")
        overrides, folder = dict(arm.settings.get("retrieve", {})), f"{task.name}/subsets"
        seed_option = {"seed": overrides.pop("seed")} if "seed" in overrides else {}
        options = {**self.corpus, **task.settings["retrieve"], **overrides}
        bm25 = self._add_step(Step("retrieve", f"{folder}/bm25{_suffix(overrides)}", task.path, options))
        if selection.retriever == "random":
            random_options = {**options, **seed_option, "retriever": "random"}
            return self._add_step(
                Step(
                    "retrieve",
                    f"{folder}/random{_suffix(overrides | seed_option)}",
                    task.path,
                    random_options,
                    {"like": bm25},
                )
            )
        if selection.method is None:
            return bm25
        assert selection.fraction is not None
        settings = arm.settings.get("select_influence", {})
        options, inputs = {"method": selection.method, "fraction": selection.fraction}, {"subset": bm25}
        if selection.method == "iss":
            tokenizer_options, tokenizer_inputs = self._tokenizer(task)
            options, inputs = options | tokenizer_options, inputs | tokenizer_inputs
        options |= {**task.settings["select_influence"], **settings}
        if selection.method in BY_TEACHER:
            _check_teacher(arm.name, selection.method, {**self.select_influence, **options}.get("teacher"))
        name = f"{folder}/{selection.method}-{100 * selection.fraction:g}{_suffix({**overrides, **settings})}"
        return self._add_step(Step("select_influence", name, task.path, options, inputs))

    def _add_step(self, step: Step) -> str:
        if self.shared.setdefault(step.name, step) != step:
            raise ReproductionError(
                f"Two arms would write different subsets to {step.name}. Choose shorter values for their options."
            )
        return step.name


def _check_teacher(arm: str, method: str, teacher_option: Any) -> None:
    """Raise a ReproductionError if the teachers in a selection's options cannot select by this method of `BY_TEACHER`."""
    teachers = teacher_option if isinstance(teacher_option, list) and teacher_option else [teacher_option or NONE]
    if teachers == [NONE] or (method == "disagreement" and len(teachers) < 2):
        needs, example = ("a teacher", "linear") if method == "confidence" else ("at least two teachers", "[runs/a, runs/b]")
        raise ReproductionError(
            f"Arm {arm} selects by {method}, which needs {needs}; received {' '.join(map(str, teachers)):.60}. Set "
            f"the teacher in the arm's options: select_influence: {{teacher: {example}}}."
        )


def _suffix(options: Mapping[str, Any]) -> str:
    """Return the part of a subset's folder name that gives its own options: `-top_k=50`."""
    return "".join(f"-{name}=" + re.sub(r"[^A-Za-z0-9.-]+", "_", str(value)) for name, value in options.items())


def _check_distinct(kind: str, names: Sequence[Any]) -> None:
    duplicates = [name for name in names if list(names).count(name) > 1]
    if duplicates:
        raise ReproductionError(f"The {kind} {duplicates[0]} is given twice. A table can have every {kind} only once.")
