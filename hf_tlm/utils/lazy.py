"""Lazy imports: exports of a package that load on first use (PEP 562), and fields of a dataclass read from its source.

PyTorch, the Trainer and `datasets` take seconds to import, and `--help` or an error of the command line needs none of them.
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
    """Return `__getattr__`, `__dir__` and `__all__` for a package's `__init__.py`, so that exports load on first use.

    The exports are the imports under the package's `if TYPE_CHECKING:`, which type checkers read too. A function may have
    the name of its submodule: the name then is the function, whether the submodule has been imported before or not.

    Args:
        package: the package's `__name__`.
    """
    module = sys.modules[package]
    origins = _type_checking_imports(inspect.getsource(module))
    namesakes = {name for name, origin in origins.items() if origin == (f"{package}.{name}", name)}

    class Package(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            # After loading a submodule, the import system sets it as an attribute of its package.
            if name in namesakes and isinstance(value, ModuleType):
                value = getattr(value, name)
            super().__setattr__(name, value)

    if namesakes:
        module.__class__ = Package

    def load(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        origin, original_name = origins[name]
        return getattr(importlib.import_module(origin), original_name)

    return load, lambda: sorted(origins), list(origins)


def _type_checking_imports(source: str) -> dict[str, tuple[str, str]]:
    """Map each name to the module that it is imported from and its name in that module."""
    ifs = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    blocks = [node.body for node in ifs if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}


def outline(name: str) -> type[Any]:
    """Build a dataclass with the docstring and the fields of another one, read from the source of that one and its bases.

    Modules of the package are read, not imported, except those whose names appear in the types, defaults and metadata of
    fields. Bases from other packages are left out; the attribute `extends`, a tuple, holds their names.

    Args:
        name: "package.module.Class", or "package.Class" for a class that the package imports (also under TYPE_CHECKING).
    """
    from dataclasses import make_dataclass  # Every package imports this module, and few processes outline a class.

    module, class_name = _find_origin(*name.rsplit(".", 1))
    node = _statements(module).get(class_name)
    if not isinstance(node, ast.ClassDef):
        raise AttributeError(f"{name} is not a class in a module whose source can be read.")
    bases, extends = [], []
    for base in node.bases:
        base_module, base_name = _find_origin(module, ast.unparse(base))
        if _package(base_module) == _package(module) and isinstance(_statements(base_module).get(base_name), ast.ClassDef):
            bases.append(outline(f"{base_module}.{base_name}"))
            extends += bases[-1].extends
        else:
            extends.append(base_name if base_module == module else f"{base_module}.{base_name}")
    fields: list[Any] = []
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign) and "ClassVar" not in ast.unparse(entry.annotation):
            default = () if entry.value is None else (_evaluate(module, entry.value),)
            fields.append((ast.unparse(entry.target), _evaluate(module, entry.annotation), *default))
    namespace = {"__doc__": ast.get_docstring(node), "extends": tuple(dict.fromkeys(extends))}
    # Keyword-only, because a field without a default may follow a field with one.
    return make_dataclass(class_name, fields, bases=tuple(bases), namespace=namespace, kw_only=True)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _find_origin(module: str, name: str) -> tuple[str, str]:
    """Return the module that defines a name of `module`, following imports inside its package, and its name there."""
    statement = _statements(module).get(name)
    if not isinstance(statement, ast.ImportFrom) or statement.module is None:
        return module, name
    original_name = _imported_name(statement, name)
    if _package(statement.module) != _package(module):
        return statement.module, original_name
    return _find_origin(statement.module, original_name)


def _imported_name(statement: ast.Import | ast.ImportFrom, name: str) -> str:
    """Return the original name that an import binds as `name`."""
    return next(alias.name for alias in statement.names if name == (alias.asname or alias.name))


@functools.cache
def _statements(module: str) -> dict[str, ast.stmt]:
    """Return the statements that bind a module's top-level names, by name; those inside a top-level `if` count too."""
    from importlib.abc import InspectLoader

    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec is not None and isinstance(spec.loader, InspectLoader) else None
    statements = list(ast.parse(source or "").body)
    names: dict[str, ast.stmt] = {}
    for statement in statements:
        if isinstance(statement, ast.If):
            statements += statement.body  # Visited after the module's other statements.
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            names.update(dict.fromkeys((alias.asname or alias.name for alias in statement.names), statement))
        elif isinstance(statement, ast.ClassDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            names.update(dict.fromkeys((node.id for node in statement.targets if isinstance(node, ast.Name)), statement))
    return names


def _evaluate(module: str, expression: ast.expr) -> Any:
    """Evaluate an expression from the source of `module`."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} & _statements(module).keys()
    values = {name: _evaluate_name(module, name) for name in names}
    return eval(compile(ast.Expression(expression), module, "eval"), {"__builtins__": builtins, **values})


def _evaluate_name(module: str, name: str) -> Any:
    """Return the value of a name that `module` imports, or assigns a constant to."""
    statement = _statements(module)[name]
    if isinstance(statement, ast.ImportFrom):
        origin, original_name = _find_origin(module, name)
        return getattr(importlib.import_module(origin), original_name)
    if isinstance(statement, ast.Import):
        return importlib.import_module(_imported_name(statement, name))
    if isinstance(statement, ast.Assign):
        return _evaluate(module, statement.value)
    raise NameError(f"{name}, which a field of {module} names, is not known without an import of its module.")
