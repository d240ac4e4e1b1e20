"""Every kind of model and a subset are published, and load from the Hub unchanged."""

import datasets
import pytest
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForMultipleChoice, AutoTokenizer

from hf_tlm.errors import HubError
from hf_tlm.hub import push, verify
from hf_tlm.models import GeneratorDiscriminator, TlmModel, export_stock, generator_config
from hf_tlm.retrieval import retrieve
from support.toys import TINY_CONFIGS


def tlm(model_type):
    return TlmModel.from_config(AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type]))


def composite(model_type, *sizes):
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    return GeneratorDiscriminator.from_config(config, generator_config(config, *sizes))


@pytest.mark.parametrize(
    "make,parts",
    [
        *((lambda kind=kind: tlm(kind), {"", "mlm"}) for kind in ("bert", "roberta", "modernbert")),
        (lambda: composite("electra", 0.5), {"", "discriminator", "generator"}),
        (lambda: composite("albert", 0.5), {"", "discriminator", "generator"}),
    ],
    ids=["bert", "roberta", "modernbert", "electra", "ale"],
)
def test_stock_model_round_trip(hub, here, tmp_path, tokenizer, make, parts):
    folder = export_stock(make(), tokenizer, tmp_path / "run", {"README.md": "# A card\n", "results.json": "{}"})
    push(folder, "alice/model", message="m")
    done = verify("alice/model", local=folder)
    assert set(done.differences) == parts and set(done.differences.values()) == {0.0}
    assert {"README.md", "results.json"} <= set(hub.files("alice/model"))


@pytest.mark.parametrize(
    "task_type,kind,head",
    [
        ("SEQ_CLS", "SequenceClassification", "classifier"),
        ("TOKEN_CLS", "TokenClassification", "classifier"),
        ("QUESTION_ANS", "QuestionAnswering", "qa_outputs"),
        (None, "MultipleChoice", "classifier"),
        (None, "MaskedLM", None),
    ],
)
def test_adapter_round_trip(hub, here, tmp_path, tokenizer, task_type, kind, head):
    """The adapter is loaded on the class of its task, so that its own head is compared: a changed weight is noticed."""
    base, folder, auto = tmp_path / "base", tmp_path / "run", getattr(transformers, f"AutoModelFor{kind}")
    # The base has a head of its own, the task's head is in the adapter.
    base_model = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"] | {"num_labels": 2}))
    base_model.save_pretrained(base)
    options = {"target_modules": ["query"], "modules_to_save": [head] if head else None, "init_lora_weights": False}
    adapted = get_peft_model(auto.from_pretrained(base), LoraConfig(r=2, task_type=task_type, **options))
    adapted.save_pretrained(folder)
    adapted.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    push(folder, "alice/adapter", message="m")
    done = verify("alice/adapter", local=folder)
    assert done.loaded[""].startswith("PeftModel") and done.differences == {"": 0.0}
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(name for name in weights if (head or "lora_B") in name)
    save_file({**weights, name: weights[name] + 1}, folder / "adapter_model.safetensors", {"format": "pt"})
    with pytest.raises(HubError, match="differs from"):
        verify("alice/adapter", local=folder)


def test_multiple_choice_model_round_trip(hub, here, tmp_path, tokenizer):
    model = AutoModelForMultipleChoice.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"]))
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    push(tmp_path / "run", "alice/choices", message="m")
    done = verify("alice/choices", local=tmp_path / "run")
    assert done.loaded[""] == "BertForMultipleChoice, output (1, 1)" and done.differences == {"": 0.0}


def test_subset_round_trip(hub, here, tmp_path, task, corpus):
    subset = retrieve(task, corpus, retriever="random", num_passages=10)
    subset.save(tmp_path / "subset")
    push(tmp_path / "subset", "alice/subset", type="dataset", message="m", tag="v1")
    assert push(tmp_path / "subset", "alice/subset", type="dataset", message="m", tag="v1").commit is None
    done = verify("alice/subset", revision="v1", type="dataset", local=tmp_path / "subset")
    assert list(done.differences.values()) == [0.0]
    streamed = datasets.load_dataset("alice/subset", split="train", streaming=True)
    assert [row["text"] for row in streamed] == subset.dataset["text"][:]


def test_tokenizer_round_trip(hub, tmp_path, tokenizer):
    folder = export_stock(tlm("bert"), tokenizer, tmp_path / "run")
    push(folder, "alice/model", message="m")
    text = "the enzyme inhibits the drug"
    assert AutoTokenizer.from_pretrained("alice/model")(text) == tokenizer(text)
