"""Safe reading of YAML: plain values only; anything else is refused with an error of one line."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from hf_tlm.errors import HfTlmError

# Limits of a configuration: bytes, depth, values. A larger file was not written by a person.
LARGEST, DEEPEST, MOST_VALUES = 1 << 20, 20, 100_000
_STR, _INT, _FLOAT, _BOOL, _NULL, _SEQ, _MAP, _MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge")
)


class _Float(float):
    """A number that remembers its text: a branch 1.10 is not 1.1."""

    written: str

    def __new__(cls, value: float, written: str):
        number = super().__new__(cls, value)
        number.written = written
        return number

    def __str__(self):
        return self.written

    def __reduce__(self):
        return float, (float(self),)


class _Loader(yaml.SafeLoader):
    """A loader of YAML 1.2's core schema: no dates, no numbers of base 60 or 8, and `no` and `on` are strings."""

    yaml_implicit_resolvers: dict = {}
    yaml_constructors: dict = {}

    def __init__(self, text: str):
        super().__init__(text)
        self.depth, self.total = 0, 0
        self.sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        mark = self.peek_event().start_mark
        is_alias = self.check_event(yaml.AliasEvent)
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"values nested more than {DEEPEST} deep", problem_mark=mark)
        total_before = self.total
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self.sizes:
            raise yaml.MarkedYAMLError(problem="a value that contains itself", problem_mark=mark)
        # An alias counts as all the values that it repeats.
        self.total += self.sizes[id(node)] if is_alias else 1
        if self.total > MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_VALUES:,} values", problem_mark=mark)
        self.sizes[id(node)] = self.total - total_before
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[str, Any]:
        seen_keys = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                continue
            if key.tag != _STR:
                key_text = f"{key.value!r:.60}" if isinstance(key, yaml.ScalarNode) else f"a {key.id}"
                raise yaml.MarkedYAMLError(problem=f"a key must be a name; found {key_text}", problem_mark=key.start_mark)
            if key.value in seen_keys:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r:.60} comes twice", problem_mark=key.start_mark)
            seen_keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _construct_float(loader: _Loader, node: yaml.Node) -> float:
    text = loader.construct_scalar(node)
    try:
        return _Float(float(text), text)
    except ValueError:  # .inf and .nan
        return float(text.replace(".", "", 1))


_NUMBER = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _pattern, _first in (
    (_INT, r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    (_FLOAT, _NUMBER, "-+.0123456789"),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_MERGE, r"<<", "<"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), list(_first))
for _tag, _construct in (
    (_STR, yaml.SafeLoader.construct_yaml_str),
    (_INT, lambda loader, node: int(loader.construct_scalar(node))),
    (_FLOAT, _construct_float),
    (_BOOL, lambda loader, node: loader.construct_scalar(node).lower() == "true"),
    (_NULL, lambda loader, node: None),
    (_SEQ, yaml.SafeLoader.construct_yaml_seq),
    (_MAP, yaml.SafeLoader.construct_yaml_map),
):
    _Loader.add_constructor(_tag, _construct)
_Loader.add_constructor(None, yaml.SafeLoader.construct_undefined)


def load_yaml(text: str, what: str, error: type[HfTlmError]) -> Any:
    """Parse a YAML text of mappings with string keys, lists, strings, numbers, booleans and None.

    Args:
        what: what the text is, for errors.

    Raises:
        error: the text is not YAML, holds another type, a duplicate key or a value that contains itself, or is deeper or
            larger than the limits.
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        location = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise error(f"{what} is not YAML that can be used: {problem.problem or problem.context}{location}.") from problem
    except yaml.reader.ReaderError as problem:
        reason = f"{problem.reason}: #x{problem.character:04x} at position {problem.position}"
        raise error(f"{what} is not YAML that can be used: {reason}.") from problem
    except (yaml.YAMLError, ValueError) as problem:  # For example a number that is too long for Python.
        raise error(f"{what} is not YAML that can be used: {str(problem):.200}.") from problem


def read_yaml(path: str | os.PathLike, what: str, error: type[HfTlmError]) -> Any:
    """Read a YAML file, see `load_yaml`.

    Raises:
        error: the file cannot be read, is not a regular file, is larger than 1 MiB or not UTF-8; or see `load_yaml`.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # Reading a pipe would block, and a device may never end.
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise error(f"{what} must be a file; this is {kind}.")
        if status.st_size > LARGEST:
            raise error(f"{what} has {status.st_size:,} bytes; a configuration has at most {LARGEST:,}.")
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{what} is not UTF-8 (byte {problem.start}). Save it as UTF-8.") from problem
    except OSError as problem:
        raise error(f"Cannot read {what}: {problem.strerror}.") from problem
    except ValueError as problem:  # A null byte in a path.
        if isinstance(problem, error):
            raise
        raise error(f"Cannot read {what}: {problem}.") from problem
    return load_yaml(text, what, error)
