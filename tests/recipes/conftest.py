import pytest

from support.toys import write_files


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    # Dropout draws differ between processes: without it one and two processes compute the same.
    write_files(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return folder


@pytest.fixture(scope="module")
def subset(work):
    """The subset of the task and the corpus in `work`, as recipes/retrieve.py saves it."""
    from hf_tlm.corpora import load_corpus
    from hf_tlm.retrieval import retrieve
    from hf_tlm.tasks import load_task

    retrieve(load_task(str(work / "task")), load_corpus(str(work / "corpus.parquet")), top_k=4).save(work / "subset")
    return work / "subset"
