"""What people pass who know the Trainer: it works, or one sentence says what to pass."""

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import AutoConfig, BertForSequenceClassification, TrainingArguments

from hf_tlm.models import TlmModel
from hf_tlm.training import ArgumentsError, TlmArguments, TlmTrainer
from support.toys import TINY_CONFIGS

QUIET = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, at):
        return {"input_ids": [2, 5, 3], "label": 0}


def config():
    return AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])


def made(tmp_path, data, tokenizer, model=None, args=None, rho1=0, **changes):
    args = args or TlmArguments(output_dir=str(tmp_path), rho1=rho1, max_steps=2, **QUIET)
    given = {"train_dataset": data["train"], "processing_class": tokenizer, **changes}
    return TlmTrainer(model or TlmModel.from_config(config()), args, **given)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"args": "plain"}, r"args: expected a TlmArguments; received TrainingArguments. .*TlmArguments\(output_dir"),
        ({"model": "stock"}, r"received BertForSequenceClassification. TlmModel.from_config\(config\) makes one"),
        ({"model": nn.Linear(2, 2)}, "model: expected a TlmModel.*received Linear"),
        ({"model_init": lambda: None}, "model_init is not called here"),
        ({"processing_class": None}, "processing_class: expected the tokenizer of the texts"),
        ({"data_collator": list}, "data_collator: TlmTrainer makes its own"),
        ({"train_dataset": Rows()}, r"train_dataset: expected a datasets.Dataset.*received Rows.*hf_tlm.data.tokenize"),
        ({"train_dataset": Dataset.from_list([{"text": "a", "label": 0}])}, "received one with the columns text, label"),
        ({"corpus_dataset": Dataset.from_list([{"text": "a"}]), "rho1": 1}, "corpus_dataset: expected a datasets.Dataset"),
    ],
)
def test_a_sentence_says_what_to_pass(tmp_path, data, tokenizer, changes, message):
    if changes.get("args") == "plain":
        changes = {"args": TrainingArguments(output_dir=str(tmp_path), **QUIET)}
    if changes.get("model") == "stock":
        changes = {"model": BertForSequenceClassification(config())}
    with pytest.raises(ArgumentsError, match=message):
        made(tmp_path, data, tokenizer, **changes)


def test_without_a_model(tmp_path, data, tokenizer):
    args = TlmArguments(output_dir=str(tmp_path), rho1=0, max_steps=2, **QUIET)
    with pytest.raises(ArgumentsError, match="model: expected a model; received none"):
        TlmTrainer(None, args, train_dataset=data["train"], processing_class=tokenizer)


def test_what_is_right_is_taken(tmp_path, data, tokenizer):
    assert made(tmp_path, data, tokenizer).train_dataset is data["train"]
