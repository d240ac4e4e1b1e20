"""The layout of the package: imports point backwards along the pipeline, files are short, exports are lazy and
complete.
"""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Later groups may import from earlier ones; members of a group from each other.
ORDER = [
    {"version", "errors", "objective_specs", "commands", "utils"},
    {"config", "hub"},
    {"tasks", "corpora"},
    {"retrieval"},
    {"data"},
    {"models"},
    {"objectives"},
    {"influence"},
    {"metrics"},
    {"training"},
    {"runs"},
    {"experiments"},
    {"analysis"},
    {"cli", "__main__"},
]
MODULES = sorted((ROOT / "hf_tlm").rglob("*.py"))
# Each module's path by the name under which it is imported.
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}


def group_index(part):
    return next(index for index, group in enumerate(ORDER) if part in group)


@pytest.mark.parametrize("path", [p for p in MODULES if p != ROOT / "hf_tlm" / "__init__.py"], ids=lambda p: p.stem)
def test_modules_import_only_earlier_groups(path):
    group = group_index(path.relative_to(ROOT / "hf_tlm").with_suffix("").parts[0])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            # The files of coco_lm are shipped with its models, where they can import only each other.
            travels = path.parent.name == "coco_lm" and node.level == 1
            assert node.level == 0 or travels, f"{path.name}: a relative import hides where it points"
            if travels:
                continue
            # `from hf_tlm import training` names a package as much as `from hf_tlm.training import ...`.
            names = [f"hf_tlm.{a.name}" for a in node.names] if node.module == "hf_tlm" else [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("hf_tlm."):
                assert group_index(name.split(".")[1]) <= group, f"{path.name} imports {name}"


def imported(name, path):
    """Yield the modules that a module imports anywhere: at its head, in functions and for types only."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield f"{module}.{alias.name}" if f"{module}.{alias.name}" in NAMES else module


def test_package_has_no_import_cycles():
    """Lazy imports and imports for types count too."""
    imports = {name: {found for found in imported(name, path) if found in NAMES} for name, path in NAMES.items()}
    try:
        list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(f"A circle of imports: {' <- '.join(error.args[1])}")


def test_no_test_module_imports_another():
    """What tests share is in tests/support or in a module without tests. Imports in programs that tests hold as strings
    count too.
    """
    test_files = sorted((ROOT / "tests").rglob("*.py"))
    names, found = {path.stem for path in test_files if path.stem.startswith("test_")}, set()
    for path in test_files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = []
            if isinstance(node, ast.Import):
                parts = [part for alias in node.names for part in alias.name.split(".")]
            elif isinstance(node, ast.ImportFrom):
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines = re.findall(r"^\s*(?:from|import)\s+(.*)", node.value, re.MULTILINE)
                parts = [word for line in lines for word in re.findall(r"\w+", line)]
            found |= {f"{path.relative_to(ROOT)}: {part}" for part in parts if part in names}
    assert names
    assert not found


def test_modules_have_at_most_500_lines_and_recipes_140():
    long = {p.name: n for p in MODULES if (n := len(p.read_text(encoding="utf-8").splitlines())) > 500}
    assert not long
    recipes = sorted((ROOT / "recipes").glob("*.py"))
    assert recipes and not {p.name: n for p in recipes if (n := len(p.read_text().splitlines())) > 140}


@pytest.mark.slow
def test_exports_are_lazy_and_complete():
    program = (
        "import sys, hf_tlm\n"
        "heavy = {'torch', 'transformers', 'datasets', 'numba', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert set(dir(hf_tlm)) == set(hf_tlm.__all__)\n"
        "for name in hf_tlm.__all__: getattr(hf_tlm, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_unknown_export_is_an_attribute_error():
    import hf_tlm

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hf_tlm.nonsense
