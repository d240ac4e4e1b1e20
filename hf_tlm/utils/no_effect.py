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

    def refusal(self, value: Any, prefix: str) -> str | None:
        """How the error goes on where the other field has this value; None: there the field has an effect."""
        return self.because if value in self.values else None


@dataclass(frozen=True)
class OnlyWith:
    """That a field has an effect only where another one of its dataclass has one of some values.

    option, values: the other field, and the values.
    ignored: values of it beside which the field is left unread, and no error.
    """

    option: str
    values: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def refusal(self, value: Any, prefix: str) -> str | None:
        """As `NoEffect.refusal`."""
        if value in (*self.values, *self.ignored):
            return None
        other = prefix + self.option
        takers = " and ".join(self.values)
        return f"with {other} {getattr(value, 'value', value)}: it is for {takers}. Leave it out, or change {other}."


def check_effects(options: Any, error: type[Exception], prefix: str = "") -> None:
    """Check that every option that was given has an effect beside the others.

    Args:
        options: a dataclass, some of whose fields have a `NoEffect` or `OnlyWith` in their type.
        prefix: of names of options, in errors.

    Raises:
        error: an option is not at its default, and another one leaves it without effect.
    """
    cls: Any = type(options)
    for name, default, conditions in _conditions(cls):
        value = getattr(options, name)
        for condition in conditions if value != default else ():
            if because := condition.refusal(getattr(options, condition.option), prefix):
                pause = "" if because.startswith(":") else " "
                raise error(f"{prefix}{name} {value} has no effect{pause}{because}")


@functools.cache
def _conditions(cls: Any) -> list[tuple[str, Any, list[NoEffect | OnlyWith]]]:
    """Of the fields that have conditions the name, the default and these."""
    hints, found = get_type_hints(cls, include_extras=True), []
    for entry in fields(cls):
        metadata = getattr(hints[entry.name], "__metadata__", ())
        conditions = [one for one in metadata if isinstance(one, (NoEffect, OnlyWith))]
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if conditions:
            found.append((entry.name, default, conditions))
    return found
