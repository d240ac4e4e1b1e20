"""Execution of a plan by any number of processes: run its steps, update its table, and measure its models in 8 bits."""

from __future__ import annotations

import gc
import json
import logging
import os
import shlex
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
from hf_tlm.runs.export.export import int8_price
from hf_tlm.runs.records import command_line, environment
from hf_tlm.runs.sharing import PointsError, run_shared
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.process import is_first_process
from hf_tlm.utils.shown import one_line, shown_argument

logger = logging.getLogger(__name__)

FINISHED, FAILED = "finished", "failed"
# Steps that only the first process of a job runs; the others continue with the next step and wait there for the first.
_FIRST_PROCESS_ONLY = (TOKENIZER, "retrieve", AVERAGE)
INT8 = "int8"  # Key of a record: the result of `int8_price`, and the processor.


def reproduce(plan: Plan, *, prepare_only: bool = False, keep_checkpoints: bool = False, export_int8: bool = False) -> Table:
    """Run every step of a plan that is not finished, and write the table of all steps.

    Every step writes a JSON record to `runs/` or `preparations/` of the plan's records, and after each step the table,
    `<table_name>.md` and `.json`, is written again. A run that has a record is not repeated, even if its folder has moved,
    and the record of an equal run, for example of another table, is adopted. Interrupted runs continue, and other processes
    with the same plan share the work (see `run_shared`). A step begins as soon as its inputs are finished. Tokenizers and
    subsets are built only if a run still needs them, and again if they are damaged. A step that fails, and the steps that
    need it, are listed in the table, while the others continue; the next start tries it again.

    Args:
        prepare_only: stop after tokenizers and subsets, and after tokenising the data of every model from scratch into the
            cache of `datasets`, so that an expensive machine that sees the same folders and cache only trains. Subsets by
            influence or a teacher in half precision are left to that machine if this one has no GPU.
        keep_checkpoints: keep the checkpoints of finished runs and the models between stages; by default only final models
            and results are kept.
        export_int8: at the end, measure what every finished model costs and loses in 8 bits (see `int8_price`), also of runs
            that were finished before, if their models exist. A model that cannot be exported is reported in one line.

    Raises:
        HfTlmError: before any work: an option is unknown to a recipe or refused, a task does not exist or is not suitable
            for TLM, records of steps have other settings, inputs or data, or another file is where the table is to be
            written; or see `check_exports`. At the end: steps failed, with `prepare_only`; without it, steps failed of which
            a full disk has kept no record.
    """
    if export_int8:
        check_exports(plan, prepare_only)
    check(plan, prepare_only)
    _check_table_file(plan)
    write_table(plan)  # Fails early if the folder of records cannot be written.
    _warn_of_missing_teachers(plan)
    failed = None
    needed = _find_needed(plan)

    def is_done(step: Step) -> bool:
        return step.name not in needed or _is_finished(plan, step) or _adopt_equal_run(plan, step)

    steps, deferred = plan.steps, set[str]()
    if prepare_only:
        deferred = _find_deferred(plan, [step for step in plan.preparations if not is_done(step)])
        steps = tuple(step for step in plan.preparations if step.name not in deferred)
    try:
        run_shared(
            steps,
            plan.folder,
            is_done,
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
            trainings = [step for step in plan.trainings if deferred.isdisjoint(step.inputs.values())]
            _tokenise(plan, [step for step in trainings if step.kind == "train_tlm" and not is_done(step)])
        except PointsError as error:
            failed = failed or error
    table = write_table(plan)
    if failed and (prepare_only or not table.failures):
        raise failed
    return table


def _find_deferred(plan: Plan, steps: Sequence[Step]) -> set[str]:
    """Return the names of selections that this machine cannot run, because it lacks a GPU for half precision.

    Args:
        steps: steps that `check` has accepted for another machine.
    """
    deferred = set()
    for step in steps:
        if step.kind == "select_influence":
            try:
                parse_step(plan, step)
            except HfTlmError as error:
                logger.warning("%s is left to the machine that trains: %s", step.name, error)
                deferred.add(step.name)
    return deferred


def _tokenise(plan: Plan, trainings: Sequence[Step]) -> None:
    """Tokenise the data of trainings, once for each arm and task, because all seeds of an arm use the same data."""
    first_seeds: dict[tuple[str, str], Step] = {}
    for step in trainings:
        assert step.arm is not None
        first_seeds.setdefault((step.task_name, step.arm.name), step)
    tokenised: set[str] = set()

    def tokenise_step(step: Step) -> None:
        logger.warning("Tokenising for %s.", step.name.rpartition("/")[0])
        # Teachers are needed only when the step trains.
        _check_inputs(plan, [name for name in step.inputs.values() if name not in step.teachers])
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
    """Check options, records and tasks of a plan before its first step.

    Args:
        prepare_only: trainings, and possibly selections, will run on another machine, see `reproduce`.

    Raises:
        HfTlmError: see `reproduce`.
    """
    checked: set[tuple[str, str]] = set()
    for step in plan.steps:
        key = (step.kind, step.name.rpartition("/")[0] if step.kind in TRAININGS else step.name)
        if key not in checked:
            checked.add(key)
            parse_step(plan, step, prepare_only)
        record = read_record(plan.record_file(step))
        if record is not None and record["status"] == FINISHED and step.kind != AVERAGE:
            _check_settings(plan, step, record)
    unfinished = {(step.kind, step.task): step for step in plan.trainings if not _is_finished(plan, step)}
    for (kind, _), step in unfinished.items():
        task = parse_task(plan, step).load()
        if kind == "train_tlm":
            task.check_kind("TLM", "classification")
        for file in sorted((plan.records / "runs").glob(f"{step.task_name}.*.json")):
            run_fingerprint = (read_record(file) or {}).get("task_fingerprint", task.fingerprint)
            if run_fingerprint != task.fingerprint:
                raise ReproductionError(
                    f"{file} is a run on other data: its task {step.task_name} has fingerprint {run_fingerprint}, this one "
                    f"{task.fingerprint}. Choose another folder of records, or delete that file."
                )


def _check_settings(plan: Plan, step: Step, record: Mapping[str, Any]) -> None:
    """Raise a ReproductionError if a finished step has other settings than the plan.

    The fingerprint is compared first, because the inputs of an adopted equal run may have other names.
    """
    if record.get("fingerprint") == plan.fingerprint(step):
        return
    recorded, requested = record["settings"], plan.settings(step)
    changed = [name for name in sorted({*recorded, *requested}) if recorded.get(name) != requested.get(name)]
    if changed:
        name = changed[0]
        reason = (
            f"with other settings ({name}: {recorded.get(name)!r:.60} in the folder, {requested.get(name)!r:.60} requested)"
        )
    elif "fingerprint" in record:
        reason = f"from inputs with other settings ({', '.join(step.inputs.values())})"
    else:
        return
    raise ReproductionError(
        f"{plan.folder(step)} was created {reason}. Choose another {plan.records_option}, or delete "
        f"{plan.record_file(step)} and that folder to create it again."
    )


def _check_table_file(plan: Plan) -> None:
    """Raise a ReproductionError if the table would overwrite something else, such as a run's results."""
    path = plan.records / f"{plan.table_name}.json"
    if "rows" not in (find_object(path) or {"rows": []}):
        raise ReproductionError(
            f"{path} is not a table, but a table would replace it. Choose another {plan.records_option}, or another "
            "--table_name."
        )


def write_table(plan: Plan) -> Table:
    """Write the table of the finished steps as Markdown and JSON, and return it."""
    records = {step.name: read_record(plan.record_file(step)) for step in plan.steps}
    table = Table(plan, records)
    if is_first_process():
        atomic_write(plan.records / f"{plan.table_name}.json", json.dumps(table.to_dict(), indent=2) + "\n")
        atomic_write(plan.records / f"{plan.table_name}.md", table.to_text() + "\n")
    return table


def _is_finished(plan: Plan, step: Step) -> bool:
    """Return whether a step is finished.

    A training is finished if it has a record of success, and an average only if its runs are those of this plan. Tokenizers
    and subsets also need an undamaged folder.
    """
    record = read_record(plan.record_file(step))
    if step.kind == AVERAGE and record is not None and record.get("fingerprint") != plan.fingerprint(step):
        return False
    if record is None or record["status"] != FINISHED:
        return False
    return step.kind in TRAININGS or (plan.folder(step).is_dir() and damage(plan, step) is None)


def _find_equal_run(plan: Plan, step: Step) -> dict[str, Any] | None:
    """Return the record of a finished run with the same fingerprint as this one, whatever its arm is called; else None."""
    if step.kind not in TRAININGS:
        return None
    fingerprint = plan.fingerprint(step)
    files = sorted((plan.records / "runs").glob(f"{step.task_name}.*.seed-{step.seed}.json"))
    records = filter(None, map(read_record, files))
    return next(
        (record for record in records if record["status"] == FINISHED and record.get("fingerprint") == fingerprint), None
    )


def _adopt_equal_run(plan: Plan, step: Step) -> bool:
    """Return whether an equal run is finished; if so, write a copy of its record, with its name, for this run."""
    record = _find_equal_run(plan, step)
    if record is not None and record["name"] != step.name:  # The names are equal if another process has just finished it.
        assert step.arm is not None
        own_fields = {"name": step.name, "arm": step.arm.name, "same_run_as": record.get("same_run_as", record["name"])}
        atomic_write(plan.record_file(step), json.dumps({**record, **own_fields}, indent=2) + "\n")
    return record is not None


def _find_needed(plan: Plan) -> set[str]:
    """Return the names of all trainings, and of the direct and indirect inputs of those that are not finished."""
    needed = {step.name for step in plan.trainings}
    unfinished = [step for step in plan.trainings if not _is_finished(plan, step) and _find_equal_run(plan, step) is None]
    while unfinished:
        inputs = set(unfinished.pop().inputs.values()) - needed
        needed |= inputs
        unfinished += [plan.by_name[name] for name in inputs]
    return needed


def _run(plan: Plan, step: Step, keep_checkpoints: bool) -> None:
    """Run a step and write its record, whether it succeeds or fails."""
    first = is_first_process()
    if step.kind in _FIRST_PROCESS_ONLY and not first:
        return
    previous = read_record(plan.record_file(step))
    if previous is not None and previous["status"] == FINISHED and (problem := damage(plan, step)) is not None:
        logger.warning("%s. It will be created again.", problem.removesuffix("."))
    logger.warning("Making %s.", step.name)
    start_time, command = time.time(), plan.command(step)
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
        _check_inputs(plan, step.inputs.values())
        _check_teachers(plan, step)
        record |= make_step(plan, step)
    except Exception as reason:  # An error of one run, for example insufficient memory, must not stop the others.
        error = reason
        if not isinstance(reason, HfTlmError):
            logger.exception("%s failed.", step.name)
        record |= {"status": FAILED, "error": f"{type(reason).__name__}: {reason}"}
    record.setdefault("environment", environment())
    record.setdefault("wall_seconds", round(time.time() - start_time, 1))
    if first:
        if error is None and not keep_checkpoints:
            discard_checkpoints(plan.folder(step))
        atomic_write(plan.record_file(step), json.dumps(record, indent=2, default=str) + "\n")
        if step.kind == AVERAGE:  # It is named by its first seed: one of other seeds would count as a second average.
            for file in plan.record_file(step).parent.glob(f"{step.name.rpartition('/')[0].replace('/', '.')}.seed-*.json"):
                if file != plan.record_file(step):
                    file.unlink()
        write_table(plan)
    if torch.cuda.is_available():
        # Free the memory for the next run's model.
        gc.collect()
        torch.cuda.empty_cache()
    if error is not None:
        raise error if isinstance(error, HfTlmError) else ReproductionError(record["error"]) from error


def _check_inputs(plan: Plan, inputs: Iterable[str]) -> None:
    """Raise a ReproductionError if a step's inputs, given by name, are not all finished."""
    for name in inputs:
        if not _is_finished(plan, plan.by_name[name]):
            reason = (read_record(plan.record_file(plan.by_name[name])) or {}).get("error", "it was not made")
            raise ReproductionError(f"The run needs {name}, which failed: {reason}")


def _check_teachers(plan: Plan, step: Step) -> None:
    """Raise a ReproductionError if a teacher's model is missing, as may happen if its run was recorded elsewhere."""
    for name in step.teachers:
        file = plan.record_file(plan.by_name[name])
        record = read_record(file)
        if record is None or record["status"] != FINISHED:  # The teacher is still to be trained, before its pupil.
            continue
        if not (folder := model_folder(plan, record)).is_dir():
            raise ReproductionError(
                f"The run needs the model of {name}, which is recorded as finished, but is not in {folder}. Copy it there, "
                f"or delete {file}: the same command then trains it again."
            )


def _warn_of_missing_teachers(plan: Plan) -> None:
    """Warn before the work starts which runs will lack a teacher's model, and what to do about it."""
    steps_by_reason: dict[str, list[str]] = {}
    for step in plan.trainings:
        if not _is_finished(plan, step) and _find_equal_run(plan, step) is None:
            try:
                _check_teachers(plan, step)
            except ReproductionError as error:
                steps_by_reason.setdefault(str(error), []).append(step.name)
    for reason, names in steps_by_reason.items():
        logger.warning("%s will not be run. %s", ", ".join(names), reason)


def commit() -> str | None:
    """Return the commit of the checkout that the package is imported from, with `+` for changes; None without a checkout."""
    folder = Path(hf_tlm.__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10)
        if head.returncode:
            return None
        status_command = ["git", "status", "--porcelain", "--untracked-files=no", "--", str(folder)]
        status = subprocess.run(status_command, cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


def check_exports(plan: Plan, prepare_only: bool = False) -> None:
    """Check that models can be exported here, and warn of runs whose models no longer exist.

    Raises:
        ModelError: the extra [onnx] is not installed.
        ReproductionError: nothing is trained (`prepare_only`), or this is a job of several processes.
    """
    if prepare_only:
        raise ReproductionError(
            "--export_int8: with --prepare_only there are no models to export. Remove one of these options."
        )
    check_installed()
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ReproductionError(
            f"--export_int8 needs a single process; this is a job of {processes}. Remove the option, and start the same "
            "command with it in one process when the runs are finished: it exports them without training again."
        )
    if missing := [step.name for step in plan.trainings if unpriced(plan, step, gone=True)]:
        logger.warning("Not exported, because the models are no longer in %s: %s.", plan.output_dir, ", ".join(missing))


def unpriced(plan: Plan, step: Step, *, gone: bool = False) -> dict[str, Any] | None:
    """Return the record of a finished network without a price in 8 bits whose model exists (or, with `gone`, does not)."""
    record = read_record(plan.record_file(step)) if step.kind in ("train_tlm", "finetune") else None
    if record is None or record["status"] != FINISHED or INT8 in record:
        return None
    has_model = any(model_folder(plan, record).glob("*.safetensors"))
    return record if has_model != gone else None


def add_int8_price(plan: Plan, step: Step) -> None:
    """Temporarily export a finished run's model, and add its price in 8 bits to its record and the table.

    A model that cannot be exported, for whatever reason, is reported in one line, and its record is unchanged.
    """
    record = unpriced(plan, step)
    assert record is not None
    logger.warning("Exporting %s.", step.name)
    try:
        task = parse_task(plan, step).load()
        if task.fingerprint != record.get("task_fingerprint", task.fingerprint):
            raise ReproductionError("it was trained on other data than the task has now")
        price = int8_price(model_folder(plan, record), task)
    except Exception as error:  # Exporters raise errors of any class, for models of other libraries.
        logger.warning("%s has no price in 8 bits: %s", step.name, one_line(str(error), 500))
        return
    record[INT8] = {**price, "processor": environment(use_cpu=True)["processor"]}
    atomic_write(plan.record_file(step), json.dumps(record, indent=2) + "\n")
    write_table(plan)
