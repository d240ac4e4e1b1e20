"""Readers of tabular files for corpora and tasks: CSV, JSON, text and parquet, also compressed, with checks for damage."""

from __future__ import annotations

import codecs
import csv
import glob
import io
import itertools
import logging
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value, config, load_dataset
from datasets.exceptions import DatasetGenerationError
from fsspec.compression import compr, register_compression

from hf_tlm.corpora.json_rows import check_lines, has_times, read_array, read_objects
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.arrow_files import cached_rows
from hf_tlm.utils.problems import cache_problem
from hf_tlm.utils.process import is_first_process

logger = logging.getLogger(__name__)
# Only an empty field is null: by default pandas would also read the words "null", "None" and "NA" as null.
OPTIONS: dict[str, dict[str, Any]] = {
    "csv": {"keep_default_na": False, "na_values": [""]},
    "text": {"encoding": "utf-8-sig"},
}
# Suffix of a file of a table -> its reader: a builder of `datasets`, or excel.
TABLE_BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".xlsx": "excel"}
COMPRESSIONS = (".gz", ".zst")
SEPARATORS = (",", ";", "\t", "|")
# A first line of a CSV file that is not its header but declares the separator to Excel.
_SEPARATOR_LINE = re.compile(r'sep=([^\w\s"]|\t)\s*')
# Byte order marks. UTF-32 is tested first, because its little-endian mark starts with that of UTF-16.
_BYTE_ORDER_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_BLOCK_BYTES = 10 << 20  # Bytes of JSON that are read at once, and of a CSV file that are searched for misplaced quotes.
_ESCAPED_QUOTE_ADVICE = (
    'a double quote is escaped by a backslash. Double such quotes instead: sed \'s/\\\\"/""/g\' old.csv > new.csv'
)
_write_zstd = compr.get("zstd")
# Headers warned about: shards share one header, and are read more than once.
_warned_headers: set[tuple[str, ...]] = set()
_warned_files: set[str] = set()


def extract_field(cells: Iterable[Any], keys: Iterable[str]) -> list | None:
    """Return the values of a field of a column's objects.

    Args:
        cells: the column's values.
        keys: path of the field, `at` and `url` for `page.at.url` and the column `page`.

    Returns:
        One value per cell, None for a cell without the field; None instead of a list if no object of the column has the
        field, unless all cells are None.
    """
    cells = list(cells)
    for key in keys:
        if not any(isinstance(cell, dict) and key in cell for cell in cells) and any(cell is not None for cell in cells):
            return None
        cells = [cell.get(key) if isinstance(cell, dict) else None for cell in cells]
    return cells


def strip_compression(path: Path) -> Path:
    """Return a path without the suffix of a compression, if it has one."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path


def suffix_of(path: Path) -> str:
    """Return the lower-case suffix of a file name, without that of a compression."""
    return strip_compression(path).suffix.lower()


def open_decompressed(path: Path, mode: str = "rb", **options: Any) -> Any:
    """Open a file for reading, and decompress it if its name has such a suffix.

    Text is read as UTF-8, with or without a byte order mark.
    """
    options |= {"encoding": "utf-8-sig"} if "t" in mode else {}
    if strip_compression(path) == path:
        return open(path, mode, **options)
    return fsspec.open(str(path), mode, compression="infer", **options)


def check_encoding(path: Path) -> None:
    """Raise a ValueError for a file in UTF-16 or UTF-32, which readers would accept as UTF-8 with odd characters."""
    head = b""
    with suppress(OSError, EOFError, zlib.error):  # The reader reports these errors, and where they are.
        with open_decompressed(path) as file:
            head = file.read(1 << 10)
    if (encoding := _detect_wide_encoding(head)) is not None:
        raise ValueError(
            f"it is not UTF-8 text but {encoding}. Save it as UTF-8 (in Excel: CSV UTF-8), or convert it: iconv "
            f"-f {encoding.partition(',')[0]} -t UTF-8 {path.name} > new."
        )


def _detect_wide_encoding(head: bytes) -> str | None:
    """Detect UTF-16 and UTF-32 by their byte order mark, or by the zero bytes of ASCII letters; None for other encodings."""
    for name, marks in _BYTE_ORDER_MARKS.items():
        if head.startswith(marks):
            return name
    # Shares of zeros among the first, second, third and fourth bytes of groups of four.
    lanes = [head[lane : len(head) // 4 * 4 : 4] for lane in range(4)]
    zeros = [lane.count(0) / max(1, len(lane)) for lane in lanes]
    for order, (first, second, third, fourth) in (("LE", zeros), ("BE", zeros[::-1])):
        if (first, third, fourth) == (0, 1, 1):
            return f"UTF-32{order}, without a byte order mark"
        if first == third == 0 and min(second, fourth) > 0.1:
            return f"UTF-16{order}, without a byte order mark"
    return None


def _open_zstd(file: BinaryIO, mode: str = "rb", **options: Any) -> BinaryIO:
    """Open a zstd stream that reads all frames and raises an OSError if it is truncated, as other compressions do.

    fsspec's own reader would return the contents of a truncated stream as if it were complete.
    """
    if "r" not in mode:
        return _write_zstd(file, mode, **options)
    return io.BufferedReader(pa.CompressedInputStream(file, "zstd"))


# `datasets` opens both local files and files of the Hub with fsspec.
register_compression("zstd", _open_zstd, "zst", force=True)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a parquet file; its pages are verified by their checksums, if they have any.

    Raises:
        ValueError: it is compressed as a whole, or columns have the same name.
    """
    if strip_compression(path) != path:
        raise ValueError("a parquet file cannot be read compressed. Unpack it first (gunzip, unzstd).")
    # Without pre_buffer, which would hold all columns of the file in memory.
    file = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
    if repeated := [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]:
        raise ValueError(f"more than one column has the name {repeated[0]!r:.60}. Rename one of them.")
    return file


def find_separator(path: Path) -> str:
    """Detect the separator of a CSV file: comma, semicolon, tab or bar. That of a .tsv file is the tab.

    It is the one that the first line declares (`sep=;`, which Excel writes and reads). Otherwise it is the one that gives
    the header the most fields, and the next rows (up to 20) the same number. If there is none, rows may have fewer fields,
    but at least two: Excel leaves out the separators before empty cells at the end of rows. Comma if there is none again.

    Raises:
        UnicodeDecodeError: the first rows are not UTF-8. With a wrong separator the reader would fail with another error.
    """
    if suffix_of(path) == ".tsv":
        return "\t"
    with suppress(OSError, EOFError):
        if declared := _declared_separator(path):
            return declared
    widths: dict[str, list[int]] = {}
    for separator in SEPARATORS:
        try:
            fields = [len(row) for _, row, _ in itertools.islice(_csv_rows(path, separator), 21)]
        except UnicodeDecodeError:
            raise
        except (OSError, EOFError, ValueError, csv.Error):
            continue
        if fields and 1 < min(fields) and max(fields) == fields[0]:
            widths[separator] = fields
    complete = [separator for separator, fields in widths.items() if min(fields) == fields[0]]
    return max(complete or widths, key=lambda separator: widths[separator][0], default=",")


def _declared_separator(path: Path) -> str | None:
    """Return the separator that the first line of a CSV file declares; None if it declares none."""
    with open_decompressed(path, "rt", newline="") as file:
        match = _SEPARATOR_LINE.fullmatch(file.readline())
    return match and match[1]


def read_rows(path: Path, builder: str, separator: str = ",") -> Dataset:
    """Read all rows of a CSV, JSON or text file.

    Fields of CSV files, and dates in JSON, are strings as written; an empty field is None. The readers raise errors of many
    types, which `read_errors_as` converts to ours.
    """
    if builder == "json" and (array := _read_json_array(path)) is not None:
        return columns_to_dataset(rows_to_columns(array))
    source: dict[str, Any] = {"data_files": glob.escape(str(path)), "split": "train"}
    with _check_and_explain(path, builder, separator):
        try:
            rows = cached_rows(partial(load_dataset, builder, **source, **_builder_options(path, builder, separator)))
        except DatasetGenerationError:
            # The reader infers the columns of JSON and their types from the first block, and fails at later rows with other
            # ones. Read as a single block, all rows are considered.
            if builder != "json" or (size := _decompressed_size(path)) <= _BLOCK_BYTES:
                raise
            options = _builder_options(path, builder, separator) | {"chunksize": size}
            rows = cached_rows(partial(load_dataset, builder, **source, **options))
        if builder == "json" and has_times(rows.features):
            with open_decompressed(path, "rt") as file:
                rows = columns_to_dataset(rows_to_columns(list(read_objects(file))))
    return rows


def _read_json_array(path: Path) -> list[dict[str, Any]] | None:
    with open_decompressed(path) as file:
        return read_array(file)


def _decompressed_size(path: Path) -> int:
    """Return the decompressed size of a file in bytes."""
    with open_decompressed(path) as file:
        return sum(map(len, file))


def row_batches(
    path: Path, builder: str, size: int, separator: str = ",", sample_by: str = "line"
) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of a CSV, JSON or text file in batches of `size` rows, with the values that `read_rows` returns.

    Args:
        sample_by: unit of a text file that is a row.
    """
    if builder == "json" and (array := _read_json_array(path)) is not None:
        columns = rows_to_columns(array)
        for start in range(0, len(array), size):
            yield {name: cells[start : start + size] for name, cells in columns.items()}
        return
    source: dict[str, Any] = {"data_files": glob.escape(str(path)), "split": "train", "streaming": True}
    num_read = 0
    with _check_and_explain(path, builder, separator):
        try:
            rows = load_dataset(builder, **source, **_builder_options(path, builder, separator, sample_by))
            dated = builder == "json" and has_times(rows.features)
            for batch in _object_batches(path, size, rows.column_names) if dated else rows.iter(size):
                yield batch
                num_read += len(next(iter(batch.values())))
            return
        except Exception:
            if builder != "json" or _decompressed_size(path) <= _BLOCK_BYTES:
                raise
    rows = read_rows(path, builder)  # Read the file at once, because its first block does not have all columns or types.
    yield from rows.select(range(num_read, len(rows))).iter(size)


def _builder_options(path: Path, builder: str, separator: str, sample_by: str = "line") -> dict[str, Any]:
    """Return the options of the `datasets` builder for a file."""
    options: dict[str, Any] = {"sample_by": sample_by} if builder == "text" and sample_by != "line" else {}
    if builder == "json":
        options = {"chunksize": _BLOCK_BYTES, "parse_agent_traces": False}  # These are any tables with certain columns.
    if builder == "csv":
        options = {"sep": separator, "skiprows": 1 if _declared_separator(path) else 0}
        with open_decompressed(path) as file:
            header = pandas.read_csv(file, nrows=0, **options).columns
        # Otherwise the reader infers types from the first 10,000 rows, and fails at later rows with other types.
        options["features"] = Features({str(name): Value("string") for name in header})
    return {**OPTIONS.get(builder, {}), **options}


def _object_batches(path: Path, size: int, names: Iterable[str]) -> Iterator[dict[str, list[Any]]]:
    with open_decompressed(path, "rt") as file:
        objects = read_objects(file)
        while rows := list(itertools.islice(objects, size)):
            yield rows_to_columns(rows, names)


def rows_to_columns(rows: Sequence[dict[str, Any]], names: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Convert rows to columns, `names` first; a row without one of them has None there."""
    all_names = dict.fromkeys([*names, *(name for row in rows for name in row)])
    return {name: [row.get(name) for row in rows] for name in all_names}


def columns_to_dataset(columns: dict[str, list[Any]]) -> Dataset:
    """Return columns as a dataset; integers beyond int64, such as hashes, become strings of their digits."""
    try:
        return Dataset.from_dict(columns, on_mixed_types="use_json")
    except OverflowError:
        large = {
            name: [str(cell) if isinstance(cell, int) and not -(2**63) <= cell < 2**63 else cell for cell in cells]
            for name, cells in columns.items()
        }
        return Dataset.from_dict(large, on_mixed_types="use_json")


def reading_error(error: Exception) -> str:
    """Explain why something cannot be read, in the words of its reader, or why its cache cannot be written."""
    if problem := cache_problem(error, config.HF_DATASETS_CACHE):
        return f"{problem}."
    cause = error.__cause__ or error
    if isinstance(cause, UnicodeDecodeError):
        byte = f"byte 0x{cause.object[cause.start]:02x}"
        return (
            f"it is not UTF-8 text ({byte}). Save it as UTF-8 (in Excel: CSV UTF-8), or convert it, for example from "
            "Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 old.csv > new.csv"
        )
    if isinstance(cause, UnicodeEncodeError) or "surrogate pair" in str(cause):
        return (
            "a text contains half a character, an escape from \\ud800 to \\udfff without its other half "
            f"({str(cause).strip()}). "
            'Remove such halves: text.encode("utf-8", "ignore").decode() in Python.'
        )
    if "corresponds to no data" in str(cause):
        return "it has no rows."
    return str(cause).strip() or type(cause).__name__


@contextmanager
def read_errors_as(error_class: type[HfTlmError], source: object) -> Iterator[None]:
    """Convert errors of readers in the block to an HfTlmError of class `error_class` that names what cannot be read.

    The readers raise errors of many types, none of which is a bug here.
    """
    try:
        yield
    except error_class:
        raise
    except Exception as error:
        raise error_class(f"Cannot read {source}: {reading_error(error)}") from error


def check_columns(names: Iterable[str], builder: str | None) -> None:
    """Raise a ValueError if pandas used the first of too many fields as an index, so that texts are in wrong columns.

    For local files `read_rows` and `row_batches` find this earlier, and name the line.
    """
    if builder == "csv" and any(str(name).startswith("__index_level_") for name in names):
        raise ValueError("Some rows have more fields than the header. Put fields that contain commas in double quotes.")


@contextmanager
def _check_and_explain(path: Path, builder: str, separator: str) -> Iterator[None]:
    """Check a file before the block reads it, and explain a reader's error by the first faulty row of a CSV file.

    A first row with too many fields is an error before reading, because pandas would not fail but use the first field of
    every row as an index. JSON lines at which Arrow's reader would end the process are errors before reading too. The first
    process of a job warns of repeated column names and misplaced quotes.
    """
    if builder == "json":
        with open_decompressed(path) as file:
            check_lines(file)
    if builder == "csv":
        if problem := _csv_problem(path, separator, rows=1):
            raise ValueError(problem)
        if is_first_process():
            with suppress(OSError, ValueError, csv.Error):
                _, header, _ = next(_csv_rows(path, separator), (0, [], []))
                warn_of_repeated_names(path, header)
            _warn_of_quotes(path, separator)
    try:
        yield
    except Exception:
        problem = _csv_problem(path, separator) if builder == "csv" else None
        if problem is None:
            raise
        raise ValueError(problem) from None


def _csv_problem(path: Path, separator: str, rows: int | None = None) -> str | None:
    """Describe the first row of a CSV file with more fields than the header or an open quote; None if there is none.

    Args:
        rows: number of rows to check; None: all.
    """
    with suppress(OSError, ValueError, csv.Error):
        csv_rows = _csv_rows(path, separator)
        _, header, _ = next(csv_rows, (0, [], []))
        for line_number, fields, lines in itertools.islice(csv_rows, rows):
            if _is_open(lines, separator):
                return (
                    f"the row of line {line_number - len(lines) + 1} has a field that begins with a double quote which is "
                    "never closed. Close it, or put the field in double quotes and double the quotes in it."
                )
            if len(fields) > len(header) and _has_escaped_quote(lines, separator):
                return f"line {line_number} has more fields than the header, because {_ESCAPED_QUOTE_ADVICE}"
            if len(fields) > len(header):
                separators = {",": "commas", ";": "semicolons", "\t": "tabs"}.get(separator, repr(separator))
                return (
                    f"line {line_number} has {len(fields)} fields, but the header has {len(header)} "
                    f"({', '.join(header):.200}). Put fields that contain {separators} in double quotes."
                )
    return None


def warn_of_repeated_names(path: Path, header: Sequence[str]) -> None:
    """Warn of column names that occur more than once, once per header."""
    repeated = [name for name, count in Counter(header).items() if name.strip() and count > 1]
    if repeated and tuple(header) not in _warned_headers:
        _warned_headers.add(tuple(header))
        logger.warning(
            "%s names columns more than once (%.200s): the first of each keeps the name, the next is %s.1, and so on.",
            *(path, ", ".join(repeated), repeated[0]),
        )


def _warn_of_quotes(path: Path, separator: str) -> None:
    """Warn of quotes escaped by a backslash, and of lines joined by a quote that was meant literally, once per file.

    Such a quote at the start of a field ends the field at the next quote, lines later and in the middle of a text. Only the
    beginning of a large file is checked, because reading it twice would take longer than retrieval from it.
    """
    if str(path) in _warned_files:
        return
    _warned_files.add(str(path))
    joined_lines, escaped_lines, size = [], [], 0
    with suppress(OSError, ValueError, EOFError, csv.Error):
        for last_line, _, lines in _csv_rows(path, separator):
            if len(lines) > 1 and _has_stray_quote(lines, separator):
                joined_lines.append((last_line - len(lines) + 1, last_line))
            elif _has_escaped_quote(lines, separator):
                escaped_lines.append(last_line)
            size += sum(map(len, lines))
            if size > _BLOCK_BYTES:
                break
    if escaped_lines:
        logger.warning("%s, line %d: %s", path, escaped_lines[0], _ESCAPED_QUOTE_ADVICE)
    if joined_lines:
        logger.warning(
            "%s: %s rows%s span several lines, the first one lines %d to %d, because a field begins with a double quote "
            "that is closed in the middle of a later line. If every line is a row, put such fields in double quotes, and "
            "double the quotes in them.",
            *(
                path,
                f"{len(joined_lines):,}",
                f" in its first {_BLOCK_BYTES >> 20} MB" if size > _BLOCK_BYTES else "",
                *joined_lines[0],
            ),
        )


def _has_escaped_quote(lines: Sequence[str], separator: str) -> bool:
    r"""Return whether a quoted field of a row ends at an \" that was meant to be a quote, and not at the end of a field."""
    return any('\\"' in line for line in lines) and _has_stray_quote(lines, separator, first=1)


def _is_open(lines: Sequence[str], separator: str) -> bool:
    """Return whether a row ends within a quoted field, so that a further line would be part of the row."""
    return len(list(csv.reader([*lines, "x"], delimiter=separator))) == 1


def _has_stray_quote(lines: Sequence[str], separator: str, first: int = 2) -> bool:
    """Return whether a quoted field ends in line `first` of a row or later, and not at the end of a field."""
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        list(reader)
    except csv.Error:
        return reader.line_num >= first and not _is_open(lines, separator)
    return False


def _csv_rows(path: Path, separator: str) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (number of its last line, from 1; its fields; its lines) of the header and of every row that is not blank."""
    csv.field_size_limit(2**31 - 1)  # By default a field of more than 128 KiB is an error.
    num_skipped = 1 if _declared_separator(path) else 0
    lines: list[str] = []

    def record_lines(file: Iterable[str]) -> Iterator[str]:
        for line in file:
            lines.append(line)
            yield line

    with open_decompressed(path, "rt", newline="") as file:
        reader = csv.reader(record_lines(itertools.islice(file, num_skipped, None)), delimiter=separator)
        for fields in reader:
            if len(fields) > 1 or "".join(fields).strip():
                yield reader.line_num + num_skipped, fields, lines
            lines.clear()
