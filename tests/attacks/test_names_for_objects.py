"""The name or the data of a task, a subset or a corpus where Python takes the object: a sentence says what to pass."""

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from hf_tlm import load_corpus
from hf_tlm.corpora import CorpusError
from hf_tlm.retrieval import RetrievalError, Subset
from hf_tlm.runs import majority_class
from hf_tlm.tasks import TaskError
from support.toys import make_task

PACKAGES = ("tasks", "corpora", "retrieval", "data", "models", "influence", "training", "runs", "analysis")
ROWS = [{"text": "a secret", "label": "a"}]


def functions():
    """All public functions with an argument of this name that is an object of this class, or None."""
    found = {}
    for name in PACKAGES:
        package = importlib.import_module(f"hf_tlm.{name}")
        for function in (getattr(package, exported) for exported in package.__all__):
            if inspect.isfunction(function):
                found[function.__name__] = function
    return found


def taking(argument, of):
    return {
        name: function
        for name, function in functions().items()
        if argument in (taken := inspect.signature(function).parameters)
        and str(taken[argument].annotation).partition(" ")[0] == of
    }


def called(function, folder, **given):
    """With nothing for every other argument but what names a folder."""
    page = SimpleNamespace(path=folder, missing=[], record={})
    others = {"args": SimpleNamespace(output_dir=str(folder), taught=[], folder=folder), "run": page}
    taken = inspect.signature(function).parameters.values()
    needed = [one.name for one in taken if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return function(**{name: others.get(name) for name in needed} | given)


# It reads the run before, and `report_page` then looks at the task.
TASKS = {name: function for name, function in taking("task", "Task").items() if name != "write_report"}
SUBSETS = {name: function for name, function in taking("subset", "Subset").items() if "task" in name or name in TASKS}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_by_its_name(name, tmp_path):
    given = {"subset": object.__new__(Subset)} if name == "case_studies" else {}
    with pytest.raises(TaskError) as raised:
        called(TASKS[name], tmp_path, task="tickets.csv", **given)
    assert str(raised.value) == 'task: expected a Task; received "tickets.csv". Give load_task("tickets.csv").'


@pytest.mark.parametrize("name", SUBSETS)
def test_a_subset_by_its_name(name, tmp_path):
    with pytest.raises(RetrievalError) as raised:
        called(SUBSETS[name], tmp_path, task=make_task(), subset="runs/sub")
    assert str(raised.value) == 'subset: expected a Subset; received "runs/sub". Give Subset.open("runs/sub").'


def test_all_that_take_one_are_looked_at():
    assert {"retrieve", "select", "run_tlm", "finetune", "run_few_shot", "export_onnx", "linear_model"} <= set(TASKS)
    assert {"select", "run_tlm", "finetune", "score_models", "case_studies"} <= set(SUBSETS)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Path("a/b.csv"), 'received a PosixPath. Give {}("a/b.csv").'),
        (pd.DataFrame(ROWS), "received a DataFrame. Give {}(Dataset.from_pandas(frame))."),
        (ROWS, "received a list. Give {}(Dataset.from_list(rows))."),
        (DatasetDict(train=Dataset.from_list(ROWS)), "received a DatasetDict. Give {}(dataset)."),
        (None, "received none. Give {}(...)."),
    ],
)
def test_data_are_named_by_their_type(data, words):
    """And never printed."""
    with pytest.raises(TaskError) as raised:
        majority_class(data)
    assert str(raised.value) == f"task: expected a Task; {words.format('load_task')}"
    if not isinstance(data, Path):
        words = words.replace("(dataset)", '(dataset["train"])').format("load_corpus")
        with pytest.raises(CorpusError) as raised:
            load_corpus(data)
        assert str(raised.value) == f"corpus: expected files, a Hub id or a datasets.Dataset; {words}"


def test_a_corpus_may_be_a_path(tmp_path):
    (tmp_path / "a, b.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    files = [tmp_path / "a, b.txt", tmp_path / "b.txt"]
    assert load_corpus(files[0]).fingerprint == load_corpus([str(files[0])]).fingerprint
    assert load_corpus(files).fingerprint == load_corpus([*map(str, files)]).fingerprint
    with pytest.raises(CorpusError, match=r"^No corpus '.*nix.csv': no file matches"):
        load_corpus(tmp_path / "nix.csv")
