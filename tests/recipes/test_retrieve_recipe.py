"""recipes/retrieve.py as a user starts it."""

import json
import sys

import pytest

from hf_tlm import cli
from hf_tlm.retrieval import Subset
from support.elastic_server import ElasticServer
from support.launching import fails, run_recipe
from support.toys import sentences


@pytest.fixture(scope="module")
def retrieved(work):
    out = run_recipe(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--top_k", "4",
        "--report", "--output_dir", work / "retrieved",
    )  # fmt: skip
    assert "of 60 passages" in out and "retrieved:" in out
    assert 'id="retrieved"' in (work / "retrieved/analysis/report.html").read_text(encoding="utf-8")
    return work / "retrieved"


@pytest.mark.slow
def test_random_subset_has_the_size_of_another(work, retrieved):
    run_recipe(
        "recipes/retrieve.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--retriever", "random",
        "--like", retrieved, "--output_dir", work / "random",
    )  # fmt: skip
    assert len(Subset.load(work / "random").dataset) == len(Subset.load(retrieved).dataset)


@pytest.mark.slow
def test_sharded_retrieval_equals_one_index(work, retrieved):
    out = run_recipe(
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
def test_retrieve_errors_have_no_traceback(work, tmp_path, arguments, message):
    filled = [argument.format(task=work / "task", corpus=work / "corpus.parquet") for argument in arguments]
    fails("recipes/retrieve.py", "--task", work / "task", *filled, "--output_dir", tmp_path / "out", message=message)


@pytest.mark.parametrize(
    "options,told,words",
    [
        ((), False, 100),
        (("--passage_words", "0"), False, 1000),
        (("--config", "tlm/base", "--top_k", "1"), True, 1000),
        (("--config", "tlm/tiny"), False, 50),
    ],
)
def test_long_passages_are_cut_or_reported(work, tmp_path, monkeypatch, capsys, options, told, words):
    text = " ".join(row["text"] for row in sentences(60, seed=9))
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": text}) + "\n")
    arguments = ["--task", work / "task", "--corpus", tmp_path / "long.jsonl", "--output_dir", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["hf-tlm", "retrieve", *map(str, arguments), "--num_examples", "0", *options])
    cli.main()
    assert ("of the passages' words are beyond the first 100" in capsys.readouterr().out) == told
    longest = max(len(text.split()) for text in Subset.load(tmp_path / "out").dataset["text"])
    assert words / 2 < longest <= words


def test_cutting_is_not_advised_for_passages_of_elasticsearch(work, tmp_path, monkeypatch, capsys):
    """Passages of an existing index cannot be cut."""
    pytest.importorskip("elasticsearch", reason="the extra [elastic] is not installed")
    text = "\x1b[2J\n".join(row["text"] for row in sentences(60, seed=9))
    arguments = ["--retriever", "elasticsearch", "--elastic_index", "web", "--task", str(work / "task")]
    with ElasticServer() as server:
        server.add("web", {"a": {"text": text}}, {"text": {"type": "text"}, "source": {"type": "keyword"}})
        arguments += ["--elastic_url", server.url, "--output_dir", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", ["hf-tlm", "retrieve", *arguments])
        cli.main()
    output = capsys.readouterr().out
    assert "--passage_words" not in output
    assert "\x1b" not in output and "…  (BM25" in output  # A passage is shown on one line, without control characters.


@pytest.mark.parametrize("line,told", [("the gene binds", True), ("这家店的菜很好吃，服务也不错，下次还会再来的。", False)])
def test_short_lines_are_reported_by_words_of_their_script(work, tmp_path, monkeypatch, capsys, line, told):
    task = [{"text": f"{line} {i}", "label": "ab"[i % 2]} for i in range(40)]
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in task))
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for _ in range(9)), encoding="utf-8")
    arguments = ["--task", tmp_path / "task.jsonl", "--corpus", tmp_path / "lines.txt", "--output_dir", tmp_path / "out"]
    options = ["--num_examples", "0", "--top_k", "3", "--no_decontaminate"]
    monkeypatch.setattr(sys, "argv", ["hf-tlm", "retrieve", *map(str, arguments), *options])
    cli.main()
    assert ("because every line of a .txt file is one" in capsys.readouterr().out) == told
    words = "| 3 | 3 | 3 | 3 | 3 | 3 | 9 |" if told else "| 23 | 23 | 23 | 23 | 23 | 23 | 69 |"
    assert words in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
