"""Names of a package that are imported when they are first used (PEP 562).

PyTorch, the Trainer and `datasets` take seconds to import, and `--help` or an error of the command line needs none.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def export_lazily(
    package: str, submodules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, for its `__init__.py` to bind.

    A function may have the name of the submodule it is in: the name is the function, whether the submodule has been
    imported before or not.

    Args:
        package: its `__name__`.
        submodules: submodule -> the names it exports.
    """
    homes = {name: submodule for submodule, names in submodules.items() for name in names}
    namesakes = {name for name, submodule in homes.items() if name == submodule}

    class Package(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            # The import system binds a submodule in its package once it is loaded.
            if name in namesakes and isinstance(value, ModuleType):
                value = getattr(value, name)
            super().__setattr__(name, value)

    if namesakes:
        sys.modules[package].__class__ = Package

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load, lambda: sorted(homes), list(homes)
