"""Every kind of model and a subset: published, and loaded from the Hub as what they were."""

import datasets
import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from hf_tlm.hub import push, verify
from hf_tlm.models import CorruptAndPredict, TlmModel, auxiliary_config, export_stock
from hf_tlm.retrieval import retrieve
from toys import TINY_CONFIGS


def tlm(model_type):
    return TlmModel.from_config(AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type]))


def composite(model_type, *sizes):
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    return CorruptAndPredict.from_config(config, auxiliary_config(config, *sizes))


@pytest.mark.parametrize(
    "make,parts",
    [
        *((lambda kind=kind: tlm(kind), {"", "mlm"}) for kind in ("bert", "roberta", "modernbert")),
        (lambda: composite("electra", 0.5), {"", "discriminator", "generator"}),
        (lambda: composite("albert", 0.5), {"", "discriminator", "generator"}),
    ],
    ids=["bert", "roberta", "modernbert", "electra", "ale"],
)
def test_stock_models(hub, here, tmp_path, tokenizer, make, parts):
    folder = export_stock(make(), tokenizer, tmp_path / "run", {"README.md": "# A card\n", "results.json": "{}"})
    push(folder, "alice/model", message="m")
    done = verify("alice/model", local=folder)
    assert set(done.differences) == parts and set(done.differences.values()) == {0.0}
    assert {"README.md", "results.json"} <= set(hub.files("alice/model"))


def test_an_adapter(hub, here, tmp_path, tokenizer):
    base, folder = tmp_path / "base", tmp_path / "run"
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"]))
    model.save_pretrained(base)
    adapted = get_peft_model(
        AutoModelForSequenceClassification.from_pretrained(base),
        LoraConfig(
            r=2, task_type="SEQ_CLS", target_modules=["query"], modules_to_save=["classifier"], init_lora_weights=False
        ),
    )
    adapted.save_pretrained(folder)
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    push(folder, "alice/adapter", message="m")
    done = verify("alice/adapter", local=folder)
    assert done.loaded[""].startswith("PeftModel") and done.differences == {"": 0.0}


def test_a_subset(hub, here, tmp_path, task, corpus):
    subset = retrieve(task, corpus, retriever="random", num_passages=10)
    subset.save(tmp_path / "subset")
    push(tmp_path / "subset", "alice/subset", type="dataset", message="m", tag="v1")
    assert push(tmp_path / "subset", "alice/subset", type="dataset", message="m", tag="v1").commit is None
    done = verify("alice/subset", revision="v1", type="dataset", local=tmp_path / "subset")
    assert list(done.differences.values()) == [0.0]
    streamed = datasets.load_dataset("alice/subset", split="train", streaming=True)
    assert [row["text"] for row in streamed] == subset.dataset["text"][:]


def test_the_tokenizer_is_the_same(hub, tmp_path, tokenizer):
    folder = export_stock(tlm("bert"), tokenizer, tmp_path / "run")
    push(folder, "alice/model", message="m")
    text = "the enzyme inhibits the drug"
    assert AutoTokenizer.from_pretrained("alice/model")(text) == tokenizer(text)
