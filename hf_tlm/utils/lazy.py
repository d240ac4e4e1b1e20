"""Names of a package that are imported when they are first used (PEP 562).

PyTorch, the Trainer and `datasets` take seconds to import, and `--help` or an error of the command line needs none.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def export_lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, for its `__init__.py` to bind.

    What it exports are the imports under its `if TYPE_CHECKING:`, by which type checkers know them too. A function may have
    the name of the submodule it is in: the name is the function, whether the submodule has been imported before or not.

    Args:
        package: its `__name__`.
    """
    module = sys.modules[package]
    homes = _imports_for_types(inspect.getsource(module))
    namesakes = {name for name, home in homes.items() if home == (f"{package}.{name}", name)}

    class Package(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            # The import system binds a submodule in its package once it is loaded.
            if name in namesakes and isinstance(value, ModuleType):
                value = getattr(value, name)
            super().__setattr__(name, value)

    if namesakes:
        module.__class__ = Package

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, its_name = homes[name]
        return getattr(importlib.import_module(home), its_name)

    return load, lambda: sorted(homes), list(homes)


def _imports_for_types(source: str) -> dict[str, tuple[str, str]]:
    """Name -> (module that it is imported from, its name there)."""
    ifs = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    blocks = [node.body for node in ifs if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}
