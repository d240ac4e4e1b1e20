"""Rows to predict on: as a task's, without labels, a chunk at a time."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from hf_tlm.corpora.tables import told_as
from hf_tlm.hub.repo_id import may_be_repo
from hf_tlm.tasks.loading import kind_module
from hf_tlm.tasks.reading import stream_file, stream_hub
from hf_tlm.tasks.rows import canonical, column_of, ids_of, left_out, missing, unusable, with_fields
from hf_tlm.tasks.spec import ROLES, TaskError, TaskSpec
from hf_tlm.utils.shown import kind_of

logger = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """Some rows of a source.

    rows: in the columns of a `Task`, without labels.
    source: the source's own columns, as lists, of the same rows.
    """

    rows: Dataset
    source: dict[str, list[Any]]


def unlabelled(path: str, spec: TaskSpec, *, drop_bad_rows: bool = False, chunk: int = 10_000) -> Iterator[Dataset]:
    """The rows of a file in the columns of a `Task` of this spec; see `unlabelled_chunks`."""
    for found in unlabelled_chunks(path, spec, drop_bad_rows=drop_bad_rows, chunk=chunk):
        yield found.rows


def unlabelled_chunks(
    path: str, spec: TaskSpec, *, drop_bad_rows: bool = False, chunk: int = 10_000, separator: str | None = None
) -> Iterator[Chunk]:
    """The rows of a file in the columns of a `Task` of this spec, without labels: `chunk` at most at once, in order.

    Whatever labels the file has are not read. `id` is the source's, or the number of the row, from 0: what is predicted on
    need not have the ids that the training had.

    Args:
        path: a file as in a task's folder (of words alone in CoNLL's formats; .txt also for a text a line), or a Hub id,
            with `@revision` if wanted, whose test split or only split is read.
        spec: `Task.spec` of the task the model was trained on, which says what the columns are called.
        drop_bad_rows: leave out rows that cannot be used, with a warning that counts them.
        separator: of the fields of csv and tsv files; default: what makes a table of the file.

    Raises:
        TaskError: it cannot be read, a column is missing, there is no row, or (where they are not to be dropped) rows that
            cannot be used, when their chunk is reached: all kinds with their counts in the chunk and the first row of each.
    """
    path, reader = data_name(path), kind_module(spec.kind)
    done = 0
    for columns in _stream(path, spec, chunk, separator):
        with told_as(TaskError, f"{path} after row {done}"):  # Texts may be no Unicode, for instance.
            rows = with_fields(spec, Dataset.from_dict(columns, on_mixed_types="use_json"))
        if not ROLES[spec.kind]:
            spec = reader.with_columns_of(spec, rows)
        _check_columns(path, spec, rows)
        there = spec.id_column is None or spec.id_column in rows.column_names
        ids = ids_of(spec if there else dataclasses.replace(spec, id_column=None), path, rows, [None] * len(rows))
        ids = [str(done + row) if identifier is None else identifier for row, identifier in enumerate(ids)]
        values = reader.read(spec, path, rows, (), labelled=False)
        features, numbers = reader.features(spec, labelled=False), range(done, done + len(ids))
        found = canonical(path, ids, values, features, unique=False, numbers=numbers)
        if found.bad and not drop_bad_rows:
            head = f"There are rows that cannot be predicted on (counted among the {len(rows)} from row {done} on)"
            raise unusable(spec, head, found.problems, found.bad)
        if found.bad:
            logger.warning("%s, rows %d to %d: left out %s.", path, done, done + len(rows) - 1, left_out(found.bad))
        done += len(rows)
        if len(found.rows):
            whole = len(found.kept) == len(rows)
            yield Chunk(
                found.rows,
                {name: cells if whole else [cells[row] for row in found.kept] for name, cells in columns.items()},
            )
    if not done:
        raise TaskError(f"{path} has no rows to predict on.")


def _check_columns(path: str, spec: TaskSpec, rows: Dataset) -> None:
    """Raise a TaskError, which names options that commands which predict have, unless what is predicted on is there."""
    roles = [role for role in ROLES[spec.kind] if role not in ("answers", "starts", "label", "tags")]
    names = [column_of(spec, role, rows) or ROLES[spec.kind][role][0] for role in roles]
    if absent := [name for name in (names if roles else spec.text_columns) if name not in rows.column_names]:
        chosen = "" if roles else "Choose with --text_column and --text_pair_column, or "
        told = f"{chosen}give the columns of the file the names that they had in training."
        raise missing(spec, path, absent, rows, told[0].upper() + told[1:])


def data_name(data: Any) -> str:
    """The file or Hub id of what is to be predicted on; a TaskError for the data themselves."""
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    written = " Write it to one: Dataset.to_json(file), DataFrame.to_csv(file, index=False)." if data is not None else ""
    raise TaskError(f"data: expected a file, or a Hub id (owner/name); received {kind_of(data)}.{written}")


def _stream(path: str, spec: TaskSpec, chunk: int, separator: str | None) -> Iterator[dict[str, list]]:
    if Path(path).is_file():
        return stream_file(Path(path), spec, chunk, separator)
    name, _, revision = path.partition("@")
    if not may_be_repo(name) or Path(name).exists():
        raise TaskError(f"No file {path!r} to predict on: give a file, or a Hub id (owner/name).")
    hub = dataclasses.replace(spec, path=name, revision=revision or None)
    if name != spec.path:
        hub = dataclasses.replace(hub, config_name=None, data_files=None, split_names={})
    return stream_hub(hub, chunk)
