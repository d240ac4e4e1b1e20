"""Recipe arguments: YAML files give defaults, the command line overrides them, an unknown key is an error.

    accelerate launch recipes/train_tlm.py --config base.yaml chemprot_small.yaml --learning_rate 1e-4

Later files override earlier ones. Top-level keys are field names. A top-level key that is the name of a recipe holds a
mapping for that recipe alone, so that one file can describe retrieval and training of one experiment. A value that begins
with ~ begins with the user's folder.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import functools
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_tlm.files import HfTlmError
from hf_tlm.signals import Terminated, on_sigterm

HELP, HELP_ALL = {"-h", "--help"}, "--help_all"
RECIPES = (
    *("quickstart", "retrieve", "select_influence", "train_tlm", "pretrain"),
    *("finetune", "few_shot", "reproduce", "analyze", "publish"),
)


class ConfigError(HfTlmError):
    """A configuration file or command line that cannot be used."""


def read_configs(paths: Sequence[str], recipe: str) -> dict[str, Any]:
    """The merged values of some YAML files for one recipe.

    Raises:
        ConfigError: a file is missing, not YAML, or not a mapping.
    """
    import yaml

    values: dict[str, Any] = {}
    for path in paths:
        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise ConfigError(f"Cannot read --config {path}: {error.strerror}.") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"--config {path} is not YAML: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"--config {path} must be a mapping of argument names to values; found {content!r:.80}.")
        sections = {name: content.pop(name) or {} for name in RECIPES if name in content}
        for name, section in sections.items():
            if not isinstance(section, dict):
                raise ConfigError(f"--config {path}: section {name!r} must be a mapping; found {section!r:.80}.")
        values |= content | sections.get(recipe, {})
    return values


def config_files(args: Sequence[str] | None = None) -> list[str]:
    """The `--config` files of a command line (default `sys.argv`), of which `parse` takes defaults."""
    # With a parser of their own: a required field may be in one of them.
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="+", default=[])
    return _at_home(finder.parse_known_args(sys.argv[1:] if args is None else list(args))[0].config)


def parse(
    *dataclasses: type,
    recipe: str,
    description: str,
    args: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> tuple:
    """One instance of each dataclass from `--config` files and the command line (default `sys.argv`).

    A dataclass may stand for one that takes seconds to import: an attribute `stands_for`, "module.name", is the class
    that is parsed into; it inherits the fields of the stand-in, and of the class that the attribute `extends` names.
    `--help` shows the fields of the stand-in alone, `--help_all` those of the class.

    Args:
        values: as in one more file, after the others.

    Raises:
        ConfigError: an unknown key or a value of the wrong type in a file, or values the dataclasses refuse.
        SystemExit: as argparse does, for `--help`, `--help_all` and for errors of the command line.
    """
    args = _at_home(list(sys.argv[1:] if args is None else args))
    extended = [cls.extends for cls in dataclasses if "stands_for" in vars(cls)]
    short_help = bool(HELP & set(args))
    helps = short_help or HELP_ALL in args
    if not short_help:
        dataclasses = tuple(_full(cls) for cls in dataclasses)
    parser = _hf_argument_parser()(
        [_titled(cls) for cls in dataclasses] if helps else dataclasses,
        description=description,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    required = [f"{action.option_strings[0]} {action.dest.upper()}" for action in parser._actions if action.required]
    parser.usage = " ".join(["%(prog)s", *required, "[options]"])
    # Hundreds of lines of usage would hide the error.
    parser.error = lambda message: parser.exit(2, f"Error: {message}\nSee {recipe}.py --help.\n")
    parser.add_argument("--config", nargs="+", default=[], metavar="YAML", help="Files of defaults, later ones win.")
    if extended and short_help:
        parser.epilog = "\n".join(f"Every option of {name} is accepted too; {HELP_ALL} lists them." for name in extended)
    more = f"Show the options of {', '.join(extended)} too and exit." if extended else argparse.SUPPRESS
    parser.add_argument(HELP_ALL, action="help", help=more)
    if not helps:
        paths = config_files(args)
        actions = {action.dest: action for action in parser._actions if action.dest not in ("help", "config")}
        for key, value in (read_configs(paths, recipe) | dict(values or {})).items():
            place = "the values given" if values and key in values else ", ".join(map(str, paths))
            _check_known(key, actions, f"{place} for {recipe}")
            actions[key].default = _typed(key, value, actions[key])
            actions[key].required = False
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(args=args, return_remaining_strings=True)
    except ValueError as error:  # From __post_init__ of the dataclasses: transformers' own checks of its arguments.
        raise error if isinstance(error, HfTlmError) else ConfigError(str(error)) from error
    if unknown:
        options = [option for action in parser._actions for option in action.option_strings]
        close = difflib.get_close_matches(unknown[0].split("=")[0], options, n=3)
        parser.error(f"unknown argument {unknown[0]}" + (f"; did you mean {' or '.join(close)}?" if close else ""))
    return tuple(parsed[: len(dataclasses)])


def _full(cls: type) -> type:
    """The class that `cls` stands for, or `cls`."""
    return pkgutil.resolve_name(cls.stands_for) if "stands_for" in vars(cls) else cls


def _titled(cls: type) -> type:
    """The same fields, listed by HfArgumentParser under the first line of the docstring."""
    title = inspect.getdoc(cls).partition("\n")[0].rstrip(".")
    return type(cls.__name__, (cls,), {"_argument_group_name": title})


@functools.cache
def _hf_argument_parser() -> type[argparse.ArgumentParser]:
    """`transformers.HfArgumentParser` from its own file: the package around it takes a second or two to import."""
    file = Path(importlib.util.find_spec("transformers").origin).with_name("hf_argparser.py")
    spec = importlib.util.spec_from_file_location("transformers.hf_argparser", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.HfArgumentParser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The recipe's docstring as it is written, and every default that says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default is None or action.default is False or action.default == []
        return action.help if silent else super()._get_help_string(action)


def typed_values(cls: type, values: Mapping[str, Sequence[Any]], where: str) -> dict[str, list[Any]]:
    """Lists of values for fields of a dataclass, each value as the command line would make it ("1e-4" is a string to YAML).

    Args:
        where: what the values are of, for errors.

    Raises:
        ConfigError: a field that the dataclass lacks, or a value of the wrong type.
    """
    actions = {action.dest: action for action in _hf_argument_parser()(_full(cls))._actions if action.dest != "help"}
    for key in values:
        _check_known(key, actions, where)
    return {key: [_typed(key, value, actions[key]) for value in listed] for key, listed in values.items()}


def _check_known(key: str, actions: Mapping[str, argparse.Action], where: str) -> None:
    if key not in actions:
        close = difflib.get_close_matches(key, actions, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError(f"Unknown key {key!r} in {where}.{hint}")


def _typed(key: str, value: Any, action) -> Any:
    """A YAML value as argparse would have made it from the command line ("1e-4" is a string to YAML)."""
    value = _at_home(value)
    if isinstance(value, dict):
        value = json.dumps(value)
    if value is None or action.type is None:
        return value
    values = value if isinstance(value, list) else [value]
    try:
        typed = [action.type(item if isinstance(item, bool) else _written(item)) for item in values]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: cannot use {value!r}: {error}.") from error
    if action.choices is not None and any(item not in action.choices for item in typed):
        raise ConfigError(f"{key}: expected one of {list(action.choices)}; received {value!r}.")
    return typed if isinstance(value, list) or action.nargs == "+" else typed[0]


def _at_home(value: Any) -> Any:
    """A value whose paths that begin with ~ begin with the user's folder: shells see neither YAML nor --option=~/folder."""
    if isinstance(value, str):
        option, equals, rest = value.partition("=")
        if equals and option.startswith("--"):
            return f"{option}={os.path.expanduser(rest)}"
        return os.path.expanduser(value)
    if isinstance(value, list):
        return [_at_home(item) for item in value]
    return {key: _at_home(item) for key, item in value.items()} if isinstance(value, dict) else value


def _written(value: Any) -> str:
    """A value on the command line, where a mapping is JSON."""
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def run(main: Callable[[], Any]) -> None:
    """Call a recipe's `main` and turn the errors a user can mend into one message and an exit status.

    1 for an `HfTlmError` or a full disk, 130 for Ctrl-C, 143 for SIGTERM. Others are bugs and keep their traceback.
    """
    if not HELP & set(sys.argv[1:]):
        from transformers.utils import logging

        # Bars of loading and writing weights would bury those of the jobs; the Trainer's and datasets' own stay.
        logging.disable_progress_bar()
    try:
        with on_sigterm(_terminate):
            main()
            _leave_process_group()
    except HfTlmError as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        _stop("Interrupted. What was finished is on disk. To go on, run the same command.", 130)
    except Terminated as end:
        _stop(end.message, end.code)
    except Exception as error:
        # safetensors has an error type of its own that only quotes the system's.
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        _stop(f"The disk is full: {error}. What was finished is on disk: free space and run the same command.", 1)


def _leave_process_group() -> None:
    # A process that ends with gloo's threads running is aborted now and then, after all its work was done.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _terminate() -> None:
    raise Terminated("Stopped by SIGTERM. What was finished is on disk: the same command continues from there.")


def _stop(message: str, status: int) -> None:
    rank = os.environ.get("RANK", "0")
    print(f"\nError: {message}" if rank == "0" else f"\nError on process {rank}: {message}", file=sys.stderr, flush=True)
    sys.exit(status)
