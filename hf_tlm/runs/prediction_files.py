"""Write predictions to files: tables that keep the columns of the input, and the formats of GLUE and SQuAD."""

from __future__ import annotations

import codecs
import contextlib
import csv
import datetime
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from hf_tlm.corpora.tables import SEPARATORS, read_errors_as, suffix_of
from hf_tlm.tasks import TASKS, TaskError, TaskSpec
from hf_tlm.tasks.formats import check_excel, check_sheet_rows, write_excel
from hf_tlm.tasks.reading import separator_of
from hf_tlm.training import ArgumentsError
from hf_tlm.utils.files import atomic_file

logger = logging.getLogger(__name__)

# Suffix of a file -> its format.
SUFFIXES = {
    **{".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".xlsx": "xlsx"},
    **{".txt": "txt"},
}
_MAX_LINE_BYTES = 1 << 26  # bytes
FORMATS = (*dict.fromkeys(SUFFIXES.values()), "glue", "squad")
# Registered task -> name of its file on GLUE's leaderboard.
GLUE_FILES = {
    "cola": "CoLA.tsv",
    "sst2": "SST-2.tsv",
    "mrpc": "MRPC.tsv",
    "stsb": "STS-B.tsv",
    "qqp": "QQP.tsv",
    "mnli": "MNLI-m.tsv",
    "mnli_mm": "MNLI-mm.tsv",
    "qnli": "QNLI.tsv",
    "rte": "RTE.tsv",
}


def glue_task(name: str) -> str:
    """Return the GLUE task of a task's name: `cola` for cola, glue_cola or glue/cola.

    Raises:
        ArgumentsError: it is no task of GLUE.
    """
    short = name.removeprefix("glue").strip("_-/").replace("-", "_")
    if short not in GLUE_FILES:
        raise ArgumentsError(f"predict_format glue supports the tasks of GLUE ({', '.join(GLUE_FILES)}); received {name}.")
    return short


def glue_value(task: str, prediction: Any) -> Any:
    """Convert a prediction to the form that the leaderboard accepts.

    These are class names for MNLI, QNLI and RTE, and numbers for the others; for STS-B they are clipped to 0..5.

    Args:
        task: from `glue_task`.
        prediction: the name of a class; where the data only number the classes, its number in GLUE's order.
    """
    if task == "stsb":
        return f"{min(max(float(prediction), 0.0), 5.0):.3f}"
    names = TASKS[task].classes
    if task in ("mnli", "mnli_mm", "qnli", "rte"):
        return names[int(prediction)] if str(prediction).isdecimal() else prediction
    return prediction if str(prediction).isdecimal() else names.index(prediction)


def format_of(path: Path, predict_format: str | None) -> str:
    """Return the given format, else that of the file's suffix.

    Raises:
        ArgumentsError: no format is given, and the suffix is unknown.
    """
    if predict_format is not None:
        return predict_format
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentsError(
            f"{path}: the suffix determines the format and must be one of {', '.join(SUFFIXES)}; received "
            f"{path.suffix or 'no suffix'!r}. Choose another suffix, or pass --predict_format."
        )
    return SUFFIXES[path.suffix.lower()]


def check_format(predict_format: str, spec: TaskSpec, label_names: Sequence[str]) -> None:
    """Check that a format is known and fits the kind of task and the classes, or raise an ArgumentsError."""
    if predict_format not in FORMATS:
        raise ArgumentsError(f"predict_format must be one of {', '.join(FORMATS)}; received {predict_format!r}.")
    if predict_format == "squad" and spec.kind != "question_answering":
        raise ArgumentsError(f"predict_format squad is for question answering; {spec.name} is a {spec.kind} task.")
    if predict_format == "glue":
        task = glue_task(spec.name)
        if spec.kind != TASKS[task].kind:
            raise ArgumentsError(f"predict_format glue: {task} is a {TASKS[task].kind} task; received a {spec.kind} task.")
        classes = TASKS[task].classes or ()
        known_names = {*classes, *map(str, range(len(classes)))}
        if spec.kind == "classification" and (unknown := [name for name in label_names if name not in known_names]):
            raise ArgumentsError(
                f"predict_format glue: the classes of {task} are {', '.join(classes)}, or their numbers from 0; this task "
                f"has {', '.join(unknown):.200}."
            )


def _check_replaceable(path: Path, format: str) -> None:
    """Check that an existing file holds earlier predictions, or raise an ArgumentsError.

    This protects other tables, such as the user's labels, from being overwritten. Text lines and SQuAD's answers cannot be
    told from other content: for these formats a warning is logged that the file will be replaced.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    if format in ("txt", "squad"):
        logger.warning("%s exists and will be replaced.", path)
        return
    names = _read_column_names(path)
    if names != [] and "prediction" not in (names or ()):
        content = f"a table with the columns {', '.join(map(str, names)):.200}" if names else "not a readable table"
        raise ArgumentsError(
            f"{path} exists and has no predictions: it is {content}, and would be lost. Choose another path, or move the "
            "file."
        )


def _read_column_names(path: Path) -> list[Any] | None:
    """Return the column names of a table in any of the formats; None where the file is no table."""
    try:
        with open(path, "rb") as file:
            lines_from_start = iter(lambda: file.readline(_MAX_LINE_BYTES), b"")
            first_line = next((line for line in lines_from_start if line.strip()), b"")
        if first_line.startswith(b"PAR1"):
            return list(pq.read_schema(path).names)
        if first_line.startswith(b"PK"):
            import openpyxl

            rows = openpyxl.load_workbook(path, read_only=True).worksheets[0].iter_rows(max_row=1, values_only=True)
            return list(next(rows, ()))
        header = first_line.decode("utf-8-sig").strip()
        if "\0" in header:
            return None
        if header.startswith("{"):
            return list(json.loads(header))
        with open(path, encoding="utf-8-sig", newline="") as lines:  # A name may contain line feeds, and other separators.
            headers = []
            for separator in SEPARATORS:
                lines.seek(0)
                rows = csv.reader(lines, delimiter=separator)
                headers.append(next((row for row in rows if any(map(str.strip, row))), []))
        return max(headers, key=lambda names: ("prediction" in names, len(names)))
    except Exception:  # Of any class: the file may hold anything.
        return None


class PredictionFile(contextlib.ExitStack):
    """A file of predictions, written chunk by chunk and atomically: it appears at the end of the context, complete.

    In tables the columns of the input come first, then those of the predictions: `prediction`, and `probability` (question
    answering) or `probabilities`, for classes in JSON lines an object, class -> probability, and in other tables a column
    `probability_<class>` for each class. A column of the input with such a name is kept as `input_<name>`. JSON lines also
    have an `id`. Tables for Excel and in parquet are held in memory until the end.

    Args:
        path: the file; a folder for `glue`.
        predict_format: one of `FORMATS`. Default: the format of the file's suffix.
        like: the input file. If it is a csv, a csv of predictions has its separator, and its byte order mark if it has one,
            without which Excel assumes another encoding.
        separator: that of `like`; None: it is detected.

    Raises:
        ArgumentsError: see `format_of`, `check_format`; the path is a folder, or a file that holds no predictions.
    """

    def __init__(
        self,
        path: Path,
        predict_format: str | None,
        spec: TaskSpec,
        label_names: Sequence[str] = (),
        *,
        like: Path | None = None,
        separator: str | None = None,
    ):
        super().__init__()
        self.task = glue_task(spec.name) if predict_format == "glue" else None
        self.path = path / GLUE_FILES[self.task] if self.task else path
        if self.path.is_dir():
            raise ArgumentsError(f"Predictions are written to a file, but {self.path} is a folder. Choose another path.")
        self.format = format_of(path, predict_format)
        check_format(self.format, spec, label_names)
        if self.format == "xlsx":
            check_excel()
        _check_replaceable(self.path, self.format)
        self.separator, self.byte_order_mark = _read_dialect(like, separator) if self.format == "csv" else ("\t", "")
        self.num_rows = 0
        self._columns: list[str] = []
        self._tables: list[pa.Table] = []

    def __enter__(self) -> PredictionFile:
        super().__enter__()
        self._stream = self.enter_context(atomic_file(self.path))
        if self.task:
            self._write("index\tprediction\n")
        if self.format == "squad":
            odds = self.path.with_name(f"{self.path.stem}_null_odds.json")
            self._objects = [
                self.enter_context(_json_object(stream)) for stream in (self._stream, self.enter_context(atomic_file(odds)))
            ]
        return self

    def __exit__(self, *error: Any) -> bool | None:
        try:
            if error[0] is None and self.format in ("parquet", "xlsx"):
                table = _concatenate_tables(self._tables) if self._tables else pa.table({})
                if self.format == "parquet":
                    pq.write_table(table, self._stream)
                else:
                    write_excel(table.to_pydict(), self._stream)
        except BaseException:
            super().__exit__(*sys.exc_info())
            raise
        return super().__exit__(*error)

    def add(
        self, rows: Dataset, predictions: Sequence[Mapping[str, Any]], source: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        """Write the predictions for the next rows.

        Args:
            rows: the rows, with the columns of the task.
            source: the columns of the input for these rows.

        Raises:
            ArgumentsError: a csv's columns change.
            TaskError: there are more rows than a sheet of Excel has.
        """
        if self.format == "xlsx":
            check_sheet_rows(self.num_rows + len(predictions))
        if self.task:
            lines = (f"{self.num_rows + i}\t{glue_value(self.task, p['prediction'])}\n" for i, p in enumerate(predictions))
            self._write("".join(lines))
        elif self.format == "squad":
            add_answer, add_odds = self._objects
            for identifier, prediction in zip(rows["id"], predictions, strict=True):
                add_answer(identifier, prediction["prediction"])
                add_odds(identifier, prediction.get("null_odds", 0.0))
        elif self.format == "txt":
            self._write("".join(f"{' '.join(str(_format_cell(one['prediction'])).splitlines())}\n" for one in predictions))
        elif self.format == "jsonl":
            lines = (
                json.dumps({"id": identifier, **record}, ensure_ascii=False, default=str) + "\n"
                for identifier, record in zip(rows["id"], _create_records(source or {}, predictions), strict=True)
            )
            self._write("".join(lines))
        else:
            self._add_table(_create_records(source or {}, [_flatten_prediction(prediction) for prediction in predictions]))
        self.num_rows += len(predictions)

    def _add_table(self, records: list[dict[str, Any]]) -> None:
        if self.format == "parquet":
            self._tables.append(_create_table(records))
        elif self.format == "xlsx":
            self._tables.append(
                _create_table([{name: _to_spreadsheet_value(value) for name, value in row.items()} for row in records])
            )
        else:
            is_first = not self._columns
            self._columns = self._columns or list(records[0])
            if new_columns := [name for name in (records[0] if records else ()) if name not in self._columns]:
                raise ArgumentsError(
                    f"{self.path}: after row {self.num_rows} the input has the new columns {', '.join(new_columns)}, but a "
                    f"{self.format} has one header, which is already written. Choose a .jsonl or .parquet file."
                )
            lines = _Lines()
            writer = csv.DictWriter(lines, self._columns, delimiter=self.separator, restval="")
            if is_first:
                self._write(self.byte_order_mark)
                writer.writeheader()
            writer.writerows({name: _format_cell(value) for name, value in row.items()} for row in records)
            self._write("".join(lines))

    def _write(self, text: str) -> None:
        self._stream.write(text.encode("utf-8"))


class _Lines(list[str]):
    """Rows of a CSV writer, each ended by a line feed.

    The writer ends them with a carriage return too, because it quotes only fields with a character of the end of its rows: a
    field with an unquoted carriage return would be read as two rows.
    """

    def write(self, row: str) -> None:
        self.append(row.removesuffix("\r\n") + "\n")


def _read_dialect(input_path: Path | None, separator: str | None) -> tuple[str, str]:
    """Return the separator and the byte order mark, or an empty string, of a csv; a comma and no mark for any other file."""
    if input_path is None or suffix_of(input_path) != ".csv" or not input_path.is_file():
        return ",", ""
    with read_errors_as(TaskError, input_path), fsspec.open(str(input_path), "rb", compression="infer") as file:
        has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    with contextlib.suppress(UnicodeDecodeError):  # Reading the rows raises the error for it.
        return separator_of(input_path, separator), "\ufeff" if has_mark else ""
    return ",", ""


def _create_records(source: Mapping[str, Sequence[Any]], predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the input followed by the predictions; columns of the input are renamed where names collide."""
    names = _unique_names(source, predictions[0] if predictions else {})
    rows = zip(*source.values(), strict=True) if names else [()] * len(predictions)
    return [{**dict(zip(names, row, strict=True)), **prediction} for row, prediction in zip(rows, predictions, strict=True)]


def _unique_names(source: Iterable[str], prediction_names: Collection[str]) -> list[str]:
    """Return unique names for the columns of the input, renamed `input_<name>` where they collide with the predictions'."""
    names, taken = [], {*source, *prediction_names}
    for name in source:
        if name in prediction_names:
            while name in taken:
                name = f"input_{name}"
            taken.add(name)
        names.append(name)
    return names


def _flatten_prediction(prediction: Mapping[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in prediction.items():
        cells |= (
            {f"probability_{key}": probability for key, probability in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return cells


def _to_spreadsheet_value(value: Any) -> Any:
    """Convert a value to one that a spreadsheet can hold.

    Dicts and lists become JSON; times with a time zone, integers of more than 15 digits, which Excel rounds, and other types
    become Python's text of them.
    """
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, int) and abs(value) >= 10**15:
        return str(value)
    is_simple = value is None or isinstance(value, (str, int, float, Decimal, datetime.date, datetime.time))
    return value if is_simple and getattr(value, "tzinfo", None) is None else str(value)


def _format_cell(value: Any) -> str:
    """Return a value as the text of a cell; an empty string for None."""
    return "" if value is None else str(_to_spreadsheet_value(value))


def _create_table(records: list[dict[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table; a column of mixed types becomes strings."""
    return pa.table({name: _create_column([row[name] for row in records]) for name in (records[0] if records else ())})


def _concatenate_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; a column with different types becomes strings, and one that a table lacks is null there."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        names = dict.fromkeys(name for table in tables for name in table.column_names)
        rows = [row for table in tables for row in table.to_pylist()]
        return pa.table({name: _create_column([row.get(name) for row in rows]) for name in names})


def _create_column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else _format_cell(value) for value in values], pa.string())


@contextlib.contextmanager
def _json_object(stream: BinaryIO) -> Iterator[Callable[[str, Any], None]]:
    """Yield a function that writes the next entry of a JSON object to a stream."""
    prefix = "{"

    def add(name: str, value: Any) -> None:
        nonlocal prefix
        stream.write(f"{prefix}{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}".encode())
        prefix = ",\n"

    yield add
    stream.write(b"}\n" if prefix != "{" else b"{}\n")
