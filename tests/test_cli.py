"""The command `hf-tlm`: help, errors, presets by name, completion, start-up time; it runs the code of the recipes."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_tlm import cli
from hf_tlm.cli import LaunchError, launch, launch_options
from hf_tlm.commands import COMMANDS, RECIPES, command_of, describe, find_preset, presets, recipes_folder
from hf_tlm.config import ConfigError, read_configs
from hf_tlm.errors import ModelError
from hf_tlm.models.loading import read_config
from hf_tlm.training import ModelArguments
from hf_tlm.training.run_folder import local_files
from hf_tlm.version import __version__

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ["torch", "transformers", "datasets", "numpy", "yaml", "accelerate"]


def hf_tlm(capsys, monkeypatch, *arguments, status=None):
    """Run `hf-tlm ARGUMENTS` in this process; return standard output, or standard error where it has to fail."""
    monkeypatch.setattr(sys, "argv", ["hf-tlm", *arguments])
    if status is None:
        cli.main()
        return capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    assert stop.value.code == status
    return printed.out if status == 0 else printed.err


def test_ctrl_c_while_a_command_loads_prints_one_line(capsys, monkeypatch):
    def load(recipe):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_load", load)
    error = hf_tlm(capsys, monkeypatch, "train", "--help", status=130)
    # Also true of commands that begin again, such as predict.
    assert error == "\nError: Interrupted. Started again, the same command continues from what is on disk.\n"


def test_every_recipe_is_a_command():
    """A new recipe needs a line in `COMMANDS`."""
    assert sorted(RECIPES) == sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))
    assert recipes_folder() == ROOT / "recipes"
    for command, (recipe, line) in COMMANDS.items():
        assert line.endswith(".") and len(line) <= 80
        assert {command_of(name) for name in (command, recipe, command.replace("-", "_"))} == {command}
    assert command_of("select-influence") == command_of("select_influence") == "select-influence"
    assert command_of("trian") is None


def test_help_names_every_command_and_imports_no_heavy_package():
    program = (
        "import sys\nfrom hf_tlm.cli import main\nmain()\n"
        f"found = {{*{HEAVY}, 'multiprocessing', 'dataclasses'}} & set(sys.modules)\nassert not found, found\n"
    )
    for arguments in (["--help"], ["--version"], ["presets"], ["completion", "bash"]):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        if arguments == ["--help"]:
            assert not [command for command in [*COMMANDS, "presets", "completion"] if f"\n  {command} " not in done.stdout]


def test_version_is_printed(capsys, monkeypatch):
    assert hf_tlm(capsys, monkeypatch, "--version") == f"hf-tlm {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_uses_its_name(command, capsys, monkeypatch):
    text = hf_tlm(capsys, monkeypatch, command, "--help", status=0)
    assert text.startswith(f"usage: hf-tlm {command} ") and f"\n    hf-tlm {command}" in text
    assert hf_tlm(capsys, monkeypatch, COMMANDS[command][0], "--help", status=0) == text


def test_commands_without_options_have_help_too(capsys, monkeypatch):
    shown = hf_tlm(capsys, monkeypatch, "presets", "--help"), hf_tlm(capsys, monkeypatch, "completion", "-h")
    assert shown[0].startswith("usage: hf-tlm presets [FOLDER or PRESET ...]\n\nList all presets")
    assert shown[1].startswith("usage: hf-tlm completion {bash,zsh}\n\nPrint a script")


@pytest.mark.parametrize(
    "arguments,status,message",
    [
        (["trian"], 2, "There is no command 'trian'; did you mean train or pretrain?\nSee hf-tlm --help."),
        ([], 2, "A command is missing.\nSee hf-tlm --help."),
        (["train", "--taks", "x"], 2, "See hf-tlm train --help."),
        (["presets", "cofee"], 1, "There is no preset 'cofee'. Did you mean tlm/coffee?"),
        (["completion", "tcsh"], 1, "completion: expected one of bash, zsh; received tcsh."),
        (["retrieve", "--config", "tlm/cofee", "--task", "x", "--output_dir", "y"], 1, "Did you mean tlm/coffee?"),
        (["train", "--num_processes"], 2, "--num_processes: expected one argument"),
        (["train", "--num_processes", "0"], 2, "expected a number of 1 or more; received '0'"),
        (["train", "--config_file", "accelerate/fdsp"], 2, "neither a file nor a preset. Did you mean accelerate/fsdp?"),
    ],
)
def test_errors_are_one_line_and_a_hint(arguments, status, message, capsys, monkeypatch):
    error = hf_tlm(capsys, monkeypatch, *arguments, status=status)
    assert message in error and error.strip().startswith("Error: ") and len(error.strip().splitlines()) <= 2


def test_presets_are_listed_and_shown(capsys, monkeypatch):
    text = hf_tlm(capsys, monkeypatch, "presets")
    assert len(text.splitlines()) == len(presets()) > 100
    assert "\nmodels/bert_3x128 " in text and "bert, 3 layers x 128" in text
    assert all(6 < len(describe(path)) <= 100 for path in presets().values())
    assert len(hf_tlm(capsys, monkeypatch, "presets", "tlm/").splitlines()) == len(
        list(find_preset("tlm/coffee").parent.iterdir())
    )
    shown = hf_tlm(capsys, monkeypatch, "presets", "tlm/coffee")
    assert shown == (ROOT / "recipes/configs/tlm/coffee.yaml").read_text(encoding="utf-8")


def test_own_file_wins_over_preset_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = ROOT / "recipes" / "configs" / "tlm" / "coffee.yaml"
    for name in ("tlm/coffee", "tlm/coffee.yaml", "recipes/configs/tlm/coffee.yaml", "./recipes/configs/tlm/coffee.yaml"):
        assert find_preset(name) == preset
    (tmp_path / "tlm" / "coffee").mkdir(parents=True)
    assert find_preset("tlm/coffee") == preset  # A folder of that name does not win.
    (tmp_path / "tlm" / "coffee.yaml").write_text("retrieve: {top_k: 7}")
    assert find_preset("tlm/coffee.yaml") == Path("tlm/coffee.yaml")
    assert read_configs(["tlm/coffee.yaml"], "retrieve") == {"top_k": 7}
    assert read_configs(["tlm/coffee"], "retrieve") == {"top_k": 50, "passage_words": 100}
    assert find_preset("neither") == Path("neither")
    with pytest.raises(
        ConfigError, match="Cannot read --config tlm/cofee: no such file or preset. Did you mean tlm/coffee?"
    ):
        read_configs(["tlm/cofee"], "retrieve")


def test_model_presets_are_found_from_any_folder(tmp_path, monkeypatch):
    """Short names and the paths in presets and older commands both work; a run records the file either way."""
    monkeypatch.chdir(tmp_path)
    for name in ("models/bert_3x128", "recipes/configs/models/bert_3x128.json"):
        assert read_config(name).num_hidden_layers == 3
        ((file, digest),) = local_files({"model_config": name})["model_config"]
        assert file == "." and len(digest) == 64
    assert read_config(read_configs(["tlm/coffee"], "train_tlm")["model_config"]).model_type == "modernbert"
    assert read_config(ModelArguments().model_config).num_hidden_layers == 2
    with pytest.raises(ModelError, match="a preset, nor .* Did you mean models/bert_tiny. There is no local path"):
        read_config("models/bert_tinny")


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_the_launcher_sets_the_exit_status(monkeypatch, number, status):
    """The status is that of a run of one process; the launcher has passed the signal on to its processes."""
    from accelerate.commands import launch as launcher
    from torch.distributed.elastic.multiprocessing.api import SignalException

    def end(arguments):
        raise SignalException("Process 7 got signal", number)

    monkeypatch.setattr(launcher, "launch_command", end)
    with pytest.raises(SystemExit) as stop:
        launch("train", {"num_processes": "2"}, [])
    assert stop.value.code == status


def test_launch_options_are_separated_from_the_recipes_options(tmp_path, monkeypatch):
    options, rest = launch_options(["--task", "x", "--num_processes=2", "--config_file", "accelerate/fsdp", "--rho1", "3"])
    assert options == {"num_processes": "2", "config_file": str(ROOT / "recipes/configs/accelerate/fsdp.yaml")}
    assert rest == ["--task", "x", "--rho1", "3"]
    assert launch_options(["--num", "2"]) == ({}, ["--num", "2"])
    assert launch_options(["--num_processes", "1", "--rho1", "3"]) == ({}, ["--rho1", "3"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LaunchError, match="--num_processes starts processes, and this process was started by a launcher"):
        launch("train", {"num_processes": "2"}, [])


def test_command_for_one_process_is_not_launched(capsys, monkeypatch):
    """One warning, and the recipe runs in this process."""
    monkeypatch.setattr(cli, "launch", lambda *arguments: pytest.fail("launched"))
    ran = []
    monkeypatch.setattr(cli, "_load", lambda recipe: SimpleNamespace(main=lambda: ran.append((recipe, sys.argv[1:]))))
    monkeypatch.setattr(sys, "argv", ["hf-tlm", "baseline", "--num_processes", "2", "--task", "x"])
    cli.main()
    assert ran == [("baseline", ["--task", "x"])]
    assert "hf-tlm baseline runs in one process: without effect: --num_processes." in capsys.readouterr().err


BASH = """
eval "$(hf-tlm completion bash)"
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hf_tlm; printf '%s\\n' "${COMPREPLY[@]}"; echo .; }
complete_words hf-tlm tr
complete_words hf-tlm train --rho
complete_words hf-tlm train --config tlm/base tlm/scie
complete_words hf-tlm train --model_config models/bert_t
complete_words hf-tlm train --config own
"""
COMPLETED = [
    ["train"],
    ["--rho1", "--rho2"],
    ["tlm/scierc_large", "tlm/scierc_medium", "tlm/scierc_small"],
    ["models/bert_tiny"],
    ["own.yaml"],
]


def test_bash_completion_offers_commands_options_presets_and_files(tmp_path):
    """Complete in a shell whose `hf-tlm` is the one of this clone."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    (tmp_path / "own.yaml").touch()
    program = f'hf-tlm() {{ PYTHONPATH="{ROOT}" "{sys.executable}" -m hf_tlm "$@"; }}\n{BASH}'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert not done.stderr
    assert [sorted(part.split()) for part in done.stdout.split("\n.\n")[:-1]] == COMPLETED


def test_zsh_completion_is_a_valid_script(tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    done = subprocess.run(
        ["zsh", "-n", "-c", cli.completion("zsh", list(COMMANDS), list(presets()))], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr


def test_yaml_presets_begin_with_a_comment_and_json_has_a_model_type():
    for name, path in presets().items():
        if path.suffix == ".json":
            assert json.loads(path.read_text(encoding="utf-8"))["model_type"], name
        else:
            assert path.read_text(encoding="utf-8").startswith("#"), name
