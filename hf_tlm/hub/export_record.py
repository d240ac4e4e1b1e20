"""`export.json` of a folder of ONNX graphs, which a stranger may have written, or a disk have damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import sha256
from hf_tlm.utils.json_files import (
    check_fields,
    find_object,
    listed,
    mapped,
    maybe,
    one_of,
    read_json,
    real,
    record,
    such,
    truth,
    whole,
    words,
)
from hf_tlm.utils.run_files import EXPORT_FILE, ONNX_FILES

_AGAIN = "Export the model again (hf-tlm export), or copy the folder again."
_NAME, _COUNT, _FIGURES = words(1000), whole(0, 2**53), mapped(real(0, 1e300), 100)
# Also nan and infinity, which differences of logits can be.
_NUMBER = such(lambda value: type(value) in (int, float), "a number")


_MEASURED = {
    **{"score": _NUMBER, "drop": _NUMBER, "changed": _COUNT, "memory_megabytes": real(0, 1e9)},
    **{"per_channel": truth, "keep_float": listed(_NAME, 10), "milliseconds": _FIGURES, "texts_per_second": _FIGURES},
}
_FILE = {"dtype": one_of(*ONNX_FILES), "bytes": whole(1, 2**53), "sha256": words(64), "max_difference": _NUMBER}
_CHECKED_ON = {"texts": _COUNT, "what": _NAME, "metric": maybe(_NAME), "to_beat": words(10_000)}
_RECORD = {
    **{"format": one_of("hf_tlm.export"), "format_version": one_of(1), "model": _NAME, "model_type": words(100)},
    **{"parameters": _COUNT, "kind": words(100), "pairs": truth, "max_length": whole(1, 2**31), "opset": whole(1, 1000)},
    **{"inputs": listed(words(100), 10), "outputs": listed(words(100), 10), "versions": mapped(_NAME, 100)},
    "checked_on": record(_CHECKED_ON, optional=("metric", "to_beat")),
    "files": mapped(record({**_FILE, **_MEASURED}, optional=tuple(_MEASURED)), len(ONNX_FILES)),
    "models": listed(_NAME, 10_000),
}


def read_export(folder: Path, error: type[HfTlmError], *, all_files: bool = True) -> dict[str, Any]:
    """What `export.json` says of the graphs in its folder, once they are found to be those that it speaks of.

    Args:
        all_files: false where some of the graphs may be elsewhere, as in a page, which has one of them.

    Raises:
        HfTlmError: of the class `error`, in a line that names the file: it is damaged, or of other graphs, or another model.
        OSError: a file cannot be read.
    """
    path = folder / EXPORT_FILE
    found = check_fields(
        *(read_json(path, error), _RECORD, error, f"{path} is not what recipes write", _AGAIN), optional=("models",)
    )
    there = {file.relative_to(folder).as_posix(): file for file in sorted(folder.glob("onnx/*.onnx"))}
    for name in dict.fromkeys([*there, *(found["files"] if all_files else ())]):
        facts = found["files"].get(name)
        if facts is None or ONNX_FILES[facts["dtype"]] != name:
            raise error(f"{path} does not say what {name} is. {_AGAIN}")
        if name not in there:
            raise error(f"{path} speaks of {name}, which is not there. {_AGAIN}")
        if (size := there[name].stat().st_size) != facts["bytes"]:
            raise error(
                f"{path} has other figures than the graphs: {name} has {size:,} bytes, not {facts['bytes']:,}. {_AGAIN}"
            )
        if sha256(there[name]) != facts["sha256"]:
            raise error(f"{path} has another checksum of {name} than the file there. {_AGAIN}")
    model_type = (find_object(folder / "config.json") or {}).get("model_type")
    if model_type != found["model_type"]:
        raise error(f"{path} has model_type {found['model_type']}, config.json beside it has {model_type}. {_AGAIN}")
    return found
