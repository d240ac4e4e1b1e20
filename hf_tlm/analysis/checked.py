"""Whether a run's record is what recipes write, before it is shown or compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.tasks.spec import KINDS

_NUMBER = (int, float)
# Of a run, and of each of its seeds: what is not there, or empty, is missing, and analyses do without.
_OF_RUN = {
    **{"metric": str, "task": (str, Mapping)},
    **dict.fromkeys(("arguments", "model", "subset", "cost", "teacher"), Mapping),
}
_OF_SEED = {"parameters": int, "cost": Mapping, "validation": Mapping, "test": Mapping, "stages": Mapping, "history": list}
_OF_MANIFEST = {"corpus": Mapping, "counts": Mapping, "selection": Mapping}


def check_record(record: Mapping[str, Any], path: Path) -> None:
    """Of a run, or the manifest of a subset.

    Raises:
        AnalysisError: a value is of a type that no recipe writes, or of a kind of task that is unknown; the file is named.
    """
    _check(record, _OF_RUN, path, "")
    _numbers(record, path, "")
    teacher = record.get("teacher") or {}
    _check(teacher, {"training": Mapping}, path, "the teacher's ")
    for of in (teacher, teacher.get("training") or {}):
        _numbers({"cost": {name: of.get(name) for name in ("flops", "seconds")}}, path, "the teacher's ")
    if (kind := record.get("kind")) and kind not in KINDS:
        raise AnalysisError(f"{path}: `kind` must be one of {', '.join(KINDS)}; found {kind!r:.60}.")
    manifest = record.get("subset") or record
    _check(manifest, _OF_MANIFEST, path, "the subset's ")


def check_seed(record: Mapping[str, Any], path: Path) -> None:
    """The same of the record of a seed, or of a split."""
    if not isinstance(record, Mapping) or not isinstance(record.get("seed"), int):
        raise AnalysisError(f"{path} is not what a run writes: a seed's record lacks its `seed`; found {record!r:.60}.")
    where = f"seed {record.get('seed')}'s "
    _check(record, _OF_SEED, path, where)
    _numbers(record, path, where)


def _check(values: Mapping[str, Any], types: Mapping[str, Any], path: Path, where: str) -> None:
    for name, kind in types.items():
        value = values.get(name)
        if value and not isinstance(value, kind):
            raise AnalysisError(f"{path}: {where}`{name}` is not what recipes write: {value!r:.60}. The file is damaged.")


def _numbers(values: Mapping[str, Any], path: Path, where: str) -> None:
    for name in ("cost", "validation", "test"):
        for key, value in (values.get(name) or {}).items():
            if value is not None and not isinstance(value, _NUMBER):
                raise AnalysisError(f"{path}: {where}{name}, `{key}`, is not a number: {value!r:.60}. The file is damaged.")
