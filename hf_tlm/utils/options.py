"""A field of a class of options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
def option(default: T, help: str, **metadata: Any) -> T: ...
@overload
def option(*, help: str, factory: Callable[[], T], **metadata: Any) -> T: ...
@overload
def option(*, help: str, **metadata: Any) -> Any: ...
def option(default: Any = MISSING, help: str = "", factory: Any = MISSING, **metadata: Any) -> Any:
    """A dataclass field with what `--help` says of it, as `HfArgumentParser` reads it.

    Args:
        default: the value where none is given; without it and `factory` one has to be.
        factory: makes the default, where that is a list.
        metadata: what else the parser reads, such as `choices`.
    """
    return field(default=default, default_factory=factory, metadata={"help": help, **metadata})
