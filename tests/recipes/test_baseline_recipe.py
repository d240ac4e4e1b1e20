"""recipes/baseline.py as a user starts it."""

import json

import pytest

from support.launching import fails, run_recipe


@pytest.mark.slow
def test_two_processes_print_one_table(work, tmp_path):
    out = run_recipe("recipes/baseline.py", "--task", work / "task", "--output_dir", tmp_path, processes=2)
    assert out.count("| majority class |") == out.count("| linear ") == 1 and "training texts" in out
    for name in ("majority-class", "linear"):
        assert json.loads((tmp_path / name / "results.json").read_text())["scores"]["validation"]


def test_what_it_cannot_do(work):
    fails("recipes/baseline.py", "--task", work / "nowhere", message="nowhere")
    fails("recipes/baseline.py", "--task", work / "task", "--baseline", "quadratic", message="invalid choice: 'quadratic'")
