"""Models and tokenizers by Hub id: revisions, private and gated repositories, pickles, custom code."""

import json

import pytest
import torch
from transformers import AutoConfig

from hf_tlm.data import load_tokenizer
from hf_tlm.errors import HubError
from hf_tlm.hub.repo import checkpoint_folder, split_revision
from hf_tlm.models import GeneratorDiscriminator, ModelError, TlmModel, convert_legacy, export_stock, read_config
from hf_tlm.training import ModelArguments
from support.released_tlm import SCIERC, published
from support.toys import TINY_CONFIGS

ID2LABEL = {0: "down", 1: "none", 2: "up"}


def tlm(seed):
    torch.manual_seed(seed)
    return TlmModel.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"]))


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def models(hub, tmp_path, tokenizer):
    """Two revisions of alice/tlm, with the masked-LM head that an export keeps beside the classifier."""
    by_revision = {}
    for number, revision in enumerate(("v1", "main")):
        by_revision[revision] = tlm(number)
        export_stock(by_revision[revision], tokenizer, tmp_path / revision)
        hub.put("alice/tlm", contents(tmp_path / revision), revision=revision)
    return by_revision


def equal_weights(first, second):
    second = second.state_dict()
    return all(torch.equal(value, second[name]) for name, value in first.state_dict().items())


def test_model_of_a_revision_is_loaded(models):
    assert equal_weights(TlmModel.from_checkpoint("alice/tlm", id2label=ID2LABEL), models["main"])
    loaded = TlmModel.from_checkpoint("alice/tlm@v1", id2label=ID2LABEL)
    assert equal_weights(loaded, models["v1"]) and not loaded.mlm_head_is_new
    assert equal_weights(TlmModel.from_checkpoint("alice/tlm", revision="v1", id2label=ID2LABEL), models["v1"])
    assert loaded.config.id2label == ID2LABEL


def test_tokenizer_is_loaded_without_downloading_weights(models, hub, tokenizer):
    assert load_tokenizer("alice/tlm@v1").get_vocab() == tokenizer.get_vocab()
    assert not [path for _, path in hub.log if path.endswith(".safetensors")]
    assert read_config("alice/tlm@v1").hidden_size == 16


def test_auxiliary_model_of_a_revision_is_loaded(models, tmp_path, tokenizer):
    torch.manual_seed(0)
    pair = GeneratorDiscriminator.from_checkpoint("alice/tlm", "alice/tlm@v1", id2label=ID2LABEL)
    expected = models["v1"].bert.encoder.layer[0].output.dense.weight
    assert torch.equal(pair.auxiliary.base_model.encoder.layer[0].output.dense.weight, expected)


def test_arguments_record_id_and_revision(hub):
    args = ModelArguments(model_name_or_path="alice/tlm@v1")
    assert (args.model_name_or_path, args.model_revision) == ("alice/tlm", "v1")
    assert args.tokenizer_source["revision"] == "v1" and args.with_objective_defaults("electra").model_revision == "v1"
    args = ModelArguments(model_name_or_path="alice/tlm", model_revision="v1", tokenizer_name="bob/words")
    assert args.tokenizer_source == {"name_or_path": "bob/words", "revision": None, "trust_remote_code": False}
    with pytest.raises(HubError, match="alice/tlm@v1 names a revision, but the option is 'v2'"):
        ModelArguments(model_name_or_path="alice/tlm@v1", model_revision="v2")


def test_existing_local_path_is_not_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alice" / "tlm@v1").mkdir(parents=True)
    assert split_revision("alice/tlm@v1") == ("alice/tlm@v1", None)
    assert checkpoint_folder("alice/tlm@v1") == "alice/tlm@v1"
    assert checkpoint_folder("bert-base-uncased") == "bert-base-uncased"


class TestRefusals:
    def load(self, name, **options):
        return TlmModel.from_checkpoint(name, id2label=ID2LABEL, **options)

    def test_pickled_weights_are_refused(self, hub, tmp_path, tokenizer):
        export_stock(tlm(0), tokenizer, tmp_path / "model")
        files = {n: c for n, c in contents(tmp_path / "model").items() if not n.endswith(".safetensors")}
        torch.save(tlm(0).state_dict(), tmp_path / "pytorch_model.bin")
        hub.put("alice/pickled", files | {"pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()})
        with pytest.raises(HubError, match="pickles .pytorch_model.bin.*safetensors"):
            self.load("alice/pickled")
        assert not [path for _, path in hub.log if path.endswith(".bin")]

    def test_custom_code_is_refused(self, hub, tmp_path, tokenizer):
        """It is not even downloaded unless it is trusted."""
        export_stock(tlm(0), tokenizer, tmp_path / "model")
        files = contents(tmp_path / "model")
        config = json.loads(files["config.json"])
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
        code = "from transformers import BertConfig\n\n\nclass OwnConfig(BertConfig):\n    model_type = 'own'\n    ran = 1\n"
        hub.put("alice/own", files | {"config.json": json.dumps(config), "own.py": code})
        with pytest.raises(ModelError, match="trust_remote_code"):
            self.load("alice/own")
        assert not [path for _, path in hub.log if path.endswith(".py")]
        with pytest.raises(ModelError, match="expected one of bert.*; received 'own'"):  # Its code created its config.
            self.load("alice/own", trust_remote_code=True)

    @pytest.mark.parametrize(
        "name,message",
        [
            ("alice/nothing", "no model repository alice/nothing that you may see"),
            ("alice/tlm@v9", "no branch, tag or commit 'v9'"),
            ("bob/private", "no model repository bob/private that you may see.*log in"),
            ("bob/gated", "gated: ask for access"),
        ],
    )
    def test_repository_that_cannot_be_read_is_refused(self, models, hub, name, message):
        hub.put("bob/private", {"config.json": "{}"}, private=True)
        hub.put("bob/gated", {"config.json": "{}"}, gated=True)
        for load in (self.load, load_tokenizer):
            with pytest.raises(HubError, match=message):
                load(name)

    def test_missing_network_is_reported(self, models, hub, sleeps):
        hub.fail(lambda method, path: True, "reset", times=1000)
        with pytest.raises(HubError, match="cannot be reached.*Check the network"):
            self.load("alice/tlm")


def test_released_checkpoint_from_the_hub_is_converted(hub, tmp_path, tokenizer):
    """Its pickle is downloaded, other files of its training are not."""
    model = published()
    tokenizer.save_pretrained(tmp_path / "released")
    model.config.save_pretrained(tmp_path / "released")
    torch.save(model.state_dict(), tmp_path / "released" / "pytorch_model.bin")
    hub.put("yxchar/tlm-sciie-small-scale", contents(tmp_path / "released") | {"optimizer.pt": b"large"})
    released = convert_legacy("yxchar/tlm-sciie-small-scale@main", tmp_path / "out")
    assert list(released.model.config.id2label.values()) == SCIERC
    assert equal_weights(TlmModel.from_checkpoint(str(tmp_path / "out"), id2label=dict(enumerate(SCIERC))), released.model)
    assert not [path for _, path in hub.log if "optimizer" in path]
