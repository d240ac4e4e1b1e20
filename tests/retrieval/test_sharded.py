"""Sharded retrieval equals the single index for any number of shards, survives kills, and reports errors clearly."""

import json
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_tlm.corpora import load_corpus
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.engine import RetrievalRequest
from hf_tlm.retrieval.settings import VARIANTS, Bm25Settings
from hf_tlm.retrieval.sharded import sharded, workspace
from hf_tlm.retrieval.sharded.sharded import retrieve_sharded
from hf_tlm.retrieval.texts import Analyzer, RetrievalError
from hf_tlm.utils.locks import LockError, awaited
from support import warm
from support.sharded_retrieval import WORDS, check_same, random_texts, rows_of, single, write_parts

pytest.importorskip("datatrove", reason="NO SHARDED RETRIEVAL TESTED: pip install 'hf-tlm[sharded]'")


# Passages of only "the" and "x" have no tokens.
TEXTS = st.lists(
    st.lists(st.sampled_from([*WORDS[:6], "the", "x"]), min_size=1, max_size=5).map(" ".join), min_size=1, max_size=25
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    texts=TEXTS,
    queries=st.lists(st.lists(st.sampled_from(WORDS[:8]), max_size=5).map(" ".join), min_size=1, max_size=4),
    num_shards=st.integers(1, 9),
    top_k=st.integers(1, 12),
    variant=st.sampled_from(VARIANTS["bm25"]),
    max_query_terms=st.sampled_from([None, None, 1, 2]),
)
def test_sharded_hits_equal_the_single_index(tmp_path_factory, texts, queries, num_shards, top_k, variant, max_query_terms):
    # With few words many passages tie, also across shards; with few passages some shards are empty.
    folder = tmp_path_factory.mktemp("property")
    corpus, bm25 = load_corpus(Dataset.from_dict(rows_of(texts)), id_column="id"), Bm25Settings(variant)
    expected = single(queries, corpus, top_k, bm25, folder, max_query_terms=max_query_terms)
    result = retrieve_sharded(
        queries,
        corpus,
        top_k,
        bm25,
        work_dir=folder / "work",
        num_shards=num_shards,
        workers=1,
        max_query_terms=max_query_terms,
    )
    check_same(result, expected)
    assert result.counts["passages"] == len(texts) == sum(result.counts["sources"].values())
    shutil.rmtree(folder)


@pytest.mark.parametrize("variant", VARIANTS["bm25"])
def test_every_variant_on_files_equals_the_single_index(tmp_path, variant):
    corpus = write_parts(tmp_path / "corpus", random_texts(400) + random_texts(100), 5)
    queries, bm25 = [*random_texts(20, seed=1), "", "nothing here knows"], Bm25Settings(variant)
    result = retrieve_sharded(queries, corpus, 9, bm25, work_dir=tmp_path / "work", num_shards=3, workers=1)
    check_same(result, single(queries, corpus, 9, bm25, tmp_path))
    assert result.without_hits == [21]
    assert result.counts["sources"] == {"biology": 167, "news": 167, "wikipedia": 166}
    assert result.counts["bad_files"] == []


@pytest.mark.slow
def test_processes_print_little_and_a_repeated_run_is_the_same(tmp_path, capfd):
    corpus = write_parts(tmp_path / "corpus", random_texts(300), 4)
    queries = random_texts(10, seed=1)
    expected = single(queries, corpus, 5, Bm25Settings(), tmp_path)
    capfd.readouterr()
    for _ in range(2):
        result = retrieve_sharded(queries, corpus, 5, work_dir=tmp_path / "work", num_shards=3, workers=2)
        check_same(result, expected)
    shown = capfd.readouterr()
    assert shown.out == "" and "shards" in shown.err
    assert "datatrove" not in shown.err and "PIPELINE" not in shown.err and "| INFO" not in shown.err
    log = (tmp_path / "work" / "logs" / "index" / "logs" / "task_00000.log").read_text(encoding="utf-8")
    assert "PIPELINE" in log


DRIVER = """
    import sys
    sys.path.insert(0, {tests!r})
    from hf_tlm.corpora import load_corpus
    from hf_tlm.retrieval.sharded.sharded import retrieve_sharded
    from support.sharded_retrieval import random_texts
    if __name__ == "__main__":
        corpus = load_corpus({corpus!r}, id_column="id")
        retrieve_sharded(random_texts(10, seed=1), corpus, 5, work_dir={work!r}, num_shards=6, workers=2)
"""


@pytest.mark.slow
def test_killed_run_is_continued(tmp_path):
    corpus = write_parts(tmp_path / "corpus", random_texts(3000), 6)
    work, script = tmp_path / "work", tmp_path / "driver.py"
    program = DRIVER.format(tests=str(Path(__file__).parents[1]), corpus=str(tmp_path / "corpus"), work=str(work))
    script.write_text(textwrap.dedent(program))
    [driver] = warm.start(partial(warm.run_file, str(script), []), 1)
    # Kill it when some shards are indexed and others are not.
    deadline = time.monotonic() + 120
    while len(list((work / "index").glob("[0-9]*"))) < 2:
        assert driver.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    processes = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.join()
    kept = {path: path.stat().st_mtime_ns for path in (work / "index").glob("[0-9]*")}
    assert 2 <= len(kept) < 6 and not (work / "union").exists()

    result = retrieve_sharded(random_texts(10, seed=1), corpus, 5, work_dir=work, num_shards=6, workers=2)
    check_same(result, single(random_texts(10, seed=1), corpus, 5, Bm25Settings(), tmp_path))
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in kept.items())
    assert not list(work.glob("*/.*"))  # Unfinished folders are removed.
    assert processes and not psutil.wait_procs(processes, timeout=10)[1]  # No process outlives its run.


@pytest.mark.slow
def test_script_from_standard_input_is_refused(tmp_path):
    """Other processes cannot import what it defines."""
    write_parts(tmp_path / "corpus", random_texts(20), 2)
    paths = {"corpus": str(tmp_path / "corpus"), "work": str(tmp_path / "work")}
    program = textwrap.dedent(DRIVER.format(tests=str(Path(__file__).parents[1]), **paths))
    ended = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and "must be a file (not standard input), with its code under `if __name__" in ended.stderr


class Killed(BaseException):
    """An exception that no handler catches: for files it has the effect of a kill."""


@pytest.mark.parametrize("stage", ["IndexShard", "SumStatistics", "SearchShard", "MergeHits", "GatherTexts"])
@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_run_killed_in_any_stage_is_continued(tmp_path, monkeypatch, stage, when):

    from hf_tlm.retrieval.sharded import steps

    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(60))), id_column="id")
    arguments = {"work_dir": tmp_path / "work", "num_shards": 3, "workers": 1}
    queries, step = random_texts(5, seed=1), getattr(steps, stage)
    last = 0 if stage in ("SumStatistics", "MergeHits") else 1
    if when == "after":  # The output exists, but not the completion marker.
        run = step.run

        def killed(self, data=None, rank=0, world_size=1):
            run(self, data, rank, world_size)
            if rank == last:
                raise Killed
    else:
        work = step.work

        def killed(self, folder, rank, world_size):
            if rank == last:
                if when == "inside":
                    work(self, folder, rank, world_size)
                raise Killed
            work(self, folder, rank, world_size)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(step, "run" if when == "after" else "work", killed)
        retrieve_sharded(queries, corpus, 5, **arguments)
    check_same(retrieve_sharded(queries, corpus, 5, **arguments), single(queries, corpus, 5, Bm25Settings(), tmp_path))


@pytest.mark.parametrize("lost", ["passages/00001", "index/00001", "statistics", "hits/00002", "union", "texts/00000"])
def test_missing_output_is_created_again_despite_its_marker(tmp_path, lost):
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(60))), id_column="id")
    arguments = {"work_dir": tmp_path / "work", "num_shards": 3, "workers": 1}
    queries = random_texts(5, seed=1)
    retrieve_sharded(queries, corpus, 5, **arguments)
    shutil.rmtree(tmp_path / "work" / lost)
    check_same(retrieve_sharded(queries, corpus, 5, **arguments), single(queries, corpus, 5, Bm25Settings(), tmp_path))
    assert (tmp_path / "work" / lost).is_dir()


def test_killed_worker_is_an_error(tmp_path, monkeypatch):
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(60))), id_column="id")
    arguments = {"work_dir": tmp_path / "work", "num_shards": 2, "workers": 2}
    with monkeypatch.context() as patch:
        patch.setattr("hf_tlm.retrieval.sharded.steps.IndexShard.__reduce__", kill_on_unpickling, raising=False)
        with pytest.raises(RetrievalError, match=r"shard \d was killed by signal 9.*more shards or fewer workers"):
            retrieve_sharded(["word1"], corpus, 5, **arguments)
    assert len(retrieve_sharded(["word1"], corpus, 5, **arguments).passages) == 5


def kill_this_process(*_):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def kill_on_unpickling(step):
    return kill_this_process, ()


def test_work_of_older_versions_without_scripts_is_continued(tmp_path):
    corpus, queries = load_corpus(Dataset.from_dict(rows_of(random_texts(20))), id_column="id"), ["some words"]
    identity = sharded._identity(tokenize_texts(queries, Analyzer()), corpus, 5, Bm25Settings(), None, 2)
    before = {"variant": "lucene", "k1": 1.2, "b": 0.75, "delta": None, "stopwords": "en", "stemmer": None}
    assert identity["settings"] == before and Bm25Settings(script="marks").to_dict() == {**before, "script": "marks"}
    request = RetrievalRequest("task", ["a"], queries, 5, Bm25Settings(), None, tmp_path)
    assert request.digest("more") == "6918b74752e35c43"


def test_work_dir_of_another_run_is_refused(tmp_path):
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(20))), id_column="id")
    other = load_corpus(Dataset.from_dict(rows_of(random_texts(20, seed=3))), id_column="id")
    work = {"work_dir": tmp_path / "work", "workers": 1}
    retrieve_sharded(["word1"], corpus, 5, num_shards=2, **work)
    for match, queries, texts, options in [
        ("corpus was .* now", ["word1"], other, {}),
        ("queries was 1 of .* now 2 of", ["word1", "word2"], corpus, {}),
        ("num_shards was 2, now 3", ["word1"], corpus, {"num_shards": 3}),
        ("top_k was 5, now 6", ["word1"], corpus, {"top_k": 6}),
        ("max_query_terms was None, now 4", ["word1"], corpus, {"max_query_terms": 4}),
        ("settings was .*'k1': 1.2.* now .*'k1': 2", ["word1"], corpus, {"settings": Bm25Settings(k1=2)}),
    ]:
        with pytest.raises(RetrievalError, match=f"belongs to another run: {match}"):
            retrieve_sharded(queries, texts, **{"top_k": 5, "num_shards": 2, **work, **options})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(RetrievalError, match="contains files that do not belong to a sharded run"):
        retrieve_sharded(["word1"], corpus, 5, num_shards=2, work_dir=tmp_path / "full")
    (tmp_path / "work" / "run.json").write_text("{")
    with pytest.raises(RetrievalError, match="run.json is damaged"):
        retrieve_sharded(["word1"], corpus, 5, num_shards=2, **work)


def test_second_run_in_the_same_work_dir_is_refused(tmp_path):
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(20))), id_column="id")
    with awaited(tmp_path / "work"), pytest.raises(LockError, match="Wait for it to end, or choose another work_dir"):
        retrieve_sharded(["word1"], corpus, 5, num_shards=2, work_dir=tmp_path / "work", workers=1)
    assert len(retrieve_sharded(["word1"], corpus, 5, num_shards=2, work_dir=tmp_path / "work", workers=1).passages) == 5


@pytest.mark.parametrize("num_shards", [1, 4])
def test_repeated_ids_are_refused(tmp_path, num_shards):
    write_parts(tmp_path / "corpus", random_texts(20), 2)
    shutil.copy(tmp_path / "corpus" / "part0.jsonl", tmp_path / "corpus" / "part7.jsonl")
    corpus = load_corpus(str(tmp_path / "corpus"), id_column="id")
    with pytest.raises(RetrievalError, match="'p.*' occurs twice"):
        retrieve_sharded(["word1"], corpus, 5, num_shards=num_shards, work_dir=tmp_path / "work", workers=1)


def test_large_file_is_divided_between_shards(tmp_path):
    from hf_tlm.retrieval.sharded.workspace import plan

    texts = random_texts(9_000, longest=4)
    texts[5], texts[4500] = "", " "
    write_parts(tmp_path / "corpus", texts, 1)
    (tmp_path / "corpus" / "small.txt").write_text("word1 word2\nword3\n")
    (tmp_path / "corpus" / "empty.jsonl").write_text("")
    corpus = load_corpus(str(tmp_path / "corpus"), max_words=3)
    shards = plan(corpus.parts, 4)
    assert shards == plan(reversed(corpus.parts), 4)  # The same on every machine and in every run.
    assert sorted((p.name, p.number, p.of) for pieces in shards for p in pieces) == [
        ("empty.jsonl", 0, 1),
        *(("part0.jsonl", number, 4) for number in range(4)),
        ("small.txt", 0, 1),
    ]
    result = retrieve_sharded(["word1 word2", "word9"], corpus, 7, work_dir=tmp_path / "work", num_shards=4, workers=1)
    expected = single(["word1 word2", "word9"], corpus, 7, Bm25Settings(), tmp_path)
    check_same(result, expected)
    assert result.counts["passages"] == len(expected[2]) and result.counts["skipped"] == 2
    sizes = [json.loads(path.read_text())["passages"] for path in (tmp_path / "work").glob("passages/*/counts.json")]
    assert min(sizes) >= 1900


def test_more_shards_than_passages(tmp_path):
    corpus = write_parts(tmp_path / "corpus", ["word1 word2", "word1"], 2)
    result = retrieve_sharded(["word1"], corpus, 5, work_dir=tmp_path / "work", num_shards=7, workers=1)
    check_same(result, single(["word1"], corpus, 5, Bm25Settings(), tmp_path))


def spoil(path):
    """Damage a parquet file in its middle, so that part of it can be read."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = b"\xff" * 200
    path.write_bytes(data)


@pytest.mark.parametrize("workers", [1, 2])
def test_unreadable_files_are_refused_or_skipped(tmp_path, workers, capfd, caplog):
    folder = tmp_path / "corpus"
    write_parts(folder, random_texts(200), 3)
    rows = rows_of(random_texts(5_000), [f"q{i}" for i in range(5_000)])
    Dataset.from_dict(rows).to_parquet(folder / "broken.parquet", batch_size=500)
    (folder / "text.jsonl").write_text('{"id": "x", "text": "word1", "source": "news"}\n{"id":', encoding="utf-8")
    spoil(folder / "broken.parquet")
    corpus = load_corpus(str(folder), id_column="id")
    arguments = {"work_dir": tmp_path / "work", "num_shards": 3, "workers": workers}
    queries = random_texts(5, seed=1)
    with pytest.raises(RetrievalError, match=r"Cannot read .*(broken\.parquet|text\.jsonl)"):
        retrieve_sharded(queries, corpus, 5, **arguments)
    shown = capfd.readouterr()
    assert "Traceback" not in shown.out + shown.err

    # The same run continues without them, and equals that of the readable files.
    result = retrieve_sharded(queries, replace(corpus, skip_bad_files=True), 5, **arguments)
    assert result.counts["bad_files"] == ["broken.parquet", "text.jsonl"]
    assert caplog.text.count("is left out of the corpus: Cannot read") == 2
    assert result.counts["passages"] == 200
    readable = load_corpus([str(folder / f"part{i}.jsonl") for i in range(3)], id_column="id")
    check_same(result, single(queries, readable, 5, Bm25Settings(), tmp_path))

    with pytest.raises(RetrievalError, match=r"has left out files .*: broken\.parquet, text\.jsonl\."):
        retrieve_sharded(queries, corpus, 5, **arguments)


def test_two_writers_of_the_same_output_leave_one(tmp_path):
    """For example if a machine that was believed lost continues."""
    from hf_tlm.retrieval.sharded.workspace import Workspace

    workspace = Workspace(str(tmp_path))
    for _ in range(2):
        with workspace.writing("index/00000") as slow:
            (slow / "data").write_text("same")
            with workspace.writing("index/00000") as fast:
                (fast / "data").write_text("same")
    assert [path.name for path in tmp_path.glob("index/*")] == ["00000"]
    assert (workspace.reading("index/00000") / "data").read_text() == "same"


def test_full_disk_is_reported_and_the_run_can_be_repeated(tmp_path, monkeypatch):
    import errno

    corpus = write_parts(tmp_path / "corpus", random_texts(60), 2)
    arguments = {"work_dir": tmp_path / "work", "num_shards": 2, "workers": 1}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hf_tlm.retrieval.sharded.steps.write_table", full)
        with pytest.raises(RetrievalError, match="Cannot write .*hits/00000: The disk of .* is full"):
            retrieve_sharded(["word1"], corpus, 5, **arguments)
    check_same(retrieve_sharded(["word1"], corpus, 5, **arguments), single(["word1"], corpus, 5, Bm25Settings(), tmp_path))


def test_damaged_index_is_named(tmp_path):
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(60))), id_column="id")
    arguments = {"work_dir": tmp_path / "work", "num_shards": 2, "workers": 1}
    retrieve_sharded(["word1"], corpus, 5, **arguments)
    path = tmp_path / "work" / "index" / "00001" / "index" / "postings.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    shutil.rmtree(tmp_path / "work" / "hits" / "00001")
    with pytest.raises(RetrievalError, match="00001/index/postings.bin is damaged"):
        retrieve_sharded(["word1"], corpus, 5, **arguments)


def test_changed_file_in_a_work_dir_is_refused(tmp_path):
    corpus = write_parts(tmp_path / "corpus", random_texts(60), 2)
    expected = single(["word1", "word2"], corpus, 5, Bm25Settings(), tmp_path)
    work = tmp_path / "work"

    def again():
        workspace._cached_problem.cache_clear()  # A process checks a folder only once.
        return retrieve_sharded(["word1", "word2"], corpus, 5, work_dir=work, num_shards=2, workers=1)

    check_same(again(), expected)
    shutil.copytree(work, tmp_path / "whole")
    for name, later in (
        ("queries/ids.npy", ("hits",)),
        ("passages/00001/counts.json", ()),
        ("passages/00001/passages.arrow", ("texts",)),
        ("index/00001/frequencies.npy", ("statistics",)),
        ("statistics/frequencies.npy", ("hits",)),
        ("hits/00001/scores.bin", ("union",)),
        ("union/union.arrow", ()),
        ("texts/00001/passages.arrow", ()),
    ):
        shutil.rmtree(work)
        shutil.copytree(tmp_path / "whole", work)
        for folder in later:  # The outputs that depend on it are created again.
            shutil.rmtree(work / folder)
        data = bytearray((work / name).read_bytes())
        data[len(data) // 2] ^= 1
        (work / name).write_bytes(data)
        with pytest.raises(RetrievalError, match=f"{name} .*is damaged. Delete .*work and repeat the same call"):
            again()
    for content in ("[]", "3"):
        (work / "run.json").write_text(content)
        with pytest.raises(RetrievalError, match="run.json is damaged"):
            again()


def test_unexpected_error_names_its_log(tmp_path, monkeypatch):
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(20))), id_column="id")
    monkeypatch.setattr("hf_tlm.retrieval.sharded.steps.read_statistics", lambda workspace: 1 / 0)
    with pytest.raises(
        RetrievalError, match="Shard 0 failed in the stage search: ZeroDivisionError.*task_00000.log"
    ) as caught:
        retrieve_sharded(["word1"], corpus, 5, num_shards=2, work_dir=tmp_path, workers=1)
    log = Path(str(caught.value).partition("See ")[2].partition(";")[0])
    assert "ZeroDivisionError" in log.read_text(encoding="utf-8")
    monkeypatch.undo()
    assert len(retrieve_sharded(["word1"], corpus, 5, num_shards=2, work_dir=tmp_path, workers=1).passages) == 5


CPUS_AS_TEXT, NO_MEMORY = {"cpus_per_task": "4"}, {"mem_per_cpu_gb": 0}
HALF_A_GIGABYTE = {"partition": "cpu", "time": "1:00:00", "mem_per_cpu_gb": 0.5}


@pytest.mark.parametrize(
    ("match", "arguments"),
    [
        ("executor must be one of local, ray, slurm, jobs; received 'spark'", {"executor": "spark"}),
        ("num_shards: expected .*; received 0", {"num_shards": 0}),
        ("workers: expected .*; received 0", {"workers": 0}),
        ("top_k: expected .*; received 0", {"top_k": 0}),
        ("local executor has no option partition; it has", {"executor_options": {"partition": "cpu"}}),
        (
            "cpus_per_task of .* options: expected a whole number.*'4'",
            {"executor": "slurm", "executor_options": CPUS_AS_TEXT},
        ),
        ("mem_per_cpu_gb of .*: expected a number.*; received 0", {"executor": "slurm", "executor_options": NO_MEMORY}),
        ("start_method of .*: expected .*forkserver; received 'frok'", {"executor_options": {"start_method": "frok"}}),
        ("slurm executor needs partition and time", {"executor": "slurm"}),
        (
            "mem_per_cpu_gb of the slurm executor: expected a whole number of gigabytes; received 0.5",
            {"executor": "slurm", "executor_options": HALF_A_GIGABYTE},
        ),
        (
            "slurm executor has no option max_array_launch_parallel",
            {"executor": "slurm", "executor_options": {"max_array_launch_parallel": True}},
        ),
        ("no sbatch on the PATH", {"executor": "slurm", "executor_options": {"partition": "cpu", "time": "1:00:00"}}),
        ("needs a token of the Hugging Face Hub", {"executor": "jobs"}),
        ("jobs executor needs dependencies", {"executor": "jobs", "executor_options": {"token": "hf_x"}}),
    ],
)
def test_invalid_arguments_are_refused_before_any_stage(tmp_path, corpus, monkeypatch, match, arguments):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(RetrievalError, match=match):
        retrieve_sharded(["word"], corpus, **{"top_k": 5, "num_shards": 2, "work_dir": tmp_path / "work", **arguments})
    assert not (tmp_path / "work").exists()


def test_missing_packages_are_reported_with_their_extra(tmp_path, corpus, monkeypatch):
    for name in ("datatrove", "ray"):
        with monkeypatch.context() as patch:
            patch.setattr("importlib.util.find_spec", lambda module, name=name: None if module == name else module)
            extra = {"datatrove": "sharded", "ray": "ray"}[name]
            with pytest.raises(RetrievalError, match=rf"pip install 'hf-tlm\[{extra}\]'"):
                retrieve_sharded(["word"], corpus, 5, num_shards=2, work_dir=tmp_path / "work", executor="ray")


def test_corpus_without_passages_is_refused(tmp_path):
    corpus = load_corpus(Dataset.from_dict({"id": ["a"], "text": [" "], "source": ["x"]}), id_column="id")
    with pytest.raises(ValueError, match="no passage"):
        retrieve_sharded(["word"], corpus, 5, num_shards=2, work_dir=tmp_path / "work", workers=1)


# Stand-ins for the Slurm commands that are used: sbatch runs the complete array at once on this machine. A real
# Slurm is in test_sharded_slurm.py, where one is installed.
SLURM = {
    "sbatch": """
        import os, re, subprocess, sys
        script = open(sys.argv[-1]).read()
        count = int(re.search(r"#SBATCH --array=0-(\\d+)", script)[1]) + 1
        for task in range(count):
            env = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "here", "RUN_OFFSET": "0"}
            subprocess.run(["bash", "-c", script], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.environ["SLURM_LOG"], "a") as log:
            print(count, re.search("#SBATCH --partition=(.*)", script)[1], file=log)
        print("Submitted batch job 17")
    """,
    "srun": """
        import subprocess, sys
        sys.exit(subprocess.run(sys.argv[sys.argv.index("-n") + 2 :]).returncode)
    """,
    "scontrol": "print('here')",
    "squeue": "pass",
}


@pytest.mark.slow
def test_slurm_executor_with_stand_in_commands(tmp_path, monkeypatch):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in SLURM.items():
        (commands / name).write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_LOG", str(tmp_path / "log"))
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(60))), id_column="id")
    options = {"partition": "cpu", "time": "0:10:00"}
    arguments = {"work_dir": tmp_path / "work", "num_shards": 2, "executor": "slurm", "executor_options": options}
    queries = random_texts(5, seed=1)
    expected = single(queries, corpus, 5, Bm25Settings(), tmp_path)
    check_same(retrieve_sharded(queries, corpus, 5, **arguments), expected)
    assert (tmp_path / "log").read_text() == "2 cpu\n2 cpu\n"  # Index and search.
    shutil.rmtree(tmp_path / "work" / "hits" / "00001")
    check_same(retrieve_sharded(queries, corpus, 5, **arguments), expected)
    assert (tmp_path / "log").read_text() == "2 cpu\n2 cpu\n1 cpu\n"

    # The jobs of a killed run are waited for while they are in the queue, and not submitted again.
    queue = iter([True, True, False])
    monkeypatch.setattr("hf_tlm.retrieval.sharded.executors.in_queue", lambda job: job == "17" and next(queue))
    monkeypatch.setattr("hf_tlm.retrieval.sharded.executors.SLURM_POLL", 0)
    shutil.rmtree(tmp_path / "work" / "hits" / "00001")
    with pytest.raises(RetrievalError, match="Shard 1 failed in the stage search: its process or machine was lost"):
        retrieve_sharded(queries, corpus, 5, **arguments)
    assert (tmp_path / "log").read_text() == "2 cpu\n2 cpu\n1 cpu\n" and next(queue, None) is None


def test_job_counts_as_queued_if_squeue_fails(monkeypatch):
    answers = {"1": (0, "1 cpu\n", ""), "2": (0, "", ""), "3": (1, "", "slurm_load_jobs error: Invalid job id specified")}
    answers["4"] = (1, "", "slurm_load_jobs error: Unable to contact slurm controller")

    from hf_tlm.retrieval.sharded.executors import in_queue

    def squeue(command, **_):
        return subprocess.CompletedProcess(command, *answers[command[-1]])

    monkeypatch.setattr("hf_tlm.retrieval.sharded.executors.subprocess.run", squeue)
    assert [in_queue(job) for job in ("1", "2", "3", "4", -1)] == [True, False, False, True, False]


def test_jobs_executor_with_stand_in_jobs(tmp_path, monkeypatch):
    """Jobs run in this process, and the remote folder is fsspec's memory: there is no Hub to test with."""
    import types

    import huggingface_hub
    from datatrove.tools import launch_pickled_pipeline

    launched = []

    def run_uv_job(script, *, script_args, env, secrets, dependencies, **_):
        launched.append((dependencies, secrets["HF_TOKEN"]))
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", [script, *script_args])
            launch_pickled_pipeline.main()
        return types.SimpleNamespace(id=f"job{len(launched)}", url="")

    done = types.SimpleNamespace(status=types.SimpleNamespace(stage="COMPLETED"))
    monkeypatch.setattr(huggingface_hub, "run_uv_job", run_uv_job)
    monkeypatch.setattr(huggingface_hub, "inspect_job", lambda **_: done)
    corpus = load_corpus(Dataset.from_dict(rows_of(random_texts(60))), id_column="id")
    options = {"token": "hf_secret", "dependencies": ["hf-tlm[sharded]"], "poll_interval": 0}
    arguments = {"work_dir": "memory://work", "num_shards": 2, "executor": "jobs", "executor_options": options}
    queries = random_texts(5, seed=1)
    expected = single(queries, corpus, 5, Bm25Settings(), tmp_path)
    for _ in range(2):
        check_same(retrieve_sharded(queries, corpus, 5, **arguments), expected)
    assert launched == [(["hf-tlm[sharded]"], "hf_secret")] * 6  # Index, search and gather.

    from fsspec.core import url_to_fs

    files = url_to_fs("memory://work")[0]
    assert not any(b"hf_secret" in files.cat_file(path) for path in files.find("/work"))
    with pytest.raises(RetrievalError, match="jobs executor needs a remote work_dir"):
        retrieve_sharded(queries, corpus, 5, **{**arguments, "work_dir": tmp_path / "work"})
