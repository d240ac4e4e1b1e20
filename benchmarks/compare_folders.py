"""Compare two folders: tensors and tables bit by bit, JSON exactly, other files byte by byte."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

# Keys whose values differ between two runs of one checkout, or only say how and where it ran.
KEYS = re.compile(r"(milli)?seconds|command|environment|versions|Clock|\w+_runtime|\w+_per_second")
# Files that are not compared: texts and figures for readers, code of models, formats with times and paths, digests of files.
NOT_READ = (".md", ".html", ".png", ".svg", ".py", ".bin", "seal.json")
FLOATS = {"F32": "<f4", "F64": "<f8"}


def compare_folders(before: Path, after: Path, names: Mapping[str, str] | None = None) -> tuple[Counter, list[str]]:
    """Compare what a command wrote on either side.

    Args:
        names: path of a folder of either side -> the word that replaces it in texts.

    Returns:
        (number of equal values by sort, the differences).
    """
    old, new = (
        {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        for folder in (before, after)
    )
    counts, found = Counter(), []
    # Records of the complete run come before those of its parts, and weights last: they show that results differ, not why.
    for file in sorted({*old, *new}, key=lambda file: (file.endswith(".safetensors"), file.count("/"), file)):
        if file not in old or file not in new:
            found.append(f"{file}: only {'before' if file in old else 'after'}")
        elif not file.endswith(NOT_READ):
            what, first = values_of(old[file], names or {})
            _, second = values_of(new[file], names or {})
            places = dict.fromkeys((*first, *second))
            other = [place for place in places if first.get(place) != second.get(place)]
            counts[what] += len(places) - len(other)
            found += [f"{file}: {place}: {difference(first.get(place), second.get(place))}" for place in other]
    return counts, found


def values_of(path: Path, names: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    """Return (sort of the values, location -> value to compare) of a file."""
    if path.suffix == ".safetensors":
        from safetensors import deserialize

        found = sorted(deserialize(path.read_bytes()), key=lambda pair: pair[0])
        return "tensors", {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in found}
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        # repr distinguishes all floats, also -0.0 from 0.0.
        table = pq.read_table(path)
        cells = {f"{name}[{row}]": repr(v) for name in table.column_names for row, v in enumerate(table[name].to_pylist())}
        return "values", {"types": str(table.schema.remove_metadata()), **cells}
    if path.suffix not in (".json", ".jsonl", ".csv"):
        return "files", {"content": path.read_bytes()}
    text = path.read_text(encoding="utf-8")
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name])
    if path.suffix == ".csv":
        value = list(csv.DictReader(io.StringIO(text), restkey="more"))
    else:
        value = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    return "values", dict(leaves(value))


def leaves(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield (location, value) of all leaves of a JSON value; 1 and 1.0 differ."""
    if isinstance(value, dict) and value:
        for key in value:
            if not KEYS.fullmatch(key):
                yield from leaves(value[key], f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from leaves(each, f"{place}[{number}]")
    else:
        yield place, json.dumps(value)


def difference(old: object, new: object) -> str:
    """Describe the difference of two values in a few words."""
    if old is None or new is None:
        return "only before" if new is None else "only after"
    if isinstance(old, bytes):
        return f"other bytes ({len(old):,} / {len(new):,})"
    if isinstance(old, str):
        return f"{old:.100} / {new:.100}"
    if old[:2] != new[:2]:
        return f"{old[0]} {old[1]} / {new[0]} {new[1]}"
    if old[0] not in FLOATS:
        return "other bytes"
    import numpy as np

    first, second = (np.frombuffer(data, FLOATS[old[0]]) for *_, data in (old, new))
    bits = f"<i{first.itemsize}"
    number = (first.view(bits) != second.view(bits)).sum()
    return f"{number:,} of {first.size:,} numbers, by {np.abs(first - second).max():.2g} at most"
