"""Read the splits of a task from a Hub dataset or from files, and stream rows to predict on in chunks."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, IterableDataset, load_dataset

from hf_tlm.corpora.tables import (
    COMPRESSIONS,
    OPTIONS,
    TABLE_BUILDERS,
    check_columns,
    check_encoding,
    columns_to_dataset,
    find_separator,
    open_decompressed,
    open_parquet,
    read_errors_as,
    read_rows,
    row_batches,
    rows_to_columns,
    strip_compression,
    suffix_of,
)
from hf_tlm.hub.errors import explaining
from hf_tlm.hub.repo_id import Repo, may_be_repo
from hf_tlm.tasks.formats import SUFFIXES, is_squad_json, read_conll, read_excel, read_squad_json
from hf_tlm.tasks.rows import (
    add_field_columns,
    collect_usable_rows,
    column_of,
    format_dropped,
    kind_module,
    missing_columns_error,
    read_ids,
    unusable_rows_error,
)
from hf_tlm.tasks.spec import ROLES, SPLITS, TaskError, TaskSpec
from hf_tlm.utils.shown import few, kind_of, suggested_path

logger = logging.getLogger(__name__)

# Words in file names that suggest a split (Val.csv, testing.tsv), but do not match latest.csv and device.csv.
_SPLIT_HINTS = {
    "validation": re.compile(r"(?<![a-z])(val(?![a-z])|valid|eval|dev(?![a-z])|develop)"),
    "test": re.compile(r"(?<![a-z])test"),
}
# Archives and compressions that cannot be read.
_UNREADABLE = (".zip", ".bz2", ".xz", ".7z")
# Name for the rows of a source without splits.
TABLE = "table"
# Forms of labels in a csv: integers, numbers and truth values. NaN means that there is no label.
_INTEGER = re.compile(r"\s*[+-]?(0|[1-9][0-9]{0,17})\s*")
_NUMBER = re.compile(r"\s*[+-]?((0|[1-9][0-9]{0,17})(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_NAN = {"nan", "NaN"}
_BOOLEANS: dict[str | None, Any] = {word: word[0] in "Tt" for word in ("True", "TRUE", "true", "False", "FALSE", "false")}
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
LOCAL_ADVICE = "Or pass the path of a folder with train, validation and test files."


def read_splits(
    spec: TaskSpec, columns: Mapping[str, str] | None = None, separator: str | None = None
) -> dict[str, Dataset]:
    """Read the splits of a task.

    A file, or a folder with a single table that is not named like a split, gives only the key `TABLE`. Fields of csv and
    tsv files stay strings as written: 007 is not 7. Labels and offsets of answers become numbers, or labels truth values,
    if all values of all splits are such.

    Args:
        columns: role -> column, for files whose columns have no names (CoNLL).
        separator: field separator of csv and tsv files; see `read_file`.

    Raises:
        TaskError: the data cannot be read, a split has several files, or a folder has none.
    """
    path = Path(spec.path)
    if not spec.path or not path.exists():
        return named_splits(spec, _load_hub(spec))
    files = _find_files(spec, path) if path.is_dir() else {TABLE: path}
    splits = {split: read_file(file, columns or {}, separator) for split, file in files.items()}
    csv_splits = {split: splits[split] for split, file in files.items() if TABLE_BUILDERS.get(suffix_of(file)) == "csv"}
    starts_columns = [columns["starts"]] if columns and "starts" in columns else []
    for column in dict.fromkeys([spec.label_column, *starts_columns, *ROLES["question_answering"]["starts"]]):
        csv_splits = _convert_column(csv_splits, column)
    return splits | csv_splits


def _find_files(spec: TaskSpec, folder: Path) -> dict[str, Path]:
    """Return the file of each split in a folder, or its only table under the key `TABLE`; see `read_splits`."""
    split_paths = {}
    for split in SPLITS:
        files = split_files(folder, _split_names(spec, split))
        if len(files) > 1:
            names = [file.name for file in files]
            compressed = [name for name in names if strip_compression(Path(name)).name in {*names} - {name}]
            advice = f" If they have the same content, remove {', '.join(compressed)}." if compressed else ""
            raise TaskError(f"{spec.path} holds several files for {split}: {', '.join(names)}. Keep one.{advice}")
        if files:
            split_paths[split] = files[0]
    if not split_paths:
        return {TABLE: _find_table(folder)}
    for split in [split for split in ("validation", "test") if split not in split_paths]:
        names = [name for name in sorted(os.listdir(folder)) if suffix_of(Path(name)) in (*TABLE_BUILDERS, *SUFFIXES)]
        names = [name for name in names if _SPLIT_HINTS[split].search(name.casefold())]
        if ignored := [name for name in names if folder / name not in split_paths.values()]:
            logger.warning(
                "Task %s: %s in %s is ignored. To use it as the %s split, rename it to %s.",
                spec.name,
                few(ignored, 5),
                folder,
                split,
                " or ".join(_split_names(spec, split)),
            )
    return split_paths


def _convert_column(splits: Mapping[str, Dataset], column: str) -> dict[str, Dataset]:
    """Convert a column of strings to numbers or truth values, if all its values in all splits are such.

    Numbers with leading zeros, or with more digits than can be represented exactly, stay strings.
    """
    cells_by_split = {split: rows[column][:] for split, rows in splits.items() if column in rows.column_names}
    texts = {text for cells in cells_by_split.values() for text in cells} - {None}
    values: dict[str | None, Any] = {None: None}
    if all(_INTEGER.fullmatch(text) for text in texts):
        values |= {text: int(text) for text in texts}
    elif all(text in _BOOLEANS for text in texts):
        values |= _BOOLEANS
    elif all(_NUMBER.fullmatch(text) for text in texts - _NAN):
        values |= {text: float(text) for text in texts}
    else:
        return dict(splits)
    return dict(splits) | {
        split: splits[split]
        .remove_columns(column)
        .add_column(column, [values[cell] for cell in cells])
        .select_columns(splits[split].column_names)
        for split, cells in cells_by_split.items()
    }


def named_splits(spec: TaskSpec, datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Rename splits to our names for them; a single one with another name becomes `TABLE`.

    Raises:
        TaskError: there are several splits, and none has a known name.
    """
    matching_names = {split: [name for name in _split_names(spec, split) if name in datasets] for split in SPLITS}
    named = {split: datasets[names[0]] for split, names in matching_names.items() if names}
    if named or len(datasets) == 1:
        return named or {TABLE: next(iter(datasets.values()))}
    raise TaskError(
        f"Task {spec.name}: expected the splits train, validation (valid, dev) and test, or a single split, of which some "
        f"texts are held out; received {', '.join(map(str, datasets)) or 'none'}. Rename the splits in Python: "
        "load_task({'train': ..., 'validation': ...})."
    )


def _find_table(folder: Path) -> Path:
    """Return the path of the only table in a folder.

    Raises:
        TaskError: there is none or more than one, or `save_to_disk` wrote the folder.
    """
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    if "dataset_dict.json" in names or {"dataset_info.json", "state.json"} <= set(names):
        raise TaskError(
            f"{folder} was written by save_to_disk of datasets, whose files are not tables. Load it in Python, "
            f"load_task(load_from_disk({str(folder)!r})), or save the dataset as parquet (to_parquet)."
        )
    tables = [folder / name for name in names if suffix_of(Path(name)) in TABLE_BUILDERS and (folder / name).is_file()]
    if len(tables) == 1:
        return tables[0]
    listed = few(names, 10)
    raise TaskError(
        f"{folder} contains {listed or 'nothing'}: expected files named train, validation (valid, dev) and test, or one "
        f"table ({', '.join(TABLE_BUILDERS)}), of which some texts are held out. Rename the files, or pass one of them as "
        "the task."
    )


def _split_names(spec: TaskSpec, split: str) -> tuple[str, ...]:
    """Return the names that a split may have in the source, in order of preference."""
    return (*([spec.split_names[split]] if split in spec.split_names else []), *SPLIT_NAMES[split])


def split_files(folder: Path, stems: tuple[str, ...]) -> list[Path]:
    """Return the files of a split; files in CoNLL formats only if there is no table.

    The names under which SQuAD (train-v2.0.json) and Universal Dependencies (en_ewt-ud-train.conllu) are distributed are
    recognised too.

    Args:
        stems: names that the split may have.

    Raises:
        TaskError: something with such a name is no file, so that the task would lack that split.
    """
    names = sorted(os.listdir(folder))
    for patterns in (
        [
            f"{stem}{suffix}{compression}"
            for stem in stems
            for suffix in TABLE_BUILDERS
            for compression in ("", *COMPRESSIONS)
        ]
        + [f"{stem}-v*.json" for stem in stems],
        [f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES] + [f"*-ud-{stem}.conllu" for stem in stems],
    ):
        files = [
            folder / name for pattern in patterns for name in names if fnmatch.fnmatchcase(_lower_suffix(name), pattern)
        ]
        if not_files := [path for path in files if not path.is_file()]:
            raise TaskError(f"{not_files[0]} is a broken link, or not a file. Repair or remove it.")
        if files:
            return files
    return []


def _lower_suffix(name: str) -> str:
    """Return a file name with suffixes in lower case: train.csv for train.CSV, as some systems write it."""
    stem, dot, suffix = name.partition(".")
    return stem + dot + suffix.lower()


def read_file(path: Path, columns: Mapping[str, str], separator: str | None = None) -> Dataset:
    """Read all rows of a file; fields of csv and tsv files stay strings as written.

    Args:
        columns: role -> column, for files in CoNLL formats.
        separator: field separator of csv and tsv files. Default: the tab for .tsv, detected for .csv.

    Raises:
        TaskError: the file is empty, or cannot be read.
    """
    if path.stat().st_size == 0:  # The readers' own errors do not say that.
        raise TaskError(f"{path} is empty: it has no examples, and no columns.")
    with read_errors_as(TaskError, path):
        _check_type(path)
        suffix, separator = suffix_of(path), separator_of(path, separator)
        if suffix in SUFFIXES:
            rows = list(read_conll(path, columns))
            if any(row["id"] is None for row in rows):
                rows = [{name: cell for name, cell in row.items() if name != "id"} for row in rows]
            return Dataset.from_list(rows)
        if is_squad_json(path):
            return read_squad_json(path)
        if suffix == ".parquet":
            return Dataset(open_parquet(path).read())
        if suffix == ".xlsx":
            return Dataset.from_dict(read_excel(path))
        return read_rows(path, TABLE_BUILDERS[suffix], separator)


def separator_of(path: Path, separator: str | None = None) -> str:
    """Return the field separator of a csv or tsv file, see `read_file`.

    Raises:
        TaskError: `separator` is not a single ASCII character, or given for a file of another type.
    """
    if separator is None:
        suffix = suffix_of(path)
        return find_separator(path) if suffix in (".csv", ".tsv") else ","
    if suffix_of(path) not in (".csv", ".tsv"):
        raise TaskError(f"separator {separator}: only for csv and tsv files; received the file {path}. Remove the option.")
    separator = {"\\t": "\t", "tab": "\t"}.get(separator, separator)
    if len(separator) != 1 or separator in '"\r\n' or not separator.isascii():
        raise TaskError(f"separator must be one character, such as ; or tab; received {separator!r:.40}.")
    return separator


def separator_as_in(path: Path, separator: str | None) -> str | None:
    """Return the separator that was given for other files if the header of this csv or tsv file has it; None: detect it.

    Raises:
        TaskError: the file cannot be read, or see `separator_of`.
    """
    if separator is None or suffix_of(path) not in (".csv", ".tsv") or not path.is_file():
        return None
    with read_errors_as(TaskError, path), open_decompressed(path, "rt") as file:
        return separator if separator_of(path, separator) in file.readline() else None


def _check_type(path: Path) -> None:
    suffix, is_compressed = suffix_of(path), path.suffix.lower() in COMPRESSIONS
    must_unpack = path.suffix.lower() in _UNREADABLE or is_compressed and TABLE_BUILDERS.get(suffix) not in ("csv", "json")
    if must_unpack and Path(path.stem).suffix.lower() in (*TABLE_BUILDERS, *SUFFIXES):
        raise TaskError(
            f"{path}: only csv, tsv, jsonl and json files can be read compressed, as {' and '.join(COMPRESSIONS)}. Unpack "
            "the file first (gunzip, unzip, bunzip2, unxz), and pass the unpacked file."
        )
    if suffix not in (*TABLE_BUILDERS, *SUFFIXES):
        known_types = ", ".join(dict.fromkeys([*TABLE_BUILDERS, *SUFFIXES]))
        raise TaskError(f"{path}: expected a file of one of the types {known_types}; received {path.suffix!r}.")
    if suffix not in (".parquet", ".xlsx"):
        check_encoding(path)


def stream_file(path: Path, spec: TaskSpec, rows: int, separator: str | None = None) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of a file in chunks of rows; text and CoNLL files need no labels, and theirs are not read.

    Fields of csv and tsv files stay strings as written: 007 is not 7.

    Args:
        rows: maximum number of rows in a chunk.
        separator: see `read_file`.

    Raises:
        TaskError: the file cannot be read, or its type is unknown.
    """
    if path.stat().st_size == 0:  # The readers would complain that there are no columns.
        return
    with read_errors_as(TaskError, path):
        _check_type(path)
        suffix, separator = suffix_of(path), separator_of(path, separator)
        if suffix == ".txt" and spec.kind != "tagging":
            yield from _chunks(({spec.text_columns[0]: line.rstrip("\n")} for line in path.open(encoding="utf-8-sig")), rows)
        elif suffix in SUFFIXES:
            sentences = enumerate(read_conll(path, spec.columns, tagged=False))
            rows_with_ids = (row | {"id": str(index)} if row["id"] is None else row for index, row in sentences)
            yield from _chunks(rows_with_ids, rows)
        elif is_squad_json(path):
            yield from read_squad_json(path).iter(rows)
        elif suffix == ".parquet":
            yield from (batch.to_pydict() for batch in open_parquet(path).iter_batches(rows))
        elif suffix == ".xlsx":
            yield from Dataset.from_dict(read_excel(path)).iter(rows)
        else:
            yield from row_batches(path, TABLE_BUILDERS[suffix], rows, separator)


def _chunks(rows: Iterator[dict[str, Any]], size: int) -> Iterator[dict[str, list[Any]]]:
    while chunk := list(itertools.islice(rows, size)):
        yield rows_to_columns(chunk)


def stream_hub(spec: TaskSpec, rows: int) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of the test split of a Hub dataset, or of its only split, in chunks of at most `rows` rows.

    Raises:
        TaskError: the dataset cannot be read, or has several splits but no test split.
    """
    splits = _load_hub(spec, streaming=True)
    names = [name for name in _split_names(spec, "test") if name in splits] or list(splits)
    if len(names) > 1:
        raise TaskError(
            f"{spec.path}: expected a test split, or a single split, to predict on; received {', '.join(names)}."
        )
    yield from splits[names[0]].iter(rows)


def _load_hub(spec: TaskSpec, streaming: bool = False) -> Mapping[str, Dataset | IterableDataset]:
    if not spec.path:
        raise TaskError(
            f"The data of task {spec.name} are not on the Hub: pass the path of a folder of that name with train, "
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
    except Exception as error:  # The readers raise errors of many types, none of which is a bug of this package.
        raise TaskError(
            f"Cannot load task {spec.name} from the Hub dataset {spec.path!r}: {error}\n{LOCAL_ADVICE}"
        ) from error


class Chunk(NamedTuple):
    """A chunk of rows of a source.

    rows: the rows in the columns of a `Task`, without labels.
    source: the source's own columns of the same rows: name -> list.
    """

    rows: Dataset
    source: dict[str, list[Any]]


def unlabelled(
    path: str, spec: TaskSpec, *, drop_bad_rows: bool = False, chunk: int = 10_000, separator: str | None = None
) -> Iterator[Dataset]:
    """Yield the rows of a file or Hub dataset in the columns of a `Task`, without labels; see `unlabelled_chunks`."""
    for rows_chunk in unlabelled_chunks(path, spec, drop_bad_rows=drop_bad_rows, chunk=chunk, separator=separator):
        yield rows_chunk.rows


def unlabelled_chunks(
    path: str, spec: TaskSpec, *, drop_bad_rows: bool = False, chunk: int = 10_000, separator: str | None = None
) -> Iterator[Chunk]:
    """Yield the rows of a file or Hub dataset in the columns of a `Task` without labels, in order, in chunks.

    Labels in the source are not read. `id` is the id of the source, or the number of the row, from 0; the id column of the
    training data need not exist.

    Args:
        path: a file like those in a task's folder (in CoNLL formats the words suffice; a .txt file may also have one text
            per line), or a Hub id, with `@revision` if wanted, whose test split or only split is read.
        spec: `Task.spec` of the task that the model was trained on, which has the names of the columns.
        drop_bad_rows: leave out unusable rows, with a warning that counts them.
        chunk: maximum number of rows in a chunk.
        separator: field separator of csv and tsv files; default: see `read_file`.

    Raises:
        TaskError: the source cannot be read, a column is missing, there are no rows, or, without `drop_bad_rows`, a chunk
            has unusable rows: the message lists all reasons, with the number of rows in the chunk and the first one.
    """
    path, reader = data_name(path), kind_module(spec.kind)
    num_read = num_usable = 0
    for columns in _stream_source(path, spec, chunk, separator):
        with read_errors_as(TaskError, f"{path} after row {num_read}"):  # Texts may contain invalid Unicode, for instance.
            rows = add_field_columns(spec, columns_to_dataset(columns))
        if not ROLES[spec.kind]:
            spec = reader.choose_text_columns(spec, rows)
        _check_columns(path, spec, rows)
        has_id_column = spec.id_column is None or spec.id_column in rows.column_names
        ids = read_ids(spec if has_id_column else dataclasses.replace(spec, id_column=None), path, rows, [None] * len(rows))
        ids = [str(num_read + row) if identifier is None else identifier for row, identifier in enumerate(ids)]
        values = reader.read(spec, path, rows, (), labelled=False)
        features, row_numbers = reader.features(spec, labelled=False), range(num_read, num_read + len(ids))
        usable = collect_usable_rows(path, ids, values, features, unique=False, row_numbers=row_numbers)
        if usable.bad and not drop_bad_rows:
            head = f"Some rows cannot be predicted on (counted among the {len(rows)} rows from row {num_read} on)"
            raise unusable_rows_error(spec, head, usable.problems, usable.bad)
        if usable.bad:
            logger.warning(
                "%s, rows %d to %d (counted from 0): rows left out: %s.",
                *(path, num_read, num_read + len(rows) - 1, format_dropped(usable.bad)),
            )
        num_read, num_usable = num_read + len(rows), num_usable + len(usable.rows)
        if len(usable.rows):
            is_complete = len(usable.kept) == len(rows)
            yield Chunk(
                usable.rows,
                {name: cells if is_complete else [cells[row] for row in usable.kept] for name, cells in columns.items()},
            )
    if not num_usable:
        left_out = f": all {num_read:,} were left out" if num_read else ""
        raise TaskError(f"{path} has no rows to predict on{left_out}.")


def _check_columns(path: str, spec: TaskSpec, rows: Dataset) -> None:
    """Raise a TaskError if a column to predict on is missing; its advice names only options of commands that predict."""
    roles = [role for role in ROLES[spec.kind] if role not in ("answers", "starts", "label", "tags")]
    names = [column_of(spec, role, rows) or ROLES[spec.kind][role][0] for role in roles]
    if absent := [name for name in (names if roles else spec.text_columns) if name not in rows.column_names]:
        column_advice = "" if roles else "Choose columns with --text_column and --text_pair_column, or "
        advice = f"{column_advice}rename the columns of the file to their names in training."
        raise missing_columns_error(spec, path, absent, rows, advice[0].upper() + advice[1:])


def data_name(data: Any) -> str:
    """Return the file or Hub id of the data to predict on as a string.

    Raises:
        TaskError: `data` is no name or path, such as the data themselves.
    """
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    advice = " Save them to a file: Dataset.to_json(file), DataFrame.to_csv(file, index=False)." if data is not None else ""
    raise TaskError(f"data: expected a file, or a Hub id (owner/name); received {kind_of(data)}.{advice}")


def may_be_hub_task(name: str) -> bool:
    """Return whether a name that is no local file may be a Hub id; owner/name.csv is the path of a missing file."""
    return may_be_repo(name) and suffix_of(Path(name)) not in {*TABLE_BUILDERS, ".txt", ".conll", ".conllu"}


def _stream_source(path: str, spec: TaskSpec, chunk: int, separator: str | None) -> Iterator[dict[str, list]]:
    if Path(path).is_file():
        return stream_file(Path(path), spec, chunk, separator)
    name, _, revision = path.partition("@")
    if not may_be_hub_task(name) or Path(name).exists():
        hint = " This is a folder: pass one of its files." if Path(name).is_dir() else suggested_path(name)
        raise TaskError(f"No file {path!r} to predict on: pass an existing file, or a Hub id (owner/name).{hint}")
    hub_spec = dataclasses.replace(spec, path=name, revision=revision or None)
    if name != spec.path:
        hub_spec = dataclasses.replace(hub_spec, config_name=None, data_files=None, split_names={})
    return stream_hub(hub_spec, chunk)
