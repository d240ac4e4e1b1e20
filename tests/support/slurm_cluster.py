"""A real Slurm cluster of one node on this machine, started for a test with its own settings, ports and folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import time

import pytest

SETTINGS = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000
PartitionName=cpu Nodes=ALL Default=YES MaxTime=1:00:00 State=UP
"""


def free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory):
    """Start a controller and a node with two cores, whose commands find them by SLURM_CONF.

    Only when asked to: that Slurm is installed does not mean that its daemons can run jobs here, say in a container.
    """
    if not os.environ.get("HF_TLM_TEST_SLURM"):
        pytest.skip("NO SLURM CLUSTER TESTED: apt-get install slurm-wlm, and set HF_TLM_TEST_SLURM=1")
    programs = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("slurmctld", "slurmd")]
    if None in programs:
        pytest.fail("HF_TLM_TEST_SLURM is set, but Slurm is not installed: apt-get install slurm-wlm")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(SETTINGS.format(host=host, user=user, folder=folder, ports=free_ports(2)))
    processes = []
    with pytest.MonkeyPatch.context() as patch, (folder / "log").open("w") as log:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setattr("hf_tlm.retrieval.sharded.executors.SLURM_POLL", 0.2)
        try:
            for program in programs:
                processes.append(subprocess.Popen([program, "-D"], stdout=log, stderr=log, start_new_session=True))
            deadline = time.monotonic() + 30
            while "idle" not in subprocess.run(["sinfo"], capture_output=True, text=True).stdout:
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield
        finally:
            subprocess.run(["scancel", "--user", user], capture_output=True)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and subprocess.run(["squeue", "-h"], capture_output=True).stdout:
                time.sleep(0.2)
            for process in reversed(processes):
                process.terminate()
                process.wait(timeout=60)
