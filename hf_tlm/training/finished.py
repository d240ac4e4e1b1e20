"""Finished parts of a run (stages, seeds, splits): a record and the model beside it, sealed.

The seal shows damage before either is used or published. A damaged part is not finished, and is made again from what else
there is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from hf_tlm.errors import HfTlmError
from hf_tlm.training.run_folder import RESULTS_FILE
from hf_tlm.utils.checked import Unfit, mapped, real, record, whole, words
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import read_object
from hf_tlm.utils.seals import SEAL, broken_seal, write_seal

logger = logging.getLogger(__name__)


def _number(value: Any) -> float | None:
    """A number, also nan, which scores can be; or null."""
    if value is not None and type(value) not in (int, float):
        raise Unfit("a number or null")
    return value


# What summaries and cards take from the record of a model, and of a seed.
MODEL = {"validation": mapped(_number, 1000), "cost": mapped(_number, 100), "model_type": words(200)}
MODEL |= {"parameters": whole(0, 2**63), "trained_parameters": whole(0, 2**63)}
# What a prediction costs, which records of before do not say.
_TIMES = mapped(real(0, 1e12), 10)
PRICE = record(
    {"megabytes": real(0, 1e9), "parameters": whole(0, 2**63), "milliseconds": _TIMES, "texts_per_second": _TIMES},
    optional=("parameters", "milliseconds", "texts_per_second"),
)
SEED = {"seed": whole(0, 2**63), **MODEL, "price": PRICE}
_OPTIONAL = {"price"}
# What is continued after a stage.
STAGE = {"cost": mapped(_number, 100), "validation": mapped(_number, 1000)}


def finish(folder: Path, content: Mapping[str, Any], *parts: str) -> None:
    """Write the record `results.json`, whose presence says that what is in the folder is finished, and the seal.

    Args:
        parts: further files and folders in it that are sealed.
    """
    unseal(folder)
    atomic_write(folder / RESULTS_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_seal(folder, RESULTS_FILE, *parts)


def unseal(folder: Path) -> None:
    """Remove a seal before what is sealed changes."""
    (folder / SEAL).unlink(missing_ok=True)


def finished(
    folder: Path,
    args: TrainingArguments,
    name: str = RESULTS_FILE,
    fields: Mapping[str, Any] | None = None,
    *,
    local: bool = False,
) -> dict[str, Any] | None:
    """The record of a finished part; None where it is not finished, or was damaged since.

    The first process looks, and takes the record of a damaged part away, with a warning that names the file.

    Args:
        args: of the run, for its processes.
        name: the record, in `folder`.
        fields: of the record, those that are used later.
        local: look here alone, as where the processes of a run do not all come by.

    Raises:
        HfTlmError: a file is there and cannot be read.
    """
    if local:
        return _whole(folder, name, fields)
    with args.main_process_first(local=False, desc=f"looking at {folder.name}"):
        return _whole(folder, name, fields, remove=args.process_index == 0)


def _whole(folder: Path, name: str, fields: Mapping[str, Any] | None, remove: bool = True) -> dict[str, Any] | None:
    path = folder / name
    if not path.is_file():
        return None
    # Folders of before there were seals are taken without.
    try:
        problem = broken_seal(folder, name) if (folder / SEAL).is_file() else None
    except OSError as error:
        raise _unreadable(folder, path, error) from error
    if problem is None:
        try:
            content = read_object(path)
            record(fields or {}, optional=_OPTIONAL)(content)
            return content
        except HfTlmError as error:
            if isinstance(error.__cause__, OSError):
                raise _unreadable(folder, path, error.__cause__) from error
            problem = str(error)
        except Unfit as unfit:
            problem = f"{path} is damaged: {'.'.join(map(str, unfit.place))} must be {unfit.expected}"
    logger.warning("%s. It is made again.", problem.removesuffix(". Make it again."))
    if remove:
        path.unlink(missing_ok=True)
        unseal(folder)
    return None


def _unreadable(folder: Path, path: Path, error: OSError) -> HfTlmError:
    """Not taken for damage: what a disk or a network does not give now may be whole."""
    return HfTlmError(
        f"{folder} is finished and cannot be read ({error}). Try again later; if it stays so, delete {path}, and it is made "
        "again."
    )
