"""Tagged text in columns: a word a line, an empty line after a sentence (CoNLL shared tasks, Universal Dependencies)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_tlm.tasks.spec import TaskError

SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".pos", ".txt")
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_BLANKS = re.compile(r"[ \t]+")
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(\S.*)")


def read_conll(path: Path, columns: Mapping[str, str], *, tagged: bool = True) -> Iterator[dict[str, Any]]:
    """The sentences of a file, in the columns that `columns` gives to the roles tokens and tags.

    A column is a number from 0, from the end where negative: by default the first has the words and the last the tags. In
    a CoNLL-U file it may be a name; by default form and xpos, and its ranges and empty nodes are skipped. Columns are
    apart by tabs, or where a line has none by blanks. Document marks are skipped, and so are lines that begin with # and
    have another number of columns than the words have. The id is that of a comment `# sent_id = ...`, or None.

    Args:
        tagged: False for a file without tags, of which only the words are read.

    Raises:
        TaskError: no such column, lines with different numbers of columns, or not UTF-8.
    """
    universal = path.suffix == ".conllu"
    names = {"tokens": columns.get("tokens", "form" if universal else "0")}
    if tagged:
        names["tags"] = columns.get("tags", "xpos" if universal else "-1")
    places = {role: _place(path, name, universal) for role, name in names.items()}
    sentence: dict[str, list[str]] = {role: [] for role in names}
    width, identifier = None, None
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                line = line.rstrip("\n")
                cells = line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))
                if not line.strip():
                    if sentence["tokens"]:
                        yield _row(sentence, columns, identifier)
                    sentence, identifier = {role: [] for role in names}, None
                elif line.startswith("#") and (universal or len(cells) != width):
                    if found := _SENTENCE_ID.match(line):
                        identifier = found[1].strip()
                elif line.startswith("-DOCSTART-") or universal and not cells[0].isdigit():
                    continue
                else:
                    width = width or len(cells)
                    _check(path, number, cells, width, places, names)
                    for role, place in places.items():
                        sentence[role].append(cells[place])
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text: {error}.") from error
    if sentence["tokens"]:
        yield _row(sentence, columns, identifier)


def _row(sentence: dict[str, list[str]], columns: Mapping[str, str], identifier: str | None) -> dict[str, Any]:
    return {"id": identifier, **{columns.get(role, role): cells for role, cells in sentence.items()}}


def _place(path: Path, name: str, universal: bool) -> int:
    if universal and name in CONLLU:
        return CONLLU.index(name)
    if re.fullmatch(r"-?\d+", name):
        return int(name)
    known = f", or of {', '.join(CONLLU)}" if universal else ""
    raise TaskError(f"{path}: a column is a number from 0 (or -1, -2 ... from the end){known}; received {name!r}.")


def _check(path: Path, number: int, cells: list[str], width: int, places: dict[str, int], names: dict[str, str]) -> None:
    if len(cells) != width:
        raise TaskError(
            f"{path}, line {number} has {len(cells)} columns; the lines before it have {width}. Such a file has a word and "
            "its tag a line, and an empty line after a sentence."
        )
    for role, place in places.items():
        if not -width <= place < width:
            raise TaskError(f"{path}, line {number} has {width} columns; there is no column {names[role]} for the {role}.")
