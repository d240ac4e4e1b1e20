"""Every option that takes a path, in every recipe: paths that do not exist, are empty, of another kind, or hostile."""

import os

import pytest

from attacks.attack import assert_refused, attack, call, tree
from attacks.bad_input.paths import CASES, OUTPUTS, WRITTEN
from hf_tlm import config


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    (folder / "empty").mkdir()
    (folder / "blank").write_text("")
    (folder / "binary").write_bytes(bytes(range(256)) * 4)
    names = {"missing": folder / "nowhere" / "at all", "empty folder": folder / "empty", "empty file": folder / "blank"}
    names |= {"binary file": folder / "binary", "nothing": "", "newline": f"{folder}/a\nb", "escape": f"{folder}/\x1b[31m"}
    return folder, names | {"long": f"{folder}/{'x' * 300}", "surrogate": f"{folder}/\udc80"}


@pytest.mark.slow
@pytest.mark.parametrize("recipe,option,place", CASES)
def test_bad_path_is_refused_in_one_line(toys, places, recipe, option, place):
    folder, names = places
    before = tree(folder)
    outcome = attack(recipe.split()[0], *toys.commands[recipe], f"--{option}", names[place])
    assert_refused(outcome)
    assert "\x1b" not in outcome.stderr
    assert tree(folder) == before
    # A table of runs lists those that failed, and repeating the command retries them.
    assert not toys.out.exists() or (recipe, option) == ("reproduce", "corpus")


def test_removed_working_directory_is_reported(tmp_path):
    outcome = call(_run_in_a_removed_folder, str(tmp_path / "gone"))
    assert_refused(outcome, "The working directory has been removed.")


def _run_in_a_removed_folder(folder):
    os.mkdir(folder)
    os.chdir(folder)
    os.rmdir(folder)
    config.run(lambda: print("not to be reached"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", WRITTEN)
@pytest.mark.parametrize("place", OUTPUTS)
def test_impossible_output_folder_is_refused(toys, tmp_path, recipe, place):
    (tmp_path / "file").write_text("mine")
    out = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "out", "long": tmp_path / ("x" * 300)}
    out |= {"surrogate": f"{tmp_path}/\udc80", "null": f"{tmp_path}/a\0b"}
    outcome = attack(recipe.split()[0], *toys.commands[recipe], "--output_dir", out[place])
    assert_refused(outcome)
    assert tree(tmp_path) == {"file": b"mine"}
