"""Work through a plan, with any number of processes, keep its table up to date, and measure its models in 8 bits."""

from __future__ import annotations

import gc
import json
import logging
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import hf_tlm
from hf_tlm.errors import HfTlmError
from hf_tlm.experiments.arms import ReproductionError
from hf_tlm.experiments.plan import AVERAGE, TOKENIZER, TRAININGS, Plan, Step
from hf_tlm.experiments.steps import (
    damage,
    discard_checkpoints,
    make_step,
    model_folder,
    parse_step,
    parse_task,
    read_record,
    tokenise,
)
from hf_tlm.experiments.table import Table
from hf_tlm.models.onnx_graph import check_installed
from hf_tlm.runs.export.export import export_onnx
from hf_tlm.runs.price import megabytes
from hf_tlm.runs.records import command_line, environment
from hf_tlm.runs.sharing import PointsError, run_shared
from hf_tlm.tasks import Task
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.run_files import ONNX_FILES
from hf_tlm.utils.shown import shown_argument

logger = logging.getLogger(__name__)

FINISHED, FAILED = "finished", "failed"
# What only the first process of a job does; the others go on to the next step, where they wait for it.
_ALONE = (TOKENIZER, "retrieve", AVERAGE)
INT8 = "int8"  # Of a record: what `int8_price` gives, and the processor.
_MEASURED = ("score", "drop", "milliseconds", "texts_per_second", "memory_megabytes")


def reproduce(plan: Plan, *, prepare_only: bool = False, keep_checkpoints: bool = False, export_int8: bool = False) -> Table:
    """Make everything that is not finished, and the table of all of it.

    Every step leaves a JSON record in `runs/` or `preparations/` of the plan's records, and the table, `<table_name>.md` and
    `.json`, is written anew after each. A run that has a record is not repeated, wherever its folder is now, and that of an
    equal run, of another table for instance, is taken over; what was interrupted continues, and other processes that are
    given the same plan take their share (see `run_shared`). A step begins as soon as those that it is made from have ended,
    whatever else is left. Of tokenizers and subsets those are made that a run still needs, again where they are damaged. A
    step that fails is named in the table, as are those that needed it, and the others go on; the next start tries it again.

    Args:
        prepare_only: stop after tokenizers and subsets, and when the data of every model from scratch are tokenised in the
            cache of `datasets`: a machine whose time is dear, and that sees the same folders and cache, only trains.
            Subsets by influence or a teacher, in half precision that takes a GPU, are left to it where none is here.
        keep_checkpoints: of finished runs, and models between stages; by default only their models and results are kept.
        export_int8: at the end, measure what every finished model costs and loses in 8 bits (see `int8_price`), of runs that
            were finished before too, while their models are there. One that cannot be exported is said in a line.

    Raises:
        HfTlmError: before anything is begun, an option that a recipe lacks or refuses, a task that there is not or that TLM
            has no use for, records of steps that were made with other settings, of other inputs or on other data, or
            something else where the table goes; or see `check_exports`; with `prepare_only`, at the end, steps that failed;
            without it, those that failed and of which a full disk has kept no record.
    """
    if export_int8:
        check_exports(plan, prepare_only)
    check(plan, prepare_only)
    _check_table_file(plan)
    write_table(plan)  # A folder of records that cannot be written is refused before there is work to lose.
    _tell_of_missing_teachers(plan)
    failed = None
    needed = _needed(plan)

    def done(step: Step) -> bool:
        return step.name not in needed or _finished(plan, step) or _taken_over(plan, step)

    steps, left = plan.steps, set[str]()
    if prepare_only:
        left = _left_to_others(plan, [step for step in plan.preparations if not done(step)])
        steps = tuple(step for step in plan.preparations if step.name not in left)
    try:
        run_shared(
            steps,
            plan.folder,
            done,
            lambda step: _run(plan, step, keep_checkpoints),
            after=lambda step: [plan.by_name[name] for name in step.inputs.values()],
            name=lambda step: step.name,
        )
    except PointsError as error:
        failed = error
    if export_int8:
        add = partial(add_int8_price, plan)
        run_shared(plan.trainings, plan.folder, lambda step: unpriced(plan, step) is None, add, name=lambda step: step.name)
    if prepare_only:
        try:
            here = [step for step in plan.trainings if left.isdisjoint(step.inputs.values())]
            _tokenise(plan, [step for step in here if step.kind == "train_tlm" and not done(step)])
        except PointsError as error:
            failed = failed or error
    table = write_table(plan)
    if failed and (prepare_only or not table.failures):
        raise failed
    return table


def _left_to_others(plan: Plan, steps: Sequence[Step]) -> set[str]:
    """Names of the selections that another machine can make and this one cannot, in half precision of a GPU that it lacks.

    Args:
        steps: which `check` let pass as another machine's.
    """
    left = set()
    for step in steps:
        if step.kind == "select_influence":
            try:
                parse_step(plan, step)
            except HfTlmError as error:
                logger.warning("%s is left to the machine that trains: %s", step.name, error)
                left.add(step.name)
    return left


def _tokenise(plan: Plan, trainings: Sequence[Step]) -> None:
    """What these trainings would tokenise first; the seeds of an arm read the same."""
    first_seeds: dict[tuple[str, str], Step] = {}
    for step in trainings:
        assert step.arm is not None
        first_seeds.setdefault((step.task_name, step.arm.name), step)
    tokenised: set[str] = set()

    def tokenise_step(step: Step) -> None:
        logger.warning("Tokenising for %s.", step.name.rpartition("/")[0])
        # Its teacher answers when it trains.
        _check_made(plan, [name for name in step.inputs.values() if name not in step.teachers])
        tokenise(plan, step)
        tokenised.add(step.name)

    run_shared(
        list(first_seeds.values()),
        plan.folder,
        lambda step: step.name in tokenised,
        tokenise_step,
        name=lambda step: step.name,
    )


def check(plan: Plan, prepare_only: bool = False) -> None:
    """Everything that can be refused before the first step.

    Args:
        prepare_only: trainings are another machine's, and selections may be, see `reproduce`.

    Raises:
        HfTlmError: see `reproduce`.
    """
    seen: set[tuple[str, str]] = set()
    for step in plan.steps:
        what = (step.kind, step.name.rpartition("/")[0] if step.kind in TRAININGS else step.name)
        if what not in seen:
            seen.add(what)
            parse_step(plan, step, prepare_only)
        record = read_record(plan.record_file(step))
        if record is not None and record["status"] == FINISHED and step.kind != AVERAGE:
            _check_settings(plan, step, record)
    left = {(step.kind, step.task): step for step in plan.trainings if not _finished(plan, step)}
    for (kind, _), step in left.items():
        task = parse_task(plan, step).load()
        if kind == "train_tlm":
            task.check_kind("TLM", "classification")
        for file in sorted((plan.records / "runs").glob(f"{step.task_name}.*.json")):
            of_run = (read_record(file) or {}).get("task_fingerprint", task.fingerprint)
            if of_run != task.fingerprint:
                raise ReproductionError(
                    f"{file} is a run on other data: its task {step.task_name} has fingerprint {of_run}, this one "
                    f"{task.fingerprint}. Choose another folder of records, or delete that file."
                )


def _check_settings(plan: Plan, step: Step, record: Mapping[str, Any]) -> None:
    """Whether a finished step is what the plan asks for. Inputs of an equal run that was taken over may have other names."""
    if record.get("fingerprint") == plan.fingerprint(step):
        return
    there, here = record["settings"], plan.settings(step)
    changed = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if changed:
        name = changed[0]
        reason = f"with other settings ({name}: {there.get(name)!r:.60} there, {here.get(name)!r:.60} asked for)"
    elif "fingerprint" in record:
        reason = f"from what had other settings ({', '.join(step.inputs.values())})"
    else:
        return
    raise ReproductionError(
        f"{plan.folder(step)} was made {reason}. Choose another {plan.records_option}, or delete {plan.record_file(step)} "
        "and that folder to make it again."
    )


def _check_table_file(plan: Plan) -> None:
    """Raise a ReproductionError where the table would take the place of something else, such as a run's results."""
    path = plan.records / f"{plan.table_name}.json"
    if "rows" not in (find_object(path) or {"rows": []}):
        raise ReproductionError(
            f"{path} is no table, which would take its place. Choose another {plan.records_option}, or another --table_name."
        )


def write_table(plan: Plan) -> Table:
    """The page and the JSON file of what is finished now."""
    records = {step.name: read_record(plan.record_file(step)) for step in plan.steps}
    table = Table(plan, records)
    if int(os.environ.get("RANK", "0")) == 0:
        atomic_write(plan.records / f"{plan.table_name}.json", json.dumps(table.to_dict(), indent=2) + "\n")
        atomic_write(plan.records / f"{plan.table_name}.md", table.to_text() + "\n")
    return table


def _finished(plan: Plan, step: Step) -> bool:
    """A run once it has a record; what other steps read, while it is there too; an average while it is of these runs.

    Tokenizers and subsets have to be as they were made.
    """
    record = read_record(plan.record_file(step))
    if step.kind == AVERAGE and record is not None and record.get("fingerprint") != plan.fingerprint(step):
        return False
    if record is None or record["status"] != FINISHED:
        return False
    return step.kind in TRAININGS or (plan.folder(step).is_dir() and damage(plan, step) is None)


def _find_equal(plan: Plan, step: Step) -> dict[str, Any] | None:
    """The record of a finished run that is made of the same as this one, whatever its arm is called."""
    if step.kind not in TRAININGS:
        return None
    fingerprint = plan.fingerprint(step)
    files = sorted((plan.records / "runs").glob(f"{step.task_name}.*.seed-{step.seed}.json"))
    records = filter(None, map(read_record, files))
    return next((one for one in records if one["status"] == FINISHED and one.get("fingerprint") == fingerprint), None)


def _taken_over(plan: Plan, step: Step) -> bool:
    """Whether an equal run is finished; its record is then this run's too, which says whose it is."""
    record = _find_equal(plan, step)
    if record is not None and record["name"] != step.name:  # Its own, if another process finished it in this moment.
        assert step.arm is not None
        own = {"name": step.name, "arm": step.arm.name, "same_run_as": record.get("same_run_as", record["name"])}
        atomic_write(plan.record_file(step), json.dumps({**record, **own}, indent=2) + "\n")
    return record is not None


def _needed(plan: Plan) -> set[str]:
    """Names of all trainings, and of what those that are not finished are made from."""
    needed = {step.name for step in plan.trainings}
    left = [step for step in plan.trainings if not _finished(plan, step) and _find_equal(plan, step) is None]
    while left:
        inputs = set(left.pop().inputs.values()) - needed
        needed |= inputs
        left += [plan.by_name[name] for name in inputs]
    return needed


def _run(plan: Plan, step: Step, keep_checkpoints: bool) -> None:
    """Make a step, and its record, whether it succeeds or fails."""
    first = int(os.environ.get("RANK", "0")) == 0
    if step.kind in _ALONE and not first:
        return
    recorded = read_record(plan.record_file(step))
    if recorded is not None and recorded["status"] == FINISHED and (problem := damage(plan, step)) is not None:
        logger.warning("%s. It is made again.", problem.removesuffix("."))
    logger.warning("Making %s.", step.name)
    begun, command = time.time(), plan.command(step)
    record: dict[str, Any] = {
        "status": FINISHED,
        "name": step.name,
        "kind": step.kind,
        "task": step.task_name,
        "arm": step.arm and step.arm.name,
        "objective": None if step.arm is None or step.arm.subset is None else plan.settings(step).get("objective", "mlm"),
        "seed": step.seed,
        "command": command and shlex.join(map(shown_argument, shlex.split(command))),
        "started_by": command_line(),
        "commit": commit(),
        "settings": plan.settings(step),
        "fingerprint": plan.fingerprint(step),
    }
    error = None
    try:
        _check_made(plan, step.inputs.values())
        _check_teachers(plan, step)
        record |= make_step(plan, step)
    except Exception as reason:  # Whatever ends one run, memory that does not suffice for instance, leaves the others.
        error = reason
        if not isinstance(reason, HfTlmError):
            logger.exception("%s failed.", step.name)
        record |= {"status": FAILED, "error": f"{type(reason).__name__}: {reason}"}
    record.setdefault("environment", environment())
    record.setdefault("wall_seconds", round(time.time() - begun, 1))
    if first:
        if error is None and not keep_checkpoints:
            discard_checkpoints(plan.folder(step))
        atomic_write(plan.record_file(step), json.dumps(record, indent=2, default=str) + "\n")
        write_table(plan)
    if torch.cuda.is_available():
        # The next run's model finds its memory free.
        gc.collect()
        torch.cuda.empty_cache()
    if error is not None:
        raise error if isinstance(error, HfTlmError) else ReproductionError(record["error"]) from error


def _check_made(plan: Plan, inputs: Iterable[str]) -> None:
    """Whether the steps that another is made from, by their names, are finished."""
    for name in inputs:
        if not _finished(plan, plan.by_name[name]):
            reason = (read_record(plan.record_file(plan.by_name[name])) or {}).get("error", "it was not made")
            raise ReproductionError(f"It needs {name}, which failed: {reason}")


def _check_teachers(plan: Plan, step: Step) -> None:
    """Whether the models of a pupil's teachers are there: that of a run recorded elsewhere may not be."""
    for name in step.teachers:
        file = plan.record_file(plan.by_name[name])
        record = read_record(file)
        if record is None or record["status"] != FINISHED:  # It is made before its pupil.
            continue
        if not (folder := model_folder(plan, record)).is_dir():
            raise ReproductionError(
                f"It needs the model of {name}, which is recorded as finished and is not in {folder}. Put it there, or "
                f"delete {file}: the same command then trains it again."
            )


def _tell_of_missing_teachers(plan: Plan) -> None:
    """Say before hours of work, not after them, which runs will lack a teacher's model, and what to do about it."""
    lacking: dict[str, list[str]] = {}
    for step in plan.trainings:
        if not _finished(plan, step) and _find_equal(plan, step) is None:
            try:
                _check_teachers(plan, step)
            except ReproductionError as error:
                lacking.setdefault(str(error), []).append(step.name)
    for reason, names in lacking.items():
        logger.warning("%s will not be made. %s", ", ".join(names), reason)


def commit() -> str | None:
    """The commit of the checkout that the package is imported from, with `+` for changes; None outside of one."""
    folder = Path(hf_tlm.__file__).parent
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10)
        if found.returncode:
            return None
        changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", str(folder)]
        changes = subprocess.run(changed, cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() + ("+" if changes.stdout.strip() else "")


def check_exports(plan: Plan, prepare_only: bool = False) -> None:
    """Whether exporting is possible here; runs whose models are gone are named in a line.

    Raises:
        ModelError: the extra [onnx] is not installed.
        ReproductionError: nothing is trained, or this is a job of several processes.
    """
    if prepare_only:
        raise ReproductionError("--export_int8: with --prepare_only there are no models to export. Leave one of them out.")
    check_installed()
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ReproductionError(
            f"--export_int8: one process exports; this is a job of {processes}. Leave it out, and start the same command "
            "with it in one process when the runs are finished: it exports them and trains nothing again."
        )
    if gone := [step.name for step in plan.trainings if unpriced(plan, step, gone=True)]:
        logger.warning("Not exported, as the models are not in %s any more: %s.", plan.output_dir, ", ".join(gone))


def unpriced(plan: Plan, step: Step, *, gone: bool = False) -> dict[str, Any] | None:
    """The record of a finished network that has no price in 8 bits, and whose model is there, or, with `gone`, is not."""
    record = read_record(plan.record_file(step)) if step.kind in ("train_tlm", "finetune") else None
    if record is None or record["status"] != FINISHED or INT8 in record:
        return None
    is_there = any(model_folder(plan, record).glob("*.safetensors"))
    return record if is_there != gone else None


def add_int8_price(plan: Plan, step: Step) -> None:
    """Export a finished run's model beside its folder, and add the price in 8 bits to its record and the table.

    A model that cannot be exported, for whatever reason, is said in a line, and its run stays as it is.
    """
    record = unpriced(plan, step)
    assert record is not None
    folder = plan.folder(step)
    logger.warning("Exporting %s.", step.name)
    try:
        task = parse_task(plan, step).load()
        if task.fingerprint != record.get("task_fingerprint", task.fingerprint):
            raise ReproductionError("it was trained on other data than the task has now")
        price = int8_price(model_folder(plan, record), task, folder.with_name(f".{folder.name}.{INT8}"))
    except Exception as error:  # Of any class: the exporter's own too, of models that are not ours.
        logger.warning("%s has no price in 8 bits: %s", step.name, " ".join(str(error).split())[:500])
        return
    record[INT8] = {**price, "processor": environment(use_cpu=True)["processor"]}
    atomic_write(plan.record_file(step), json.dumps(record, indent=2) + "\n")
    write_table(plan)


def int8_price(model: Path, task: Task, scratch: Path) -> dict[str, Any]:
    """What a prediction of a finished model costs in 8 bits, by onnxruntime on one thread of this machine.

    Args:
        model: see `export_onnx`.
        task: whose texts it is checked on; nothing is refused for what it loses.
        scratch: folder for the export, beside others; what a kill left there is removed, and the folder at the end.

    Returns:
        megabytes of the graph, the configuration and the tokenizer; score and drop, the points that it loses, on
        checked_on; milliseconds and texts_per_second, see `hf_tlm.runs.price.onnx_price`, and memory_megabytes, see
        `onnx_memory` there.

    Raises:
        HfTlmError: see `export_onnx`.
    """
    shutil.rmtree(scratch, ignore_errors=True)  # Of a removal that was killed too, which `export_onnx` takes for no export.
    try:
        record = export_onnx(model, scratch, task=task, max_drop=100).record
        file = record["files"][ONNX_FILES["int8"]]
        measured = {name: file[name] for name in _MEASURED if name in file}
        size = round(megabytes(scratch) + file["bytes"] / 1e6, 3)
        return {"megabytes": size, **measured, "checked_on": record["checked_on"]["what"]}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
