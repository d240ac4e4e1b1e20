"""README: short, beginning with the two commands, and with Python code that runs unchanged."""

import re
import subprocess

import pytest
from datasets import Dataset

from hf_tlm.commands import COMMANDS
from support.documentation import ROOT, blocks, run_page, shell_commands
from support.toys import sentences

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_short():
    assert len(TEXT.split()) <= 1000


def test_the_first_shell_blocks_install_and_test():
    first, second = [block.text for block in blocks(TEXT) if block.language == "bash"][:2]
    install = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e"
    assert first == f"{install} . && .venv/bin/python recipes/quickstart.py\n"
    assert second == f"{install} '.[test]' && .venv/bin/python -m pytest\n"
    # .ci/run extracts the same command.
    program = (ROOT / ".ci" / "run").read_text(encoding="utf-8").partition("command=$(")[2].partition(")\n")[0]
    found = subprocess.run(["bash", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found == second


def test_third_shell_block_is_for_own_data():
    third = [block.text for block in blocks(TEXT) if block.language == "bash"][2]
    assert [words[:2] for words in shell_commands(third)] == [["hf-tlm", name] for name in ("baseline", "retrieve", "train")]


def test_every_command_is_in_the_table():
    named = re.findall(r"\| \[`hf-tlm ([\w-]+)`\]", TEXT)
    assert sorted(named) == sorted(COMMANDS)


@pytest.mark.slow
def test_python_code_runs(tmp_path, monkeypatch, capfd):
    """On the user's own table, in a folder with nothing else."""
    Dataset.from_list([{"text": row["text"], "label": row["label"]} for row in sentences(120, 1)]).to_csv(
        tmp_path / "reviews.csv"
    )
    (tmp_path / "corpus").mkdir()
    Dataset.from_list([{"text": row["text"]} for row in sentences(200, 2)]).to_parquet(tmp_path / "corpus" / "a.parquet")
    capfd.readouterr()
    (python,) = (block for block in blocks(TEXT) if block.language == "python")
    assert len([line for line in python.text.splitlines() if line.strip()]) <= 10
    run_page(TEXT[TEXT.index("## In Python") : TEXT.index("## What to expect")], tmp_path, monkeypatch, capfd)
    assert (tmp_path / "runs" / "mine" / "config.json").is_file()
    assert "score" in capfd.readouterr().out
