"""Selection with the real scorer; two processes that divide the scoring give the files of a single process."""

import json
from functools import partial

import numpy as np
import pytest

from hf_tlm.influence import InfluenceScorer, select
from hf_tlm.retrieval import retrieve
from support import warm
from support.influence_shares import scored
from support.naive import tiny


@pytest.mark.slow
def test_two_processes_and_one_give_the_same_files(tmp_path):
    # The other process creates the same data and model.
    other = warm.start(partial(scored, tmp_path / "two", 1, 2), 1)
    one = scored(tmp_path / "one")
    two = scored(tmp_path / "two", 0, 2)
    assert warm.ended(other, 120) == 0
    np.testing.assert_array_equal(one, two)
    assert one.shape == (50, 6) and np.isnan(one).sum() == 6
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1] and len(files[0]) == 8


@pytest.mark.parametrize("layer", [0, -1])
def test_select_with_an_influence_scorer(task, corpus, tokenizer, tmp_path, layer):
    subset = retrieve(task, corpus, top_k=8, cache_dir=str(tmp_path / "cache"))
    scorer = InfluenceScorer([tiny("bert")], tokenizer, layer=layer)
    found = select(task, subset, fraction=0.3, balance="class", scorer=scorer, work_dir=tmp_path / "work", max_length=32)
    assert len(found) == round(0.3 * len(subset)) and np.isfinite(found.dataset["influence"]).all()
    record = json.loads(json.dumps(found.manifest["selection"]))
    assert record["layer"] == layer % 3 and len(record["parameters"]) == 1
    assert record["parameters"][0] in found.summary() and record["scorer_fingerprint"] == scorer.fingerprint
