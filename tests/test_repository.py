"""The repository as a whole: no traces of one machine, nothing unfinished, packaging that agrees with itself."""

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
        r"(?<![\w.])/(?:root|home|Users|work)/\w",  # A path of somebody's machine.
        r"--(?:extra-)?index-url\b",  # Where packages come from is the user's choice.
        r"\bhf_[A-Za-z0-9]{30,}\b",  # A Hub token.
    ],
)
def test_no_traces_of_a_machine(pattern):
    assert not matches(pattern, FILES)


@pytest.mark.parametrize("page", ["docs/explanation/architecture.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_places_that_are_named_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    places = re.findall(r"`((?:hf_tlm|tests|recipes|examples|benchmarks)/[\w./]*)`", text)
    assert places or page == "SECURITY.md"
    assert not [place for place in places if not (ROOT / place).exists()]


def test_nothing_is_unfinished():
    code = [path for path in FILES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("hf_tlm", "recipes")]
    assert code
    assert not matches(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b|^\s*except:", code)


def test_ignored_types_have_a_code_and_a_reason():
    """The reason is a comment behind it, or on the line above."""
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


def test_no_two_test_files_have_one_name():
    """Test folders are no packages: pytest would import the second file under the name of the first, and stop."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 100
    assert sorted(names) == sorted(set(names))


@pytest.fixture(scope="module")
def project():
    """The table of pyproject.toml that tools read."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def metadata():
    """The arguments setup.py hands to setuptools."""
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


def test_constraints_take_every_python_that_is_taken(project):
    """One asked for 3.11.5 where the package takes 3.11.0."""
    first = f"{project['requires-python'].removeprefix('>=')}.0"
    for requirement in constraints():
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # Of an extra that is not here.
        if installed.version in requirement.specifier:
            assert first in SpecifierSet(installed.metadata["Requires-Python"] or ""), str(requirement)


def test_one_version_everywhere(metadata, project):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert metadata["version"] == citation["version"] == __version__
    assert project["license"] == citation["license"] == "Apache-2.0"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, flags=re.MULTILINE)[1] == __version__


def test_what_is_said_of_the_package_is_said_once(metadata, project):
    """setup.py has what pyproject.toml calls dynamic, and nothing else that a tool could read there."""
    names = {"version": "version", "dependencies": "install_requires", "optional-dependencies": "extras_require"}
    assert project["dynamic"] == list(names) and not set(names) & set(project)
    assert set(metadata) == {*names.values(), "packages", "package_dir", "package_data"}
    assert project["scripts"] == {"hf-tlm": "hf_tlm.cli:main"} and callable(hf_tlm.cli.main)
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    python = tools["mypy"]["python_version"]
    assert project["requires-python"] == f">={python}" and tools["ruff"]["target-version"] == f"py{python.replace('.', '')}"


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_what_github_runs_is_there(file):
    """Workflows may only read, and call scripts and files of this repository; forms of issues have their fields."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if file.parent.name == "workflows":
        assert content["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job for job in content["jobs"].values())
        steps = [step for job in content["jobs"].values() for step in job["steps"]]
        commands = "\n".join(step["run"] for step in steps if "run" in step)
        places = re.findall(r"(?:^|\s)((?:\.ci|docs)/\w+(?:\.py)?)(?=\s|$)", commands, flags=re.MULTILINE)
        assert places and all((ROOT / place).is_file() for place in places)
        assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    elif file.name != "config.yml":
        assert {"name", "description", "body"} <= set(content)


def test_package_data_is_there(metadata):
    for package, patterns in metadata["package_data"].items():
        folder = ROOT / metadata["package_dir"].get(package, package.replace(".", "/"))
        assert package in metadata["packages"]
        assert all(list(folder.glob(pattern)) for pattern in patterns)
