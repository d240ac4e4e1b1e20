"""`verify` loads a published repository in a process without this package, and compares it with the local folder."""

import json
import shutil

import datasets
import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from hf_tlm.errors import HubError
from hf_tlm.hub import push, verify
from hf_tlm.models import GeneratorDiscriminator, export_stock, generator_config
from support.toys import TINY_CONFIGS

CODE = """

try:
    import hf_tlm
except ModuleNotFoundError:
    pass
else:
    raise RuntimeError("hf_tlm is there")
"""


@pytest.fixture
def folder(tmp_path, tokenizer):
    """A classifier with its tokenizer, and the masked language model of the same body in a subfolder."""
    config = AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "run")
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "run" / "mlm")
    tokenizer.save_pretrained(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_model_with_own_code_is_verified_without_the_package(hub, tmp_path, tokenizer):
    """In a new process; the model's code is published with it, and tries to import this package."""
    config = AutoConfig.for_model("cocolm", **TINY_CONFIGS["cocolm"])
    model = GeneratorDiscriminator.from_config(config, generator_config(config, 1, 1))
    folder = export_stock(model, tokenizer, tmp_path / "run")
    with (folder / "modeling_coco_lm.py").open("a") as file:
        file.write(CODE)
    commit = push(folder, "alice/model", message="m").commit
    with pytest.raises(HubError, match="Python files of its own"):
        verify("alice/model", local=folder)
    hub.log.clear()
    done = verify("alice/model", local=folder, trust_remote_code=True)
    assert done.commit == commit and done.differences == {"": 0.0, "discriminator": 0.0, "generator": 0.0}
    assert done.loaded[""] == "CocoLmForSequenceClassification, output (1, 3)"
    assert any("/resolve/" in path and "generator/model.safetensors" in path for _, path in hub.log)
    assert "loads without hf_tlm, equal to the local one" in done.to_text()


def test_repository_that_does_not_load_is_refused(hub):
    hub.put("alice/rows", {"data/train-00000-of-00001.parquet": "not parquet"}, type="dataset")
    with pytest.raises(HubError, match="alice/rows cannot be loaded without hf_tlm: .*Parquet magic bytes"):
        verify("alice/rows", type="dataset")


def test_differing_model_is_refused(hub, here, folder):
    push(folder, "alice/model", message="m")
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder / "mlm")).save_pretrained(folder / "mlm")
    with pytest.raises(HubError, match="alice/model at commit .* differs from .*: mlm. Publish"):
        verify("alice/model", local=folder)
    push(folder, "alice/model", message="m", revision="next")
    done = verify("alice/model", revision="next", local=folder)
    assert done.differences["mlm"] == 0.0
    assert done.to_text().startswith(f"alice/model@next at commit {done.commit[:12]} loads")
    text = verify("alice/model", revision=done.commit, local=folder).to_text()
    assert text.startswith(f"alice/model at commit {done.commit[:12]} loads")


def test_dataset_is_verified_by_configuration(hub, here, tmp_path):
    rows = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "rank": [1, 2, 3]})
    for part in ("small", "large"):
        rows.to_parquet(tmp_path / "rows" / part / "train-00000-of-00001.parquet")
    configs = [{"config_name": part, "data_files": f"{part}/*.parquet"} for part in ("small", "large")]
    (tmp_path / "rows" / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    push(tmp_path / "rows", "alice/rows", type="dataset", message="m")
    done = verify("alice/rows", type="dataset", local=tmp_path / "rows")
    assert done.loaded == {"small/train": "3 rows", "large/train": "3 rows"} and set(done.differences.values()) == {0.0}
    assert verify("alice/rows", type="dataset", config="small").differences == {}
    rows.select([0, 2, 1]).to_parquet(tmp_path / "other" / "train.parquet")
    with pytest.raises(HubError, match="differs from .*: small/train"):
        verify("alice/rows", type="dataset", config="small", local=tmp_path / "other")


def test_missing_revision_access_or_content_is_refused(hub, folder, here, monkeypatch):
    push(folder, "alice/model", message="m")
    with pytest.raises(HubError, match="no branch, tag or commit 'v1'"):
        verify("alice/model", revision="v1")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="no model repository alice/model that you may see"):
        verify("alice/model")
    shutil.rmtree(folder / "mlm")
    (folder / "model.safetensors").unlink()
    push(folder, "alice/empty", message="m", token=hub.add_user("alice"), private=False)
    with pytest.raises(HubError, match="nothing to load in alice/empty"):
        verify("alice/empty")
    with pytest.raises(HubError, match="as owner/name, with its revision in a separate"):
        verify("alice/model@v1")
