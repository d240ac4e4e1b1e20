"""Tensors of checkpoints that were published as pickles."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from hf_tlm.errors import HfTlmError
from hf_tlm.models.errors import ModelError

WEIGHTS, SAFE_WEIGHTS = "pytorch_model.bin", "model.safetensors"


def weights_file(folder: Path) -> Path:
    """The file of a checkpoint's weights: safetensors where somebody has converted them, else the pickle."""
    safe = folder / SAFE_WEIGHTS
    return safe if safe.is_file() else folder / WEIGHTS


@contextmanager
def reading_pickles(path: str | os.PathLike | None, refusal: type[HfTlmError]) -> Iterator[None]:
    """Raise as a `refusal` what torch raises, within the block, for a pickle that it does not read.

    It reads no more of one than tensors and numbers. What it says of others ends with how to run their code.

    Args:
        path: the file or folder that is read.

    Raises:
        HfTlmError: of the class `refusal`; there is more in a pickle, or it is damaged. Nothing of it was run.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        found = re.search(r"(?:GLOBAL|global) (\w[\w.]*)", str(error))
        more = f"it refers to {found[1]}" if found else "it cannot be read as tensors and numbers"
        raise refusal(
            f"{path} is damaged, or holds more than tensors: {more}. Nothing of it was run. Do not use it, or get it again "
            "from somebody you trust."
        ) from None


def read_weights(path: Path, advice: str) -> dict[str, torch.Tensor]:
    """The tensors of a file by their names, on the CPU. Pickled code is not run.

    Args:
        advice: ends the message about a file that is not there.

    Raises:
        ModelError: the file is missing or damaged, or holds something else.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with reading_pickles(path, ModelError):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}. {advice}") from error
    except (RuntimeError, EOFError, SafetensorError) as error:
        raise ModelError(f"{path} is damaged: {error}. Download it again.") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelError(f"{path} must hold tensors by name; found {type(state).__name__}. Is it a released checkpoint?")
    return state
