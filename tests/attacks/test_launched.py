"""Bad input under `accelerate launch`: the line that says what to do is there once, whoever else met the same."""

import pytest

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
def test_two_processes_tell_once(tmp_path, arguments, line):
    out = tmp_path / "out"
    told = run_recipe(*(name.format(out=out) for name in arguments), processes=2, status=1)
    lines = [one for one in told.splitlines() if one.startswith("Error")]  # Below them is the launcher's own account.
    assert len(lines) == 1 and lines[0].startswith("Error: ") and line in lines[0], told[-3000:]
    assert not out.exists()


@pytest.mark.slow
def test_what_one_process_alone_meets_is_told_by_it(tmp_path):
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
    told = launch(program, config="cpu_2", processes=2, status=1)
    assert "Error on process 1: The disk of this machine is full." in told, told[-3000:]
