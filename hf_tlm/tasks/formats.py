"""File formats of tasks other than plain tables: CoNLL columns, SQuAD's JSON and Excel sheets."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pandas
from datasets import Dataset, Features, List, Value

from hf_tlm.corpora.tables import open_decompressed, suffix_of, warn_of_repeated_names
from hf_tlm.tasks.spec import TaskError

logger = logging.getLogger(__name__)
SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".pos", ".txt")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_BLANKS = re.compile(r"[ \t]+")
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(\S.*)")
FEATURES = Features(
    {name: Value("string") for name in ("id", "title", "context", "question")}
    | {"answers": List(Value("string")), "answer_start": List(Value("int64"))}
)
# Start of SQuAD's JSON: an object that contains the articles, or only the list of articles.
_SQUAD_START = re.compile(
    r'\s*(\{\s*("version"\s*:\s*("[^"]*"|[0-9.]+)\s*,\s*)?"data"\s*:\s*\[\s*\{'
    r'|\[\s*\{\s*("title"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"paragraphs"\s*:\s*\[)'
)
# Names of the columns of words and of tags, by which a header line is recognised.
_WORD_HEADERS = {"token", "tokens", "word", "words", "form"}
_TAG_HEADERS = {"tag", "tags", "ner", "pos", "label", "labels", "upos", "xpos", "ner_tag", "ner_tags", "pos_tag", "pos_tags"}
_MAX_ROWS, _MAX_CHARACTERS = 2**20, 2**15 - 1  # Excel's limits of a sheet and of a cell.
_NUMBER = re.compile(r"-?\d+")
# Control characters, which a cell cannot contain.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def read_conll(path: Path, columns: Mapping[str, str], *, tagged: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the sentences of a CoNLL file as rows with an id and the columns of the roles tokens and tags.

    A column is a number from 0, or negative from the end; by default the first has the words and the last the tags. In a
    CoNLL-U file it may also be a name, by default form and xpos; multiword ranges and empty nodes are skipped. Columns are
    separated by tabs, or by blanks in a line without tabs. Document markers are skipped, and so are lines that begin with #
    and have another number of columns than the lines of words. The id is that of a comment `# sent_id = ...`, or None.

    Args:
        columns: role -> column, which is also its name in the rows; a role without one keeps its own name.
        tagged: False reads only the words, for a file that need not have tags. If their column cannot be one of such a
            file, because the task is in another format, the default column is used.

    Raises:
        TaskError: there is no such column, lines differ in their number of columns, or the file is not UTF-8.
    """
    is_conllu = suffix_of(path) == ".conllu"
    names = _columns_by_role(columns, is_conllu, tagged)
    indices = {role: _column_index(path, name, is_conllu) for role, name in names.items()}
    sentence: dict[str, list[str]] = {role: [] for role in names}
    width, identifier = None, None
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line_number, line in enumerate(itertools.chain(file, [""]), 1):  # The end of the file ends a sentence too.
                line = line.rstrip("\n")
                cells = line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))
                if not line.strip():
                    if sentence["tokens"]:
                        yield {"id": identifier} | {columns.get(role, role): cells for role, cells in sentence.items()}
                    sentence, identifier = {role: [] for role in names}, None
                elif line.startswith("#") and (is_conllu or len(cells) != width):
                    if match := _SENTENCE_ID.match(line):
                        identifier = match[1].strip()
                elif line.startswith("-DOCSTART-") or is_conllu and not cells[0].isdigit():
                    continue
                else:
                    width = _check_width(path, line_number, cells, width, indices, names)
                    for role, index in indices.items():
                        sentence[role].append(cells[index])
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text: {error}. Save it as UTF-8.") from error


def has_lines_of_words(path: Path) -> bool:
    """Return whether a csv or tsv looks like CoNLL: a word and its tag per line, and empty lines between sentences."""
    separator = {".tsv": "\t", ".csv": ","}.get(suffix_of(path))
    if separator is None or not path.is_file():
        return False
    with open_decompressed(path, "rt", errors="replace") as file:
        lines = "".join(itertools.islice(file, 1000)).strip().splitlines()
    rows = [line.split(separator) for line in lines if line.strip()]
    return (
        len(rows) < len(lines) and len(rows[0]) > 1 and all(len(row) == len(rows[0]) and " " not in row[0] for row in rows)
    )


def _columns_by_role(columns: Mapping[str, str], is_conllu: bool, tagged: bool) -> dict[str, str]:
    default_words, default_tags = ("form", "xpos") if is_conllu else ("0", "-1")
    words_column = columns.get("tokens", default_words)
    if tagged:
        return {"tokens": words_column, "tags": columns.get("tags", default_tags)}
    return {
        "tokens": words_column if _NUMBER.fullmatch(words_column) or is_conllu and words_column in CONLLU else default_words
    }


def _column_index(path: Path, name: str, is_conllu: bool) -> int:
    if is_conllu and name in CONLLU:
        return CONLLU.index(name)
    if _NUMBER.fullmatch(name):
        return int(name)
    alternatives = f", or one of {', '.join(CONLLU)}" if is_conllu else ""
    raise TaskError(f"{path}: a column is a number from 0 (or -1, -2 ... from the end){alternatives}; received {name!r}.")


def _check_width(
    path: Path, number: int, cells: list[str], width: int | None, indices: dict[str, int], names: dict[str, str]
) -> int:
    """Check the number of columns of a line, and return it.

    Args:
        number: line number, for messages.
        width: the number of columns of the lines before; None for the first.

    Raises:
        TaskError: the number differs; or the first line is a header, or lacks a column of a role.
    """
    if width is None:
        width = len(cells)
        if cells[0].lower() in _WORD_HEADERS and _TAG_HEADERS & {cell.lower() for cell in cells[1:]}:
            raise TaskError(
                f"{path}, line {number} names columns ({', '.join(cells)}): expected a word and its tag on every line. "
                "Remove this line; columns are chosen by number (--columns tokens=0 tags=-1)."
            )
        for role, index in indices.items():
            if not -width <= index < width:
                raise TaskError(
                    f"{path}, line {number} has {width} columns, but no column {names[role]} for the {role}. Columns count "
                    f"from 0, or from the end from -1: correct --columns {role}={names[role]}."
                )
    if len(cells) != width:
        raise TaskError(
            f"{path}, line {number} has {len(cells)} columns; the previous lines have {width}. A CoNLL file has one word "
            "and its tag per line, and an empty line after each sentence."
        )
    return width


def is_squad_json(path: Path) -> bool:
    """Return whether a .json file begins like SQuAD's, unlike a file of JSON lines."""
    if suffix_of(path) != ".json":
        return False
    with open_decompressed(path, "rt", errors="replace") as file:
        head = file.read(1000)
    return _SQUAD_START.match(head) is not None and '"paragraphs"' in head


def read_squad_json(path: Path) -> Dataset:
    """Read a SQuAD file into one row per question: id, title, context, question, answers and answer_start.

    `answers` and `answer_start` are lists, which are empty for an unanswerable question. The file is an object whose `data`
    are the articles, or only the list of articles.

    Raises:
        TaskError: it does not have the structure of SQuAD's files.
    """
    rows: list[dict[str, Any]] = []
    with open_decompressed(path, "rt") as file:
        content = json.load(file)
    try:
        for article in content if isinstance(content, list) else content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    # A file to predict on may have no answers.
                    answers = [] if question.get("is_impossible") else question.get("answers", [])
                    rows.append(
                        {
                            "id": question["id"],
                            "title": article.get("title"),
                            "context": paragraph["context"],
                            "question": question["question"],
                            "answers": [answer["text"] for answer in answers],
                            "answer_start": [answer["answer_start"] for answer in answers],
                        }
                    )
    except (KeyError, TypeError, AttributeError) as error:  # A missing key, or a value of another type.
        raise TaskError(
            f"{path} begins as a SQuAD file, but has another structure after {len(rows)} questions: {error}. Articles have "
            "paragraphs; paragraphs have a context and qas; qas have an id, a question and answers with text and "
            "answer_start."
        ) from error
    return Dataset.from_list(rows, features=FEATURES)


def check_excel() -> None:
    """Raise a TaskError if openpyxl is not installed, which is needed to read and write Excel files."""
    try:
        import openpyxl  # noqa: F401  # pandas' own message only mentions an optional dependency.
    except ImportError:
        raise TaskError(
            "Excel files need openpyxl, which is not installed: pip install 'hf-tlm[excel]', or save the file as CSV."
        ) from None


def read_excel(path: Path) -> dict[str, list[Any]]:
    """Read the columns of the first sheet of an .xlsx file with pandas and openpyxl, see `check_excel`.

    Empty cells become None, and dates strings in ISO 8601; a column that mixes types becomes strings, unless these are
    integers and floats.
    """
    check_excel()
    from openpyxl.utils.escape import unescape

    with pandas.ExcelFile(path, engine="openpyxl") as book:
        if len(book.sheet_names) > 1:
            logger.warning(
                "%s has %d sheets; only the first, %s, is read.", path, len(book.sheet_names), book.sheet_names[0]
            )
        header = book.parse(0, header=None, nrows=1, dtype=object, keep_default_na=False)
        warn_of_repeated_names(path, [str(name) for name in header.to_numpy().flatten()])
        sheet = book.parse(0, dtype=object, keep_default_na=False, na_values=[""])

    def value(cell: Any) -> Any:
        if isinstance(cell, str):
            return unescape(cell)  # Excel writes a carriage return as _x000D_, which openpyxl leaves to its callers.
        return None if pandas.isna(cell) else cell

    return {str(name): _unify_types(list(map(value, sheet[name]))) for name in sheet.columns}


def check_sheet_rows(count: int) -> None:
    """Raise a TaskError if a header and so many rows do not fit into a sheet of Excel."""
    if count >= _MAX_ROWS:
        raise TaskError(f"An Excel sheet has at most {_MAX_ROWS:,} rows; received {count + 1:,}. Write csv or parquet.")


def write_excel(columns: Mapping[str, list[Any]], stream: BinaryIO) -> None:
    """Write columns as the only sheet of an Excel file; strings stay strings, even if they look like formulas.

    Strings that are too long for a cell are truncated, with a warning that counts them.

    Raises:
        TaskError: there are more rows than a sheet can have.
    """
    frame = pandas.DataFrame(dict(columns))
    check_sheet_rows(len(frame))
    frame = frame.map(lambda cell: _CONTROL_CHARACTERS.sub("", cell) if isinstance(cell, str) else cell)
    long_cells = frame.map(lambda cell: isinstance(cell, str) and len(cell) > _MAX_CHARACTERS).sum()
    if truncated := ", ".join(f"{count:,} in {name}" for name, count in long_cells.items() if count):
        logger.warning(
            "An Excel cell has at most %s characters; longer texts are truncated: %s. csv and parquet keep them complete.",
            f"{_MAX_CHARACTERS:,}",
            truncated,
        )
    frame = frame.map(lambda cell: cell[:_MAX_CHARACTERS] if isinstance(cell, str) else cell)
    with pandas.ExcelWriter(stream, engine="openpyxl") as book:
        frame.to_excel(book, index=False)
        for row in book.sheets["Sheet1"].iter_rows():
            for cell in row:
                if cell.data_type in "fe":  # A formula, or the name of an error in Excel, such as #N/A.
                    cell.data_type = "s"


def _unify_types(cells: list[Any]) -> list[Any]:
    cells = [cell.isoformat() if isinstance(cell, (datetime.date, datetime.time)) else cell for cell in cells]
    kinds = {type(cell) for cell in cells if cell is not None}
    mixed = len(kinds) > 1 and not kinds <= {int, float}
    return [None if cell is None else str(cell) for cell in cells] if mixed else cells
