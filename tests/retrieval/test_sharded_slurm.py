"""Sharded retrieval on a real Slurm cluster of one node on this machine: its queue, a lost task, a killed run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hf_tlm.retrieval.settings import Bm25Settings
from hf_tlm.retrieval.sharded.sharded import retrieve_sharded
from hf_tlm.retrieval.texts import RetrievalError
from support.sharded_retrieval import check_same, random_texts, single, write_parts
from support.slurm_cluster import slurm_cluster  # noqa: F401

pytest.importorskip("datatrove", reason="NO SHARDED RETRIEVAL TESTED: pip install 'hf-tlm[sharded]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]

OPTIONS = {"partition": "cpu", "time": "0:10:00", "mem_per_cpu_gb": 1}
QUERIES = random_texts(10, seed=1)


def retrieve(corpus, work, **options):
    options = OPTIONS | options
    return retrieve_sharded(QUERIES, corpus, 5, work_dir=work, num_shards=4, executor="slurm", executor_options=options)


def job_of(work):
    """Wait for the job of the stage index, and return its id."""
    while not (file := work / "logs" / "index" / "job.json").exists() or not file.read_text():
        time.sleep(0.02)
    return json.loads(file.read_text())


@pytest.mark.parametrize("wrong", [{"partition": "none"}, {"time": "soon"}, {"mem_per_cpu_gb": 900}])
def test_refused_job_is_one_sentence(tmp_path, wrong, capfd):
    corpus = write_parts(tmp_path / "corpus", random_texts(20), 2)
    with pytest.raises(RetrievalError, match="Slurm refused the job; sbatch printed why, above"):
        retrieve(corpus, tmp_path / "work", **wrong)
    assert "sbatch: error" in capfd.readouterr().err


@pytest.mark.parametrize("arrays", [{}, {"max_array_size": 2}, {"tasks_per_job": 3}])
def test_hits_are_those_of_a_single_index(tmp_path, arrays):
    corpus = write_parts(tmp_path / "corpus", random_texts(200), 3)
    check_same(retrieve(corpus, tmp_path / "work", **arrays), single(QUERIES, corpus, 5, Bm25Settings(), tmp_path))


def test_cancelled_task_is_named_and_the_only_one_repeated(tmp_path):
    corpus, work = write_parts(tmp_path / "corpus", random_texts(2000), 4), tmp_path / "work"

    def cancel():
        task, steps = f"{job_of(work)}_3", ["squeue", "--steps", "--noheader", "--format", "%i"]
        while f"{task}.0" not in subprocess.run(steps, capture_output=True, text=True).stdout:
            time.sleep(0.02)
        subprocess.run(["scancel", task], check=True)

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    with pytest.raises(RetrievalError, match="Shard 3 failed in the stage index: its process or machine was lost") as error:
        retrieve(corpus, work)
    canceller.join(timeout=10)
    logs = list((work / "logs" / "index" / "slurm_logs").glob("*_3.out"))
    assert str(logs[0].parent) in str(error.value) and "CANCELLED" in logs[0].read_text()
    check_same(retrieve(corpus, work), single(QUERIES, corpus, 5, Bm25Settings(), tmp_path))
    repeated = [path.name.split("_")[1] for path in (work / "logs" / "index" / "slurm_logs").iterdir()]
    assert sorted(repeated) == ["0.out", "0.out", "1.out", "2.out", "3.out"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_jobs_of_an_ended_run_go_on_and_are_waited_for(tmp_path, end):
    corpus, work = write_parts(tmp_path / "corpus", random_texts(2000), 4), tmp_path / "work"
    script = tmp_path / "run.py"
    script.write_text(
        "from hf_tlm.corpora import load_corpus\nfrom hf_tlm.retrieval.sharded.sharded import retrieve_sharded\n"
        f"corpus = load_corpus({str(tmp_path / 'corpus')!r}, id_column='id')\n"
        f"retrieve_sharded({QUERIES!r}, corpus, 5, work_dir={str(work)!r}, num_shards=4, executor='slurm', "
        f"executor_options={OPTIONS!r})\n"
    )
    run = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True)
    job = job_of(work)
    os.killpg(run.pid, end)
    said = run.communicate()[1]
    assert end == signal.SIGKILL or f"scancel {job}" in said
    check_same(retrieve(corpus, work), single(QUERIES, corpus, 5, Bm25Settings(), tmp_path))
    assert {path.name.split("_")[0] for path in (work / "logs" / "index" / "slurm_logs").iterdir()} == {job}
