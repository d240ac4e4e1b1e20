"""Settings and fixtures of all tests: offline, small and deterministic.

The environment is set before any Hugging Face library is imported.
"""

import functools
import gc
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.loopback import VARIABLES, LoopbackHub, constants

_HOME = tempfile.mkdtemp(prefix="hf-tlm-tests-")
_HUB = LoopbackHub()  # A port of this process that only answers while the fixture `hub` is used.
os.environ.update(
    HF_HOME=_HOME,
    HF_ENDPOINT=_HUB.url,
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_XET="1",  # The loopback Hub keeps large files as LFS objects.
    NO_PROXY="127.0.0.1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",  # Tests run in as many processes as there are cores.
)
if os.environ.get("HF_TLM_TEST_GPU", "") in ("", "cpu"):  # Only tests/gpu uses the GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config):
    """Import heavy packages and patch slow functions in each process that runs tests.

    The controller of pytest-xdist only hands tests out, and all workers wait for it: there nothing is imported.
    """
    if config.option.dist != "no" and not hasattr(config, "workerinput"):
        # In a new clone all workers would compile the same kernels at the same time, each for ten seconds.
        if not config.option.collectonly and not any(ROOT.glob("hf_tlm/retrieval/bm25/__pycache__/*.nbi")):
            command = [sys.executable, "-c", "import hf_tlm.retrieval.sharded.preload"]
            config.compiling = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return
    import torch

    from support import quick

    torch.set_num_threads(1)
    quick.change()


@pytest.fixture(autouse=True)
def one_thread():
    """Set torch to one thread: results depend on the number of threads, which another package's use of OpenMP may set."""
    import torch

    torch.set_num_threads(1)


STARTS_PROCESSES = {"subprocess", "multiprocessing", "warm", "run_recipe", "run_processes", "two_are_one", "launch", "mp"}


# Names that test modules import to fork from the warm server. It is started before the first test: a process can have only
# one fork server, and one that the package starts for its own work has imported less.
FORKS = {"warm", "run_recipe", "run_processes", "two_are_one", "run_page", "attack", "assert_refused"}
# Folders with files that take minutes. They run first, so that at the end no worker waits long for another's last file.
LONG = ("tests/docs/", "tests/recipes/", "tests/test_", "tests/attacks/", "tests/training/", "tests/retrieval/")


@pytest.hookimpl(trylast=True)  # After tests were deselected.
def pytest_collection_modifyitems(config, items):
    if not config.option.collectonly and any(FORKS & set(vars(item.module)) for item in items):
        from support import warm

        warm.server()
    # On a loaded machine other processes now and then miss a port or a deadline, or do not end: such a test has a second
    # try, which the summary counts as a rerun. A test that runs in its own process has none.
    for item in items:
        if STARTS_PROCESSES & set(vars(item.module)):
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=lambda item: next((at for at, folder in enumerate(LONG) if item.nodeid.startswith(folder)), len(LONG)))
    # Every Trainer collects garbage: it need not look through all imported modules and collected tests each time.
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Print the reasons of skipped tests that begin in capitals: checks that cannot run on this machine."""
    reasons = {report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])}
    for reason in sorted(reasons):
        if reason[:5].isupper():
            terminalreporter.write_line(reason, yellow=True)


@pytest.fixture
def task():
    from support.toys import make_task

    return make_task()


@pytest.fixture(scope="session")
def corpus_rows():
    from support.toys import sentences

    return [{"text": row["text"] + ".", "source": f"part{i % 2}"} for i, row in enumerate(sentences(60, seed=9))]


@pytest.fixture
def corpus(corpus_rows):
    from datasets import Dataset

    from hf_tlm.corpora import load_corpus

    return load_corpus(Dataset.from_list(corpus_rows))


@pytest.fixture(scope="session")
def tokenizer(corpus_rows):
    from hf_tlm.data import train_wordpiece

    return train_wordpiece([row["text"] for row in corpus_rows], 120, max_length=32)


@pytest.fixture(scope="session")
def one_registry():
    """Build torch's registry of ONNX operators once.

    Otherwise torch reads the sources of its 500 operators again for each graph, a sixth of the graph's time.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """An empty Hub on this machine that clients in this process and in subprocesses use; alice is logged in.

    Without `HF_TOKEN` in the environment nobody is logged in. The client's cache belongs to the test.
    """
    import huggingface_hub

    _HUB.start()
    _HUB.reset()
    cache = tmp_path / "hub-cache"
    for name, value in zip(VARIABLES, (_HUB.add_user("alice"), "0", str(cache)), strict=True):
        monkeypatch.setenv(name, value)
    for name, value in constants(cache).items():
        monkeypatch.setattr(name, value)
    huggingface_hub.HfFileSystem.clear_instance_cache()
    return _HUB


@pytest.fixture
def recipe(monkeypatch, capsys):
    """Return a function that runs a recipe's main in this process and returns what it printed."""

    def main(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(ROOT / "recipes" / f"{name}.py"), run_name="recipe")["main"]()
        return capsys.readouterr().out

    return main


@pytest.fixture
def sleeps(monkeypatch):
    """Replace `time.sleep`: return the list of the seconds that were asked for, in order."""
    seconds = []
    monkeypatch.setattr("time.sleep", seconds.append)
    return seconds


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real tasks and corpus."""
    path = Path(os.environ.get("HF_TLM_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "tasks").is_dir():
        pytest.skip(f"NO REAL DATA: {path}/tasks is not there. Set HF_TLM_DATA to the folder with tasks/ and corpus/.")
    return path
