"""Arguments that users of the Trainer may pass: they work, or the error says what to pass."""

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import AutoConfig, BertForSequenceClassification, TrainingArguments

from hf_tlm.models import ModelError, TlmModel
from hf_tlm.objectives import TaskLoss
from hf_tlm.training import ArgumentsError, TlmArguments, TlmTrainer
from support.toys import TINY_CONFIGS

QUIET = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}


class TorchDataset(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, at):
        return {"input_ids": [2, 5, 3], "label": 0}


def config():
    return AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])


def make_trainer(tmp_path, data, tokenizer, model=None, args=None, rho1=0, **changes):
    args = args or TlmArguments(output_dir=str(tmp_path), rho1=rho1, max_steps=2, **QUIET)
    options = {"train_dataset": data["train"], "processing_class": tokenizer, **changes}
    return TlmTrainer(model or TlmModel.from_config(config()), args, **options)


def rows(length=3, **columns):
    return Dataset.from_list([{"input_ids": [2] * length, **columns}] * 2)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"args": "plain"}, r"args: expected a TlmArguments; received TrainingArguments. .*TlmArguments\(output_dir"),
        ({"model": "stock"}, r"received BertForSequenceClassification. TlmModel.from_config\(config\) creates one"),
        ({"model": "stock"}, r"TlmModel.from_checkpoint\(folder, id2label=task.id2label\) from a stock checkpoint"),
        ({"model": "bert-base"}, "model: expected a TlmModel.*received 'bert-base'. TlmModel.from_config"),
        ({"model": nn.Linear(2, 2)}, "model: expected a TlmModel.*received Linear"),
        ({"model_init": lambda: None}, "model_init is not used"),
        ({"processing_class": None}, "processing_class: expected the tokenizer of the texts"),
        ({"data_collator": list}, "data_collator: TlmTrainer creates its own"),
        (
            {"train_dataset": TorchDataset()},
            r"train_dataset: expected a datasets.Dataset.*received TorchDataset.*hf_tlm.data.tokenize",
        ),
        ({"train_dataset": Dataset.from_list([{"text": "a", "label": 0}])}, "received one with the columns text, label"),
        ({"corpus_dataset": Dataset.from_list([{"text": "a"}]), "rho1": 1}, "corpus_dataset: expected a datasets.Dataset"),
        ({"train_dataset": rows(label=0).to_iterable_dataset()}, "expected a datasets.Dataset.*received IterableDataset"),
        ({"compute_loss_func": max}, "compute_loss_func: TlmTrainer has one objective per stream instead"),
        ({"train_dataset": rows(label=3)}, "label: expected 0 to 2, the classes of the model, or -100 for none; received 3"),
        ({"train_dataset": rows(labels=-1)}, "train_dataset, labels: expected 0 to 2, .* received -1"),
        ({"train_dataset": rows(label=0, labels=1)}, "train_dataset has the columns label and labels: .* Remove the other"),
        ({"eval_dataset": rows(label=0, labels=1)}, "eval_dataset has the columns label and labels"),
        ({"eval_dataset": rows(label=3)}, "eval_dataset, label: expected 0 to 2, .* received 3"),
        ({"eval_dataset": {"a": rows(), "b": rows(labels="up")}}, "eval_dataset, labels: .* one per text; received up"),
        ({"train_dataset": rows(label="up")}, "indices of classes, one per text; received up. ClassLabel or class_encode"),
        ({"train_dataset": rows(label=0.5)}, "indices of classes, one per text; received 0.5"),
        ({"train_dataset": rows(label=None)}, "indices of classes, one per text; received None"),
        ({"train_dataset": rows(label=[0, 1])}, r"received \[0, 1\]. .*several labels per text are not supported"),
        (
            {"eval_dataset": Dataset.from_list([{"text": "a", "label": 0}])},
            "eval_dataset has the columns text, label",
        ),
        ({"objectives": TaskLoss()}, r"objectives: expected one for each stream .*\(task\).*; received a TaskLoss"),
        ({"objectives": {"tasks": TaskLoss()}}, "; received tasks: TaskLoss. Pass {'task': TaskLoss"),
        ({"objectives": {"task": "mlm"}}, "; received task: str"),
        ({"objectives": {"task": TaskLoss()}, "corpus_dataset": rows(), "rho1": 1}, r"\(task and corpus\)"),
        ({"args": {"total_batch_size": 64}}, r"total_batch_size 64 has no effect, as a step has 32 .* args.for_trainer\("),
        ({"model": "small"}, "the tokenizer has [0-9]+ tokens, and the model has embeddings for 50"),
    ],
)
def test_wrong_arguments_are_refused_with_advice(tmp_path, data, tokenizer, changes, message):
    if changes.get("args") == "plain":
        changes = {"args": TrainingArguments(output_dir=str(tmp_path), **QUIET)}
    elif "args" in changes:
        changes = {"args": TlmArguments(output_dir=str(tmp_path), rho1=0, **QUIET, **changes["args"])}
    if changes.get("model") == "stock":
        changes = {"model": BertForSequenceClassification(config())}
    if changes.get("model") == "small":
        changes = {"model": TlmModel.from_config(AutoConfig.for_model("bert", **{**TINY_CONFIGS["bert"], "vocab_size": 50}))}
    with pytest.raises(ArgumentsError, match=message):
        make_trainer(tmp_path, data, tokenizer, **changes)


def test_texts_longer_than_the_positions_are_refused(tmp_path, data, tokenizer):
    for name, changes in (
        ("train", {"train_dataset": rows(41, label=0)}),
        ("corpus", {"corpus_dataset": rows(41), "rho1": 1}),
    ):
        with pytest.raises(
            ArgumentsError, match=f"{name}_dataset has a text of 41 tokens, .* has positions for 40. Tokenise"
        ):
            make_trainer(tmp_path, data, tokenizer, **changes).train()


def test_empty_objectives_mean_the_default(tmp_path, data, tokenizer):
    assert [*make_trainer(tmp_path, data, tokenizer, objectives={}).objectives] == [
        *make_trainer(tmp_path, data, tokenizer).objectives
    ]


def test_only_labels_of_selected_rows_are_checked(tmp_path, data, tokenizer):
    found = Dataset.from_list([{"input_ids": [2, 5, 3], "label": label} for label in (0, 9)])
    assert make_trainer(tmp_path, data, tokenizer, train_dataset=found.select([0]))
    with pytest.raises(ArgumentsError, match="received 9"):
        make_trainer(tmp_path, data, tokenizer, train_dataset=found.select([1]))


def test_from_pretrained_is_refused():
    with pytest.raises(ModelError, match=r"TlmModel.from_checkpoint\('runs/a', ...\)"):
        TlmModel.from_pretrained("runs/a")


@pytest.mark.parametrize(
    "given, received",
    [((config(),), "a BertConfig alone"), ((config(), config()), "a BertConfig"), (("runs/a",), "a str alone")],
)
def test_constructor_with_a_config_is_refused(given, received):
    with pytest.raises(ModelError, match=f"two stock models.*; received {received}. .*TlmModel.from_config.config"):
        TlmModel(*given)


def test_whole_floats_and_ignored_labels_are_accepted(tmp_path, data, tokenizer):
    for labels in ([0.0, 2.0], [1, -100]):
        found = Dataset.from_list([{"input_ids": [2, 5, 3], "label": label} for label in labels])
        assert make_trainer(tmp_path, data, tokenizer, train_dataset=found)


def test_missing_model_is_refused(tmp_path, data, tokenizer):
    args = TlmArguments(output_dir=str(tmp_path), rho1=0, max_steps=2, **QUIET)
    with pytest.raises(ArgumentsError, match="model: expected a model; received none"):
        TlmTrainer(None, args, train_dataset=data["train"], processing_class=tokenizer)


def test_old_tokenizer_argument_is_refused(tmp_path, data, tokenizer):
    args = TlmArguments(output_dir=str(tmp_path), rho1=0, max_steps=2, **QUIET)
    for given in ({}, {"processing_class": tokenizer}):
        with pytest.raises(ArgumentsError, match="tokenizer: .* Pass processing_class=tokenizer"):
            TlmTrainer(TlmModel.from_config(config()), args, train_dataset=data["train"], tokenizer=tokenizer, **given)


def test_hyperparameter_search_is_refused_with_advice(tmp_path, data, tokenizer):
    with pytest.raises(ArgumentsError, match="TlmTrainer does not call. Create a model and a TlmTrainer for each"):
        make_trainer(tmp_path, data, tokenizer).hyperparameter_search(n_trials=2)


def test_missing_arguments_are_named(tmp_path, data, tokenizer):
    args = TlmArguments(output_dir=str(tmp_path), rho1=0, max_steps=2, **QUIET)
    given = {"model": TlmModel.from_config(config()), "args": args, "train_dataset": data["train"]}
    given["processing_class"] = tokenizer
    for name, said in (
        ("model", "expected a model"),
        ("args", "expected a TlmArguments"),
        ("processing_class", r"expected the tokenizer of the texts.*load_tokenizer\(folder\)"),
        ("train_dataset", r"expected the task's tokenised texts; received none.*tokenize\(rows.*rho1=inf"),
    ):
        with pytest.raises(ArgumentsError, match=f"^{name}: {said}"):
            TlmTrainer(**{other: value for other, value in given.items() if other != name}).train()
    args = TlmArguments(output_dir=str(tmp_path), rho1=3, max_steps=2, **QUIET)
    with pytest.raises(ArgumentsError, match="^corpus_dataset: expected tokenised passages, as rho1 is 3"):
        TlmTrainer(**{**given, "args": args}).train()


def test_valid_arguments_are_accepted(tmp_path, data, tokenizer):
    assert make_trainer(tmp_path, data, tokenizer, data_collator=None).train_dataset is data["train"]


def test_gradient_checkpointing_of_a_body_without_it_is_refused(tmp_path, data, tokenizer):
    model = TlmModel.from_config(AutoConfig.for_model("albert", **TINY_CONFIGS["albert"]))
    with pytest.raises(ArgumentsError, match="^gradient_checkpointing: .*cannot recompute layers of the type albert. Rem"):
        args = TlmArguments(output_dir=str(tmp_path), rho1=0, gradient_checkpointing=True, **QUIET)
        make_trainer(tmp_path, data, tokenizer, model, args)


def test_frozen_model_can_be_evaluated_but_not_trained(tmp_path, data, tokenizer):
    """An InfluenceScorer freezes its model."""
    trainer = make_trainer(tmp_path, data, tokenizer, model=TlmModel.from_config(config()).requires_grad_(False))
    trainer.evaluate(data["train"])
    with pytest.raises(
        ArgumentsError, match=r"requires gradients, so nothing would be trained. .*model.requires_grad_\(True\)"
    ):
        trainer.train()
