"""Every section of benchmarks/retrieval.py runs, at a size at which its figures mean nothing."""

import json
import multiprocessing
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import warm
from support.warm import ROOT

SECTIONS = ["search", "build", "memory", "sharded", "scale", "terms"]


@pytest.fixture(scope="module")
def small_data(tmp_path_factory):
    """A folder with tasks/chemprot and corpus/ in the layout of the real data, filled with random words."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    words = np.array(["the", "of", *(f"word{i}" for i in range(300))])
    weights = 1 / np.arange(1, len(words) + 1)
    text = lambda size: " ".join(rng.choice(words, size, p=weights / weights.sum()))  # noqa: E731
    for path, number, length in (("corpus/a", 150, 40), ("corpus/b", 150, 40), ("tasks/chemprot/train", 40, 12)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        column = [text(length) for _ in range(number)]
        pq.write_table(pa.table({"text": column, "source": ["s"] * number}), folder / f"{path}.parquet")
    return folder


def forked(path, arguments):
    """Run a benchmark with forked processes: new ones would import everything again."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import measuring

    measuring.get_context = lambda method: multiprocessing.get_context("fork")
    warm.run_file(path, arguments)


def run(data, tmp_path, *arguments, start=warm.run_file):
    given = ["--work_dir", tmp_path / "work", "--results_dir", tmp_path / "results", "--top_k", "3", "20", "--repeats", "1"]
    given += ["--build_repeats", "1", *arguments]
    environment = {"HF_TLM_DATA": str(data)}
    done = warm.call(start, "benchmarks/retrieval.py", list(map(str, given)), environment=environment, limit=280)
    assert done.status == 0, done.stderr[-3000:]
    return done.stdout, json.loads((tmp_path / "results" / "retrieval.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_all_sections_run_and_one_can_be_repeated(small_data, tmp_path):
    pytest.importorskip("datatrove")
    sizes = [
        "--sizes",
        "400",
        "--stop_words",
        "kept",
        "--build_size",
        "200",
        "--memory_sizes",
        "200",
        "--query_batch_sizes",
        "8",
        "16",
    ]
    sizes += ["--sharded_sizes", "300", "--scale_sizes", "100", "500", "--whole_top_k", "5", "--terms_size", "200"]
    sizes += ["--max_query_terms", "2", "1000", "--memory_top_k", "5", "--tantivy_queries", "0"]
    out, results = run(small_data, tmp_path, *sizes, start=forked)
    assert list(results) == SECTIONS
    assert (tmp_path / "results" / "retrieval.md").read_text() in out
    search = results["search"]["rows"]
    assert [(row["passages"], row["stop words"], row["K"]) for row in search] == [(400, "kept", 3), (400, "kept", 20)]
    assert all(row["ratio"] > 0 and row["2 threads"] > 0 for row in search)
    assert [row["engine"] for row in results["build"]["rows"]] == ["ours", "bm25s"]
    assert [row["query_batch_size"] for row in results["memory"]["rows"]] == [8, 16]
    assert [row["of them perturbed copies"] for row in results["scale"]["rows"]] == [0, 200]
    assert [row["kept"] == 1 for row in results["terms"]["rows"]] == [True, False, True] * 2
    # Repeating one section, in a new process as for a user, keeps the figures of the others.
    _, again = run(small_data, tmp_path, "--sections", "terms", "--terms_size", "200", "--max_query_terms", "3")
    assert {name: again[name] for name in SECTIONS[:-1]} == {name: results[name] for name in SECTIONS[:-1]}
    assert [row["terms"] for row in again["terms"]["rows"]] == ["all", 3] * 2


def test_perturbed_corpus_keeps_real_passages_and_has_no_duplicates(small_data, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from perturbed_corpus import CHANGED, make_corpus

    (small, real), (large, all_real) = make_corpus(small_data, tmp_path, 120), make_corpus(small_data, tmp_path, 700)
    assert (real, all_real) == (120, 300)
    small, large = (pa.ipc.open_stream(pa.memory_map(str(path))).read_all() for path in (small, large))
    texts = large["text"].to_pylist()
    assert small["text"].to_pylist() == texts[:120] and large.column_names == ["id", "text", "source"]
    assert len(texts) == len(set(texts)) == len(set(large["id"].to_pylist())) == 700
    words = lambda text: text.split()  # noqa: E731
    originals = [text for file in (small_data / "corpus").iterdir() for text in pq.read_table(file)["text"].to_pylist()]
    assert sorted(texts[:300]) == sorted(originals)
    pairs = zip(map(words, texts[:300]), map(words, texts[300:600]), strict=True)
    changed = [np.mean([a != b for a, b in zip(*pair, strict=True)]) for pair in pairs]
    assert 0.5 * CHANGED < np.mean(changed) <= CHANGED
