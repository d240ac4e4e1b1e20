"""Steps of TLM refuse kinds of tasks that they have no use for before they do anything."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from hf_tlm import run_tlm, select
from hf_tlm.analysis import label_pmi
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import evaluate_checkpoint, score_models
from hf_tlm.tasks import TaskArguments, TaskError, TaskSpec, task_from_datasets
from support.launching import fails

COLUMNS = {
    "regression": {"text": ["a", "b"], "label": [0.5, 1.5]},
    "tagging": {"tokens": [["a", "b"]], "tags": [["X", "Y"]]},
}
STEPS = {
    "TLM": lambda task: run_tlm(task, None, SimpleNamespace(output_dir="nowhere"), None),
    "Selection by influence": lambda task: select(task, None, fraction=0.5),
    "evaluate_checkpoint": lambda task: evaluate_checkpoint("nowhere", task),
    "label_pmi": lambda task: label_pmi(task),
}


def make(kind):
    rows = Dataset.from_dict(COLUMNS[kind])
    return task_from_datasets(TaskSpec(name="other", path="memory", kind=kind), {"train": rows, "validation": rows})


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("step", STEPS)
def test_only_classification(step, kind):
    with pytest.raises(TaskError, match=f"{step} supports classification tasks; other is a {kind} task.*hf-tlm finetune"):
        STEPS[step](make(kind))


def test_score_models():
    with pytest.raises(TaskError, match="Selection by influence supports classification"):
        score_models(make("regression"), None, ["scratch"], None, None)


def test_retrieval_needs_texts_and_no_labels(corpus):
    with pytest.raises(TaskError, match="Retrieval supports classification and regression tasks; other is a tagging task"):
        retrieve(make("tagging"), corpus, top_k=1)
    assert len(retrieve(make("regression"), corpus, retriever="random", num_passages=3).dataset) == 3


@pytest.mark.parametrize(("task", "kind"), [("nowhere", "regression"), ("nowhere", "tagging"), ("stsb", None)])
def test_a_kind_that_is_known_before_is_refused_before_data_are_read(task, kind):
    """It was refused when all had been read, from the Hub too."""
    with pytest.raises(TaskError, match=f"TLM supports classification tasks; {task} is a {kind or 'regression'} task"):
        TaskArguments(task=task, task_kind=kind).load("TLM", "classification")
    with pytest.raises(TaskError, match="nowhere"):
        TaskArguments(task="nowhere", task_kind="classification").load("TLM", "classification")


@pytest.mark.parametrize("recipe", ["baseline", "few_shot", "retrieve", "select_influence", "train_tlm"])
def test_recipes_say_which_kinds_they_take(recipe, tmp_path):
    given = {
        "few_shot": ("--model_name_or_path", "nowhere"),
        "retrieve": ("--corpus", "nowhere"),
        "select_influence": ("--subset", "nowhere", "--fraction", "0.5", "--method", "random"),
        "train_tlm": ("--model_config", "models/bert_tiny", "--max_steps", "1"),
    }
    options = ("--task", "nowhere", "--task_kind", "tagging", *given.get(recipe, ()), "--output_dir", tmp_path / "out")
    fails(f"recipes/{recipe}.py", *options, message="nowhere is a tagging task")
