"""What is known without an import: the names of a package (PEP 562), and the fields of a dataclass, read from its source.

PyTorch, the Trainer and `datasets` take seconds to import, and `--help` or an error of the command line needs none.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
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


def outline(name: str) -> type[Any]:
    """Make a dataclass with the docstring and the fields that the source of another one and of its bases declares.

    Modules of the package are read, not imported, but for those that fields name in their types, defaults and metadata.
    Bases from elsewhere are left out; the attribute `extends`, a tuple, has their names.

    Args:
        name: "package.module.Class", or "package.Class" of one that the package imports (for the type checker alone, too).
    """
    from dataclasses import make_dataclass  # Every package imports this module, and few processes outline a class.

    home, own = _origin(*name.rsplit(".", 1))
    node = _statements(home).get(own)
    if not isinstance(node, ast.ClassDef):
        raise AttributeError(f"{name} is no class of a module whose source can be read.")
    bases, extends = [], []
    for base in node.bases:
        place, called = _origin(home, ast.unparse(base))
        if _package(place) == _package(home) and isinstance(_statements(place).get(called), ast.ClassDef):
            bases.append(outline(f"{place}.{called}"))
            extends += bases[-1].extends
        else:
            extends.append(called if place == home else f"{place}.{called}")
    fields: list[Any] = []
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign) and "ClassVar" not in ast.unparse(entry.annotation):
            default = () if entry.value is None else (_evaluate(home, entry.value),)
            fields.append((ast.unparse(entry.target), _evaluate(home, entry.annotation), *default))
    namespace = {"__doc__": ast.get_docstring(node), "extends": tuple(dict.fromkeys(extends))}
    # By keyword: a field without a default may follow one with.
    return make_dataclass(own, fields, bases=tuple(bases), namespace=namespace, kw_only=True)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _origin(module: str, name: str) -> tuple[str, str]:
    """The module that a name of `module` is imported from, by whatever modules of its package, and its name there."""
    statement = _statements(module).get(name)
    if not isinstance(statement, ast.ImportFrom) or statement.module is None:
        return module, name
    own = _imported_name(statement, name)
    if _package(statement.module) != _package(module):
        return statement.module, own
    return _origin(statement.module, own)


def _imported_name(statement: ast.Import | ast.ImportFrom, name: str) -> str:
    """What an import calls `name` here."""
    return next(alias.name for alias in statement.names if name == (alias.asname or alias.name))


@functools.cache
def _statements(module: str) -> dict[str, ast.stmt]:
    """The names that a module binds at its top, or in an `if` there, and the statements that bind them."""
    from importlib.abc import InspectLoader

    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec is not None and isinstance(spec.loader, InspectLoader) else None
    statements = list(ast.parse(source or "").body)
    names: dict[str, ast.stmt] = {}
    for statement in statements:
        if isinstance(statement, ast.If):
            statements += statement.body  # Read when all before it are.
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            names.update(dict.fromkeys((alias.asname or alias.name for alias in statement.names), statement))
        elif isinstance(statement, ast.ClassDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            names.update(dict.fromkeys((node.id for node in statement.targets if isinstance(node, ast.Name)), statement))
    return names


def _evaluate(module: str, expression: ast.expr) -> Any:
    """The value of an expression in the source of `module`."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} & _statements(module).keys()
    values = {name: _value(module, name) for name in names}
    return eval(compile(ast.Expression(expression), module, "eval"), {"__builtins__": builtins, **values})


def _value(module: str, name: str) -> Any:
    """The value of a name that `module` imports, or assigns a constant to."""
    statement = _statements(module)[name]
    if isinstance(statement, ast.ImportFrom):
        place, own = _origin(module, name)
        return getattr(importlib.import_module(place), own)
    if isinstance(statement, ast.Import):
        return importlib.import_module(_imported_name(statement, name))
    if isinstance(statement, ast.Assign):
        return _evaluate(module, statement.value)
    raise NameError(f"{name}, which a field of {module} names, is not known without an import of its module.")
