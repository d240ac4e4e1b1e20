"""The files of the quickstart: a refused command leaves earlier ones unchanged, and the model is copied as a whole."""

import shutil

import pytest

from attacks.attack import tree
from hf_tlm.cli import _load
from hf_tlm.errors import HfTlmError
from hf_tlm.runs import baselines


@pytest.fixture
def quickstart(toys, tmp_path, monkeypatch):
    """Return a function of `top_k` that runs the quickstart on the toys without training, its module, and its folder."""
    recipe, out = _load("quickstart"), tmp_path / "quick"

    def arm(quick, output, task, arm, subset, options):
        folder = output / arm.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(f"{quick.top_k}")
        return {"arm": arm, f"validation {task.metric}": {"mean": 1.0}, "folder": str(folder)}

    monkeypatch.setattr(recipe, "_train_arm", arm)
    monkeypatch.setattr(recipe, "_baseline_row", lambda task, baseline: {"arm": baseline.name})
    monkeypatch.setattr(recipe.runs, "make_baselines", lambda task: [baselines.majority_class(task)])
    monkeypatch.setattr(recipe.runs, "format_table", lambda rows, names: "the table")
    monkeypatch.setattr(recipe.analysis, "write_report", lambda *given, **named: given[1])

    def make(top_k):
        options = {"task": str(toys.task), "corpus": str(toys.corpus), "output_dir": str(out), "top_k": top_k}
        recipe.make(recipe.QuickstartArguments(**options), out)
        return tree(out)

    return make, recipe, out


def test_refused_quickstart_leaves_its_folder_unchanged(quickstart, monkeypatch):
    make, recipe, out = quickstart
    before = make(2)
    assert {"subset-bm25/manifest.json", "subset-random/manifest.json", "model/config.json"} <= before.keys()

    def refused(*_):
        raise HfTlmError("the folder holds a run with other settings")

    monkeypatch.setattr(recipe, "_train_arm", refused)
    with pytest.raises(HfTlmError, match="other settings"):
        make(1)
    assert tree(out) == before


def test_folder_without_a_quickstart_is_refused(quickstart):
    """Otherwise its folder `model` would be replaced."""
    make, _, out = quickstart
    (out / "model").mkdir(parents=True)
    (out / "model" / "mine.txt").write_text("mine")
    with pytest.raises(HfTlmError, match="quick is not empty and contains no quickstart. Choose an empty --output_dir"):
        make(2)
    assert list(tree(out)) == ["model/mine.txt"]


def test_model_is_replaced_as_a_whole(quickstart, monkeypatch):
    make, _, out = quickstart
    make(2)

    def full(source, target, **options):
        (target / "config.json").write_text("half")
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(HfTlmError, match="Cannot write .*model: The disk of .* is full"):
        make(1)
    assert (out / "model" / "config.json").read_text() == "2"
