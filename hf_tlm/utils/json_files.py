"""Reading of JSON objects from files; a damaged file gives a message of one line.

From files of unknown origin only listed fields are read, each with a type and bounds:

    FIELDS = {"seed": whole(0, 2**63), "template": words(2000), "model": maybe(words(200))}
    values = read_fields(folder / "prompt.json", FIELDS, PromptError)

Other fields of the file are ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from hf_tlm.errors import HfTlmError

logger = logging.getLogger(__name__)
LARGEST = 64 << 20  # Largest size of a file in bytes; recipes write some thousand bytes.
_CHECKSUM = "xxh3"
_ADVICE = "Create or download it again."
# Takes a JSON value and returns it in the form in which it is used, or raises `Unfit`.
Check = Callable[[Any], Any]


def read_object(path: Path, error: type[HfTlmError] = HfTlmError, advice: str = "Create it again.") -> dict[str, Any]:
    """Return the JSON object in a file; raise `error`, with a reason and `advice`, if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else f"it is not JSON: {problem}"
        raise error(f"{path} cannot be read, it is damaged or incomplete ({reason}). {advice}") from problem
    if not isinstance(content, dict):
        raise error(f"{path} is damaged: expected a JSON object, found {type(content).__name__}. {advice}")
    return content


def find_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is missing or, with a warning that it is made again, damaged."""
    if not path.is_file():
        return None
    try:
        return read_object(path, advice="It will be created again.")
    except HfTlmError as problem:
        logger.warning("%s", problem)
        return None


def checked_text(values: Mapping[str, Any]) -> str:
    """Return an object with its checksum as JSON text, for `find_checked`; for values that nothing else can verify."""
    return json.dumps({**values, _CHECKSUM: _checksum(values)}) + "\n"


def find_checked(path: Path) -> dict[str, Any] | None:
    """Return the object that `checked_text` wrote; None as in `find_object`, or if its checksum differs.

    Files of versions without checksums are accepted.
    """
    values = find_object(path)
    if values is None or values.pop(_CHECKSUM, None) in (None, _checksum(values)):
        return values
    logger.warning("%s is damaged (its checksum differs). It will be created again.", path)
    return None


def _checksum(values: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(values).encode())


def find_format(path: Path, format: Any) -> dict[str, Any] | None:
    """Return the JSON object in a file if its entry `format` equals `format`; None otherwise, also for a damaged file."""
    try:
        content = read_object(path)
    except HfTlmError:
        return None
    return content if content.get("format") == format else None


def entry(content: Any, *names: str) -> Any:
    """Return the value of nested objects at a sequence of keys; None if a key is missing."""
    for name in names:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


class Unfit(Exception):
    """Raised when a value does not fit: what was expected, and the `keys` that lead to it within the object."""

    def __init__(self, expected: str, keys: tuple[str | int, ...] = ()):
        super().__init__(expected)
        self.expected, self.keys = expected, keys


def read_fields(
    path: Path,
    fields: Mapping[str, Check],
    error: type[HfTlmError],
    optional: Collection[str] = (),
    largest: int = LARGEST,
) -> dict:
    """Read the listed fields of a file's JSON object.

    Args:
        optional: fields that may be missing; missing ones are left out of the result.
        largest: largest size of the file in bytes.

    Raises:
        OSError: the file cannot be read.
        HfTlmError: of the class `error`; the file is too large or not JSON, or a field is missing or does not fit.
    """
    content = read_json(path, error, largest)
    return check_fields(content, fields, error, f"{path} is not what recipes write", _ADVICE, optional)


def read_json(path: Path, error: type[HfTlmError], largest: int = LARGEST) -> Any:
    """Read a JSON file. Raises the same errors as `read_fields`."""
    size = path.stat().st_size
    if size > largest:
        raise error(f"{path} has {size:,} bytes; expected at most {largest:,}. Do not use it.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is not JSON as recipes write it ({problem}). {_ADVICE}") from problem


def check_fields(
    content: Any,
    fields: Mapping[str, Check],
    error: type[HfTlmError],
    what: str,
    advice: str,
    optional: Collection[str] = (),
) -> dict:
    """Return the listed fields of an object, see `read_fields`; `what` and `advice` begin and end an error's message."""
    try:
        return record(fields, optional)(content)
    except Unfit as unfit:
        location = ".".join(map(str, unfit.keys))[:100] or "all of it"
        raise error(
            f"{what}: {location} must be {unfit.expected}; found {_describe_value(content, unfit.keys)}. {advice}"
        ) from None


def _describe_value(content: Any, keys: Sequence[str | int]) -> str:
    for key in keys:
        if isinstance(content, dict) and key not in content:
            return "nothing"
        content = content[key]
    return f"{content!r:.80}"


def _check_entry(name: str | int, check: Check, value: Any) -> Any:
    """Return the checked value of one entry of an object or list; an `Unfit` is extended by the entry's key or index."""
    try:
        return check(value)
    except Unfit as unfit:
        raise Unfit(unfit.expected, (name, *unfit.keys)) from None


def record(fields: Mapping[str, Check], optional: Collection[str] = ()) -> Check:
    """Return a check for an object with these fields; other fields are left out."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Unfit("an object")
        checks = {name: field_check for name, field_check in fields.items() if name in value or name not in optional}
        return {name: _check_entry(name, field_check, value.get(name)) for name, field_check in checks.items()}

    return check


def such(fits: Callable[[Any], bool], expected: str) -> Check:
    """Return a check for a value for which `fits` is true; the value is returned unchanged."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise Unfit(expected)
        return value

    return check


def whole(low: int, high: int) -> Check:
    """Return a check for an integer from `low` to `high`."""
    return such(lambda value: type(value) is int and low <= value <= high, f"a whole number from {low:,} to {high:,}")


def real(low: float, high: float) -> Check:
    """Return a check for a number from `low` to `high`; NaN does not fit."""
    return such(lambda value: type(value) in (int, float) and low <= value <= high, f"a number from {low:g} to {high:g}")


def words(longest: int) -> Check:
    """Return a check for a string of at most `longest` characters."""
    return such(lambda value: isinstance(value, str) and len(value) <= longest, f"a text of at most {longest:,} characters")


def one_of(*values: Any) -> Check:
    """Return a check for one of some JSON values; types must match, so true is not 1."""
    typed_values = [(type(value), value) for value in values]
    return such(lambda value: (type(value), value) in typed_values, " or ".join(map(json.dumps, values)))


truth = such(lambda value: isinstance(value, bool), "true or false")


def maybe(check: Check) -> Check:
    """Return a check for null, or a value that passes `check`."""
    return lambda value: None if value is None else check(value)


def listed(item_check: Check, longest: int) -> Check:
    """Return a check for a list of at most `longest` items, returned as a tuple."""

    def check(value: Any) -> tuple:
        if not isinstance(value, list) or len(value) > longest:
            raise Unfit(f"a list of at most {longest:,} items")
        return tuple(_check_entry(index, item_check, item) for index, item in enumerate(value))

    return check


def mapped(value_check: Check, longest: int) -> Check:
    """Return a check for an object of at most `longest` arbitrary keys whose values all pass `value_check`."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > longest:
            raise Unfit(f"an object of at most {longest:,} names")
        return record(dict.fromkeys(value, value_check))(value)

    return check
