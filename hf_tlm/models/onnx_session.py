"""Exported models in onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hf_tlm.errors import ModelError
from hf_tlm.utils.options import check_numbers
from hf_tlm.utils.run_files import ONNX_FILES

# Tokens, padding included, that a core computes at once, so that what lies between two operators may stay in its own cache.
# More were slower (benchmarks/results/deploy.md).
TOKENS_A_CORE = 256


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_dtypes(dtypes: Iterable[str]) -> None:
    """Raise a ModelError for a type of numbers that graphs are not written with."""
    if others := [dtype for dtype in dtypes if dtype not in ONNX_FILES]:
        raise ModelError(f"The types are {', '.join(ONNX_FILES)}; received {others[0]!r:.60}.")


class OnnxModel:
    """An exported model on the CPU: a batch in, its logits out.

    A file of a stranger runs no code: operators are onnxruntime's own, and weights in other files are read from beside it
    alone.

    Args:
        folder: that `hf_tlm.runs.export_onnx` wrote, or another one of that layout.
        dtype: of `ONNX_FILES`.
        num_threads: None for as many as there are cores.

    most_tokens: that a batch should have, padding included; more are slower.

    Raises:
        ModelError: onnxruntime is not installed, `num_threads` is below 1, the file is not there, or is none that it can
            run.
    """

    def __init__(self, folder: Path, dtype: str = "fp32", num_threads: int | None = None):
        try:
            import onnxruntime
        except ImportError as error:
            raise ModelError(
                "onnxruntime is not installed. Install the extra [onnx]: pip install 'hf-tlm[onnx]', or leave out "
                "--backend onnx."
            ) from error
        check_numbers(ModelError, num_threads=num_threads)
        path = Path(folder) / ONNX_FILES[dtype]
        if not path.is_file():
            there = [name for name, file in ONNX_FILES.items() if (Path(folder) / file).is_file()]
            hint = f"There is {', '.join(there)}" if there else "Make it first: hf-tlm export"
            raise ModelError(f"{folder} has no {ONNX_FILES[dtype]}, which {dtype} is read from. {hint}.")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # Errors; warnings are of its own optimisations.
        if num_threads is not None:
            options.intra_op_num_threads = num_threads
        try:
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # Its errors have no class in common.
            raise ModelError(f"onnxruntime cannot load {path}: {' '.join(str(error).split()):.300}") from error
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        self.most_tokens = TOKENS_A_CORE * (num_threads or cores())

    def __call__(self, batch: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """The logits of a batch, float32, one array for each output.

        Args:
            batch: int64 arrays or tensors, by name; those that the graph does not take are left out.

        Raises:
            ModelError: one that it takes is missing, or the graph does not fit them.
        """
        if missing := [name for name in self.inputs if name not in batch]:
            raise ModelError(
                f"The graph takes {', '.join(missing)}, which its tokenizer does not give. Take both from one export."
            )
        try:
            found = self.session.run(None, {name: np.asarray(batch[name], dtype=np.int64) for name in self.inputs})
        except Exception as error:
            raise ModelError(f"onnxruntime cannot run the graph: {' '.join(str(error).split()):.300}") from error
        return tuple(found)
