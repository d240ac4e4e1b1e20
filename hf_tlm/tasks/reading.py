"""Where the rows of a task come from: a Hub dataset or files, as they are, with the columns of the source."""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset, load_dataset

from hf_tlm.corpora.tables import OPTIONS, check_columns, columns_of, open_parquet, read_rows, reading_error, row_batches
from hf_tlm.hub.errors import explaining
from hf_tlm.hub.repo_id import Repo
from hf_tlm.tasks.conll import SUFFIXES, read_conll
from hf_tlm.tasks.spec import SPLITS, TaskError, TaskSpec
from hf_tlm.tasks.squad_json import is_squad_json, read_squad_json

BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
LOCAL = "Without a network, give the path of a folder with train, validation and test files."


def read_splits(spec: TaskSpec, columns: Mapping[str, str] | None = None) -> dict[str, Dataset]:
    """The splits that there are.

    Args:
        columns: role -> column, for files whose columns have no names (CoNLL).

    Raises:
        TaskError: they cannot be read, or a split has several files.
    """
    if not spec.path or not Path(spec.path).is_dir():
        found = _load_hub(spec)
        there = {split: [name for name in _names(spec, split) if name in found] for split in SPLITS}
        return {split: found[names[0]] for split, names in there.items() if names}
    splits = {}
    for split in SPLITS:
        files = split_files(Path(spec.path), _names(spec, split))
        if len(files) > 1:
            raise TaskError(f"{spec.path} holds several files for {split}: {', '.join(p.name for p in files)}. Keep one.")
        if files:
            splits[split] = read_file(files[0], columns or {})
    return splits


def _names(spec: TaskSpec, split: str) -> tuple[str, ...]:
    """What the split may be called at the source."""
    return (*([spec.split_names[split]] if split in spec.split_names else []), *SPLIT_NAMES[split])


def split_files(folder: Path, stems: tuple[str, ...]) -> list[Path]:
    """The files of a split; those in CoNLL's formats only where there is no table.

    The names under which SQuAD (train-v2.0.json) and Universal Dependencies (en_ewt-ud-train.conllu) are distributed will
    do too.

    Raises:
        TaskError: what has such a name cannot be read: the task would be one without that split.
    """
    names = sorted(os.listdir(folder))
    for patterns in (
        [f"{stem}{suffix}" for stem in stems for suffix in BUILDERS] + [f"{stem}-v*.json" for stem in stems],
        [f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES] + [f"*-ud-{stem}.conllu" for stem in stems],
    ):
        files = [folder / name for pattern in patterns for name in names if fnmatch.fnmatchcase(name, pattern)]
        if other := [path for path in files if not path.is_file()]:
            raise TaskError(f"{other[0]} is a link that leads nowhere, or no file. Mend or remove it.")
        if files:
            return files
    return []


def read_file(path: Path, columns: Mapping[str, str]) -> Dataset:
    """All rows of a file.

    Raises:
        TaskError: it is empty, or cannot be read.
    """
    if path.stat().st_size == 0:  # The readers fail at it without a word.
        raise TaskError(f"{path} is empty: it has no examples, and no columns.")
    try:
        if path.suffix in SUFFIXES:
            rows = list(read_conll(path, columns))
            if any(row["id"] is None for row in rows):
                rows = [{name: cell for name, cell in row.items() if name != "id"} for row in rows]
            return Dataset.from_list(rows)
        if is_squad_json(path):
            return read_squad_json(path)
        builder = BUILDERS[path.suffix]
        if builder == "parquet":
            return Dataset(open_parquet(path).read())
        return read_rows(path, builder)
    except TaskError:
        raise
    except Exception as error:  # The readers raise their own types for a corrupt file; none is a bug of ours.
        raise TaskError(f"Cannot read {path}: {reading_error(error)}") from error


def stream_file(path: Path, spec: TaskSpec, rows: int) -> Iterator[dict[str, list[Any]]]:
    """The columns of a file in chunks of so many rows; without those of labels where a format needs none.

    Raises:
        TaskError: it cannot be read, or is of no known type.
    """
    if path.stat().st_size == 0:  # The readers would find no columns in it.
        return
    try:
        if path.suffix == ".txt" and spec.kind != "tagging":
            yield from _chunks(({spec.text_columns[0]: line.rstrip("\n")} for line in path.open(encoding="utf-8-sig")), rows)
        elif path.suffix in SUFFIXES:
            yield from _chunks(read_conll(path, spec.columns, tagged=False), rows)
        elif path.suffix not in BUILDERS:
            known = ", ".join(dict.fromkeys([*BUILDERS, *SUFFIXES]))
            raise TaskError(f"{path}: the types of files are {known}; received {path.suffix!r}.")
        elif is_squad_json(path):
            yield from read_squad_json(path).iter(rows)
        elif path.suffix == ".parquet":
            yield from (batch.to_pydict() for batch in open_parquet(path).iter_batches(rows))
        else:
            yield from row_batches(path, BUILDERS[path.suffix], rows)
    except TaskError:
        raise
    except Exception as error:  # See read_file.
        raise TaskError(f"Cannot read {path}: {reading_error(error)}") from error


def _chunks(rows: Iterator[dict[str, Any]], size: int) -> Iterator[dict[str, list[Any]]]:
    while chunk := list(itertools.islice(rows, size)):
        yield columns_of(chunk)


def stream_hub(spec: TaskSpec, rows: int) -> Iterator[dict[str, list[Any]]]:
    """The columns of the test split of a Hub dataset, or of its only split, in chunks of so many rows.

    Raises:
        TaskError: it cannot be read, or has several splits and no test.
    """
    found = _load_hub(spec, streaming=True)
    names = [name for name in _names(spec, "test") if name in found] or list(found)
    if len(names) > 1:
        raise TaskError(
            f"{spec.path} has the splits {', '.join(names)}; which to predict on is only clear with a test split."
        )
    yield from found[names[0]].iter(rows)


def _load_hub(spec: TaskSpec, streaming: bool = False) -> Mapping[str, Dataset | IterableDataset]:
    if not spec.path:
        raise TaskError(
            f"The data of task {spec.name} are not on the Hub: give the path of a folder of that name with train, "
            "validation and test files."
        )
    csv = spec.data_files is not None and all(name.endswith(".csv") for name in spec.data_files.values())
    try:
        with explaining(Repo(spec.path, spec.revision, "dataset")):
            splits = load_dataset(
                spec.path,
                spec.config_name,
                revision=spec.revision,
                data_files=None if spec.data_files is None else dict(spec.data_files),
                **(OPTIONS["csv"] if csv else {}),
                **({"streaming": True} if streaming else {}),
            )
        for rows in splits.values():
            check_columns(rows.column_names or (), rows.info.builder_name)
        return splits
    except Exception as error:  # The readers raise their own types; none is a bug of ours.
        raise TaskError(f"Cannot load task {spec.name} from the Hub dataset {spec.path!r}: {error}\n{LOCAL}") from error
