"""Display of texts from files and users, in tables too: they never act as markup, a link or a terminal command."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

# Control characters, marks that change the direction of text, and surrogates (undecodable bytes of a file's name).
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_BLANKS = re.compile(rf"[\s{_HIDDEN}]+")
_TERMINAL_CONTROLS = re.compile(rf"(?![\n\t])[{_HIDDEN}]")
# An underscore inside a word is not markup.
_MARKUP = re.compile(r"([\\`*\[\]<>|~#&$]|(?<![^\W_])_|_(?![^\W_]))")
# Texts that GitHub and the Hub turn into links: addresses, @names, issues and commits.
_LINKS = re.compile(r"(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=@)(?=\w)|(?<=\\#)(?=\d)|(?<=\bGH-)(?=\d)", re.IGNORECASE)


# An absolute path within an argument, but not a part of an address or of another path.
_ABSOLUTE = re.compile(r"""(?<![\w.~:/\\-])/([^\s,'"/]+)[^\s,'"]*""")


class Markdown(str):
    """Text that is Markdown written by this package: `for_markdown` does not escape it."""


def for_terminal(text: str) -> str:
    r"""Escape control characters, such as \x1b, in a text; new lines and tabs stay."""
    return _TERMINAL_CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def kind_of(value: Any) -> str:
    """Describe a value that was received instead of an expected one by its type, without its content."""
    return "none" if value is None else f"a {type(value).__name__}"


def describe_received(value: Any, maker: str, *, data: bool = True, splits: str = "dataset") -> str:
    """Describe a value that was received instead of an object, without its content, and name the call that creates one.

    Args:
        maker: the name of the function to call, which accepts a name or a path, such as `load_task`.
        data: whether the function accepts a `datasets.Dataset` and a `pandas.DataFrame` too.
        splits: what to pass to the function for a `DatasetDict`.
    """
    kind = kind_of(value)
    if isinstance(value, (str, os.PathLike)):
        name = json.dumps(os.fspath(value), ensure_ascii=False)
        return f"received {kind if isinstance(value, os.PathLike) else name}. Give {maker}({name})."
    arguments = {"Dataset": "dataset", "DataFrame": "frame", "DatasetDict": splits}
    argument = arguments.get(type(value).__name__) or ("..." if value is None else dataset_of(value))
    return f"received {kind}. Give {maker}({argument if data else '...'})."


def dataset_of(value: Any) -> str:
    """Return the call that creates a `datasets.Dataset` from rows or columns; three dots if there is none."""
    frames = {"DataFrame": "Dataset.from_pandas(frame)", "Table": "Dataset(table)", "list": "Dataset.from_list(rows)"}
    if (call := frames.get(type(value).__name__)) is not None:
        return call
    if isinstance(value, Mapping):
        return "Dataset.from_dict(columns)"
    return "Dataset.from_list(list(rows))" if isinstance(value, Iterable) else "..."


def flat(text: str) -> str:
    """Replace each run of white space and control characters in a text by one space."""
    return _BLANKS.sub(" ", text)


def one_line(text: str, longest: int = 120) -> str:
    """Return a text on one line (see `flat`), stripped, and truncated after `longest` characters."""
    text = flat(text).strip()
    return text if len(text) <= longest else f"{text[:longest]}…"


def for_markdown(text: str, longest: int = 120) -> str:
    """Escape a text so that Markdown shows it literally, on one line, truncated after `longest` characters."""
    return text if isinstance(text, Markdown) else escape(one_line(text, longest))


def escape(text: str) -> str:
    """Escape a text of one line so that Markdown shows it literally."""
    # An empty comment is invisible, and interrupts what would become a link.
    return _LINKS.sub("<!-- -->", _MARKUP.sub(r"\\\1", text))


def as_code(text: str) -> str:
    """Return a text as inline code in Markdown."""
    return f"`{one_line(text, 200).replace('`', chr(39)) or ' '}`"


def as_literal(text: str) -> str:
    """Return a text as a string literal of Python."""
    return json.dumps(one_line(text, 200), ensure_ascii=False)


def shown_path(path: str) -> str:
    """Shorten a path for records, without this machine's folders: relative to the working directory or ~, or its end."""
    if not os.path.isabs(path):
        return path
    for base, prefix in ((os.getcwd(), ""), (os.path.expanduser("~"), "~/")):
        relative = os.path.relpath(path, base) if os.path.isabs(base) else os.pardir
        if base != os.sep and relative.partition(os.sep)[0] != os.pardir:
            return prefix + relative
    return "/".join(["...", *PurePath(path).parts[1:][-2:]])


def relative_name(name: str, digest_source: str | None = None) -> str:
    """Return a name with slashes as a relative path that stays in its folder; a name that must change gets a digest.

    Args:
        digest_source: the text that is hashed, if different texts may have the same name; default: the name.
    """
    parts = name.split("/")
    safe_parts = [part for text in parts if (part := text.lstrip("~."))]
    if safe_parts == parts:
        return name
    return "-".join(["/".join(safe_parts) or "run", hashlib.sha256(os.fsencode(digest_source or name)).hexdigest()[:8]])


def shown_argument(argument: str) -> str:
    """Return an argument of a command with its paths shortened for records, see `shown_path`."""
    if os.path.isabs(argument) and os.path.lexists(argument):
        return shown_path(argument)
    return _ABSOLUTE.sub(lambda path: shown_path(path[0]) if os.path.exists(f"/{path[1]}") else path[0], argument)


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with their paths shortened for records, see `shown_path`."""
    return {name: shown_path(value) if isinstance(value, str) else value for name, value in values.items()}


def suggestion(name: str, candidates: Iterable[str], most: int = 3) -> str:
    """Return a sentence, after a space, with the `candidates` most similar to a name; an empty string if there are none."""
    matches = difflib.get_close_matches(name, list(candidates), n=most)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def suggested_path(path: str) -> str:
    """Return a sentence, after a space, with the existing paths most similar to a missing one; an empty string if none is.

    The paths are compared where they part: for runs/mien/seed-0 beside the folder runs/mine it names runs/mine.
    """
    missing = PurePath(path)
    while missing.parent != missing and not os.path.isdir(missing.parent):
        missing = missing.parent
    try:
        names = os.listdir(missing.parent)
    except OSError:
        return ""
    names_by_spelling = {PurePath(name).stem: name for name in names} | {name: name for name in names}
    # Stricter than the default: most of a folder's names resemble each other a little.
    spellings = difflib.get_close_matches(missing.name, names_by_spelling, n=3, cutoff=0.75)
    close = dict.fromkeys(str(missing.with_name(names_by_spelling[spelling])) for spelling in spellings)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def few(names: Sequence[str], most: int = 3) -> str:
    """List the first `most` names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def named_columns(names: Iterable[str]) -> str:
    """List the first 30 names of columns; names that begin or end with a blank are quoted, to make it visible."""
    return few([name if name == name.strip() else repr(name) for name in names], 30)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun in the right number: 1 file, 1,234 files; the plural is the noun with an s by default."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def figures(value: float, digits: int = 2) -> str:
    """Format a number with `digits` significant digits, integer parts in full, no exponent: 0.34, 1.3, 25, 133, 1,861."""
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
    """Format a Markdown table, one line for each row, ending with a new line. Cells are escaped unless they are `Markdown`.

    Args:
        texts: the left-aligned columns: the number of first columns, or column indices. The others are right-aligned.
        padded: pad columns to equal width, to be readable as plain text; such a table has no alignment marks.
        longest: number of characters after which a cell is truncated.
    """
    left_aligned = range(texts) if isinstance(texts, int) else texts
    lines = [[for_markdown(cell, longest) for cell in line] for line in (head, *rows)]
    widths = [max(map(len, column)) if padded else 0 for column in zip(*lines, strict=True)]
    rule = ["-" * width if padded else "---" if index in left_aligned else "---:" for index, width in enumerate(widths)]
    lines.insert(1, rule)
    return "".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |\n" for line in lines
    )
