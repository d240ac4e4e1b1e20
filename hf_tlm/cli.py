r"""The command `hf-tlm`: the recipes by short names, from wherever the package is installed.

    hf-tlm train --config tlm/coffee --task path/to/scierc --subset runs/scierc-bm25 --output_dir runs/scierc-tlm
    hf-tlm train --num_processes 2 ...                        # several processes, through accelerate
    accelerate launch -m hf_tlm.cli train ...                 # the same, with all of accelerate's options

`hf-tlm train` runs the file of `python recipes/train_tlm.py`.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn

from hf_tlm.commands import COMMANDS, command_of
from hf_tlm.completion import SHELLS, completion
from hf_tlm.errors import HfTlmError
from hf_tlm.presets import describe, did_you_mean, presets, recipes_folder
from hf_tlm.version import __version__

_PAGE = """\
usage: hf-tlm COMMAND [options]

Task-driven training of text models from scratch, on the Hugging Face Trainer.

commands:
{commands}

hf-tlm COMMAND --help shows a command's options. Every command also takes
  --num_processes N     Start N processes through accelerate: one a GPU, or on CPUs where there is none.
  --config_file FILE    accelerate's settings (FSDP, several machines), or a preset: accelerate/fsdp
  --gpu_ids, --num_machines, --machine_rank, --main_process_ip, --main_process_port: as `accelerate launch`"""


def main() -> None:
    """Run the command that `sys.argv` names."""
    name, *arguments = sys.argv[1:] or [""]
    if name in ("-h", "--help", "help"):
        lines = [f"  {command:<18}{line}" for command, line in _described().items()]
        print(_PAGE.format(commands="\n".join(lines)))
    elif name == "--version":
        print(f"hf-tlm {__version__}")
    elif name in _OTHERS:
        _, show = _OTHERS[name]
        try:
            show(arguments)
        except HfTlmError as error:
            _exit(f"Error: {error}", 1)
        except BrokenPipeError:  # Of `hf-tlm presets | head`; Python would say so when it closes its output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif (command := command_of(name)) is not None:
        _run(command, arguments)
    else:
        close = difflib.get_close_matches(name, _described(), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "."
        what = f"There is no command {name!r:.60}{hint}" if name else "A command is missing."
        _exit(f"Error: {what}\nSee hf-tlm --help.", 2)


def _described() -> dict[str, str]:
    return {command: line for command, (_, line) in COMMANDS.items()} | {name: line for name, (line, _) in _OTHERS.items()}


def _run(command: str, arguments: Sequence[str]) -> None:
    """Run a recipe in this process, or start several."""
    from hf_tlm.config import HELP, run
    from hf_tlm.launch import LaunchError, launch, launch_options

    sys.argv = [f"hf-tlm {command}", *arguments]  # What help, errors and records call the command.
    try:
        options, sys.argv[1:] = launch_options(arguments)
    except LaunchError as error:
        _exit(f"Error: {error}\nSee hf-tlm --help.", 2)
    if options and not HELP & set(arguments):
        run(lambda: launch(command, options, sys.argv[1:]))
    else:
        run(_load(COMMANDS[command][0]).main)


def _load(recipe: str) -> ModuleType:
    """The module of a recipe, from its file."""
    name = f"hf_tlm.recipes.{recipe}"
    spec = importlib.util.spec_from_file_location(name, recipes_folder() / f"{recipe}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # Dataclasses look their module up.
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
        raise HfTlmError(f"Expected one of {', '.join(SHELLS)}; received {' '.join(arguments) or 'nothing'}.")
    print(completion(arguments[0], list(_described()), list(presets())))


# What is no recipe: a line of description, and what prints it.
_OTHERS: dict[str, tuple[str, Callable[[Sequence[str]], None]]] = {
    "presets": (
        "List the presets, all or those of a folder (tlm); of one (tlm/coffee) print the file.",
        _show_presets,
    ),
    "completion": ("Print what makes a shell complete commands, options and presets: bash, zsh.", _show_completion),
}


def _exit(message: str, status: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
