"""Fine-tuning with a teacher: on texts and passages, for classification and regression, with any batch size."""

import json
import logging

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Value
from safetensors.torch import load_file

from hf_tlm.errors import HfTlmError
from hf_tlm.models import ModelError
from hf_tlm.retrieval import Subset
from hf_tlm.retrieval.subset_files import COLUMNS
from hf_tlm.runs import CheckpointArguments, FinetuneArguments, ProtocolError, finetune
from hf_tlm.runs.finetuning.finetune import _create_objective
from hf_tlm.runs.finetuning.models import FinetuneTrainer
from hf_tlm.runs.teachers.answers import held_out_correlation
from hf_tlm.runs.teachers.models import LinearTeacher
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.training import ArgumentsError
from hf_tlm.training.teacher import described, doubts
from support.tiny_checkpoints import FAST, files, go, pretrained
from support.toys import make_task, sentences


def make_subset(name="toy", fingerprint=None):
    """Return a subset with the part of a manifest that `finetune` reads."""
    found = {"source": "toy", "rank": 1, "score": 1.0, "n_queries": 1, "best_query": None}
    rows = [{"id": str(i), "text": row["text"], **found} for i, row in enumerate(sentences(40, 9))]
    dataset = Dataset.from_list(rows, features=Features({column: Value(kind) for column, kind in COLUMNS.items()}))
    made = {"corpus": {"name": "toy", "fingerprint": None}, "counts": {"passages": 40, "union": 40}}
    made["task"] = {"name": name, "fingerprint": fingerprint, "split": "train"}
    return Subset(dataset, {"retriever": "bm25", **made})


PASSAGES = make_subset()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def base(tmp_path, tokenizer):
    return pretrained(tmp_path / "base", tokenizer, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def finetune_with_teacher(folder, base, task=None, subset=PASSAGES, **changes):
    args = FinetuneArguments(output_dir=str(folder), **{**FAST, "logging_steps": 1, "teacher_passages": 20, **changes})
    return finetune(task or make_task(), CheckpointArguments(model_name_or_path=str(base)), args, subset=subset)


def card(folder):
    return (folder / "README.md").read_text()


@pytest.mark.slow
def test_accumulation_gives_the_same_weights(tmp_path, base):
    weights = []
    for size in (8, 1, 4):
        folder, plain = tmp_path / str(size), {"optim": "sgd", "max_grad_norm": 0.0, "select_by": "last"}
        finetune_with_teacher(
            folder, base, teacher="linear", teacher_temperature=2.0, per_device_train_batch_size=size, **plain
        )
        weights.append(torch.cat([values.flatten() for values in load_file(folder / "model.safetensors").values()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(weights[0], weights[2], rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_interrupted_run_resumes_bit_for_bit(tmp_path, tokenizer, monkeypatch):
    """With dropout and micro-batches, on texts and passages; the teacher is not asked again."""
    base = pretrained(tmp_path / "base", tokenizer)
    options = {"teacher": "linear", "teacher_temperature": 2.0, "per_device_train_batch_size": 4, "num_train_epochs": 2}
    whole = finetune_with_teacher(tmp_path / "whole", base, **options)
    steps, original = [], FinetuneTrainer.training_step

    def interrupt(self, *args, **kwargs):
        steps.append(self.state.global_step)
        if self.state.global_step == 10:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(LinearTeacher, "__call__", lambda *_: pytest.fail("its answers are in the cache"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FinetuneTrainer, "training_step", interrupt)
        finetune_with_teacher(tmp_path / "run", base, **options)
    assert len(list((tmp_path / "run").rglob("checkpoint-*"))) == 1 and len(steps) == 2 * 10 + 1
    again = finetune_with_teacher(tmp_path / "run", base, **options)
    assert again.seeds[0]["history"] == whole.seeds[0]["history"] and again.seeds[0]["test"] == whole.seeds[0]["test"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


def test_teacher_is_in_log_record_and_card(tmp_path, base):
    large = go(tmp_path / "teacher", base, num_train_epochs=4, seeds=[0, 1])
    run = finetune_with_teacher(tmp_path / "run", base, teacher=str(tmp_path / "teacher"), save_strategy="epoch")
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    assert record["teacher"]["passages"] <= 20 and record["teacher"]["model"].endswith("/teacher")
    assert record["teacher_subset"] == PASSAGES.manifest and "examples" in json.loads(
        (tmp_path / "run" / "teacher.json").read_text()
    )
    spent = {name: sum(seed["cost"][name] for seed in large.seeds) for name in ("flops", "seconds")}
    assert record["teacher"]["training"] == pytest.approx(spent) and "FLOPs. The cost below does not include this." in card(
        tmp_path / "run"
    )
    assert (
        "The model was also trained with a teacher" in (tmp_path / "run" / "README.md").read_text()
        and "teacher      " in run.to_text()
    )
    assert (
        finetune_with_teacher(tmp_path / "run", base, teacher=str(tmp_path / "teacher"), save_strategy="epoch").seeds
        == run.seeds
    )
    (tmp_path / "teacher").rename(tmp_path / "moved")
    with pytest.raises(HfTlmError, match="teacher.* The run in .*run is finished: its model and results.json are there"):
        finetune_with_teacher(tmp_path / "run", base, teacher=str(tmp_path / "teacher"), save_strategy="epoch")
    with pytest.raises(HfTlmError, match=r"teacher(?!.* is finished)"):
        finetune_with_teacher(tmp_path / "other", base, teacher=str(tmp_path / "teacher"))


def test_passages_of_another_task_are_warned_about(tmp_path, base, caplog):
    with caplog.at_level(logging.WARNING):
        finetune_with_teacher(tmp_path / "known", base, teacher="linear", max_steps=1)
        assert "was retrieved for" not in caplog.text
        finetune_with_teacher(tmp_path / "other", base, subset=make_subset("news", "0" * 16), teacher="linear", max_steps=1)
    assert caplog.text.count("The subset was retrieved for news (fingerprint 0000000000000000), not for toy") == 1


def test_card_without_held_out_accuracy_of_the_teacher(tmp_path, base):
    task = make_task()
    texts = {row["text"]: row["label"] for row in task.train}
    names = task.label_names
    answers = [{"text": text, **{name: float(name == names[label]) for name in names}} for text, label in texts.items()]
    Dataset.from_list(answers).to_json(tmp_path / "said.jsonl")
    task.splits["validation"] = task.validation.map(lambda row: {"text": row["text"] + " unseen"})
    run = finetune_with_teacher(
        tmp_path / "run", base, task, subset=None, teacher=str(tmp_path / "said.jsonl"), teacher_passages=4000
    )
    assert "held_out_accuracy" not in run.details["teacher"]
    card = (tmp_path / "run" / "README.md").read_text()
    assert "the cross-entropy against the teacher's probabilities is added" in card and "squared difference" not in card


def test_run_and_teacher_may_differ_in_precision(tmp_path, base):
    go(tmp_path / "teacher", base)
    run = finetune_with_teacher(tmp_path / "run", base, teacher=str(tmp_path / "teacher"), bf16=True)
    assert run.details["arguments"]["bf16"] and run.details["teacher"]["passages"] <= 20


def test_regression_learns_values_of_a_teacher(tmp_path, base):
    """Passages have the teacher's value and no label."""
    rows = [{"text": row["text"], "label": float(len(row["text"])) / 30} for row in sentences(24)]
    splits = {name: Dataset.from_list(rows) for name in ("train", "validation")}
    task = task_from_datasets(TaskSpec(name="length", path="memory", kind="regression"), splits)
    values = [len(text) / 30 for text in PASSAGES.dataset["text"]]
    texts = [*PASSAGES.dataset["text"], *(row["text"] for row in rows)]
    values += [row["label"] + i % 2 for i, row in enumerate(rows)]
    Dataset.from_dict({"text": texts, "prediction": values}).to_json(tmp_path / "said.jsonl")
    for option in ({"teacher_temperature": 2.0}, {"teacher_trust": "entropy"}):
        with pytest.raises(ArgumentsError, match="has no effect for regression"):
            finetune_with_teacher(tmp_path / "refused", base, task, teacher=str(tmp_path / "said.jsonl"), **option)
    run = finetune_with_teacher(tmp_path / "run", base, task, teacher=str(tmp_path / "said.jsonl"))
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    card = (tmp_path / "run" / "README.md").read_text()
    assert record["teacher"]["passages"] == 20 and "squared difference" in card
    labels = [row["label"] for row in rows]
    expected = np.corrcoef(values[-24:], labels)[0, 1]
    assert record["teacher"]["held_out_correlation"] == pytest.approx(expected, abs=1e-4)
    assert f"24 validation texts have a correlation of {expected:.3f} with the labels" in card
    assert f"said.jsonl, correlation {expected:.3f} with the labels of 24 validation texts" in described(record["teacher"])
    assert np.isfinite(run.seeds[0]["validation"]["pearson"])
    with pytest.raises(ArgumentsError, match="is for regression tasks, and toy is a classification task"):
        finetune_with_teacher(tmp_path / "refused", base, teacher=str(tmp_path / "run"))
    assert not (tmp_path / "refused").exists()
    constant = held_out_correlation("texts", np.ones((3, 1)), np.arange(3.0))
    assert constant["held_out_correlation"] == 0.0 and "nothing to teach" in doubts({"model": "it", **constant})[0]
    loss = _create_objective(
        FinetuneArguments(output_dir=str(tmp_path), **FAST, teacher="x", teacher_weight=3.0), "regression"
    )
    logits = torch.tensor([[1.0], [2.0], [4.0]], requires_grad=True)
    nan = float("nan")
    batch = {"labels": torch.tensor([0.0, nan, nan]), "teacher_probs": torch.tensor([[nan], [0.0], [3.0]])}
    found = loss(type("Outputs", (), {"logits": logits}), batch)["loss"]
    assert found.item() == pytest.approx(1 + 3 * (4 + 1) / 2)


def test_output_folder_that_is_the_teacher_is_refused(tmp_path, base):
    go(tmp_path / "run", base, max_steps=1)
    before = files(tmp_path / "run")
    for teacher in (tmp_path / "run", tmp_path / "run" / "seed-0" / "model"):
        with pytest.raises(ProtocolError, match="holds a run with other settings .teacher: 'none' in the folder"):
            finetune_with_teacher(tmp_path / "run", base, teacher=str(teacher), max_steps=1)
    assert files(tmp_path / "run") == before
    with pytest.raises(ModelError, match="Model .*absent.* not found"):
        finetune_with_teacher(tmp_path / "absent", base, teacher=str(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()


def test_unsupported_uses_of_a_teacher_are_refused(tmp_path, base):
    with pytest.raises(ArgumentsError, match="needs a teacher. Pass --teacher"):
        finetune_with_teacher(tmp_path / "a", base, teacher_passages=4000)
    with pytest.raises(ArgumentsError, match="train_fraction 0.5 draws different texts"):
        finetune_with_teacher(tmp_path / "b", base, teacher="linear", train_fraction=0.5)
    rows = [{"tokens": ["the", "gene"], "tags": ["A", "B"]}] * 4
    splits = {name: Dataset.from_list(rows) for name in ("train", "validation")}
    tags = task_from_datasets(TaskSpec(name="tags", path="memory", kind="tagging"), splits)
    with pytest.raises(ArgumentsError, match="tags is a tagging task. Remove --teacher"):
        finetune_with_teacher(tmp_path / "c", base, tags, subset=None, teacher="linear")
