"""Options that change nothing beside some values of others: said in the type of the field, checked in one place.

    crop_fraction: Annotated[float, NoEffect("scl", (False,), "with scl false. Leave it out.")] = 0.9

Argument parsers see the type alone.
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints


@dataclass(frozen=True)
class NoEffect:
    """That a field has no effect where another one of its dataclass has one of some values.

    option, values: the other field, and the values.
    because: how the error goes on after "... has no effect".
    """

    option: str
    values: tuple[Any, ...]
    because: str


def check_effects(options: Any, error: type[Exception], prefix: str = "") -> None:
    """Check that every option that was given has an effect beside the others.

    Args:
        options: a dataclass, some of whose fields have a `NoEffect` in their type.
        prefix: of names of options, in errors.

    Raises:
        error: an option is not at its default, and another one leaves it without effect.
    """
    cls: Any = type(options)
    for name, default, conditions in _conditions(cls):
        value = getattr(options, name)
        for condition in conditions:
            if value != default and getattr(options, condition.option) in condition.values:
                pause = "" if condition.because.startswith(":") else " "
                raise error(f"{prefix}{name} {value} has no effect{pause}{condition.because}")


@functools.cache
def _conditions(cls: Any) -> list[tuple[str, Any, list[NoEffect]]]:
    """Of the fields that have conditions the name, the default and these."""
    hints, found = get_type_hints(cls, include_extras=True), []
    for entry in fields(cls):
        conditions = [one for one in getattr(hints[entry.name], "__metadata__", ()) if isinstance(one, NoEffect)]
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if conditions:
            found.append((entry.name, default, conditions))
    return found
