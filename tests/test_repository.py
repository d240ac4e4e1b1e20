"""The repository as a whole: no paths of one machine, no unfinished code, consistent packaging."""

import re
import runpy
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import hf_tlm.cli
from hf_tlm.version import __version__

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("hf_tlm", "recipes", "examples", "benchmarks", "docs", "tests", ".ci", ".github")
SUFFIXES = {"", ".py", ".md", ".yaml", ".json", ".toml", ".txt", ".cff", ".ipynb", ".yml"}
FILES = [
    path
    for path in sorted({*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))})
    if path.is_file()
    and path.suffix in SUFFIXES
    and "__pycache__" not in path.parts
    and path.name != ".git"  # In a linked worktree a file, which names a folder of the machine.
]


def matches(pattern, files):
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<![\w.])/(?:root|home|Users|work)/\w",  # A path on somebody's machine.
        r"--(?:extra-)?index-url\b",  # Where packages come from is the user's choice.
        r"\bhf_[A-Za-z0-9]{30,}\b",  # A Hub token.
    ],
)
def test_files_have_no_paths_or_package_indexes_of_one_machine(pattern):
    assert not matches(pattern, FILES)


@pytest.mark.parametrize("page", ["docs/explanation/architecture.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_paths_named_in_documentation_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:hf_tlm|tests|recipes|examples|benchmarks)/[\w./]*)`", text)
    assert paths or page == "SECURITY.md"
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_code_has_no_todos_or_bare_excepts():
    code = [path for path in FILES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("hf_tlm", "recipes")]
    assert code
    assert not matches(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b|^\s*except:", code)


def test_ignored_types_have_a_code_and_a_reason():
    """The reason is a comment at the end of the line, or on the line above."""
    found = 0
    for path in (path for path in FILES if path.suffix == ".py"):
        above = ""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"#\s*type:\s*ignore", line):
                found += 1
                named = re.search(r"# type:[ ]ignore\[[a-z-]+(, [a-z-]+)*\](  # \w.*)?$", line)
                assert named and (named[2] or re.match(r"\s*# \w", above)), f"{path.relative_to(ROOT)}:{number}"
            above = line
    assert found


def test_names_of_test_files_are_unique():
    """Test folders are not packages: pytest would import a second file under the name of the first, and stop."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 100
    assert sorted(names) == sorted(set(names))


@pytest.fixture(scope="module")
def project():
    """The [project] table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def metadata():
    """The arguments that setup.py passes to setuptools."""
    captured = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **arguments: captured.update(arguments))
        runpy.run_path(str(ROOT / "setup.py"))
    return captured


def constraints():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_constraints_are_exact_public_versions():
    for requirement in constraints():
        # "+cpu" and the like exist on some machines only.
        assert re.fullmatch(r"==[^+*,]+", str(requirement.specifier)) and requirement.url is None, str(requirement)


def test_every_dependency_has_a_constraint_within_its_bounds(metadata):
    pinned = {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in constraints()}
    declared = [*metadata["install_requires"], *(r for extra in metadata["extras_require"].values() for r in extra)]
    for requirement in map(Requirement, declared):
        assert any(s.operator == ">=" for s in requirement.specifier), f"{requirement} has no lower bound"
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)


def test_constraints_support_the_oldest_supported_python(project):
    """A package may require 3.11.5 where this one supports 3.11.0."""
    first = f"{project['requires-python'].removeprefix('>=')}.0"
    for requirement in constraints():
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # It belongs to an extra that is not installed.
        if installed.version in requirement.specifier:
            assert first in SpecifierSet(installed.metadata["Requires-Python"] or ""), str(requirement)


def test_version_and_license_agree_in_all_files(metadata, project):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert metadata["version"] == citation["version"] == __version__
    assert project["license"] == citation["license"] == "Apache-2.0"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, flags=re.MULTILINE)[1] == __version__


def test_package_metadata_are_declared_once(metadata, project):
    """setup.py has only the fields that pyproject.toml calls dynamic."""
    names = {"version": "version", "dependencies": "install_requires", "optional-dependencies": "extras_require"}
    assert project["dynamic"] == list(names) and not set(names) & set(project)
    assert set(metadata) == {*names.values(), "packages", "package_dir", "package_data"}
    assert project["scripts"] == {"hf-tlm": "hf_tlm.cli:main"} and callable(hf_tlm.cli.main)
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    python = tools["mypy"]["python_version"]
    assert project["requires-python"] == f">={python}" and tools["ruff"]["target-version"] == f"py{python.replace('.', '')}"


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_github_workflows_call_existing_scripts_and_only_read(file):
    """Forms of issues have their required fields."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if file.parent.name == "workflows":
        assert content["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job for job in content["jobs"].values())
        steps = [step for job in content["jobs"].values() for step in job["steps"]]
        commands = "\n".join(step["run"] for step in steps if "run" in step)
        paths = re.findall(r"(?:^|\s)((?:\.ci|docs)/\w+(?:\.py)?)(?=\s|$)", commands, flags=re.MULTILINE)
        assert paths and all((ROOT / path).is_file() for path in paths)
        assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    elif file.name != "config.yml":
        assert {"name", "description", "body"} <= set(content)


def test_package_data_exists(metadata):
    for package, patterns in metadata["package_data"].items():
        folder = ROOT / metadata["package_dir"].get(package, package.replace(".", "/"))
        assert package in metadata["packages"]
        assert all(list(folder.glob(pattern)) for pattern in patterns)
