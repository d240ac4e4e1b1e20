"""The first retrieval on a machine: compilation is announced, and finished before a progress bar shows."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import logging, sys
import tqdm.auto
from numba.core import event
from datasets import Dataset
from hf_tlm.corpora import load_corpus
from hf_tlm.retrieval import retrieve
from support.toys import make_task

logging.basicConfig(format="%(message)s", stream=sys.stdout)
shown, under, real = [], [], tqdm.auto.tqdm

class Bar(real):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        shown.append(self)
    def close(self):
        super().close()
        if self in shown:
            shown.remove(self)
    def __iter__(self):
        yield from super().__iter__()
        self.close()

class Listener(event.Listener):
    def on_start(self, event):
        under.append(("under " + str(shown[-1].desc) if shown else "before", event.data["dispatcher"].py_func.__name__))
    def on_end(self, event):
        pass

tqdm.auto.tqdm = Bar
event.register("numba:compile", Listener())
corpus = load_corpus(Dataset.from_list([{"text": f"the gene number {i} binds w{i % 9} of it"} for i in range(40)]))
retrieve(make_task(6, 3), corpus, top_k=3, decontaminate=False, cache_dir=sys.argv[1])
print("COMPILED", len(under), sorted({one for one in under if one[0] != "before"}))
"""


@pytest.mark.slow
def test_compilation_is_announced_and_precedes_the_progress_bar(tmp_path):
    """Otherwise the bar would show the compilation as hours of work.

    A second start compiles nothing, nor does one that opens the index of the first, which calls one more function.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, "tests"])
    lines = []
    for start in ("first", "second", "first"):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / start)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        lines.append(done.stdout)
    message = "Compiling the code for indexing and search, once on this machine: this takes up to a minute."
    assert lines[0].count(message) == 1 and message not in lines[1] + lines[2]
    assert lines[0].splitlines()[-1].startswith("COMPILED ") and lines[0].endswith("[]\n"), lines[0]
    assert [output.splitlines()[-1] for output in lines[1:]] == ["COMPILED 0 []"] * 2
