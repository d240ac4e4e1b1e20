"""Exported ONNX models, run by onnxruntime on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hf_tlm.errors import ModelError
from hf_tlm.utils.options import check_numbers
from hf_tlm.utils.run_files import ONNX_FILES


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_dtypes(dtypes: Iterable[str]) -> None:
    """Raise a ModelError for a dtype that graphs are not exported in."""
    if others := [dtype for dtype in dtypes if dtype not in ONNX_FILES]:
        raise ModelError(f"dtype: expected one of {', '.join(ONNX_FILES)}; received {others[0]!r:.60}.")


class OnnxModel:
    """An exported model on the CPU, which maps a batch to its logits on one core. Several threads may call it at once.

    A file from a stranger runs no code: operators are onnxruntime's own, and weights in other files are read only from
    beside it.

    Args:
        folder: a folder that `hf_tlm.runs.export_onnx` wrote, or another one with that layout.
        dtype: of `ONNX_FILES`.
        num_threads: number of batches that are to be computed at the same time, each on one core; None: one per core.

    Attributes:
        most_tokens: recommended maximum of tokens in a batch, padding included; more are slower.
        num_threads: as above.

    Raises:
        ModelError: onnxruntime is not installed, `num_threads` is below 1, or the file is missing or cannot be run.
    """

    # Values between two operators can then stay in the core's own cache (benchmarks/results/deploy.md).
    most_tokens = 256

    def __init__(self, folder: Path, dtype: str = "fp32", num_threads: int | None = None):
        try:
            import onnxruntime
        except ImportError as error:
            raise ModelError(
                "onnxruntime is not installed. Install the extra [onnx]: pip install 'hf-tlm[onnx]', or use the model "
                "itself instead of its export."
            ) from error
        check_numbers(ModelError, num_threads=num_threads)
        path = Path(folder) / ONNX_FILES[dtype]
        if not path.is_file():
            available = [name for name, file in ONNX_FILES.items() if (Path(folder) / file).is_file()]
            hint = f"It has {', '.join(available)}" if available else "Create it first: hf-tlm export"
            raise ModelError(f"{folder} has no {ONNX_FILES[dtype]}, which {dtype} is read from. {hint}.")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # Errors; warnings are of its own optimisations.
        # An operator of a small model is short: a batch on each core gains more than cores that share an operator.
        options.intra_op_num_threads = 1
        try:
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # Its errors have no class in common.
            raise ModelError(f"onnxruntime cannot load {path}: {' '.join(str(error).split()):.300}") from error
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        self.num_threads = num_threads or cores()

    def __call__(self, batch: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """Return the logits of a batch, float32, one array for each output.

        Args:
            batch: int64 arrays or tensors, by name; those that are no input of the graph are ignored.

        Raises:
            ModelError: an input of the graph is missing, or the graph cannot run on these inputs.
        """
        if missing := [name for name in self.inputs if name not in batch]:
            raise ModelError(
                f"The graph needs {', '.join(missing)}, which its tokenizer does not return. Use graph and tokenizer of the "
                "same export."
            )
        try:
            outputs = self.session.run(None, {name: np.asarray(batch[name], dtype=np.int64) for name in self.inputs})
        except Exception as error:
            raise ModelError(f"onnxruntime cannot run the graph: {' '.join(str(error).split()):.300}") from error
        return tuple(outputs)
