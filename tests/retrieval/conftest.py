"""Small tasks and corpora for the retrieval tests."""

import pytest
from datasets import Dataset, disable_progress_bars

from hf_tlm.corpora import load_corpus
from hf_tlm.tasks import TaskSpec, task_from_datasets

PASSAGES = {
    "p3": "Enzymes bind small molecules in the active site.",
    "p1": "Enzymes bind small molecules in the active site.",
    "p2": "The inhibitor blocks the enzyme kinase and its receptor.",
    "p4": "A football match ended without goals on Sunday.",
    "p5": "Receptor kinase signalling: the kinase phosphorylates the receptor, and the receptor the kinase.",
    "p6": "It was not there.",
}
QUERIES = {
    "q1": "the kinase inhibitor",
    "q2": "it is not a",
    "q3": "enzymes bind molecules",
    "q4": "zebra quagga",
    "q5": "kinase receptor kinase",
}


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    disable_progress_bars()


@pytest.fixture(scope="session")
def passages():
    return dict(PASSAGES)


@pytest.fixture(scope="session")
def queries():
    return dict(QUERIES)


@pytest.fixture(scope="session")
def make_task():
    def make(queries=QUERIES, labels=None, pairs=None):
        labels = labels or ["yes", "no"] * len(queries)
        columns = {"id": list(queries), "text": list(queries.values()), "label": labels[: len(queries)]}
        names = ("text",)
        if pairs is not None:
            columns["text_pair"], names = pairs, ("text", "text_pair")
        held_out = {**columns, "id": [f"v-{name}" for name in columns["id"]]}
        splits = {"train": Dataset.from_dict(columns), "validation": Dataset.from_dict(held_out)}
        return task_from_datasets(TaskSpec(name="toy", path="toy", text_columns=names), splits)

    return make


@pytest.fixture(scope="session")
def make_corpus():
    def make(passages=PASSAGES):
        rows = {"id": list(passages), "text": list(passages.values()), "source": ["toy"] * len(passages)}
        return load_corpus(Dataset.from_dict(rows), id_column="id")

    return make
