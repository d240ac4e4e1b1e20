"""Folders of runs and subsets are published to the loopback Hub: the files that arrive, their cards, and what is
refused.
"""

import json
import re

import pytest
from datasets import load_dataset
from transformers import AutoConfig, AutoModelForMaskedLM, pipeline, set_seed

from hf_tlm.errors import HubError
from hf_tlm.hub import SubsetHubArguments, publish_model, publish_subset
from hf_tlm.hub.cards import tlm_card
from hf_tlm.models import TlmModel, export_stock
from hf_tlm.retrieval import retrieve
from support.card_records import RUN
from support.toys import TINY_CONFIGS


@pytest.fixture
def model(tokenizer, tmp_path):
    """The folder of a finished run, with files that are not published."""
    set_seed(0)
    stock = TlmModel.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"]))
    files = {"README.md": tlm_card(RUN, 1), "results.json": "{}", "settings.json": "{}"}
    folder = export_stock(stock, tokenizer, tmp_path / "run", files)
    (folder / "seed-1" / "stage1").mkdir(parents=True)
    (folder / "seed-1" / "results.json").write_text("{}")
    tokenizer.save_pretrained(folder / "tokenizer")  # As pretraining saves it.
    return folder


@pytest.fixture
def subset(task, corpus, tmp_path):
    retrieved = retrieve(task, corpus, top_k=5)
    retrieved.save(tmp_path / "subset")
    return retrieved


def test_model_is_published_with_its_card(hub, model):
    before = (model / "README.md").read_text()
    chosen = {"license": "mit", "dataset": "alice/passages@abc", "widget_texts": ["the cell"]}
    done = publish_model(model, "alice/toy", tag="v1", **chosen)
    files = hub.files("alice/toy")
    assert {"config.json", "model.safetensors", "mlm/model.safetensors", "tokenizer.json"} <= set(files)
    assert {"README.md", "results.json", "settings.json"} <= set(files)
    assert not [name for name in files if name.startswith(("seed", "tokenizer/"))]
    assert hub.repository("alice/toy").private and hub.repository("alice/toy").tags == {"v1": done.commit}
    card = files["README.md"].decode()
    assert 'model="alice/toy"' in card and "path/or" not in card and "license: mit" in card
    assert "datasets:\n- alice/passages\n" in card and "datasets/alice/passages/tree/abc" in card
    assert "widget:\n- text: the cell\n" in card
    assert (model / "README.md").read_text() == before
    assert publish_model(model, "alice/toy", **chosen).commit is None
    classify = pipeline("text-classification", model="alice/toy")
    assert classify("the gene") == pipeline("text-classification", model=str(model))("the gene")
    assert AutoModelForMaskedLM.from_pretrained("alice/toy", subfolder="mlm")


def test_folder_without_a_card_is_published_without_one(hub, model):
    (model / "README.md").unlink()
    publish_model(model, "alice/toy")
    assert "README.md" not in hub.files("alice/toy")
    with pytest.raises(HubError, match="has no README.md for the license"):
        publish_model(model, "alice/toy", license="mit")


@pytest.mark.parametrize("metadata", ["a: [", "- a\n- b"])
def test_card_with_invalid_metadata_is_refused(hub, model, metadata):
    (model / "README.md").write_text(f"---\n{metadata}\n---\n# Mine\n")
    with pytest.raises(HubError, match="The metadata of .*README.md cannot be used"):
        publish_model(model, "alice/toy", license="mit")
    assert not hub.log


def test_card_that_is_not_utf_8_is_refused(hub, model):
    (model / "README.md").write_bytes("---\nlicense: mit\n---\nCafé\n".encode("latin-1"))
    with pytest.raises(HubError, match="README.md is not UTF-8 text: .* Save it as UTF-8."):
        publish_model(model, "alice/toy")
    assert not hub.log


def test_only_tokenizer_of_a_run_is_published_from_its_subfolder(hub, model):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    publish_model(model, "alice/toy")
    assert "tokenizer/tokenizer.json" in hub.files("alice/toy")


def test_subset_is_published_with_its_card(hub, subset, tmp_path):
    publish_subset(tmp_path / "subset", "alice/passages", language="de")
    card = hub.files("alice/passages", "dataset")["README.md"].decode()
    assert 'load_dataset("alice/passages", split="train")' in card and "language: de" in card
    rows = load_dataset("alice/passages", split="train")
    assert rows.to_dict() == subset.dataset.to_dict() and rows.features == subset.dataset.features
    streamed = load_dataset("alice/passages", split="train", streaming=True)
    assert list(streamed) == subset.dataset.to_list()


def test_folder_without_model_or_subset_is_refused(hub, model, tmp_path):
    with pytest.raises(HubError, match="contains no model"):
        publish_model(tmp_path / "none", "alice/toy")
    with pytest.raises(HubError, match=f"contains no model.* There is a model in {re.escape(str(model))}: pass that"):
        publish_model(model.parent, "alice/toy")
    with pytest.raises(HubError, match="contains no subset"):
        publish_subset(model, "alice/toy")
    for publish, kind in ((publish_model, "model"), (publish_subset, "subset")):
        with pytest.raises(HubError, match=f"contains no {kind}"):
            publish("x" * 5000, "alice/toy")
    (tmp_path / "baselines" / "linear").mkdir(parents=True)
    (tmp_path / "baselines" / "linear" / "linear.json").touch()
    for folder in ("baselines", "baselines/linear"):
        with pytest.raises(HubError, match="contains a linear model"):
            publish_model(tmp_path / folder, "alice/toy")
    (model / "results.json").unlink()
    with pytest.raises(HubError, match="contains an unfinished run"):
        publish_model(model, "alice/toy")
    assert not [path for method, path in hub.log if method == "POST"]


def test_objects_in_place_of_a_folder_are_refused(hub, subset):
    for publish, given in ((publish_subset, subset), (publish_model, AutoConfig.for_model("bert")), (publish_model, None)):
        with pytest.raises(HubError, match="folder: expected a folder; received"):
            publish(given, "alice/x", dry_run=True)


def test_damaged_subset_is_refused(hub, subset, tmp_path):
    data = tmp_path / "subset" / "data" / "train-00000-of-00001.parquet"
    data.write_bytes(data.read_bytes()[:-1])
    for damage in (lambda: None, data.unlink):
        damage()
        with pytest.raises(HubError, match="damaged or was edited: data/train-00000-of-00001.parquet"):
            publish_subset(tmp_path / "subset", "alice/passages")
    assert not hub.log


@pytest.mark.parametrize("place", [".", "adapter"])
def test_adapter_of_a_local_base_model_is_refused(hub, model, tmp_path, place):
    config = model / place / "adapter_config.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    with pytest.raises(HubError, match="an adapter for the local model"):
        publish_model(model, "alice/toy")
    config.write_text(json.dumps({"base_model_name_or_path": "alice/base"}))
    assert config.relative_to(model).as_posix() in publish_model(model, "alice/toy").pushed


def test_hub_arguments_of_recipes_that_create_a_subset(hub, subset, tmp_path, monkeypatch):
    assert SubsetHubArguments().publish(tmp_path / "subset") is None
    SubsetHubArguments().check()
    assert not hub.log
    with pytest.raises(HubError, match="--push_to_hub needs --hub_dataset_id"):
        SubsetHubArguments(push_to_hub=True)
    with pytest.raises(HubError, match="--hub_dataset_id and --hub_revision have no effect"):
        SubsetHubArguments(hub_dataset_id="alice/passages", hub_revision="next")
    with pytest.raises(HubError, match="--hub_private_repo and --hub_token have no effect"):
        SubsetHubArguments(hub_private_repo=True, hub_token="hf_x")
    options = {"hub_private_repo": False, "hub_revision": "next"}
    args = SubsetHubArguments(True, "alice/passages", **options)
    args.check()
    assert args.publish(tmp_path / "subset").repo.revision == "next"
    assert not hub.repository("alice/passages", "dataset").private
    with pytest.raises(HubError, match="cannot publish as 'bob'"):
        SubsetHubArguments(True, "bob/passages").check()
    token = "hf_a_token_that_nobody_has"
    args = SubsetHubArguments(True, "alice/passages", hub_token=token, **options)
    assert token not in repr(args)
    with pytest.raises(HubError) as caught:
        args.publish(tmp_path / "subset")
    later = f"hf-tlm publish --subset {tmp_path / 'subset'} --repo_id alice/passages --private false --revision next"
    assert later in str(caught.value) and token not in str(caught.value)
