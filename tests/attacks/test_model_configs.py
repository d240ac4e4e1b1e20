"""Model configs with misspelt keys or impossible values are refused by name, before a run is claimed or trained."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from attacks.attack import assert_refused, attack
from hf_tlm.models import ModelError, read_config
from hf_tlm.models.families import FAMILIES
from support.warm import ROOT

BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
WRONG = {
    "a misspelt key": ({"hiden_size": 16}, "has no 'hiden_size'. Did you mean hidden_size"),
    "a key of another type": ({"global_attn": 3}, "a bert config has no 'global_attn'"),
    "a key for the reader": ({"return_unused_kwargs": True}, "has no 'return_unused_kwargs'"),
    "a name of Python": ({"__class__": "x"}, "transformers cannot create a config"),
    "positions that no version of now has": ({"position_embedding_type": "relative_key"}, "'position_embedding_type'"),
    "a negative size": ({"hidden_size": -4}, "hidden_size -4 (expected 1 or more)"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers 0 (expected 1 or more)"),
    "no positions": ({"max_position_embeddings": 0}, "max_position_embeddings 0 (expected 1 or more)"),
    "a size as a text": ({"hidden_size": "32"}, "expected int, got str"),
    "a size as a list": ({"hidden_size": [32]}, "expected int, got list"),
    "heads that do not divide": (
        {"num_attention_heads": 5},
        "expected a multiple of the 5 attention heads",
    ),
    "more than everything dropped": ({"hidden_dropout_prob": 7}, "hidden_dropout_prob 7 (expected 0 or more"),
    "no number": ({"initializer_range": float("nan")}, "initializer_range nan (expected a finite number)"),
    "no such activation": ({"hidden_act": "gellu"}, "hidden_act 'gellu' (expected one of gelu"),
    "no such precision": ({"dtype": "float33"}, "transformers cannot create a config"),
    "no such type": ({"model_type": "brt"}, "model_type: expected one of bert"),
    "a list as the type": ({"model_type": ["bert"]}, "model_type: expected one of bert"),
}
NO_CONFIG = {
    "an array": ("[1, 2]", "expected a JSON object, received a list"),
    "a number": ("3", "expected a JSON object, received a int"),
    "half": ('{"model_type": "bert", ', "is not JSON"),
    "nothing": ("", "is not JSON"),
    "no type": ("{}", "needs a `model_type`"),
    "depth": ("[" * 100_000, "is not JSON"),
    "another encoding": (b'{"model_type": "b\xe9rt"}', "is not JSON"),
}


@pytest.mark.parametrize("changes,message", WRONG.values(), ids=WRONG)
def test_wrong_config_is_refused(tmp_path, changes, message):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(BERT | changes))
    with pytest.raises(ModelError) as raised:
        read_config(path)
    assert message in str(raised.value) and len(str(raised.value)) < 1000


@pytest.mark.parametrize("content,message", NO_CONFIG.values(), ids=NO_CONFIG)
def test_file_that_is_not_a_config_is_refused(tmp_path, content, message):
    path = tmp_path / "model.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError) as raised:
        read_config(path)
    assert message in str(raised.value)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_saved_configs_are_read(tmp_path, model_type):
    config = AutoConfig.for_model(model_type, id2label={0: "a", 1: "b"}, architectures=["Any"])
    config.save_pretrained(tmp_path)
    assert read_config(tmp_path / "config.json").to_dict() == config.to_dict()


@pytest.mark.parametrize("path", sorted(Path(ROOT).glob("*/**/models/*.json")), ids=lambda path: path.stem)
def test_configs_of_the_repository_are_read(path):
    assert read_config(path).model_type in FAMILIES


def test_harmless_keys_of_older_configs_are_accepted(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(BERT | {"position_embedding_type": "absolute", "gradient_checkpointing": False}))
    assert read_config(path).hidden_size == 32


def test_training_with_a_misspelt_key_is_refused(toys, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(BERT | {"hiden_size": 16}))
    assert_refused(attack("train_tlm", *toys.commands["train_tlm"], "--model_config", path), "Did you mean hidden_size")
    assert not toys.out.exists()
