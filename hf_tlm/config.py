"""Arguments of recipes: YAML files give defaults, the command line overrides them, an unknown key is an error.

    hf-tlm train --config tlm/base mine.yaml --learning_rate 1e-4

Files are names of presets (`hf_tlm.commands`) or paths. Later files override earlier ones. Top-level keys are field names. A
top-level key that is the name of a recipe holds a mapping for that recipe only, so that one file can describe retrieval and
training of one experiment. A leading ~ in a value is expanded to the home directory. `null` for a number, also on the
command line, resets the value of an earlier file.
"""

from __future__ import annotations

import argparse
import atexit
import copy
import difflib
import errno
import functools
import importlib
import importlib.util
import inspect
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args, get_origin, get_type_hints

from hf_tlm.commands import OTHER_SECTIONS, RECIPES, did_you_mean, find_preset
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import check_working_folder
from hf_tlm.utils.lazy import outline
from hf_tlm.utils.options import RANGES, range_problem
from hf_tlm.utils.problems import disk_problem, gpu_problem, process_problem
from hf_tlm.utils.process import Terminated, check_variables, nobody_reads, on_sigterm, plain_output, resend_lost_signals
from hf_tlm.utils.shown import for_terminal, shown_path, suggestion

if TYPE_CHECKING:
    from transformers import HfArgumentParser

# Options whose text is JSON; in a file they may be a mapping.
_JSON = ("executor_options", "grid")
# Old names of options -> current names; both work for one version.
RENAMED = {"max_words": "passage_words"}
# Surrogates, which stand for undecodable bytes, and the null character, which ends a name for the system.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_NO_EFFECT = re.compile(r"^(\w+) .*has no effect", re.DOTALL)
OTHERS_WAIT = 10.0  # Seconds; on a busy machine the first process takes some to end.
_CONTINUE = "Started again, the same command continues from what is on disk."
HELP, HELP_ALL = {"-h", "--help"}, "--help_all"

logger = logging.getLogger(__name__)


class ConfigError(HfTlmError):
    """Raised when a configuration file or a command line cannot be used."""


def read_configs(paths: Sequence[str], recipe: str) -> dict[str, Any]:
    """Return the merged values of some YAML files for one recipe.

    Raises:
        ConfigError: a file is missing, not YAML, or not a mapping.
    """
    from hf_tlm.utils.safe_yaml import read_yaml

    values: dict[str, Any] = {}
    for path in paths:
        if not str(path).strip():
            raise ConfigError("--config is empty. Pass a file or a preset (tlm/coffee), or remove --config.")
        file = find_preset(path)
        if not os.path.lexists(file) and (hint := did_you_mean(path)):
            raise ConfigError(f"Cannot read --config {path}: no such file or preset.{hint} `hf-tlm presets` lists them.")
        content = read_yaml(file, f"--config {path}", ConfigError)
        content = {} if content is None else content
        if not isinstance(content, dict):
            raise ConfigError(f"--config {path} must be a mapping of argument names to values; found {content!r:.60}.")
        sections = {name: content.pop(name) for name in RECIPES if name in content}
        sections = {name: {} if section is None else section for name, section in sections.items()}
        for name, section in sections.items():
            if not isinstance(section, dict):
                raise ConfigError(f"--config {path}: section {name!r} must be a mapping; found {section!r:.60}.")
        values |= _renamed(content) | _renamed(sections.get(recipe, {}))
    return values


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file under the current names of options."""
    return {_todays_name(name): value for name, value in values.items()}


def _renamed_options(args: Sequence[str]) -> list[str]:
    """Return a command line with the current names of options."""
    words = []
    for word in args:
        option, equals, value = word.partition("=")
        name = option[2:].replace("-", "_") if option.startswith("--") else ""
        words.append(f"--{_todays_name(name)}{equals}{value}" if name in RENAMED else word)
    return words


def _todays_name(name: str) -> str:
    if name not in RENAMED:
        return name
    if os.environ.get("RANK", "0") == "0":
        logger.warning("%s is called %s now; the old name works for one more version.", name, RENAMED[name])
    return RENAMED[name]


def config_files(args: Sequence[str] | None = None) -> list[str]:
    """Return the `--config` files of a command line (default `sys.argv`), from which `parse` reads defaults."""
    # Parsed separately and first, because a file may give a required field.
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="+", default=[])
    return _at_home(finder.parse_known_args(sys.argv[1:] if args is None else list(args))[0].config)


def parse(
    *dataclasses: type[Any] | str,
    recipe: str,
    description: str,
    args: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> tuple:
    """Create one instance of each dataclass from `--config` files and the command line (default `sys.argv`).

    Args:
        dataclasses: classes, or names of classes that take seconds to import, such as "hf_tlm.training.TlmArguments":
            `--help` shows the fields declared in this package (see `outline`) without an import, `--help_all` all fields.
        values: values that apply like one more file, after the others.

    Raises:
        ConfigError: a file has an unknown key or a value of the wrong type, or the dataclasses refuse a value.
        SystemExit: as in argparse, for `--help`, `--help_all` and for errors of the command line.
    """
    args = list(sys.argv[1:] if args is None else args)
    _check_unicode(args)
    args = _renamed_options(_at_home(args))
    short_help = bool(HELP & set(args))
    helps = short_help or HELP_ALL in args
    outlines = {cls: outline(cls) for cls in dataclasses if isinstance(cls, str) and helps}
    extended = [name for cls in outlines.values() for name in cls.extends]
    classes: Any = [outlines[cls] if short_help and cls in outlines else imported(cls) for cls in dataclasses]
    parser = _parser([_titled(cls) for cls in classes] if helps else classes, description, extended)
    if extended and short_help:
        parser.epilog = "\n".join(f"Every option of {name} is accepted too; {HELP_ALL} lists them." for name in extended)
    _check_values(parser, () if helps else classes)
    defaults = {action.dest: action.default for action in parser._actions}
    if not helps:
        _take_files(parser, classes, args, recipe, values or {})
        _check_options(parser, args)
    # Before the dataclasses report as missing what was passed without the name of its option.
    if unknown := parser.parse_known_args(args)[1]:
        hint = "; put a file pattern in quotes, and separate files with commas" if os.path.exists(unknown[0]) else ""
        parser.error(f"unknown argument {unknown[0]}{hint}")
    try:
        return parser.parse_args_into_dataclasses(args=args)[: len(dataclasses)]
    except HfTlmError as error:
        if where := _given_by_file(str(error), args, recipe, defaults):
            raise type(error)(f"{error} {where}") from error
        raise
    except Exception as error:  # Errors of any type from __post_init__: transformers checks its arguments there.
        raise ConfigError(f"{type(error).__name__}: {' '.join(str(error).split()):.500}") from error


def _take_files(parser: Any, classes: Sequence[type], args: Sequence[str], recipe: str, values: Mapping[str, Any]) -> None:
    """Set the values of the files, and then `values`, as defaults of the command line."""
    paths, actions = config_files(args), _actions(parser, classes)
    for key, value in (read_configs(paths, recipe) | _renamed(values)).items():
        place = "the values given" if key in values else ", ".join(map(str, paths))
        _check_known(key, actions, f"{place} for {recipe}", OTHER_SECTIONS)
        # Set for all actions of this name: an option that is true by default has a --no_ action too.
        parser.set_defaults(**{key: _typed(key, value, actions[key])})
        actions[key].required = False


def _parser(classes: Any, description: str, extended: Sequence[str]) -> HfArgumentParser:
    """Return the parser of the classes' fields, with `--config` and `--help_all`, which shows options of `extended` too."""
    parser = _hf_argument_parser()(classes, description=description, formatter_class=_HelpFormatter, allow_abbrev=False)
    for action in parser._actions:
        # Its help text is that of the positive option, which says the opposite.
        if action.option_strings and action.option_strings[0] == f"--no_{action.dest}":
            action.help = f"Switch --{action.dest} off."
    required = [f"{action.option_strings[0]} {action.dest.upper()}" for action in parser._actions if action.required]
    parser.usage = " ".join(["%(prog)s", *required, "[options]"])
    # argparse would print hundreds of lines of usage before the error.
    parser.error = functools.partial(_refuse, parser)  # type: ignore[method-assign]  # For this parser only.
    parser.add_argument(
        "--config", nargs="+", default=[], metavar="YAML", help="Files of defaults or presets (tlm/coffee), later ones win."
    )
    more = f"Show the options of {', '.join(extended)} too and exit." if extended else argparse.SUPPRESS
    parser.add_argument(HELP_ALL, action="help", help=more)
    return parser


def _given_by_file(message: str, args: Sequence[str], recipe: str, defaults: Mapping[str, Any]) -> str:
    """Return a sentence that names the `--config` file with an option that has no effect, and how to reset it; or ""."""
    found = _NO_EFFECT.match(message)
    if found is None or any(word.partition("=")[0].replace("-", "_") == f"__{found[1]}" for word in args):
        return ""
    name = found[1]
    file = next((path for path in reversed(config_files(args)) if name in read_configs([path], recipe)), None)
    if file is None:
        return ""
    default = defaults.get(name)
    words = default if isinstance(default, list) else ["null" if default is None else str(default)]
    return f"It is set in {shown_path(file)}: --{name} {' '.join(map(str, words))} resets it."


def _check_options(parser: argparse.ArgumentParser, args: Sequence[str]) -> None:
    """Report an unknown option before argparse does, which would instead report the required option as missing."""
    known = [option for action in parser._actions for option in action.option_strings]
    if args and not args[0].startswith("-"):
        words = {word.partition("=")[0] for word in args}
        missing = [one.option_strings[0] for one in parser._actions if one.required and not words & {*one.option_strings}]
        advice = f"write {missing[0]} {args[0]}" if missing else "write the name of its option before it"
        parser.error(f"unknown argument {args[0]}; {advice}")
    for option in (word.partition("=")[0] for word in args):
        if option.startswith("--") and option not in ("--", *known):
            shown = [name for name in known if "-" not in name[2:]]  # HfArgumentParser accepts hyphens in each name too.
            given = f"--{option[2:].replace('-', '_')}"
            close = [name for name in shown if name.startswith(given)] or difflib.get_close_matches(given, shown)
            parser.error(f"unknown argument {option}" + (f"; did you mean {' or '.join(close[:3])}?" if close else ""))


def _check_unicode(args: Sequence[str]) -> None:
    """Raise a ConfigError for arguments with undecodable bytes, which Arrow, tokenizers and the Hub cannot use."""
    for number, value in enumerate(args):
        if _NO_TEXT.search(value):
            option = next((name for name in reversed(args[: number + 1]) if name.startswith("--")), "the command line")
            raise ConfigError(
                f"{option}: expected text in UTF-8; received {value!r:.60}. Rename the file, or correct the text."
            )


def imported(cls: type[Any] | str) -> type[Any]:
    """Return the class that `cls` names, or `cls` itself."""
    if not isinstance(cls, str):
        return cls
    module, _, name = cls.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _titled(cls: type) -> type:
    """Return a subclass that HfArgumentParser lists under what the class's docstring says that it has the settings of."""
    summary = (inspect.getdoc(cls) or "").partition("\n")[0].rstrip(".")
    title = re.sub("^(Settings|Options) of (the |an? )?", "", summary)
    return type(cls.__name__, (cls,), {"_argument_group_name": title[:1].upper() + title[1:]})


@functools.cache
def _hf_argument_parser() -> type[HfArgumentParser]:
    """Load `transformers.HfArgumentParser` from its file, because importing its package takes a second or two."""
    package = importlib.util.find_spec("transformers")
    assert package is not None and package.origin is not None
    file = Path(package.origin).with_name("hf_argparser.py")
    spec = importlib.util.spec_from_file_location("transformers.hf_argparser", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.HfArgumentParser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """A formatter that shows the recipe's docstring unchanged, informative defaults, and one spelling of each option.

    HfArgumentParser also accepts each option with hyphens, which would fill half of the page.
    """

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.option_strings:
            action = copy.copy(action)
            others = {name.replace("_", "-") for name in action.option_strings if "_" in name}
            action.option_strings = [name for name in action.option_strings if name not in others]
        return super()._format_action_invocation(action)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default is None or action.default is False or action.default == []
        return action.help if silent else super()._get_help_string(action)


def typed_values(cls: type, values: Mapping[str, Sequence[Any]], where: str) -> dict[str, list[Any]]:
    """Convert lists of values for fields of a dataclass as the command line would ("1e-4" is a string in YAML).

    where: where the values come from, for the ConfigError of an unknown field or a value of the wrong type.
    """
    parser = _hf_argument_parser()(cls)  # type: ignore[arg-type]  # A dataclass, of any fields.
    _check_values(parser, [cls])
    actions = _actions(parser, [cls])
    for key in values:
        _check_known(key, actions, where)
    return {key: [_typed(key, value, actions[key]) for value in listed] for key, listed in values.items()}


def _hints(dataclasses: Sequence[type]) -> dict[str, Any]:
    """Return the types of all fields, by name."""
    return {name: hint for cls in dataclasses for name, hint in get_type_hints(cls).items()}


def _actions(parser: argparse.ArgumentParser, dataclasses: Sequence[type]) -> dict[str, argparse.Action]:
    """Return the options that a file may give, by name, each with the type of its field as `hint`."""
    hints = _hints(dataclasses)
    actions: dict[str, Any] = {action.dest: action for action in reversed(parser._actions) if action.dest in hints}
    for name, action in actions.items():
        action.hint = hints[name]
    return actions


def _check_values(parser: argparse.ArgumentParser, dataclasses: Sequence[type]) -> None:
    """Make options accept only numbers in their range, and no empty texts, from the command line and from files."""
    hints = _hints(dataclasses)
    for action in parser._actions:
        if action.dest in RANGES and action.type in (int, float):
            optional = type(None) in get_args(hints.get(action.dest))
            action.type = functools.partial(_number, action.dest, action.type, optional)
        elif action.type is str:
            action.type = functools.partial(_text, action.default)


def _number(name: str, of: type, optional: bool, text: str) -> float | None:
    """Parse a number and check its range; None for YAML's `null` in an optional field, which resets a preset's value."""
    if optional and text == "null":
        return None
    try:
        value = of(text)
    except ValueError:
        value = text
    if wrong := range_problem(name, value):
        raise argparse.ArgumentTypeError(wrong)
    return value


def _text(default: Any, text: str) -> str:
    if not text.strip() and text != default:  # argparse converts a string default like a given value.
        raise argparse.ArgumentTypeError("expected a text; received an empty one. Remove the option for its default.")
    return text


def _check_known(key: str, actions: Mapping[str, argparse.Action], where: str, advice: str = "") -> None:
    if key not in actions:
        raise ConfigError(f"Unknown key {key!r:.60} in {where}.{suggestion(key, actions)}{advice}")


def _typed(key: str, value: Any, action: Any) -> Any:
    """Convert a YAML value as argparse would from the command line ("1e-4" is a string in YAML).

    Args:
        action: an action returned by `_actions`, with its `hint`.
    """
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and _NO_TEXT.search(text):
            raise ConfigError(f"{key}: expected text; received {text!r:.60}, which contains an invalid character.")
    value = _at_home(value)
    _check_shape(key, value, action)
    if value is None:
        return None
    is_list = isinstance(value, list)
    values = value if is_list else [value]
    try:
        typed = [written(item) if action.type is None else action.type(written(item)) for item in values]
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{key}: {' '.join(str(error).split()):.300}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: cannot use {value!r:.60}: {str(error):.100}.") from error
    if action.choices is not None and any(item not in action.choices for item in typed):
        raise ConfigError(f"{key}: expected one of {list(action.choices)}; received {value!r:.60}.")
    return typed if is_list or action.nargs == "+" else typed[0]


def _check_shape(key: str, value: Any, action: Any) -> None:
    """Raise a ConfigError for null, a list or a mapping that the option does not accept."""
    types = {action.hint, *get_args(action.hint)}
    types = {get_origin(one) or one for one in types} | {of for one in types for of in get_args(one)}
    if value is None:
        if type(None) not in types:
            raise ConfigError(f"{key}: expected a value; received none. Remove the key for its default.")
        return
    if isinstance(value, list):
        if action.nargs != "+":
            raise ConfigError(f"{key}: expected one value; received the list {value!r:.60}.")
        if not value and action.default != []:
            raise ConfigError(f"{key}: expected one value or more; received an empty list.")
    takes_json = dict in types or key in _JSON or (str in types and action.nargs == "+")
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            raise ConfigError(f"{key}: expected a single value; received none.")
        if isinstance(item, list) or (isinstance(item, Mapping) and not takes_json):
            kind = "a list" if isinstance(item, list) else "a mapping"
            raise ConfigError(f"{key}: expected a single value; received {kind}: {item!r:.60}.")


def _at_home(value: Any) -> Any:
    """Expand a leading ~ in the strings of a value: shells expand it neither in YAML nor in --option=~/folder."""
    if isinstance(value, str):
        option, equals, rest = value.partition("=")
        if equals and option.startswith("--"):
            return f"{option}={os.path.expanduser(rest)}"
        return os.path.expanduser(value)
    if isinstance(value, list):
        return [_at_home(item) for item in value]
    return {key: _at_home(item) for key, item in value.items()} if isinstance(value, dict) else value


def written(value: Any) -> str:
    """Return a value as it is written on the command line, where mappings and booleans are JSON."""
    return json.dumps(value) if isinstance(value, (Mapping, bool)) else str(value)


def _shortened(message: str) -> str:
    """Shorten words of 250 characters or more in a message."""
    return re.sub(r"\S{250,}", lambda word: f"{word[0][:100]}...{word[0][-20:]}", message)


def run(main: Callable[[], Any]) -> None:
    """Call a recipe's `main` and turn errors that a user can fix into one message and an exit status.

    The status is 1 for an `HfTlmError`, a disk that is full or cannot be written, a closed output pipe, another process of
    the job that was killed or a GPU out of memory, 130 for Ctrl-C, 143 for SIGTERM. Other errors are bugs and keep their
    traceback.
    """
    try:
        with on_sigterm(_terminate), resend_lost_signals(), plain_output():
            if not HELP & set(sys.argv[1:]):
                from transformers.utils import logging

                # Hide progress bars of loading and writing weights, among which the jobs' bars, the Trainer's and those of
                # datasets would be lost.
                logging.disable_progress_bar()
            check_variables()
            check_working_folder()
            main()
            _leave_process_group()
            # All work is done: let Ctrl-C end Python's cleanup without a traceback.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    except HfTlmError as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        _stop(f"Interrupted. {_CONTINUE}", 130)
    except Terminated as end:
        _stop(end.message, end.code)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _stop(f"The file name is too long: {error.filename!r:.60}... Choose another.", 1)
        if isinstance(error, BrokenPipeError) and nobody_reads():
            _stop(f"The output is no longer read. {_CONTINUE}", 1)
        if (problem := process_problem(error) or gpu_problem(error) or disk_problem(error)) is None:
            raise
        _stop(f"{problem}. {_CONTINUE}", 1)


def _leave_process_group() -> None:
    # A process that exits while gloo's threads are running is sometimes aborted, after all its work is done.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _terminate() -> None:
    raise Terminated(f"Stopped by SIGTERM. {_CONTINUE}")


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Exit with an error of the command line under the command's name."""
    _let_the_first_tell()
    message = re.sub(r"(--\w+)(/--[\w-]+)+", r"\1", message)  # One spelling of an option, as in --help.
    message = _shortened(re.sub(r"^argument (--\w+:)", r"\1", message))
    name, _, wrong = message.partition(": ")
    if re.fullmatch(r"expected (one|at least one) argument", wrong):
        help = (parser._option_string_actions[name].help or "").replace("%%", "%")
        first_sentence = re.split(r"(?<=\.)\s", help, maxsplit=1)[0]  # It says which values the option accepts.
        message += f". {first_sentence}".rstrip(". ") + "."
    parser.exit(2, f"Error: {message}\nSee {parser.prog} --help.\n")


def _let_the_first_tell() -> bool:
    """Return whether this is not the first process of a job; if so, wait before returning.

    An error that all processes meet is reported by the first one, and the launcher ends the others during the wait: one
    message instead of one per process.
    """
    rank = os.environ.get("RANK", "0")
    other = rank.isdecimal() and rank != "0"
    if other:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # The launcher's SIGTERM needs no message.
        time.sleep(OTHERS_WAIT)
    return other


def _stop(message: str, status: int) -> None:
    message, rank, other = for_terminal(_shortened(message)), os.environ.get("RANK", "0"), _let_the_first_tell()
    print(f"\nError on process {rank}: {message}" if other else f"\nError: {message}", file=sys.stderr, flush=True)
    sys.exit(status)
