"""recipes/retrieve.py as a user starts it."""

import pytest

from hf_tlm.retrieval import Subset
from support.launching import fails, launch


@pytest.fixture(scope="module")
def retrieved(work):
    out = launch(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--top_k", "4",
        "--report", "--output_dir", work / "retrieved",
    )  # fmt: skip
    assert "of 60 passages" in out and "retrieved:" in out
    assert 'id="retrieved"' in (work / "retrieved/analysis/report.html").read_text(encoding="utf-8")
    return work / "retrieved"


@pytest.mark.slow
def test_retrieve_random_like(work, retrieved):
    launch(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--retriever", "random",
        "--like", retrieved, "--output_dir", work / "random",
    )  # fmt: skip
    assert len(Subset.load(work / "random").dataset) == len(Subset.load(retrieved).dataset)


@pytest.mark.slow
def test_retrieve_sharded_equals_one_index(work, retrieved):
    out = launch(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--top_k", "4",
        "--retriever", "sharded", "--num_shards", "2", "--work_dir", work / "shards", "--output_dir", work / "sharded",
    )  # fmt: skip
    assert Subset.load(work / "sharded").dataset.to_list() == Subset.load(retrieved).dataset.to_list()
    assert "sharded, lucene" in out and "## Sources" in (work / "sharded" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--top_k", "3"], "--corpus is missing"),
        (["--corpus", "{task}/test.jsonl", "--retriever", "elasticsearch"], "needs --elastic_index"),
        (["--corpus", "{corpus}", "--index_dir", "{task}"], "exists and is not an index"),
    ],
)
def test_errors_of_retrieve_are_messages_without_a_traceback(work, tmp_path, arguments, message):
    filled = [argument.format(task=work / "task", corpus=work / "corpus.parquet") for argument in arguments]
    fails("recipes/retrieve.py", "--task", work / "task", *filled, "--output_dir", tmp_path / "out", message=message)
