"""The command `hf-tlm`: the recipes by short names, in one process or several, and completion for bash and zsh.

    hf-tlm train --config tlm/coffee --task path/to/scierc --subset runs/scierc-bm25 --output_dir runs/scierc-tlm
    hf-tlm train --num_processes 2 ...                        # several processes, through accelerate
    accelerate launch -m hf_tlm.cli train ...                 # the same, with all of accelerate's options

`hf-tlm train` runs the file of `python recipes/train_tlm.py`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NoReturn

from hf_tlm.commands import COMMANDS, ONE_PROCESS, command_of, describe, did_you_mean, find_preset, presets, recipes_folder
from hf_tlm.errors import HfTlmError
from hf_tlm.version import __version__

# Option -> prefix of the names of its presets; None: the presets of no other option.
_PRESETS = {"--model_config": "models/", "--config_file": "accelerate/", "--config": None}
_OPTIONS = r"hf-tlm {command} --help 2>/dev/null | grep -oE '^  (-h, )?--[a-z0-9_]+' | grep -oE -- '--[a-z0-9_]+'"

_BASH = r"""
_hf_tlm() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} names= at
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$word"))
  elif [[ $word == -* ]]; then
    local known=_hf_tlm_options_${command//[^a-z]/_}
    [[ -n ${!known} ]] || printf -v "$known" %s "$(@OPTIONS@)"
    COMPREPLY=($(compgen -W "${!known}" -- "$word"))
  else
    for ((at = COMP_CWORD - 1; at > 1; at--)); do [[ ${COMP_WORDS[at]} == -* ]] && break; done
    case ${COMP_WORDS[at]} in
@CASES@
    esac
    COMPREPLY=($(compgen -W "$names" -- "$word"))
    [[ -z $names ]] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o default -F _hf_tlm hf-tlm
"""
_ZSH = r"""
#compdef hf-tlm
_hf_tlm() {
  local at names=
  if ((CURRENT == 2)); then
    compadd -- @COMMANDS@ --help --version
  elif [[ $PREFIX == -* ]]; then
    typeset -gA _hf_tlm_options
    : ${_hf_tlm_options[$words[2]]:="$(@OPTIONS@)"}
    compadd -- ${(f)_hf_tlm_options[$words[2]]}
  else
    for ((at = CURRENT - 1; at > 2; at--)); do [[ $words[at] == -* ]] && break; done
    case $words[at] in
@CASES@
    esac
    [[ -z $names ]] || compadd -- ${=names}
    _files
  fi
}
if [[ $funcstack[1] == _hf_tlm ]]; then _hf_tlm "$@"; else compdef _hf_tlm hf-tlm; fi
"""
_SCRIPTS = {"bash": (_BASH, '"$command"'), "zsh": (_ZSH, "$words[2]")}
SHELLS = tuple(_SCRIPTS)
# Options that a command passes to accelerate instead of its recipe.
LAUNCH_OPTIONS = (
    "num_processes",
    "config_file",
    "gpu_ids",
    "num_machines",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
)
_PAGE = """\
usage: hf-tlm COMMAND [options]

Task-driven training of text models from scratch, on the Hugging Face Trainer.

commands:
{commands}

hf-tlm COMMAND --help shows a command's options. The commands that train or predict also accept
  --num_processes N     Start N processes through accelerate: one per GPU, or on CPUs if there is no GPU.
  --config_file FILE    accelerate's settings (FSDP, several machines), or a preset: accelerate/fsdp
  --gpu_ids, --num_machines, --machine_rank, --main_process_ip, --main_process_port: as `accelerate launch`"""


def completion(shell: str, commands: Sequence[str], presets: Sequence[str]) -> str:
    """Return the completion script for one of `SHELLS`.

    Args:
        commands: the possible first words.
        presets: the names of all presets.
    """
    script, command = _SCRIPTS[shell]
    others = tuple(filter(None, _PRESETS.values()))
    cases = []
    for option, begins in _PRESETS.items():
        names = [name for name in presets if (name.startswith(begins) if begins else not name.startswith(others))]
        cases.append(f'      {option}) names="{" ".join(names)}" ;;')
    filled = {"COMMANDS": " ".join(commands), "OPTIONS": _OPTIONS.format(command=command), "CASES": "\n".join(cases)}
    for name, text in filled.items():
        script = script.replace(f"@{name}@", text)
    return script.strip()


class LaunchError(HfTlmError):
    """Raised when processes cannot be started with the given options."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(message)


def launch_options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split arguments into the options for accelerate and the rest; a single process is not launched and has no options.

    Raises:
        LaunchError: an option has no value, a count is below 1, or a file of settings does not exist.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in LAUNCH_OPTIONS:
        parser.add_argument(f"--{name}")
    known, rest = parser.parse_known_args(list(arguments))
    options = {name: value for name, value in vars(known).items() if value is not None}
    for name in ("num_processes", "num_machines"):
        if name in options and not (options[name].isdecimal() and int(options[name]) > 0):
            raise LaunchError(f"--{name}: expected a number of 1 or more; received {options[name]!r:.60}.")
    if (settings := options.get("config_file")) is not None:
        if not (file := find_preset(settings)).is_file():
            raise LaunchError(f"--config_file {settings:.200} is neither a file nor a preset.{did_you_mean(settings)}")
        options["config_file"] = str(file)
    return {} if options == {"num_processes": "1"} else options, rest


def launch(command: str, options: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Start processes that run the same command, as `accelerate launch` does; exit with their exit status.

    Without a file of settings, and without accelerate's own (`accelerate config`), they run data-parallel on the GPUs of
    this machine, or on its CPUs if it has none. The precision is the command's, whatever the number of processes.

    Raises:
        LaunchError: this process was itself started by a launcher, or accelerate refuses the options.
    """
    if "WORLD_SIZE" in os.environ:
        raise LaunchError(
            f"--{next(iter(options))} starts processes, and this process was started by a launcher: remove "
            f"--{next(iter(options))}."
        )
    import torch
    from accelerate.commands.config.config_args import default_config_file
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = dict(options)
    plain: list[str] = []
    if "config_file" not in options and not os.path.isfile(default_config_file):
        if torch.cuda.is_available():
            plain = ["--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no"]
            plain += ["--num_machines", options.pop("num_machines", "1")]
        else:
            options["config_file"] = str(presets()["accelerate/cpu_2"])
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    try:
        launch_command(launch_command_parser().parse_args([*plain, *given, "--module", "hf_tlm.cli", command, *arguments]))
    except SignalException as end:  # The launcher received a signal and has forwarded it to the processes.
        sys.exit(128 + end.sigval)
    except ChildFailedError as error:  # The processes have printed the reason.
        sys.exit(max(error.get_first_failure()[1].exitcode, 1))
    except subprocess.CalledProcessError as error:
        sys.exit(max(error.returncode, 1))
    except ValueError as error:
        raise LaunchError(f"accelerate: {' '.join(str(error).split()):.300}") from error


def main() -> None:
    """Run the command that `sys.argv` names."""
    name, *arguments = sys.argv[1:] or [""]
    if name in ("-h", "--help", "help"):
        lines = [f"  {command:<18}{line}" for command, line in _described().items()]
        print(_PAGE.format(commands="\n".join(lines)))
    elif name == "--version":
        print(f"hf-tlm {__version__}")
    elif name in _OTHERS:
        usage, line, show = _OTHERS[name]
        if {"-h", "--help"} & set(arguments):
            print(f"usage: hf-tlm {name} {usage}\n\n{line}")
            return
        try:
            show(arguments)
        except HfTlmError as error:
            _exit(f"Error: {error}", 1)
        except BrokenPipeError:  # For example `hf-tlm presets | head`.
            from hf_tlm.utils.process import drop_output  # Imported here because most commands do not need it to start.

            drop_output()
    elif (command := command_of(name)) is not None:
        _run(command, arguments)
    else:
        close = difflib.get_close_matches(name, _described(), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "."
        what = f"There is no command {name!r:.60}{hint}" if name else "A command is missing."
        _exit(f"Error: {what}\nSee hf-tlm --help.", 2)


def _described() -> dict[str, str]:
    others = {name: line for name, (_, line, _) in _OTHERS.items()}
    return {command: line for command, (_, line) in COMMANDS.items()} | others


def _run(command: str, arguments: Sequence[str]) -> None:
    """Run a recipe in this process, or start several processes."""
    from hf_tlm.config import HELP, run

    sys.argv = [f"hf-tlm {command}", *arguments]  # The command's name in help, errors and records.
    try:
        options, sys.argv[1:] = launch_options(arguments)
    except LaunchError as error:
        _exit(f"Error: {error}\nSee hf-tlm --help.", 2)
    if options and command in ONE_PROCESS:
        print(f"Warning: hf-tlm {command} runs in one process: without effect: --{', --'.join(options)}.", file=sys.stderr)
        options = {}
    if options and not HELP & set(arguments):
        run(lambda: launch(command, options, sys.argv[1:]))
    else:
        run(lambda: _load(COMMANDS[command][0]).main())


def _load(recipe: str) -> ModuleType:
    """Load a recipe from its file, as a module."""
    name = f"hf_tlm.recipes.{recipe}"
    spec = importlib.util.spec_from_file_location(name, recipes_folder() / f"{recipe}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # Dataclasses look up their module in sys.modules.
    spec.loader.exec_module(module)
    return module


def _show_presets(arguments: Sequence[str]) -> None:
    for wanted in arguments or [""]:
        listed = [name for name in presets() if name.startswith(f"{wanted.rstrip('/')}/" if wanted else "")]
        if wanted in presets():
            print(presets()[wanted].read_text(encoding="utf-8"), end="")
        elif not listed:
            raise HfTlmError(f"There is no preset {wanted!r:.60}.{did_you_mean(wanted)} `hf-tlm presets` lists them.")
        for name in listed:
            print(f"{name:<{max(map(len, listed)) + 2}}{describe(presets()[name])}")


def _show_completion(arguments: Sequence[str]) -> None:
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise HfTlmError(f"completion: expected one of {', '.join(SHELLS)}; received {' '.join(arguments) or 'nothing'}.")
    print(completion(arguments[0], list(_described()), list(presets())))


# Commands that are not recipes: their arguments, a line of description, and the function that prints their output.
_OTHERS: dict[str, tuple[str, str, Callable[[Sequence[str]], None]]] = {
    "presets": (
        "[FOLDER or PRESET ...]",
        "List all presets or those of a folder (tlm), or print the file of one (tlm/coffee).",
        _show_presets,
    ),
    "completion": (
        "{bash,zsh}",
        "Print a script that completes commands, options and presets in a shell: bash, zsh.",
        _show_completion,
    ),
}


def _exit(message: str, status: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
