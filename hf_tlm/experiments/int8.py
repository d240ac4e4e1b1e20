"""What the models of a table cost in 8 bits: each is exported once, and its run's record keeps what was measured."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from hf_tlm.experiments.arms import ReproductionError
from hf_tlm.experiments.plan import Plan, Step
from hf_tlm.experiments.steps import model_folder, parse_task, read_record
from hf_tlm.models.onnx_graph import check_installed
from hf_tlm.runs.export.export import export_onnx
from hf_tlm.runs.price import megabytes
from hf_tlm.runs.records import environment
from hf_tlm.tasks import Task
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.run_files import ONNX_FILES

logger = logging.getLogger(__name__)

INT8 = "int8"  # Of a record: what `int8_price` gives, and the processor.
_MEASURED = ("score", "drop", "milliseconds", "texts_per_second", "memory_megabytes")


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
    if record is None or record["status"] != "finished" or INT8 in record:
        return None
    is_there = any(model_folder(plan, record).glob("*.safetensors"))
    return record if is_there != gone else None


def add_int8_price(plan: Plan, step: Step) -> None:
    """Export a finished run's model beside its folder, and add the price in 8 bits to its record, which is `unpriced`.

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
