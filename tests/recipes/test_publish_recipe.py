"""recipes/publish.py, and --push_to_hub of the other recipes, against the loopback Hub."""

import json

import pytest
from datasets import load_dataset

from hf_tlm.errors import HfTlmError, HubError
from hf_tlm.hub import PublishArguments
from hf_tlm.retrieval import Subset
from support.launching import TINY, run_recipe


def test_subset_is_published(hub, recipe, subset):
    arguments = ("publish", "--subset", subset, "--repo_id", "alice/passages", "--private", "false", "--license", "mit")
    assert "Would publish to alice/passages" in recipe(*arguments, "--dry_run")
    assert not hub.repositories
    assert "Published alice/passages (public) as commit" in recipe(*arguments, "--tag", "v1")
    assert "already has this content" in recipe(*arguments)
    repository = hub.repository("alice/passages", "dataset")
    assert not repository.private and repository.tags["v1"] == hub.history("alice/passages", "dataset")[0]
    assert b"license: mit" in hub.files("alice/passages", "dataset")["README.md"]
    assert load_dataset("alice/passages", split="train").to_dict() == Subset.load(subset).dataset.to_dict()


def test_retrieve_pushes_its_subset(hub, recipe, work, tmp_path, monkeypatch):
    arguments = ["retrieve", "--task", work / "task", "--corpus", work / "corpus.parquet", "--top_k", "4"]
    arguments += ["--push_to_hub", "--hub_dataset_id", "alice/passages", "--hub_revision", "next"]
    out = recipe(*arguments, "--output_dir", tmp_path / "subset")
    assert "Published alice/passages@next (private) as commit" in out and hub.repository("alice/passages", "dataset").private
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="Log in with"):
        recipe(*arguments, "--output_dir", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_select_influence_pushes_its_subset(hub, recipe, work, subset, tmp_path, monkeypatch):
    arguments = ["select_influence", "--task", work / "task", "--subset", subset, "--method", "random", "--fraction", "0.5"]
    arguments += ["--use_cpu", "true", "--report_to", "none", "--push_to_hub", "--hub_dataset_id", "alice/fewer"]
    assert "Published alice/fewer (private) as commit" in recipe(*arguments, "--output_dir", tmp_path / "fewer")
    assert json.loads(hub.files("alice/fewer", "dataset")["manifest.json"])["selection"]["method"] == "random"
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="Log in with"):
        recipe(*arguments, "--output_dir", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_run_of_two_processes_is_published_once(hub, recipe, work, tmp_path):
    out = run_recipe(
        "recipes/train_tlm.py", "--task", work / "task", "--model_config", work / "model.json", *TINY, "--rho1", "0",
        "--push_to_hub", "--hub_model_id", "alice/toy", "--output_dir", tmp_path / "run", processes=2,
    )  # fmt: skip
    assert out.count("published    ") == 1
    assert len([path for method, path in hub.log if "/commit/" in path]) == 1
    assert [path for _, path in hub.log].count("/api/whoami-v2") == 1
    assert hub.files("alice/toy")["results.json"] == (tmp_path / "run" / "results.json").read_bytes()

    # Publish it to another repository, and verify it.
    arguments = ("publish", "--model", tmp_path / "run", "--repo_id", "alice/other", "--dataset", "alice/passages@v1")
    assert "loads without hf_tlm, equal to the local one" in recipe(*arguments, "--verify")
    assert b"datasets:\n- alice/passages\n" in hub.files("alice/other")["README.md"]


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([], "Pass one of --model, --subset, --space, --legacy_checkpoint; received none"),
        (["--model", "a", "--subset", "b", "--repo_id", "me/x"], "received model, subset"),
        (["--model", "a"], "--model needs --repo_id owner/name: the repository"),
        (["--legacy_checkpoint", "a"], "--legacy_checkpoint needs --output_dir: the folder for"),
        (["--legacy_checkpoint", "a", "--output_dir", "b", "--verify"], "--verify True has no effect without --repo_id"),
        (["--legacy_checkpoint", "a", "--output_dir", "b", "--private", "false"], "--private False has no effect without"),
        (
            ["--model", "a", "--repo_id", "me/x", "--config_name", "small"],
            "--config_name small has no effect",
        ),
        (
            ["--model", "a", "--repo_id", "me/x", "--task", "scierc"],
            "--task scierc has no effect",
        ),
        (["--subset", "a", "--repo_id", "me/x", "--dataset", "me/y"], "has no effect on a subset"),
        (["--subset", "a", "--repo_id", "me/x", "--widget_texts", "a text"], "has no effect on a subset"),
        (["--subset", "a", "--repo_id", "me/x", "--dry_run", "--verify"], "--dry_run publishes nothing"),
        (["--model", "nowhere", "--repo_id", "me/x"], "nowhere contains no model"),
        (["--subset", "nowhere", "--repo_id", "me/x", "--config_name", "small"], "nowhere is not a saved subset"),
    ],
)
def test_invalid_combination_of_options_is_refused(recipe, arguments, message):
    with pytest.raises(HfTlmError, match=message):
        recipe("publish", *arguments)


def test_export_is_not_verified(tmp_path):
    (tmp_path / "export.json").write_text("{}")
    with pytest.raises(HfTlmError, match="--verify compares weights in safetensors, and .* is an export"):
        PublishArguments(model=str(tmp_path), repo_id="me/x", verify=True)
