"""Files of tasks that are no plain tables: tagged text in columns, SQuAD's JSON, sheets of Excel."""

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

from hf_tlm.corpora.tables import opened, suffix_of
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
# An object with the articles, or their list alone.
_HEAD = re.compile(
    r'\s*(\{\s*("version"\s*:\s*("[^"]*"|[0-9.]+)\s*,\s*)?"data"\s*:\s*\[\s*\{'
    r'|\[\s*\{\s*("title"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"paragraphs"\s*:\s*\[)'
)
# What a first line has that names columns, in those of words and of tags.
_WORDS = {"token", "tokens", "word", "words", "form"}
_TAGS = {"tag", "tags", "ner", "pos", "label", "labels", "upos", "xpos", "ner_tag", "ner_tags", "pos_tag", "pos_tags"}
_ROWS, _CHARACTERS = 2**20, 2**15 - 1
_NUMBER = re.compile(r"-?\d+")
# What no cell can hold.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def read_conll(path: Path, columns: Mapping[str, str], *, tagged: bool = True) -> Iterator[dict[str, Any]]:
    """The sentences of a file, in the columns that `columns` gives to the roles tokens and tags.

    A column is a number from 0, from the end where negative: by default the first has the words and the last the tags. In
    a CoNLL-U file it may be a name; by default form and xpos, and its ranges and empty nodes are skipped. Columns are
    apart by tabs, or where a line has none by blanks. Document marks are skipped, and so are lines that begin with # and
    have another number of columns than the words have. The id is that of a comment `# sent_id = ...`, or None.

    Args:
        tagged: False for a file without tags, of which only the words are read; from where they are by default if their
            column is none of such a file, as that of a task in another format.

    Raises:
        TaskError: no such column, lines with different numbers of columns, or not UTF-8.
    """
    universal = path.suffix == ".conllu"
    names = _names(columns, universal, tagged)
    places = {role: _place(path, name, universal) for role, name in names.items()}
    sentence: dict[str, list[str]] = {role: [] for role in names}
    width, identifier = None, None
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(itertools.chain(file, [""]), 1):  # A sentence ends at the file's end, too.
                line = line.rstrip("\n")
                cells = line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))
                if not line.strip():
                    if sentence["tokens"]:
                        yield {"id": identifier} | {columns.get(role, role): cells for role, cells in sentence.items()}
                    sentence, identifier = {role: [] for role in names}, None
                elif line.startswith("#") and (universal or len(cells) != width):
                    if found := _SENTENCE_ID.match(line):
                        identifier = found[1].strip()
                elif line.startswith("-DOCSTART-") or universal and not cells[0].isdigit():
                    continue
                else:
                    width = _width(path, number, cells, width, places, names)
                    for role, place in places.items():
                        sentence[role].append(cells[place])
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text: {error}. Save it as UTF-8.") from error


def has_lines_of_words(path: Path) -> bool:
    """Whether a csv or tsv begins with a word and its tag a line, and empty lines between sentences, as CoNLL's files do."""
    separator = {".tsv": "\t", ".csv": ","}.get(suffix_of(path))
    if separator is None or not path.is_file():
        return False
    with opened(path, "rt", errors="replace") as file:
        lines = "".join(itertools.islice(file, 1000)).strip().splitlines()
    rows = [line.split(separator) for line in lines if line.strip()]
    return (
        len(rows) < len(lines) and len(rows[0]) > 1 and all(len(row) == len(rows[0]) and " " not in row[0] for row in rows)
    )


def _names(columns: Mapping[str, str], universal: bool, tagged: bool) -> dict[str, str]:
    """The column of each role that is read, as it was given or by default."""
    words, tags = ("form", "xpos") if universal else ("0", "-1")
    given = columns.get("tokens", words)
    if tagged:
        return {"tokens": given, "tags": columns.get("tags", tags)}
    return {"tokens": given if _NUMBER.fullmatch(given) or universal and given in CONLLU else words}


def _place(path: Path, name: str, universal: bool) -> int:
    if universal and name in CONLLU:
        return CONLLU.index(name)
    if _NUMBER.fullmatch(name):
        return int(name)
    known = f", or of {', '.join(CONLLU)}" if universal else ""
    raise TaskError(f"{path}: a column is a number from 0 (or -1, -2 ... from the end){known}; received {name!r}.")


def _width(
    path: Path, number: int, cells: list[str], width: int | None, places: dict[str, int], names: dict[str, str]
) -> int:
    """How many columns every line has: those of the first, for which `width` is None."""
    if width is None:
        width = len(cells)
        if cells[0].lower() in _WORDS and _TAGS & {cell.lower() for cell in cells[1:]}:
            raise TaskError(
                f"{path}, line {number} names columns ({', '.join(cells)}): expected a word and its tag on every line. "
                "Remove it; columns are numbers (--columns tokens=0 tags=-1)."
            )
        for role, place in places.items():
            if not -width <= place < width:
                raise TaskError(
                    f"{path}, line {number} has {width} columns; there is no column {names[role]} for the {role}."
                )
    if len(cells) != width:
        raise TaskError(
            f"{path}, line {number} has {len(cells)} columns; the lines before it have {width}. Such a file has a word and "
            "its tag a line, and an empty line after a sentence."
        )
    return width


def is_squad_json(path: Path) -> bool:
    """Whether a file begins as SQuAD's do; a file of lines of JSON begins otherwise."""
    if suffix_of(path) != ".json":
        return False
    with opened(path, "rt", errors="replace") as file:
        return _HEAD.match(file.read(1000)) is not None


def read_squad_json(path: Path) -> Dataset:
    """A row a question: id, title, context, question, answers, answer_start (lists; empty for an unanswerable question).

    The file is an object whose `data` are the articles, or their list alone.

    Raises:
        TaskError: it is not built like SQuAD's.
    """
    rows: list[dict[str, Any]] = []
    with opened(path, "rt") as file:
        content = json.load(file)
    try:
        for article in content if isinstance(content, list) else content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    # A file without answers, as one to predict on, is one too.
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
    except (KeyError, TypeError, AttributeError) as error:  # A key that is missing, or something else in its place.
        raise TaskError(
            f"{path} begins as a SQuAD file and goes on otherwise after {len(rows)} questions: {error}. Articles have "
            "paragraphs, these a context and qas, and these an id, a question and answers with text and answer_start."
        ) from error
    return Dataset.from_list(rows, features=FEATURES)


def check_excel(path: Path) -> None:
    """Raise a TaskError where openpyxl is not installed, without which no file for Excel can be read or written."""
    try:
        import openpyxl  # noqa: F401  # pandas' own message is of an optional dependency.
    except ImportError as error:
        raise TaskError(
            f"{path}: Excel files need openpyxl, which is not installed: pip install 'hf-tlm[excel]', or save it as CSV."
        ) from error


def read_excel(path: Path) -> dict[str, list[Any]]:
    """The columns of the first sheet of an .xlsx file, by way of pandas and openpyxl, see `check_excel`.

    Empty cells are None, dates texts as ISO 8601 writes them; a column that mixes texts with other values is of texts.
    """
    check_excel(path)
    with pandas.ExcelFile(path, engine="openpyxl") as book:
        if len(book.sheet_names) > 1:
            logger.warning("%s has %d sheets; the first, %s, is read.", path, len(book.sheet_names), book.sheet_names[0])
        sheet = book.parse(0, dtype=object, keep_default_na=False, na_values=[""])
    return {str(name): _plain([None if pandas.isna(cell) else cell for cell in sheet[name]]) for name in sheet.columns}


def write_excel(columns: Mapping[str, list[Any]], stream: BinaryIO) -> None:
    """Write columns as the only sheet of a file, if it has room; texts are texts, also those that begin as formulas do.

    Texts beyond the characters of a cell are cut, with a warning that counts them.
    """
    frame = pandas.DataFrame(dict(columns))
    if len(frame) >= _ROWS:
        raise TaskError(f"A sheet of Excel has {_ROWS:,} rows, and these are {len(frame) + 1:,}. Write csv or parquet.")
    frame = frame.map(lambda cell: _CONTROL.sub("", cell) if isinstance(cell, str) else cell)
    beyond = frame.map(lambda cell: isinstance(cell, str) and len(cell) > _CHARACTERS).sum()
    if cut := ", ".join(f"{count:,} in {name}" for name, count in beyond.items() if count):
        logger.warning(
            "A cell of Excel holds %s characters; longer texts are cut: %s. csv and parquet keep them.",
            f"{_CHARACTERS:,}",
            cut,
        )
    frame = frame.map(lambda cell: cell[:_CHARACTERS] if isinstance(cell, str) else cell)
    with pandas.ExcelWriter(stream, engine="openpyxl") as book:
        frame.to_excel(book, index=False)
        for row in book.sheets["Sheet1"].iter_rows():
            for cell in row:
                if cell.data_type in "fe":  # A formula, or a name that Excel has for an error, such as #N/A.
                    cell.data_type = "s"


def _plain(cells: list[Any]) -> list[Any]:
    cells = [cell.isoformat() if isinstance(cell, (datetime.date, datetime.time)) else cell for cell in cells]
    kinds = {type(cell) for cell in cells if cell is not None}
    mixed = len(kinds) > 1 and not kinds <= {int, float}
    return [None if cell is None else str(cell) for cell in cells] if mixed else cells
