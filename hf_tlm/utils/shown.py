"""Text that is not ours, where it is shown, in tables too: what is out of a file is never markup, a link or a command."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

# Control characters, marks that change the direction of what follows, and halves of characters (bytes of a file's name).
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_BLANKS = re.compile(rf"[\s{_HIDDEN}]+")
_COMMANDS = re.compile(rf"(?![\n\t])[{_HIDDEN}]")
# An underscore within a word is none.
_MARKUP = re.compile(r"([\\`*\[\]<>|~#&$]|(?<![^\W_])_|_(?![^\W_]))")
# What GitHub and the Hub make links of, wherever it stands: addresses, @names, issues and commits.
_LINKS = re.compile(r"(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=@)(?=\w)|(?<=\\#)(?=\d)|(?<=\bGH-)(?=\d)", re.IGNORECASE)


# A path of this machine within an argument: not a part of an address or of another path.
_ABSOLUTE = re.compile(r"""(?<![\w.~:/\\-])/([^\s,'"/]+)[^\s,'"]*""")


class Markdown(str):
    """Text that is markdown, written by us: `for_markdown` leaves it as it is."""


def for_terminal(text: str) -> str:
    r"""Text of any number of lines with every other control character as \x1b and the like."""
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def kind_of(value: Any) -> str:
    """What was received in the place of something else, without its content."""
    return "none" if value is None else f"a {type(value).__name__}"


def instead(value: Any, maker: str, *, data: bool = True, splits: str = "dataset") -> str:
    """What was received in the place of an object, without its content, and the call that makes one of it.

    Args:
        maker: the name of the function, which takes a name or a path: `load_task`.
        data: whether it takes a `datasets.Dataset` too. splits: what it takes of a `DatasetDict`.
    """
    kind = kind_of(value)
    if isinstance(value, (str, os.PathLike)):
        name = json.dumps(os.fspath(value), ensure_ascii=False)
        return f"received {kind if isinstance(value, os.PathLike) else name}. Give {maker}({name})."
    known = {"Dataset": "dataset", "DatasetDict": splits}
    given = known.get(type(value).__name__) or ("..." if value is None else dataset_of(value))
    return f"received {kind}. Give {maker}({given if data else '...'})."


def dataset_of(value: Any) -> str:
    """The call that makes a `datasets.Dataset` of rows or columns; three dots where there is none."""
    frames = {"DataFrame": "Dataset.from_pandas(frame)", "Table": "Dataset(table)", "list": "Dataset.from_list(rows)"}
    if (made := frames.get(type(value).__name__)) is not None:
        return made
    if isinstance(value, Mapping):
        return "Dataset.from_dict(columns)"
    return "Dataset.from_list(list(rows))" if isinstance(value, Iterable) else "..."


def flat(text: str) -> str:
    """Text with a space for control characters and new lines."""
    return _BLANKS.sub(" ", text)


def one_line(text: str, longest: int = 120) -> str:
    """The same, without spaces around it and cut after so many characters."""
    text = flat(text).strip()
    return text if len(text) <= longest else f"{text[:longest]}…"


def for_markdown(text: str, longest: int = 120) -> str:
    """Text that markdown shows as it is, on one line, cut after so many characters."""
    return text if isinstance(text, Markdown) else escape(one_line(text, longest))


def escape(text: str) -> str:
    """The same of text that is on one line, at its length."""
    # An empty comment is not seen, and ends what would be a link.
    return _LINKS.sub("<!-- -->", _MARKUP.sub(r"\\\1", text))


def as_code(text: str) -> str:
    """Text as an inline piece of code in markdown."""
    return f"`{one_line(text, 200).replace('`', chr(39)) or ' '}`"


def as_literal(text: str) -> str:
    """Text as a string in a line of Python."""
    return json.dumps(one_line(text, 200), ensure_ascii=False)


def shown_path(path: str) -> str:
    """A path as records have it, without this machine's folders: from the working folder, the user's (~), or its end."""
    if not os.path.isabs(path):
        return path
    for base, before in ((os.getcwd(), ""), (os.path.expanduser("~"), "~/")):
        rest = os.path.relpath(path, base) if os.path.isabs(base) else os.pardir
        if base != os.sep and rest.partition(os.sep)[0] != os.pardir:
            return before + rest
    return "/".join(["...", *PurePath(path).parts[1:][-2:]])


def relative_name(name: str, of: str | None = None) -> str:
    """A name with slashes as a relative path that leads nowhere else; one that has to change ends with a digest.

    Args:
        of: what the digest is of, of which others may have the same name; default the name.
    """
    parts = name.split("/")
    kept = [part for text in parts if (part := text.lstrip("~."))]
    if kept == parts:
        return name
    return "-".join(["/".join(kept) or "run", hashlib.sha256(os.fsencode(of or name)).hexdigest()[:8]])


def shown_argument(argument: str) -> str:
    """An argument of a command with its paths as records have them."""
    if os.path.isabs(argument) and os.path.lexists(argument):
        return shown_path(argument)
    return _ABSOLUTE.sub(lambda path: shown_path(path[0]) if os.path.exists(f"/{path[1]}") else path[0], argument)


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their paths as records have them."""
    return {name: shown_path(value) if isinstance(value, str) else value for name, value in values.items()}


def suggestion(name: str, known: Iterable[str], most: int = 3) -> str:
    """A sentence that names those of `known` that are like a name, with a space before it; nothing where none is."""
    close = difflib.get_close_matches(name, list(known), n=most)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def few(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def named_columns(names: Iterable[str]) -> str:
    """Names of columns, those with a blank at an end in quotes: it is not seen otherwise."""
    return ", ".join(name if name == name.strip() else repr(name) for name in names)


def figures(value: float, digits: int = 2) -> str:
    """A number in so many figures, those before the point whole and without an exponent: 0.34, 1.3, 25, 133, 1,861."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def markdown_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: int | Collection[int] = 1,
    *,
    padded: bool = False,
    longest: int = 1000,
) -> str:
    """A table, a line a row, with a new line at its end. Cells are shown as they are: only a `Markdown` one is markup.

    Args:
        texts: the columns of texts, aligned left: so many first ones, or these numbers. The others are aligned right.
        padded: to one width a column, to be read as text too; then no column says how it is aligned.
        longest: characters after which a cell is cut.
    """
    left = range(texts) if isinstance(texts, int) else texts
    lines = [[for_markdown(cell, longest) for cell in line] for line in (head, *rows)]
    widths = [max(map(len, column)) if padded else 0 for column in zip(*lines, strict=True)]
    rule = ["-" * width if padded else "---" if at in left else "---:" for at, width in enumerate(widths)]
    lines.insert(1, rule)
    return "".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |\n" for line in lines
    )
