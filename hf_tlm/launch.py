"""Several processes of one command: `hf-tlm train --num_processes 2 ...` is `accelerate launch -m hf_tlm.cli train ...`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hf_tlm.errors import HfTlmError
from hf_tlm.presets import did_you_mean, find, presets

# What a command hands to accelerate instead of its recipe.
OPTIONS = ("num_processes", "config_file", "gpu_ids", "num_machines", "machine_rank", "main_process_ip", "main_process_port")


class LaunchError(HfTlmError):
    """Processes that cannot be started as they were asked for."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(message)


def launch_options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options for accelerate, and the arguments without them; none are left of one process, which is not launched.

    Raises:
        LaunchError: an option without its value, a count below 1, or a file of settings that is not there.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in OPTIONS:
        parser.add_argument(f"--{name}")
    known, rest = parser.parse_known_args(list(arguments))
    options = {name: value for name, value in vars(known).items() if value is not None}
    for name in ("num_processes", "num_machines"):
        if name in options and not (options[name].isdecimal() and int(options[name]) > 0):
            raise LaunchError(f"--{name}: expected a number of 1 or more; received {options[name]!r:.60}.")
    if (settings := options.get("config_file")) is not None:
        if not (file := find(settings)).is_file():
            raise LaunchError(f"--config_file {settings:.200} is neither a file nor a preset.{did_you_mean(settings)}")
        options["config_file"] = str(file)
    return {} if options == {"num_processes": "1"} else options, rest


def launch(command: str, options: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Start processes that run the same command, as `accelerate launch` does; end with their exit status.

    Without a file of settings, and without accelerate's own (`accelerate config`), it is data parallelism on the GPUs of
    this machine, or on its CPUs where there is none. The precision is the command's, whatever the number of processes.

    Raises:
        LaunchError: in a process that was started so, or options that accelerate refuses.
    """
    if "WORLD_SIZE" in os.environ:
        raise LaunchError(f"--{next(iter(options))} starts processes, and this is one that was started: leave it out.")
    import torch
    from accelerate.commands.config.config_args import default_config_file
    from accelerate.commands.launch import launch_command, launch_command_parser
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
    except ChildFailedError as error:  # The processes have said why.
        sys.exit(max(error.get_first_failure()[1].exitcode, 1))
    except subprocess.CalledProcessError as error:
        sys.exit(max(error.returncode, 1))
    except ValueError as error:
        raise LaunchError(f"accelerate: {' '.join(str(error).split()):.300}") from error
