"""Generate the pages of docs/reference from the code.

    python docs/make_reference.py           # write them
    python docs/make_reference.py --check   # list those that are out of date, and fail if there are any

There is a page per command with every option of its parser, its default and its values, and a page per package with the
names that it exports. Other pages are written by hand except for the parts between `<!-- generated: NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

from commands import ROOT, Command, read_command
from generated import write_or_check
from hf_tlm.commands import COMMANDS, ONE_PROCESS, describe, presets

REFERENCE = ROOT / "docs" / "reference"
# Packages of the Python API, in the order of the pipeline, with their purposes.
PACKAGES = {
    "tasks": "Labelled tasks, and how they are read",
    "corpora": "General corpora, and how they are read",
    "retrieval": "Retrieving a subset for a task from a corpus",
    "data": "From texts to batches: tokens, blocks, interleaving, masks",
    "models": "Encoders with their heads, pairs of generator and discriminator, export to stock classes",
    "objectives": "Losses, and weighted sums of them",
    "influence": "Selecting a part of a subset",
    "metrics": "Metrics of predictions",
    "training": "Arguments, the Trainer, stages, cost",
    "runs": "Complete runs of the commands, over seeds",
    "experiments": "Tables of arms x tasks x seeds",
    "analysis": "Figures, tables and the HTML report",
    "hub": "Publishing, loading and verifying",
}
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)
BEYOND = "transformers.TrainingArguments"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; the cells are Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def plain(text: str) -> str:
    """Escape a text for a cell, leaving code between backticks as it is."""
    text = " ".join(text.split()).replace("|", "\\|")
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<$\[\]])", r"\\\1", part) for part in parts)


def code(value: object) -> str:
    """Format a value as code in a cell."""
    return "`" + str(value).replace("|", "\\|") + "`"


# Commands


def parser_of(command: Command) -> argparse.ArgumentParser:
    """Return the parser that prints the command's --help."""
    from hf_tlm.config import parse

    found: list[argparse.ArgumentParser] = []

    def print_help(parser: argparse.ArgumentParser, file: object = None) -> None:
        found.append(parser)

    with patch.object(argparse.ArgumentParser, "print_help", print_help), contextlib.suppress(SystemExit):
        parse(*command.classes, recipe=command.recipe, description=command.description, args=["--help"])
    return found[0]


def takes(action: argparse.Action) -> str:
    """Describe the values of an option in words."""
    kinds = [action.type, *getattr(action.type, "args", ())]  # Ranges are checked by a function around the type.
    kind = next((kind.__name__ for kind in kinds if kind in (int, float)), None)
    if kind is None:
        kind = "true or false" if getattr(action.type, "__name__", "") == "string_to_bool" else "text"
    kind = "choice" if action.choices is not None else {"int": "whole number", "float": "number"}.get(kind, kind)
    return kind + (" ..." if action.nargs in ("+", "*") else "")


def default(action: argparse.Action) -> str:
    """Format the default of an option; empty if it has none."""
    if action.required:
        return "*required*"
    value = action.default
    if value is None or value == [] or value == argparse.SUPPRESS:
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, list):
        return code(" ".join(map(str, value)))
    return code(f"{value:g}" if isinstance(value, float) else value)


def option_row(action: argparse.Action) -> list[str]:
    """Return the cells of an option: name and values; default; help, with the choices that it does not mention."""
    text = action.help or ""
    text = text % {**vars(action), "prog": ""} if "%" in text else text
    choices = [str(choice) for choice in action.choices or ()]
    if not all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in choices):
        text += f" One of {', '.join(code(choice) for choice in choices)}."
    return [f"{code(action.option_strings[0])}<br>{takes(action)}", default(action), plain(text)]


def is_shown(action: argparse.Action) -> bool:
    """Return whether an option has a row of its own; the --no_ variants of options that default to true have none."""
    is_negation = action.option_strings[0].startswith("--no_") and action.const is False
    return action.help != argparse.SUPPRESS and not is_negation and action.dest not in ("help", "help_all", "config")


def command_page(name: str) -> str:
    """Generate the page of a command."""
    command = read_command(name)
    summary, _, rest = command.description.partition("\n")
    parser = parser_of(command)
    processes = f"`--num_processes 2` and `accelerate launch recipes/{command.recipe}.py` start several processes."
    processes = "It runs in one process." if name in ONE_PROCESS else processes
    parts = [
        f"# hf-tlm {name}",
        plain(summary),
        *described(rest),
        f"In a clone, `python recipes/{command.recipe}.py` is the same command. `--config` accepts [presets](presets.md) "
        f"and files of defaults, see [YAML](yaml.md). {processes}",
    ]
    head = ["option", "default", "description"]
    for group in parser._action_groups:
        if actions := [action for action in group._group_actions if is_shown(action)]:
            parts.append(f"## {group.title}\n\n" + table(head, map(option_row, actions)).rstrip())
    if parser.epilog and BEYOND in parser.epilog:
        parts.append(
            "## Options of the Trainer\n\n"
            f"All options of `{BEYOND}` are accepted too. Their defaults are those of transformers, unless the tables "
            f"above have others. `hf-tlm {name} --help_all` lists them."
        )
    return GENERATED_NOTE.format("the command's parser") + "\n\n".join(parts) + "\n"


def described(text: str) -> list[str]:
    """Return the paragraphs of a recipe's docstring, with indented ones as commands."""
    parts = [part for part in text.strip("\n").split("\n\n") if part.strip()]
    return [f"```bash\n{textwrap.dedent(part)}\n```" if part.startswith("    ") else plain(part) for part in parts]


GENERATED_NOTE = "<!-- Made by docs/make_reference.py from {}. -->\n\n"


def command_table() -> str:
    """Generate the table of commands with their summaries."""
    lines = []
    for name, (recipe, line) in COMMANDS.items():
        lines.append([f"[`hf-tlm {name}`]({name.replace('-', '_')}.md)", f"`recipes/{recipe}.py`", plain(line)])
    return table(["command", "recipe", "description"], lines)


# Presets, tasks, errors


def preset_table() -> str:
    """Generate the tables of presets that come with the package, one per folder."""
    parts = []
    for folder in sorted({name.partition("/")[0] for name in presets()}):
        files = {name: path for name, path in presets().items() if name.startswith(f"{folder}/")}
        lines = [[code(name), plain(describe(path))] for name, path in files.items()]
        parts.append(f"## {folder}\n\n" + table(["name", "description"], lines))
    return "\n".join(parts)


def task_table() -> str:
    """Generate the table of registered tasks."""
    from hf_tlm.tasks import TASKS

    lines = []
    for name, spec in TASKS.items():
        sizes = ", ".join(f"{size:,}" for size in spec.split_sizes) if spec.split_sizes else ""
        data = f"`{spec.path}`" + (f" (`{spec.config_name}`)" if spec.config_name else "") if spec.path else "your own files"
        metrics = ", ".join(code(metric) for metric in (spec.metric, *spec.further_metrics))
        lines.append([code(name), spec.kind.replace("_", " "), str(len(spec.classes) or ""), metrics, data, sizes])
    return table(["name", "kind", "classes", "metrics", "data set of the Hub", "train, validation, test"], lines)


def error_table() -> str:
    """Generate the table of all errors raised for users, with their base classes."""
    classes = {}
    for path in sorted((ROOT / "hf_tlm").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                classes[node.name] = (module, bases, (ast.get_docstring(node) or "").partition("\n")[0])
    errors = {"HfTlmError"}
    while more := {name for name, (_, bases, _) in classes.items() if errors & set(bases)} - errors:
        errors |= more
    lines = []
    for name in sorted(name for name in errors if not name.startswith("_")):
        _, bases, first = classes[name]
        lines.append([code(name), code(" ".join(bases) or "Exception"), plain(first)])
    return table(["error", "of", "when"], lines)


# The Python API


def exported(package: str) -> dict[str, object]:
    """Return name -> value of what a package exports."""
    module = importlib.import_module(f"hf_tlm.{package}")
    return {name: getattr(module, name) for name in sorted(module.__all__)}


def is_documented(value: object) -> bool:
    """Return whether the value is a class or function of hf_tlm, not a constant."""
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("hf_tlm")


def first_line(value: object) -> str:
    """Return the first paragraph of an object's own docstring; empty without one."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
    text = inspect.cleandoc(text or "").partition("\n\n")[0]
    return "" if text.startswith(f"{getattr(value, '__name__', '')}(") else text  # What dataclasses write themselves.


def shown(value: object) -> str:
    """Format a constant: names, numbers, or the keys of a mapping; empty if longer than a line."""
    if isinstance(value, Mapping):
        value = list(value)
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(part, (str, int, float)) for part in parts):
        return ""
    text = ", ".join(code(part) for part in parts)
    return text if len(text) < 400 else ""


def api_page(package: str) -> str:
    """Generate the page of a package, with a row for each name. Sphinx adds the docstrings, see `autodoc`."""
    lines = []
    for name, value in exported(package).items():
        if is_documented(value):
            lines.append([code(name), "class" if inspect.isclass(value) else "function", plain(first_line(value))])
        else:
            lines.append([code(name), "constant", shown(value)])
    head = f"# hf_tlm.{package}\n\n{PACKAGES[package]}.\n\n"
    return GENERATED_NOTE.format("what the package exports") + head + table(["name", "", "description"], lines)


def autodoc(package: str) -> str:
    """Return Sphinx's directives for the docstrings of a package's names, as a MyST block."""
    lines = []
    for name, value in exported(package).items():
        if is_documented(value):
            kind = "autoclass" if inspect.isclass(value) else "autofunction"
            lines.append(f".. {kind}:: hf_tlm.{package}.{name}\n" + ("   :members:\n" if inspect.isclass(value) else ""))
    return "\n\n## Full documentation\n\n```{eval-rst}\n" + "\n".join(lines) + "```\n"


def root_table() -> str:
    """Generate the table of names that `hf_tlm` itself exports, with links to their pages."""
    import hf_tlm

    homes = {name: package for package in reversed(PACKAGES) for name in exported(package)}
    lines = []
    for name in sorted(hf_tlm.__all__):
        value = getattr(hf_tlm, name)
        page = f"[{homes[name]}](api_{homes[name]}.md)" if name in homes else ""
        lines.append([code(name), page, plain(first_line(value)) if is_documented(value) else ""])
    return table(["name", "page", "description"], lines)


def package_table() -> str:
    """Generate the table of packages, with links to their pages."""
    lines = [[f"[`hf_tlm.{name}`](api_{name}.md)", text] for name, text in PACKAGES.items()]
    return table(["package", "description"], lines)


PARTS: dict[str, Callable[[], str]] = {
    "commands": command_table,
    "presets": preset_table,
    "tasks": task_table,
    "errors": error_table,
    "names": root_table,
    "packages": package_table,
}


def filled(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Regenerate the generated parts of a page."""
    return GENERATED.sub(lambda match: f"{match[1]}\n{parts[match[2]]().rstrip()}\n\n{match[4]}", text)


def make_pages() -> dict[Path, str]:
    """Generate every page that is generated, completely or in part."""
    pages = {REFERENCE / f"{name.replace('-', '_')}.md": command_page(name) for name in COMMANDS}
    pages |= {REFERENCE / f"api_{package}.md": api_page(package) for package in PACKAGES}
    for path in sorted(REFERENCE.glob("*.md")):
        if path not in pages and "<!-- generated: " in (text := path.read_text(encoding="utf-8")):
            pages[path] = filled(text, PARTS)
    return pages


def outdated(pages: dict[Path, str], folder: Path = REFERENCE) -> list[str]:
    """Return the names of pages that differ from what would be generated now, or are not generated any more."""
    stale = [path.name for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    mark = GENERATED_NOTE.partition("{")[0]
    others = (path for path in folder.glob("*.md") if path not in pages)
    gone = [path.name for path in others if path.read_text(encoding="utf-8").startswith(mark)]
    return sorted([*stale, *gone])


if __name__ == "__main__":
    write_or_check(__doc__, make_pages, outdated)
