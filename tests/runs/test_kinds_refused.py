"""Steps of TLM refuse unsupported kinds of tasks before they do anything."""

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


def make_task_of_kind(kind):
    rows = Dataset.from_dict(COLUMNS[kind])
    return task_from_datasets(TaskSpec(name="other", path="memory", kind=kind), {"train": rows, "validation": rows})


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("step", STEPS)
def test_other_kinds_than_classification_are_refused(step, kind):
    with pytest.raises(TaskError, match=f"{step} supports classification tasks; other is a {kind} task.*hf-tlm finetune"):
        STEPS[step](make_task_of_kind(kind))


def test_score_models_refuses_regression():
    with pytest.raises(TaskError, match="Selection by influence supports classification"):
        score_models(make_task_of_kind("regression"), None, ["scratch"], None, None)


def test_retrieval_supports_regression_but_not_tagging(corpus):
    with pytest.raises(TaskError, match="Retrieval supports classification and regression tasks; other is a tagging task"):
        retrieve(make_task_of_kind("tagging"), corpus, top_k=1)
    assert len(retrieve(make_task_of_kind("regression"), corpus, retriever="random", num_passages=3).dataset) == 3


@pytest.mark.parametrize(("task", "kind"), [("nowhere", "regression"), ("nowhere", "tagging"), ("stsb", None)])
def test_known_kind_is_refused_before_data_are_read(task, kind):
    """It used to be refused after all data had been read, also from the Hub."""
    with pytest.raises(TaskError, match=f"TLM supports classification tasks; {task} is a {kind or 'regression'} task"):
        TaskArguments(task=task, task_kind=kind).load("TLM", "classification")
    with pytest.raises(TaskError, match="nowhere"):
        TaskArguments(task="nowhere", task_kind="classification").load("TLM", "classification")


@pytest.mark.parametrize("recipe", ["baseline", "few_shot", "retrieve", "select_influence", "train_tlm"])
def test_recipes_refuse_unsupported_kinds(recipe, tmp_path):
    extra_options = {
        "few_shot": ("--model_name_or_path", "nowhere"),
        "retrieve": ("--corpus", "nowhere"),
        "select_influence": ("--subset", "nowhere", "--fraction", "0.5", "--method", "random"),
        "train_tlm": ("--model_config", "models/bert_tiny", "--max_steps", "1"),
    }
    options = (
        "--task",
        "nowhere",
        "--task_kind",
        "tagging",
        *extra_options.get(recipe, ()),
        "--output_dir",
        tmp_path / "out",
    )
    fails(f"recipes/{recipe}.py", *options, message="nowhere is a tagging task")
