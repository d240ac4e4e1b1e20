"""LoRA for every family: which parameters are trained, and equal logits of the exported adapter in stock classes."""

import json
import shutil
from functools import partial

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

from hf_tlm.errors import HfTlmError
from hf_tlm.models import (
    LoraArguments,
    ModelError,
    TlmModel,
    add_lora,
    export_adapter,
    export_stock,
    load_adapter,
    trained_parameters,
)
from hf_tlm.models.adapters import ADAPTER_WEIGHTS, load_merged
from hf_tlm.runs import CheckpointArguments
from hf_tlm.training import ModelArguments
from support.tiny_models import families
from support.toys import TINY_CONFIGS

# The modules of each family's classification head.
HEADS = {
    "bert": {"classifier", "bert.pooler"},
    "roberta": {"classifier"},
    "electra": {"classifier"},
    "albert": {"classifier", "albert.pooler"},
    "distilbert": {"classifier", "pre_classifier"},
    "modernbert": {"classifier", "head"},
    "cocolm": {"classifier", "cocolm.pooler"},
}
CLASSES = dict(enumerate("abcd"))


def model_with_adapter(model_type, base, tokenizer, **options):
    """Return a model with an adapter, on a base with another number of classes."""
    set_seed(0)
    if not base.exists():
        export_stock(TlmModel.from_config(AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])), tokenizer, base)
    model = TlmModel.from_checkpoint(str(base), id2label=CLASSES)
    return add_lora(model, LoraArguments(use_peft=True, **options), base)


def batch():
    input_ids = torch.randint(5, 120, (4, 12), generator=torch.Generator().manual_seed(0))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 7:] = 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def base_name(name):
    """Return a parameter's name in the model without an adapter."""
    for part in ("base_model.model.", ".modules_to_save.default", ".base_layer"):
        name = name.replace(part, "")
    return name


@families
def test_only_adapter_and_head_are_trained(model_type, tokenizer, tmp_path):
    # In float64, in which even small gradients of queries and keys change the weights.
    model = model_with_adapter(model_type, tmp_path / "base", tokenizer, lora_r=4).double()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    lora = {name for name in trained if ".lora_" in name}
    head = {base_name(name) for name in trained - lora}
    assert {part for part in HEADS[model_type] if any(name.startswith(f"{part}.") for name in head)} == HEADS[model_type]
    assert all(any(name.startswith(f"{part}.") for part in HEADS[model_type]) for name in head)
    # Every linear layer of the body, and no other.
    body = model.get_base_model().base_model
    layers = {n for n, m in body.named_modules() if isinstance(m, torch.nn.Linear) and "lora" not in n and "pooler" not in n}
    assert len(lora) == 2 * len(layers) > 0
    assert trained_parameters(model) == sum(p.numel() for n, p in model.named_parameters() if n in trained)

    # Both losses reach every adapter; the task loss reaches the head.
    inputs = batch()
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[:, 1:4] = 7
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # B starts at 0, so A gets its first gradient in the second step.
        output = model(**inputs, mlm_labels=labels, labels=torch.tensor([0, 1, 2, 3]))
        (output.mlm_loss + torch.nn.functional.cross_entropy(output.logits, torch.tensor([0, 1, 2, 3]))).backward()
        optimizer.step()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(before[name], parameter)}
    assert changed == trained


@families
def test_exported_adapter_gives_equal_logits_in_stock_classes(model_type, tokenizer, tmp_path):
    base, folder = tmp_path / "base", tmp_path / "adapter"
    model = model_with_adapter(model_type, base, tokenizer).eval()
    start = model(**batch()).logits
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    logits = model(**batch()).logits
    assert not torch.allclose(start, logits, atol=1e-2)
    export_adapter(model, tokenizer, folder, {"README.md": "card"})
    assert (folder / "README.md").read_text() == "card" and (folder / "tokenizer.json").is_file()
    values = json.loads((folder / "adapter_config.json").read_text())
    assert values["base_model_name_or_path"] == str(base) and values["task_type"] == "SEQ_CLS"

    config = AutoConfig.from_pretrained(folder)
    assert config.id2label == CLASSES
    set_seed(1)  # Weights that the base lacks are drawn again, and must be in the adapter.
    stock = AutoModelForSequenceClassification.from_pretrained(base, config=config, ignore_mismatched_sizes=True)
    stock = PeftModel.from_pretrained(stock, folder).eval()
    torch.testing.assert_close(stock(**batch()).logits, logits, rtol=0, atol=1e-6)
    # Also in a TlmModel, with which a run continues.
    again = load_adapter(model_with_adapter(model_type, base, tokenizer), folder).eval()
    torch.testing.assert_close(again(**batch()).logits, logits, rtol=0, atol=1e-6)
    assert trained_parameters(again) == trained_parameters(model)


def _another_base(base, folder, tokenizer):
    shutil.rmtree(base)
    config = AutoConfig.for_model("bert", **{**TINY_CONFIGS["bert"], "hidden_size": 32})
    export_stock(TlmModel.from_config(config), tokenizer, base)


def _without_a_layer(file):
    save_file({name: value for name, value in load_file(file).items() if "layer.1" not in name}, file, {"format": "pt"})


@pytest.mark.parametrize(
    "damage, message",
    [
        (_another_base, "base, the base model of the adapter in .*adapter, lacks weights of its body .bert.embeddings"),
        (lambda base, *_: _without_a_layer(base / "model.safetensors"), r"lacks weights of its body \(bert.encoder.layer.1"),
        (lambda base, folder, _: _without_a_layer(folder / ADAPTER_WEIGHTS), r"do not fit its .*missing: .*layer.1.*9 more"),
        (lambda base, folder, _: (folder / ADAPTER_WEIGHTS).unlink(), "adapter lacks adapter_model.safetensors"),
    ],
)
def test_adapter_that_does_not_fit_its_base_is_refused(tokenizer, tmp_path, damage, message):
    """Weights that are missing or of other sizes were random."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    export_adapter(model_with_adapter("bert", base, tokenizer), tokenizer, folder)
    load_merged(folder, "AutoModelForSequenceClassification")
    damage(base, folder, tokenizer)
    with pytest.raises(ModelError, match=message):
        load_merged(folder, "AutoModelForSequenceClassification")


def test_lora_options(tokenizer, tmp_path):
    model = model_with_adapter(
        "bert", tmp_path / "base", tokenizer, lora_r=3, lora_alpha=12, lora_dropout=0.5, lora_target_modules=["value"]
    )
    layers = [m for m in model.modules() if hasattr(m, "lora_A")]
    assert len(layers) == 2 and all(m.scaling["default"] == 4 and m.lora_dropout["default"].p == 0.5 for m in layers)
    assert all(m.lora_A["default"].weight.shape == (3, 16) for m in layers)
    with pytest.raises(ModelError, match="no linear layer q_proj. Choose from dense, key, query, value"):
        model_with_adapter("bert", tmp_path / "base", tokenizer, lora_target_modules=["query", "q_proj"])
    for wrong in ({"lora_r": 0}, {"lora_alpha": 0}, {"lora_dropout": 1.0}):
        with pytest.raises(ModelError, match=f"{next(iter(wrong))}: expected .* received {next(iter(wrong.values()))}"):
            LoraArguments(**wrong)


@pytest.mark.parametrize("make", [LoraArguments, ModelArguments, partial(CheckpointArguments, model_name_or_path="base")])
@pytest.mark.parametrize(
    "options", [{"lora_r": 4}, {"lora_alpha": 8}, {"lora_dropout": 0.0}, {"lora_target_modules": ["query"]}]
)
def test_lora_options_without_an_adapter_are_refused(make, options):
    with pytest.raises(HfTlmError, match=f"{next(iter(options))} .* has no effect without use_peft. Pass --use_peft true"):
        make(**options)
    assert make(use_peft=True, **options)


def test_reset_classifier_resets_the_trained_head(tokenizer, tmp_path):
    model = model_with_adapter("modernbert", tmp_path / "base", tokenizer).eval()
    before, trained = model(**batch()).logits, trained_parameters(model)
    model.reset_classifier()
    assert not torch.equal(model.eval()(**batch()).logits, before)
    assert trained_parameters(model) == trained


def test_failed_export_keeps_the_old_folder(tokenizer, tmp_path, monkeypatch):
    model = model_with_adapter("bert", tmp_path / "base", tokenizer)
    export_adapter(model, tokenizer, tmp_path / "a", {"README.md": "old"})
    monkeypatch.setattr(
        "peft.peft_model.safe_save_file", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(ValueError, match="is full.*unchanged"):
        export_adapter(model, tokenizer, tmp_path / "a", {"README.md": "new"})
    assert (tmp_path / "a" / "README.md").read_text() == "old"
