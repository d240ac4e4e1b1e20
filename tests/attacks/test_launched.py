"""Bad input under `accelerate launch`: the message is printed once, even if several processes meet the error."""

import pytest

from attacks.attack import attack
from hf_tlm.commands import COMMANDS, ONE_PROCESS
from support.launching import launch, run_recipe


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["recipes/train_tlm.py", "--task", "nothing", "--subset", "none", "--output_dir", "{out}"], "No task 'nothing'"),
        (
            ["recipes/train_tlm.py", "--task", "toy", "--subsat", "x", "--output_dir", "{out}"],
            "unknown argument --subsat",
        ),
        (["recipes/pretrain.py", "--corpus", "nothing", "--output_dir", "{out}", "--max_steps", "2"], "nothing"),
    ],
)
def test_error_of_all_processes_is_printed_once(tmp_path, arguments, line):
    out = tmp_path / "out"
    output = run_recipe(*(name.format(out=out) for name in arguments), processes=2, status=1)
    lines = [
        line_of_output for line_of_output in output.splitlines() if line_of_output.startswith("Error")
    ]  # The launcher's own report follows.
    assert len(lines) == 1 and lines[0].startswith("Error: ") and line in lines[0], output[-3000:]
    assert not out.exists()


@pytest.mark.parametrize("command", sorted({*ONE_PROCESS} - {"quickstart"}))
def test_second_process_of_a_command_for_one_has_nothing_to_do(toys, command):
    """What the first one does is in the tests of the recipes."""
    arguments = toys.commands.get(COMMANDS[command][0]) or toys.commands[f"{command} report"]
    outcome = attack(COMMANDS[command][0], *arguments, environment={"RANK": "1", "WORLD_SIZE": "2"})
    assert (outcome.status, outcome.stdout) == (0, ""), outcome.stderr[-3000:]
    assert not toys.out.exists()


@pytest.mark.slow
def test_error_of_one_process_is_printed_by_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\n"
        "from hf_tlm.config import run\n"
        "from hf_tlm.errors import HfTlmError\n"
        "def main():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise HfTlmError('The disk of this machine is full.')\n"
        "    time.sleep(60)\n"
        "run(main)\n"
    )
    output = launch(program, config="cpu_2", processes=2, status=1)
    assert "Error on process 1: The disk of this machine is full." in output, output[-3000:]
