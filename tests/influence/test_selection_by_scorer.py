"""Selection with the scorer itself; another process that scores its share gives the files that one process gives."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_tlm.influence import InfluenceScorer, select
from hf_tlm.retrieval import retrieve
from support.influence_shares import scored
from support.naive import tiny

TESTS = Path(__file__).resolve().parents[1]
# Data and model are made again in the other process.
PROGRAM = """
import sys
from pathlib import Path
sys.path += [{tests!r}, {root!r}]
import conftest
from support.influence_shares import scored
scored(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.mark.slow
def test_two_processes_and_one_give_the_same_files(tmp_path):
    program = PROGRAM.format(tests=str(TESTS), root=str(TESTS.parent))
    command = [sys.executable, "-c", program, str(tmp_path / "two"), "1", "2"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        one = scored(tmp_path / "one")
        two = scored(tmp_path / "two", 0, 2)
        output, _ = other.communicate(timeout=120)
    finally:
        other.kill()
    assert other.returncode == 0, output
    np.testing.assert_array_equal(one, two)
    assert one.shape == (50, 6) and np.isnan(one).sum() == 6
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1] and len(files[0]) == 8


@pytest.mark.parametrize("layer", [0, -1])
def test_select_with_a_scorer(task, corpus, tokenizer, tmp_path, layer):
    subset = retrieve(task, corpus, top_k=8, cache_dir=str(tmp_path / "cache"))
    scorer = InfluenceScorer([tiny("bert")], tokenizer, layer=layer)
    found = select(task, subset, fraction=0.3, balance="class", scorer=scorer, work_dir=tmp_path / "work", max_length=32)
    assert len(found) == round(0.3 * len(subset)) and np.isfinite(found.dataset["influence"]).all()
    made = json.loads(json.dumps(found.manifest["selection"]))
    assert made["layer"] == layer % 3 and len(made["parameters"]) == 1
    assert made["parameters"][0] in found.summary() and made["scorer_fingerprint"] == scorer.fingerprint
