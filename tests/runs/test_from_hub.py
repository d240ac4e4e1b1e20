"""A run whose subset, checkpoint and score model are on the Hub: what is loaded, and what is recorded."""

import json

import pytest
import torch
from huggingface_hub import RepoCard
from transformers import AutoConfig

from hf_tlm.models import TlmModel, export_stock
from hf_tlm.retrieval import Subset, retrieve
from hf_tlm.runs import run_tlm, score_models
from hf_tlm.training import ModelArguments, ScoreModelArguments, TlmArguments
from support.toys import FAST, TINY_CONFIGS


@pytest.fixture
def base(hub, tmp_path, tokenizer):
    """The model at the tag v1; main has another model."""
    models = []
    for seed, revision in ((0, "v1"), (1, "main")):
        torch.manual_seed(seed)
        models.append(TlmModel.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])))
        folder = export_stock(models[-1], tokenizer, tmp_path / revision)
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        hub.put("alice/base", files, revision=revision)
    return models[0]


@pytest.mark.slow
def test_run_records_its_hub_sources(hub, tmp_path, task, corpus, base):
    commit = retrieve(task, corpus, top_k=2).push_to_hub("alice/passages", config="small").commit
    # With learning rate 0 the model stays equal to the loaded one.
    still = {"max_steps": 2, "stage2_max_steps": 2, "learning_rate": 0.0, "stage2_learning_rate": 0.0}
    args = TlmArguments(output_dir=str(tmp_path / "out"), **{**FAST, **still})
    model_args = ModelArguments(model_name_or_path="alice/base@v1")
    run = run_tlm(task, Subset.open("alice/passages:small"), args, model_args)
    found = TlmModel.from_checkpoint(str(tmp_path / "out"), id2label=task.id2label).state_dict()
    assert all(torch.equal(value, found[name]) for name, value in base.state_dict().items())
    assert run.details["model"]["model_name_or_path"] == "alice/base" and run.details["model"]["model_revision"] == "v1"
    assert run.details["subset"]["hub"] == {"repo_id": "alice/passages", "revision": commit, "config": "small"}
    card = RepoCard((tmp_path / "out" / "README.md").read_text(encoding="utf-8"))
    assert card.data["base_model"] == "alice/base" and card.data["datasets"] in ("alice/passages", ["alice/passages"])
    assert commit in card.text
    # No file names a folder of the cache.
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and path.suffix in (".json", ".md"):
            assert "hub-cache" not in path.read_text(encoding="utf-8"), path
    assert json.loads((tmp_path / "out" / "config.json").read_text())["label2id"] == task.label2id


def test_score_models_are_loaded_at_their_revisions(hub, tmp_path, task, corpus, base):
    args = ScoreModelArguments(output_dir="unused", report_to="none", use_cpu=True)
    subset = retrieve(task, corpus, top_k=2)
    models, tokenizer, described = score_models(task, subset, ["alice/base@v1", "alice/base"], args, ModelArguments())
    assert described == ["alice/base@v1", "alice/base"] and len(tokenizer) == 120
    expected = base.bert.encoder.layer[0].output.dense.weight
    first, second = (model.bert.encoder.layer[0].output.dense.weight for model in models)
    assert torch.equal(first, expected) and not torch.equal(second, expected)
