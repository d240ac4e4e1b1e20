"""The folders tell the pipeline's story: imports point backwards, files stay short, exports are lazy and complete."""

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
# By the name that it is imported by.
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}


def place(part):
    return next(index for index, group in enumerate(ORDER) if part in group)


@pytest.mark.parametrize("path", [p for p in MODULES if p != ROOT / "hf_tlm" / "__init__.py"], ids=lambda p: p.stem)
def test_imports_point_backwards(path):
    own = place(path.relative_to(ROOT / "hf_tlm").with_suffix("").parts[0])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            # The files of coco_lm travel with its models, where their neighbours are all that they can import.
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
                assert place(name.split(".")[1]) <= own, f"{path.name} imports {name}"


def imported(name, path):
    """The modules that a module imports anywhere in its text: at its head, in functions, and for types alone."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield f"{module}.{alias.name}" if f"{module}.{alias.name}" in NAMES else module


def test_there_are_no_circles():
    """No module imports itself by way of others, lazily or for types either."""
    imports = {name: {found for found in imported(name, path) if found in NAMES} for name, path in NAMES.items()}
    try:
        list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(f"A circle of imports: {' <- '.join(error.args[1])}")


def test_no_module_of_tests_imports_another():
    """What tests share is in tests/support or in a module without tests; programs that tests hold as strings count too."""
    of_tests = sorted((ROOT / "tests").rglob("*.py"))
    names, found = {path.stem for path in of_tests if path.stem.startswith("test_")}, set()
    for path in of_tests:
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


def test_files_stay_short():
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


def test_unknown_export():
    import hf_tlm

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hf_tlm.nonsense
