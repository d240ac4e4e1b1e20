"""Read the folder of a run of any recipe: its record, settings, and the task and the subset that its command names.

The command may come from somebody else: what it names is never requested over a network, and if the run is from the Hub it
is not even looked up on this machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.arguments import AnalyzedTask
from hf_tlm.analysis.runs import baseline_seed, check_record, check_seed, is_baseline, read_json
from hf_tlm.commands import COMMANDS, find_preset
from hf_tlm.config import config_files, read_configs, typed_values
from hf_tlm.errors import AnalysisError, HfTlmError
from hf_tlm.hub.repo import is_fetched, is_foreign
from hf_tlm.runs.arguments import LINEAR
from hf_tlm.tasks import TASKS
from hf_tlm.training.run_folder import places_of
from hf_tlm.utils.run_files import GRID_FILE, MANIFEST_FILE, RESULTS_FILE, SEED, SETTINGS_FILE
from hf_tlm.utils.shown import kind_of

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

# Suffixes of the files that a page is made from.
_RECORD_SUFFIXES = (".json", ".jsonl", ".parquet")
BASELINE = "baseline"
TITLES = {
    "tlm": "TLM",
    "finetune": "Fine-tuning",
    "grid": "Fine-tuning, chosen from a grid",
    "few_shot": "Few-shot learning",
    "pretrain": "Pretraining",
    "subset": "Subset of a corpus",
    BASELINE: "Baseline without a neural network",
}
# Settings that every run sets or derives by itself, which do not reflect what was asked for.
_DERIVED_SETTINGS = frozenset(
    "accelerator_config activation_checkpointing ddp_find_unused_parameters debug do_eval gradient_checkpointing "
    "hub_strategy label_names remove_unused_columns texts_per_step".split()
)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, as read by `read_run`.

    kind: one of `TITLES`.
    record: `results.json`; for an unfinished run, `settings.json`; for a subset, its manifest.
    seeds: records of the finished seeds; for few-shot learning, of the splits.
    home: the parent of the seeds' folders: for a grid the chosen point, for several rounds the best one.
    missing: sentences about what is missing.
    apart: whether every seed is a run of its own in a folder of that seed, as `reproduce.py` writes the runs of an arm.
    """

    name: str
    path: Path
    kind: str
    record: Mapping[str, Any]
    seeds: list[dict[str, Any]] = field(default_factory=list)
    home: Path = field(default_factory=Path)
    missing: list[str] = field(default_factory=list)
    apart: bool = False

    @property
    def metric(self) -> str | None:
        return self.record.get("metric")

    @property
    def task_kind(self) -> str:
        return self.record.get("kind", "classification")

    @property
    def part(self) -> str:
        """What the run has several models for: "seed", or "split" for few-shot learning."""
        return "split" if self.kind == "few_shot" else "seed"

    def seed_folder(self, seed: int) -> Path:
        if self.kind == BASELINE:
            return self.path
        folder = self.home / f"{self.part}-{seed}"
        return folder / folder.name if self.apart else folder

    @property
    def started_seeds(self) -> list[int]:
        """Seeds that have a folder, finished or not, sorted."""
        names = os.listdir(self.home) if self.home.is_dir() else []
        matches = (re.fullmatch(r"(?:seed|split)-(\d+)", name) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    @property
    def best_seed(self) -> int | None:
        """The seed that is best on validation, whose model the run has published; None if no seed is finished."""
        if not self.seeds:
            return None
        scores = [(record.get("validation") or {}).get(self.metric) for record in self.seeds]
        values = [float("-inf") if score is None or math.isnan(score) else score for score in scores]
        return self.seeds[values.index(max(values))]["seed"]


def read_run(path: str | os.PathLike, name: str | None = None) -> RunFolder:
    """Read the folder of a run, of an arm's runs as written by `reproduce.py`, or of a subset.

    Raises:
        AnalysisError: it is none of these, or one of its files is damaged; the message names the file.
    """
    if not isinstance(path, (str, os.PathLike)):
        hint = " Pass run.output_dir." if hasattr(path, "output_dir") else ""
        raise AnalysisError(f"path: expected the folder of a run; received {kind_of(path)}.{hint}")
    path = Path(path)
    check_links(path)
    name = name or path.resolve().name
    candidates = [path / file for file in (RESULTS_FILE, SETTINGS_FILE, MANIFEST_FILE, GRID_FILE)]
    files = {candidate.name: read_json(candidate) for candidate in candidates if candidate.is_file()}
    for file in (RESULTS_FILE, SETTINGS_FILE, MANIFEST_FILE):
        check_record(files.get(file, {}), path / file)
    if not {RESULTS_FILE, SETTINGS_FILE} & set(files):
        return _read_other_folder(path, name, files.get(MANIFEST_FILE))
    if is_baseline(record := files.get(RESULTS_FILE, {})):
        check_seed(seed := baseline_seed(record), path / RESULTS_FILE)
        return RunFolder(name, path, BASELINE, record, [seed], home=path)
    record = record or files[SETTINGS_FILE]
    missing = [] if RESULTS_FILE in files else [f"The run is not finished: there is no {RESULTS_FILE} yet."]
    home = path
    if GRID_FILE in files and isinstance(chosen := files[GRID_FILE].get("chosen"), dict):
        home = path / str(chosen.get("folder", ""))
        if not home.resolve().is_relative_to(path.resolve()):
            raise AnalysisError(
                f"{path / GRID_FILE}: the chosen point lies outside of the run's folder. The file is damaged."
            )
        record = {**record, "grid": files[GRID_FILE]}
    if type(round_number := record.get("round")) is int:
        home = path / f"round-{round_number}"
    run = RunFolder(name, path, _kind(record), record, home=home, missing=missing)
    run.seeds.extend(_finished_seeds(run, RESULTS_FILE in files))
    if run.kind != "pretrain" and (unfinished := sorted(set(run.started_seeds) - {seed["seed"] for seed in run.seeds})):
        missing.append(f"Not finished: seed {', '.join(map(str, unfinished))}.")
    return run


def _read_other_folder(path: Path, name: str, manifest: dict[str, Any] | None) -> RunFolder:
    """Read a folder without a record of its own: a subset, an arm's runs, or the output of `hf-tlm baseline`."""
    if manifest is not None:
        return RunFolder(name, path, "subset", manifest, home=path)
    if folders := sorted(folder for folder in path.glob(f"{SEED}*") if _is_seed_run(folder)):
        return _combine_arm(name, path, [read_run(folder) for folder in folders])
    if (path / LINEAR / RESULTS_FILE).is_file():  # The same baseline that prediction uses.
        return read_run(path / LINEAR, name)
    raise AnalysisError(
        f"{path} contains no run: expected {RESULTS_FILE} or {SETTINGS_FILE}, as written by `hf-tlm train`, finetune, "
        f"few-shot, pretrain and baseline, or a subset's {MANIFEST_FILE}."
    )


def check_links(folder: Path) -> None:
    """Check that no record or prediction file links to a target outside the folder, which a page must not show.

    Raises:
        AnalysisError: there is such a link.
    """
    # Files in the Hub's cache are links into the `blobs` of their repository.
    home = folder.resolve()
    roots = [home, home.parents[1] / "blobs"] if is_fetched(home) and len(home.parents) > 1 else [home]
    for path in folder.rglob("*"):
        if path.is_symlink() and not any(path.resolve().is_relative_to(root) for root in roots):
            if path.is_dir() or path.suffix in _RECORD_SUFFIXES:
                raise AnalysisError(
                    f"{path} is a link out of the run's folder, which a report does not follow. Replace the link with a "
                    "copy of its target, or remove it."
                )


def _is_seed_run(folder: Path) -> bool:
    """Return whether the folder of a seed is a run of its own, finished or not, and not a part of a run."""
    match = re.fullmatch(rf"{SEED}\d+", folder.name)
    return match is not None and ((folder / SETTINGS_FILE).is_file() or (folder / folder.name).is_dir())


def _combine_arm(name: str, path: Path, runs: Sequence[RunFolder]) -> RunFolder:
    """Combine runs of one seed each into one, with the record of the first finished run.

    Raises:
        AnalysisError: the runs differ in more than the seed, or a folder has another seed than its name says.
    """
    finished = [run for run in runs if run.seeds] or runs
    missing = [f"{run.path.name}: {sentence}" for run in runs for sentence in run.missing]
    for run in finished:
        if any(seed["seed"] != int(run.path.name.removeprefix(SEED)) for seed in run.seeds):
            raise AnalysisError(
                f"{run.path} has runs of other seeds than its name says. Set --run to the folder of one run."
            )
        for section in ("task_fingerprint", "metric", "subset", "model", "arguments"):
            values = [member.record.get(section) for member in (finished[0], run)]
            first, other = ({**(value if isinstance(value, Mapping) else {"": value}), "seeds": None} for value in values)
            if changed := [f"{section} {key}".strip() for key in {**first, **other} if first.get(key) != other.get(key)]:
                raise AnalysisError(
                    f"{finished[0].path} and {run.path} are not runs of one arm: their {changed[0]} differs. Set --run to "
                    "the folder of one run."
                )
    seeds = sorted((seed for run in runs for seed in run.seeds), key=lambda seed: seed["seed"])
    record = dict(finished[0].record)
    if len(seeds) > 1:  # These scores are of one seed.
        record |= {"averaged": None, "with_linear": None, "averaged_with_linear": None}
        record["baselines"] = [{**one, "lead": None} for one in record.get("baselines") or () if isinstance(one, Mapping)]
    return RunFolder(name, path, finished[0].kind, record, seeds, path, missing, apart=True)


def _kind(record: Mapping[str, Any]) -> str:
    if "grid" in record:
        return "grid"
    if "corpus_fingerprint" in record:
        return "pretrain"
    if "method" in record and "k" in record:
        return "few_shot"
    return "tlm" if "subset" in record else "finetune"


def _finished_seeds(run: RunFolder, finished: bool) -> list[dict[str, Any]]:
    """Return the records of the finished seeds: from the run's own record if it is finished, else from their folders.

    Raises:
        AnalysisError: a record is damaged.
    """
    key, results = f"{run.part}s", run.path / RESULTS_FILE
    if finished:
        records = run.record.get(key) or []
    else:
        files = [(seed, run.seed_folder(seed) / RESULTS_FILE) for seed in run.started_seeds]
        records = [{"seed": seed, **read_json(path)} for seed, path in files if path.is_file()]
    for seed in records:
        check_seed(seed, results if finished else run.seed_folder(seed["seed"]) / RESULTS_FILE)
    return records


@dataclass(frozen=True)
class Setting:
    name: str
    value: str
    default: str | None
    differs: bool


def settings_of(run: RunFolder) -> list[Setting]:
    """Return all recorded settings of a run, in their order."""
    defaults = _defaults(run)
    settings = []
    for section in ("arguments", "model", "blocks", "settings"):  # "settings" is that of baselines.
        values = run.record.get(section)
        for name, value in (values if isinstance(values, Mapping) else {}).items():
            has_default = name in defaults
            differs = name not in _DERIVED_SETTINGS and (not has_default or defaults[name] != value)
            settings.append(
                Setting(name, _format_value(value), _format_value(defaults[name]) if has_default else None, differs)
            )
    return settings


def _defaults(run: RunFolder) -> dict[str, Any]:
    """Return the defaults of the recipe's arguments as JSON values; fields without a default are left out."""
    from hf_tlm.data import BlockArguments
    from hf_tlm.runs import CheckpointArguments, FewShotArguments, FinetuneArguments
    from hf_tlm.runs.few_shot.arguments import defaults_of
    from hf_tlm.training import ModelArguments, PretrainArguments, TlmArguments
    from hf_tlm.training.run_folder import recorded_teacher

    classes = {
        "tlm": (TlmArguments, ModelArguments),
        "pretrain": (PretrainArguments, ModelArguments, BlockArguments),
        "finetune": (FinetuneArguments, CheckpointArguments),
        "grid": (FinetuneArguments, CheckpointArguments),
        "few_shot": (FewShotArguments, CheckpointArguments),
    }.get(run.kind, ())
    pairs = (default for cls in classes for default in defaults_of(cls).items())
    values = {name: value for name, value in pairs if value is not dataclasses.MISSING}
    if ModelArguments in classes:
        # Some defaults depend on the objective.
        objective = (run.record.get("arguments") or {}).get("objective", "mlm")
        values |= vars(ModelArguments().with_objective_defaults(objective))
    if "teacher" in values:
        values["teacher"] = recorded_teacher(values["teacher"])
    # In the form of the record, with an enumeration as its value.
    return json.loads(json.dumps(values, default=str))


def _format_value(value: Any) -> str:
    if isinstance(value, float):  # Without .0: the command line reads rho1 3 as 3.0, and a program may set 3.
        return f"{value:.15g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def recorded_task(run: RunFolder) -> Task | None:
    """Return the task named in the recorded command, if its data are those of the run; None otherwise."""
    try:
        return _recorded_task(run)[0]
    except AnalysisError:
        return None


def task_of_run(folder: str | os.PathLike) -> tuple[Task, str]:
    """Return the task that a run was trained on, checked to have the same data, and the path or name it was loaded from.

    Args:
        folder: the folder of a run on this machine, or a folder inside it, such as `mlm` or `seed-0/model`.

    Raises:
        AnalysisError: it is not a run, or its task is not recorded, no longer found, or has other data now.
    """
    path = Path(folder).resolve()
    home = next((candidate for candidate in (path, *path.parents[:4]) if (candidate / SETTINGS_FILE).is_file()), None)
    if home is None:
        raise AnalysisError(f"{folder} is not the folder of a run, which records its task.")
    return _recorded_task(read_run(home))


def _recorded_task(run: RunFolder) -> tuple[Task, str]:
    """Return the task of a run that has been read; see `task_of_run`."""
    if is_foreign(run.path):
        raise AnalysisError(
            f"{run.name} is from the Hub: the data that its command names are not searched for on this machine."
        )
    values = _recorded_options(run)
    task_name = str(values.get("task") or "")
    if not task_name:
        raise AnalysisError(f"The recorded command of {run.name} names no task.")
    paths = [task_name] if task_name in TASKS else _existing_paths(run, task_name)
    arguments = {name: [values[name]] for name in AnalyzedTask.__dataclass_fields__ if name in values}
    problem = f"{task_name}, the task of {run.name}, is not a file or folder on this machine."
    for path in paths:
        try:
            parsed = {name: value for name, (value,) in typed_values(AnalyzedTask, arguments, run.name).items()}
            task = AnalyzedTask(**parsed | {"task": path}).load()
        except (ValueError, TypeError, OSError) as error:  # No data there, or no network.
            problem = f"{task_name}, the task of {run.name}, cannot be loaded: {' '.join(str(error).split())}"
            continue
        if task.fingerprint == run.record.get("task_fingerprint"):
            return task, path
        problem = f"The data of {task_name} have changed since {run.name} was trained."
    raise AnalysisError(problem)


def _existing_paths(run: RunFolder, name: str) -> list[str]:
    """Return the existing paths for a recorded name, relative to the working directory or to a parent of the run."""
    paths = [os.path.join(base, name) for base in ("", *map(str, run.path.resolve().parents))]
    return [path for path in paths if not path.startswith(("//", "\\\\")) and os.path.exists(path)]


def recorded_subset(run: RunFolder) -> Subset | None:
    """Return the subset named in the recorded command, if its manifest is the recorded one; None otherwise."""
    from hf_tlm.retrieval import Subset

    path, manifest = _recorded_options(run).get("subset"), run.record.get("subset")
    if not path or not manifest:
        return None
    for folder in _existing_paths(run, str(path)):
        try:
            subset = Subset.load(folder)
        except (ValueError, OSError):
            continue
        if subset.manifest == manifest:
            return subset
    return None


def _recorded_options(run: RunFolder) -> dict[str, Any]:
    """Parse the options of the recorded command and its YAML files: name -> a string, a list of them, or True."""
    command = None if is_foreign(run.path) else run.record.get("command")
    try:
        recipe, *arguments = shlex.split(command) if isinstance(command, str) else [""]
        if recipe == "hf-tlm":  # The recorded command may be an hf-tlm command, which stands for a recipe.
            recipe, *arguments = arguments
            recipe, _ = COMMANDS.get(recipe, ("", ""))
    except ValueError:
        return {}
    paths = places_of(run.path)
    arguments = [paths.get(argument, argument) for argument in arguments]
    values: dict[str, Any] = {}
    try:
        files = config_files(arguments)
        values |= (
            read_configs(files, recipe.removesuffix(".py")) if all(find_preset(file).is_file() for file in files) else {}
        )
    except (ValueError, OSError, HfTlmError, argparse.ArgumentError, SystemExit):
        pass  # The files are not on this machine; the options of the command itself still count.
    name = None
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            name = name.replace("-", "_")
            values[name] = value if equals else True
        elif name is not None:
            previous = values[name]
            values[name] = (
                argument if previous is True else [*(previous if isinstance(previous, list) else [previous]), argument]
            )
    return values
