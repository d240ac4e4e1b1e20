"""Documents of files and data sets, in Arrow batches of columns id, text and source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset

from hf_tlm.corpora.corpus import BATCH, SCHEMA, CorpusError
from hf_tlm.corpora.tables import (
    COMPRESSIONS,
    check_columns,
    check_encoding,
    field_of,
    find_separator,
    open_parquet,
    row_batches,
    suffix_of,
    told_as,
)
from hf_tlm.utils.shown import named_columns

BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".txt": "text", ".md": "text"}
SMALL = 10 << 20  # Bytes of a text file that `datasets` reads at once.

Columns = tuple[str, str | None, str]  # Of texts, ids, sources.
Batch = dict[str, Any]  # A batch's columns, as lists or Arrow arrays.


def builder_of(path: Path) -> str | None:
    """The reader for a file name."""
    return BUILDERS.get(suffix_of(path))


def read_file(path: Path, name: str, columns: Columns, sample_by: str = "line") -> Iterator[pa.RecordBatch]:
    """The documents of a file; ids begin with `name`.

    Args:
        sample_by: what of a text file is a document, one of `SAMPLE_BY`.

    Raises:
        CorpusError: see `read_batches`.
    """
    with told_as(CorpusError, path):
        if path.stat().st_size == 0:  # A shard without rows; the readers would find no schema in it.
            return
        builder = builder_of(path)
        assert builder is not None
        if path.suffix.lower() != ".parquet":
            check_encoding(path)
        if path.suffix.lower() == ".parquet":
            batches = _parquet(path, columns)
        elif builder == "text" and path.stat().st_size <= SMALL and path.suffix.lower() not in COMPRESSIONS:
            batches = _small_text(path, sample_by)
        else:
            separator = find_separator(path) if builder == "csv" else ","
            batches = row_batches(path, builder, BATCH, separator, sample_by)
    yield from read_batches(batches, name, _stem(path), columns)


def read_rows(rows: Dataset | IterableDataset, name: str, source: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The documents of a data set; see `read_batches`."""
    return read_batches(_checked(rows), name, source, columns)


def _checked(rows: Dataset | IterableDataset) -> Iterator[Batch]:
    for batch in rows.iter(BATCH):
        check_columns(batch, rows.info.builder_name)
        yield batch


def read_batches(batches: Iterator[Batch], name: str, source: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Columns into documents: ids `<name>:<row>` without an id column, `source` where there is none.

    Raises:
        CorpusError: a batch cannot be read, or a column is missing or holds no text.
    """
    text_column, id_column, source_column = columns
    position = 0
    while True:
        with told_as(CorpusError, f"{name} after row {position}"):
            batch = next(batches, None)
            if batch is None:
                return
            names, batch = named_columns(batch), _with_fields(batch, columns)
            for column in (text_column, id_column):
                if column is not None and column not in batch:
                    option = "--corpus_text_column" if column == text_column else "--corpus_id_column"
                    raise CorpusError(f"{name}: no column {column!r}; the columns are {names}. Choose with {option}.")
            texts = _texts(batch[text_column], name, position, text_column)
            if id_column is None:
                rows = pa.array(range(position, position + len(texts))).cast(pa.string())
                ids = pc.binary_join_element_wise(name, rows, ":")
            else:
                ids = _strings(batch[id_column])
            origins = pa.nulls(len(texts), pa.string())
            if batch.get(source_column) is not None:
                origins = _strings(batch[source_column])
            documents = pa.RecordBatch.from_arrays([ids, texts, pc.fill_null(origins, source)], schema=SCHEMA)
        yield documents
        position += len(texts)


def _with_fields(batch: Batch, columns: Columns) -> Batch:
    """The batch with a column for each that is named as a field of an object: `page.text` for that of `page`."""
    fields: Batch = {}
    for name in filter(None, columns):
        column, *keys = name.split(".")
        if name not in batch and keys and batch.get(column) is not None:
            cells = field_of(_python(batch[column]), keys)
            fields |= {} if cells is None else {name: cells}
    return batch | fields


def _parquet(path: Path, columns: Columns) -> Iterator[Batch]:
    """Without `datasets`, which makes Python objects of every row; columns that are not asked for are None."""
    file = open_parquet(path)
    names = file.schema_arrow.names
    asked = {name if name in names else name.split(".")[0] for name in columns if name is not None}
    batches = file.iter_batches(BATCH, columns=[name for name in names if name in asked] or names)
    return (dict.fromkeys(names) | dict(zip(batch.schema.names, batch.columns, strict=True)) for batch in batches)


def _small_text(path: Path, sample_by: str) -> Iterator[Batch]:
    """What `datasets` reads of such a file, without what it takes to open each of thousands of pages."""
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    if sample_by == "line":
        rows = text.removesuffix("\n").split("\n")
    else:
        rows = [part for part in text.split("\n\n") if part] if sample_by == "paragraph" else [text]
    for start in range(0, len(rows), BATCH):
        yield {"text": rows[start : start + BATCH]}


def _texts(values: list | pa.Array, name: str, position: int, column: str) -> pa.Array:
    if not _holds_strings(values):
        for row, value in enumerate(_python(values), position):
            if value is not None and not isinstance(value, (str, int, float)):
                todo = "Choose another column."
                if isinstance(value, dict) and value:
                    todo = f"Name the field that holds them, such as --corpus_text_column {column}.{next(iter(value))}."
                raise CorpusError(
                    f"{name}, row {row}: the column {column!r} should hold texts; received a {type(value).__name__}. {todo}"
                )
    return _strings(values)


def _strings(values: list | pa.Array) -> pa.Array:
    """Strings of a column; numbers as Python writes them."""
    if not _holds_strings(values):
        return pa.array([None if value is None else str(value) for value in _python(values)], pa.string())
    strings = values.cast(pa.string())
    strings.validate(full=True)  # Parquet's readers do not look at the encoding.
    return strings


def _holds_strings(values: list | pa.Array) -> TypeGuard[pa.Array]:
    if isinstance(values, list):
        return False
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _python(values: list | pa.Array) -> list:
    return values if isinstance(values, list) else values.to_pylist()


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (*COMPRESSIONS, *BUILDERS):
        name = name.removesuffix(suffix)
    return name
