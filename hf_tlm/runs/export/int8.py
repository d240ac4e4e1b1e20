"""What a finished model costs in 8 bits, measured by exporting it into a folder that is gone afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hf_tlm.models.onnx_session import ONNX_FILES
from hf_tlm.runs.export.export import export_onnx
from hf_tlm.runs.price import megabytes
from hf_tlm.tasks import Task

_MEASURED = ("score", "drop", "milliseconds", "texts_per_second", "memory_megabytes")


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
