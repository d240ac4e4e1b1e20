"""recipes/select_influence.py on an executor writes the score files and the subset of a single process."""

import pytest
from transformers import AutoConfig, set_seed

from hf_tlm.data import train_wordpiece
from hf_tlm.models import TlmModel, export_stock
from hf_tlm.retrieval import Subset
from support.launching import run_recipe
from support.toys import TINY_CONFIGS, sentences


@pytest.mark.slow
def test_influence_on_an_executor_equals_that_of_one_process(work, subset):
    set_seed(0)
    model = TlmModel.from_config(AutoConfig.for_model("electra", **TINY_CONFIGS["electra"]))
    export_stock(model, train_wordpiece([row["text"] for row in sentences(60, 9)], 120, max_length=32), work / "score")
    common = ["recipes/select_influence.py", "--task", work / "task", "--subset", subset, "--fraction", "0.3", "--use_cpu"]
    common += ["true", "--report_to", "none", "--score_model", work / "score", "--layer", "1"]
    results = []
    for name, options in {"here": [], "executor": ["--executor", "local", "--num_shards", "2", "--workers", "2"]}.items():
        scores, out = work / f"scores-{name}", work / name
        text = run_recipe(*common, *options, "--work_dir", scores, "--output_dir", out)
        assert "passages by influence" in text and "PIPELINE" not in text
        files = {path.name: path.read_bytes() for path in scores.iterdir()}
        results.append((Subset.load(out).dataset.to_list(), files))
    assert results[0] == results[1] and sorted(results[0][1]) == ["scores-00000.npy", "settings.json"]
