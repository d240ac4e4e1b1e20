"""--push_to_hub of a run: checked before training, pushed once from the finished folder, and failing pushes."""

import json
import sys
from types import SimpleNamespace

import pytest
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from hf_tlm.corpora import load_corpus
from hf_tlm.data import BlockArguments
from hf_tlm.errors import HubError
from hf_tlm.hub import publish_model
from hf_tlm.runs import run_pretraining, run_tlm
from hf_tlm.training import ArgumentsError, ModelArguments, PretrainArguments, TlmArguments
from hf_tlm.training.publishing import publish_run
from support.toys import FAST, TINY_CONFIGS, sentences

CONFIG = {"model_type": "bert", **{k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}}
SHORT = {**FAST, "rho1": 0, "max_steps": 2, "stage2_max_steps": 2, "push_to_hub": True, "hub_model_id": "alice/toy"}


def go(folder, task, model=None, **changes):
    args = TlmArguments(output_dir=str(folder), **{**SHORT, **changes})
    return run_tlm(task, None, args, ModelArguments(**{"model_config": CONFIG, "vocab_size": 120, **(model or {})}))


def requests_that_write(hub):
    return [path for method, path in hub.log if method != "GET"]


@pytest.mark.slow
def test_finished_folder_is_published_once(hub, tmp_path, task):
    run = go(tmp_path / "out", task, seeds=[0, 1])
    files = hub.files("alice/toy")
    for name in ("model.safetensors", "mlm/model.safetensors", "config.json", "tokenizer.json", "results.json"):
        assert files[name] == (tmp_path / "out" / name).read_bytes(), name
    assert json.loads(files["settings.json"])["arguments"]["rho2"] == 20
    assert b'model="alice/toy"' in files["README.md"] and not [name for name in files if "seed" in name]
    assert len(hub.history("alice/toy")) == 2 and hub.repository("alice/toy").private
    assert f"published    {hub.url}/alice/toy (commit {run.push.commit[:12]})" in run.to_text()
    loaded = AutoModelForSequenceClassification.from_pretrained("alice/toy")
    assert set(loaded.config.label2id) == {"down", "none", "up"}

    # The same command again neither trains nor pushes; with another repository it pushes again.
    again = go(tmp_path / "out", task, seeds=[0, 1])
    assert again.push.commit is None and "already has this content" in again.to_text()
    again = go(tmp_path / "out", task, seeds=[0, 1], hub_model_id="alice/other", hub_private_repo=False, hub_revision="next")
    assert again.push.commit == hub.history("alice/other", revision="next")[0] and not hub.repository("alice/other").private


def test_pretrained_model_is_published(hub, tmp_path):
    args = {name: value for name, value in SHORT.items() if not name.startswith(("rho", "stage2"))}
    corpus = load_corpus(Dataset.from_list([{"text": row["text"] + "."} for row in sentences(60, seed=9)]))
    model_args = ModelArguments(model_config=CONFIG, vocab_size=120)
    blocks = BlockArguments(validation_share=0.2)
    run = run_pretraining(corpus, PretrainArguments(output_dir=str(tmp_path / "out"), **args), model_args, blocks)
    files = hub.files("alice/toy")
    assert files["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    assert b'model="alice/toy"' in files["README.md"] and not [name for name in files if name.startswith("training/")]
    assert "published    " in run.to_text()


@pytest.mark.parametrize(
    "problem,message",
    [
        ("nobody", "Log in with `hf auth login`"),
        ("stranger", "cannot publish as 'bob'"),
        ("offline", "Unset it. Or train without push_to_hub and the hub_ options, and publish .* with `hf-tlm publish`"),
    ],
)
def test_access_is_checked_before_training(hub, tmp_path, task, monkeypatch, problem, message):
    if problem == "nobody":
        monkeypatch.delenv("HF_TOKEN")
    if problem == "offline":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=message):
        go(tmp_path / "out", task, hub_model_id="bob/toy" if problem == "stranger" else "alice/toy")
    assert not (tmp_path / "out").exists() and not requests_that_write(hub)


def test_adapter_of_a_local_base_model_is_refused(hub, tmp_path, task):
    with pytest.raises(ArgumentsError, match="need a base model on this machine"):
        go(tmp_path / "out", task, {"use_peft": True})
    assert not (tmp_path / "out").exists() and not hub.log


def test_pretraining_adapter_is_published_with_its_base(hub, tmp_path):
    """It is beside the merged model and names its base by the repository id; an adapter of a local base is refused."""
    corpus = load_corpus(Dataset.from_list([{"text": row["text"] + "."} for row in sentences(60, seed=9)]))
    args = {name: value for name, value in SHORT.items() if not name.startswith(("rho", "stage2", "hub"))}

    def pretrain(name, **model):
        arguments = PretrainArguments(output_dir=str(tmp_path / name), hub_model_id=f"alice/{name}", **args)
        return run_pretraining(corpus, arguments, ModelArguments(**model), BlockArguments(validation_share=0.2))

    pretrain("base", model_config=CONFIG, vocab_size=120)
    with pytest.raises(ArgumentsError, match="need a base model on this machine"):
        pretrain("refused", model_name_or_path=str(tmp_path / "base"), use_peft=True)
    assert not (tmp_path / "refused").exists()
    pretrain("further", model_name_or_path="alice/base", use_peft=True, lora_r=2)
    files = hub.files("alice/further")
    assert json.loads(files["adapter/adapter_config.json"])["base_model_name_or_path"] == "alice/base"
    assert "adapter/adapter_model.safetensors" in files and "model.safetensors" in files
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]


def test_failing_push_keeps_the_run_and_explains_how_to_publish(hub, sleeps, tmp_path, task, caplog, capfd, monkeypatch):
    token = hub.add_user("alice")
    monkeypatch.setattr(sys, "argv", ["train_tlm.py", "--hub_token", token, f"--hub_token={token}", "--hub-token", token])
    hub.fail(lambda method, path: "/commit/" in path, 500, times=100)
    with pytest.raises(HubError) as caught:
        go(tmp_path / "out", task, hub_token=token)
    message = str(caught.value)
    assert "Nothing was published" in message
    assert f"hf-tlm publish --model {tmp_path / 'out'} --repo_id alice/toy" in message
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["command"] == "train_tlm.py --hub_token '<hidden>' '--hub_token=<hidden>' --hub-token '<hidden>'"
    assert results["summary"] and "Trying again" in caplog.text
    hub.faults.clear()
    assert publish_model(tmp_path / "out", "alice/toy", token=token).commit

    # The token is in no local or published file, and in no message.
    output = "".join(capfd.readouterr()) + caplog.text + message
    assert token not in output
    everything = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [data for data in [*everything, *hub.files("alice/toy").values()] if token.encode() in data]


def test_other_processes_publish_nothing(hub, tmp_path):
    args = SimpleNamespace(push_to_hub=True, process_index=1, hub_model_id="alice/toy")
    assert publish_run(tmp_path, args) is None and not hub.log
