"""recipes/baseline.py as a user starts it."""

import json

import pytest

from support.launching import fails, run_recipe


@pytest.mark.slow
def test_two_processes_print_one_table(work, tmp_path):
    out = run_recipe("recipes/baseline.py", "--task", work / "task", "--output_dir", tmp_path, processes=2)
    assert out.count("| majority class |") == out.count("| linear ") == 1
    assert "\ntask: 48 training texts, scored on 24 validation and 24 test texts, 3 classes\n" in out
    for name in ("majority-class", "linear"):
        assert json.loads((tmp_path / name / "results.json").read_text())["scores"]["validation"]


@pytest.mark.slow
def test_saved_linear_model_predicts(work, tmp_path):
    run_recipe("recipes/baseline.py", "--task", work / "task", "--baseline", "linear", "--output_dir", tmp_path / "kept")
    (tmp_path / "new.csv").write_text("number,text\n7,the gene binds the receptor\n8,nothing here\n")
    options = ("--data", tmp_path / "new.csv", "--output", tmp_path / "out.csv", "--use_cpu", "true")
    run_recipe("recipes/predict.py", "--model_name_or_path", tmp_path / "kept", *options)
    first, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert first.startswith("number,text,prediction,probability_") and [row.split(",")[0] for row in rows] == ["7", "8"]
    options = ("--text", "the gene binds the receptor", "nothing here", "--use_cpu", "true")
    out = run_recipe("recipes/predict.py", "--model_name_or_path", tmp_path / "kept", *options, processes=2)
    assert out.count("the gene binds the receptor\n   ") == out.count("nothing here\n   ") == 1


def test_unknown_task_or_baseline_is_refused(work):
    fails("recipes/baseline.py", "--task", work / "nowhere", message="nowhere")
    fails("recipes/baseline.py", "--task", work / "task", "--baseline", "quadratic", message="invalid choice: 'quadratic'")


@pytest.mark.parametrize("recipe", ["baseline", "retrieve", "quickstart"])
def test_unwritable_output_is_refused_before_the_task_is_read(work, tmp_path, recipe):
    """Otherwise the error would come after all fitting."""
    (tmp_path / "file").touch()
    corpus = ("--corpus", work / "nowhere") if recipe == "retrieve" else ()
    for folder in (tmp_path / "file", tmp_path / "file" / "out"):
        given = ("--task", work / "nowhere", *corpus, "--output_dir", folder)
        fails(f"recipes/{recipe}.py", *given, message=f"{tmp_path / 'file'} is not a writable folder")


def test_unwritable_folder_of_a_baseline_is_refused_first(work, tmp_path):
    (tmp_path / "linear").touch()
    given = ("recipes/baseline.py", "--task", work / "nowhere", "--output_dir", tmp_path)
    fails(*given, message=f"{tmp_path / 'linear'} is not a writable folder")
    fails(*given, "--baseline", "majority class", message="nowhere")
