"""Convert rows of a source to the columns of a task; find, report and count the rows that cannot be used."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa
from datasets import Dataset, Features, concatenate_datasets
from datasets.table import MemoryMappedTable

from hf_tlm.corpora.tables import extract_field
from hf_tlm.tasks.formats import has_lines_of_words
from hf_tlm.tasks.spec import ROLES, TaskError, TaskSpec
from hf_tlm.utils.arrow_files import cache_folder, find_rows
from hf_tlm.utils.files import atomic_file
from hf_tlm.utils.shown import named_columns

logger = logging.getLogger(__name__)

# Some of the reasons why a row cannot be used (`Bad.kind`).
REPEATED, NO_ID, NO_WORDS = "a repeated id", "no id", "a sentence that is no list of words"
# Advice for errors, by reason.
SENTENCES = (
    "A row is a sentence, whose tokens and tags are lists (jsonl, parquet). A file with one word and its tag per line, and "
    "an empty line after each sentence, needs the suffix .conll and no header."
)
DECODE = 'Convert the column to texts first, for instance with frame[name].str.decode("utf-8") in pandas.'
# End of a reason -> advice.
_ADVICE_BY_ENDING = {
    "that is a list": 'Join each list into one text first, for instance with " ".join(texts) in Python.',
    NO_WORDS: SENTENCES,
    "that is a bytes": DECODE,
    "that is a dict": "Name the field of the object that contains the text, for instance --text_column ticket.body.",
}


class Bad(NamedTuple):
    """The reason why a row cannot be used, and details about this row."""

    kind: str
    detail: str = ""


def check_text(name: str, *values: Any) -> Bad | None:
    """Return what is wrong with texts of a row: null, blank, or no text; None if they are usable."""
    if any(value is None for value in values):
        return Bad(f"null {name}")
    problem = check_plain(name, *values)
    return problem or (Bad(f"blank {name}") if any(not str(value).strip() for value in values) else None)


def check_plain(name: str, *values: Any) -> Bad | None:
    """Return what is wrong with values of a row that must be convertible to text (no list, object or bytes), or None."""
    not_plain = [value for value in values if isinstance(value, (list, dict, bytes))]
    return Bad(f"{name} that is a {type(not_plain[0]).__name__}", f"{name} {not_plain[0]!r:.40}") if not_plain else None


def class_names(labels: Iterable[int | None], names: Sequence[str]) -> list[str | None]:
    """Convert integer labels of a `ClassLabel` feature to names; null, and -1 for a row without a label, become None."""
    return [None if label is None or label < 0 else names[label] for label in labels]


def column_of(spec: TaskSpec, role: str, rows: Dataset) -> str | None:
    """Return the column with this role: the one that the spec names, or the first default name that exists, or None."""
    if role in spec.columns:
        return spec.columns[role]
    return next((name for name in ROLES[spec.kind][role] if name in rows.column_names), None)


def columns_of(spec: TaskSpec, split: str, rows: Dataset, *roles: str) -> list[list[Any]]:
    """Return the values of the columns with these roles, one list per role.

    Raises:
        TaskError: a column is missing.
    """
    names = [column_of(spec, role, rows) or ROLES[spec.kind][role][0] for role in roles]
    if absent := [name for name in names if name not in rows.column_names]:
        advice = f"Name the columns with --columns, for instance --columns {roles[0]}=name; the roles are "
        advice += f"{', '.join(ROLES[spec.kind])}. If this is not a {spec.kind} task, choose another --task_kind."
        raise missing_columns_error(spec, split, absent, rows, advice)
    return [rows[name][:] for name in names]


def missing_columns_error(spec: TaskSpec, split: str, absent: list[str], rows: Dataset, advice: str) -> TaskError:
    """Build the error for columns that a source lacks.

    Args:
        split: its name, or the path of a file.
        advice: what to do about it.
    """
    path = Path(split if Path(split).is_file() else spec.path or os.devnull)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if spec.path != "memory" and has_lines_of_words(file):
            advice = (
                f"{file.name} seems to have one word and its tag per line, with an empty line after each sentence: give it "
                f"the suffix .conll, and no header. If it is a table: {advice}"
            )
            break
    return TaskError(
        f"Task {spec.name}, {split}: no column {', '.join(map(repr, absent))}; the columns are "
        f"{named_columns(rows.column_names)}. {advice}"
    )


def read_ids(spec: TaskSpec, split: str, rows: Dataset, default: Iterable[str | None]) -> list[str | None]:
    """Return the values of the id column as strings, or the default if there is no such column.

    Raises:
        TaskError: the spec names an id column that is missing.
    """
    column = spec.id_column or ("id" if "id" in rows.column_names else None)
    if column is None:
        return list(default)
    if column not in rows.column_names:
        raise missing_columns_error(spec, split, [column], rows, "Choose another --id_column.")
    return [None if value is None else str(value) for value in rows[column][:]]


def format_dropped(bad: Mapping[str, int]) -> str:
    """Format the number of rows that were left out for each reason, as part of a sentence."""
    return ", ".join(f"{count:,} with {reason}" for reason, count in bad.items())


def advice(spec: TaskSpec, kinds: Iterable[str]) -> str:
    """Return what to do about rows with these reasons, other than correcting them: sentences with a space before each.

    Repeated or missing ids suggest that the id column is not one of ids of rows; a list or an object may contain texts.
    """
    sentences, kinds = "", set(kinds)
    if kinds & {REPEATED, NO_ID}:
        column, other = (spec.id_column, "remove the option") if spec.id_column else ("id", "rename it")
        default_note = "" if spec.id_column else ": a column id is used by default"
        sentences += f" If {column} does not identify rows, choose another --id_column, or {other}{default_note}."
    return sentences + "".join(
        f" {sentence}" for ending, sentence in _ADVICE_BY_ENDING.items() if any(kind.endswith(ending) for kind in kinds)
    )


def unusable_rows_error(spec: TaskSpec, head: str, problems: Iterable[str], kinds: Iterable[str]) -> TaskError:
    """Build the error for unusable rows: a line for each problem, and what to do about them."""
    remedy = "Correct these rows, or leave them out with --drop_bad_rows."
    return TaskError(f"{head}:\n- " + "\n- ".join(problems) + f"\n{remedy}{advice(spec, kinds)}")


def add_field_columns(spec: TaskSpec, rows: Dataset) -> Dataset:
    """Add a column for each name in the spec that is a field of an object: `ticket.body` is field `body` of `ticket`.

    `Dataset.flatten` does not do this for objects whose keys differ.
    """
    ids = {spec.id_column} if spec.id_column else set()
    names = {*spec.text_columns, spec.label_column, *ids, *spec.columns.values()} - {*rows.column_names}
    for name in sorted(names):
        column, *keys = name.split(".")
        if keys and column in rows.column_names:
            values = extract_field(rows[column][:], keys)
            if values is not None:
                field = Dataset.from_dict({name: values}, on_mixed_types="use_json")
                rows = concatenate_datasets([rows, field], axis=1)
    return rows


class UsableRows(NamedTuple):
    """The result of `collect_usable_rows`.

    rows: the usable rows.
    kept: their positions among all rows.
    bad: reason -> number of rows that were left out.
    problems: a sentence for each reason, with the first such row.
    """

    rows: Dataset
    kept: list[int]
    bad: dict[str, int]
    problems: list[str]


def collect_usable_rows(
    split: str,
    ids: list[str | None],
    values: Iterable[tuple | Bad],
    features: Features,
    *,
    unique: bool = True,
    row_numbers: Sequence[int] | None = None,
) -> UsableRows:
    """Build rows with the columns `features`, of which `id` is the first, and leave out the unusable rows.

    Args:
        split: its name, for messages.
        ids: id of each row; a row without an id is unusable.
        values: the other columns of each row, or a `Bad` that says what is wrong with it.
        unique: whether a repeated id makes a row unusable.
        row_numbers: numbers of the rows in the source, for messages; None: from 0.
    """
    seen_ids: set[str | None] = set()
    first_bad: dict[str, tuple[int, str]] = {}
    bad: dict[str, int] = {}
    data: dict[str, list[Any]] = {name: [] for name in features}
    kept_rows: list[int] = []
    for row, (identifier, value) in enumerate(zip(ids, values, strict=True)):
        if not isinstance(value, Bad):
            if identifier is None:
                value = Bad(NO_ID)
            elif unique and identifier in seen_ids:
                value = Bad(REPEATED)
        if isinstance(value, Bad):
            first_bad.setdefault(value.kind, (row, value.detail))
            bad[value.kind] = bad.get(value.kind, 0) + 1
            continue
        seen_ids.add(identifier)
        kept_rows.append(row)
        for name, cell in zip(features, (identifier, *value), strict=True):
            data[name].append(cell)
    row_numbers = range(len(ids)) if row_numbers is None else row_numbers
    problems = [
        f"{split}: {count} of {len(ids)} rows with {kind}; the first is row {row_numbers[first_bad[kind][0]]} "
        f"(counted from 0; id {ids[first_bad[kind][0]]!r}{first_bad[kind][1] and ', ' + first_bad[kind][1]})"
        for kind, count in bad.items()
    ]
    return UsableRows(Dataset.from_dict(data, features=features), kept_rows, bad, problems)


def store_in_cache(rows: Dataset) -> Dataset:
    """Write rows to a file in the cache of `datasets`, named by their content, and return them memory-mapped from it.

    The results of `map` are then cached next to it, where every process and run with equal rows finds them.

    Raises:
        HfTlmError: the cache cannot be written.
    """
    file, expected = cache_folder() / f"rows-{rows._fingerprint}.arrow", rows.data.table
    table = None if find_rows(file) is None else MemoryMappedTable.from_file(str(file))
    if table is not None and not (
        table.schema.equals(expected.schema, check_metadata=True) and table.table.equals(expected)
    ):
        logger.warning("%s is damaged (it contains other rows) and will be created again.", file)
        table = None
    if table is None:
        with atomic_file(file) as stream, pa.ipc.new_stream(stream, expected.schema) as writer:
            writer.write_table(expected)
        table = MemoryMappedTable.from_file(str(file))
    # `Dataset.from_file` would compute another fingerprint, from the file's path and time.
    return Dataset(table, info=rows.info, fingerprint=rows._fingerprint)


def kind_module(kind: str) -> ModuleType:
    """Return the module that reads tasks of a kind: label_names, unlabelled, features, read, report and content."""
    name = "texts" if kind in ("classification", "regression") else kind
    return importlib.import_module(f"hf_tlm.tasks.{name}")
