"""Sharded retrieval on a real Ray cluster of two nodes on this machine, one of which is lost during a run."""

import threading
import time

import pytest

from hf_tlm.retrieval.settings import Bm25Settings
from hf_tlm.retrieval.sharded.sharded import retrieve_sharded
from hf_tlm.retrieval.texts import RetrievalError
from support.sharded_retrieval import check_same, random_texts, single, write_parts

pytest.importorskip("datatrove", reason="NO SHARDED RETRIEVAL TESTED: pip install 'hf-tlm[sharded]'")
ray = pytest.importorskip("ray", reason="NO RAY CLUSTER TESTED: pip install 'hf-tlm[ray]'")

OPTIONS = {"mem_per_cpu_gb": 0.1}


def test_unreachable_cluster_is_refused(tmp_path):
    corpus = write_parts(tmp_path / "corpus", random_texts(20), 2)
    options = {**OPTIONS, "address": "127.0.0.1:1"}
    with pytest.raises(RetrievalError, match="Cannot reach the Ray cluster at 127.0.0.1:1"):
        retrieve_sharded(["x"], corpus, 5, work_dir=tmp_path, num_shards=2, executor="ray", executor_options=options)


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    # The head only schedules; the two nodes work.
    for cpus in (0, 1, 1):
        cluster.add_node(num_cpus=cpus, object_store_memory=80 * 2**20, include_dashboard=False)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_task_larger_than_every_node_is_refused(cluster, tmp_path):
    corpus = write_parts(tmp_path / "corpus", random_texts(20), 2)
    with pytest.raises(RetrievalError, match="No node of the Ray cluster has the resources that a task needs: 3 CPUs"):
        retrieve_sharded(
            ["word1"],
            corpus,
            5,
            work_dir=tmp_path / "work",
            num_shards=2,
            executor="ray",
            executor_options={**OPTIONS, "cpus_per_task": 3},
        )


@pytest.mark.slow
def test_run_survives_the_loss_of_a_node(cluster, tmp_path):
    corpus = write_parts(tmp_path / "corpus", random_texts(20_000, longest=60), 8)
    queries, work = random_texts(10, seed=1), tmp_path / "work"
    done_by_then = []

    def lose_a_node():
        # One index is complete, and both nodes are building others.
        while not list((work / "index").glob("[0-9]*")) or len(list((work / "index").glob(".*"))) < 2:
            time.sleep(0.005)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        done_by_then.append(len(list((work / "index").glob("[0-9]*"))))

    killer = threading.Thread(target=lose_a_node, daemon=True)
    killer.start()
    result = retrieve_sharded(queries, corpus, 5, work_dir=work, num_shards=8, executor="ray", executor_options=OPTIONS)
    killer.join(timeout=10)
    assert done_by_then and done_by_then[0] < 8
    check_same(result, single(queries, corpus, 5, Bm25Settings(), tmp_path))
    deadline = time.monotonic() + 30
    while sum(node["Alive"] for node in ray.nodes()) != 2:  # The head and the other node.
        assert time.monotonic() < deadline
        time.sleep(0.1)
