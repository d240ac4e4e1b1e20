"""Averaged weights: the average itself, which weights are evaluated and saved, and exact resuming."""

import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, set_seed

from hf_tlm.data import tokenize
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.training import ArgumentsError, TlmArguments, TlmTrainer
from hf_tlm.training.optimizers import RAW_WEIGHTS
from support.toys import make_task
from support.training_runs import QUIET, network, run_processes

DECAY = 0.7
DROPPING = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


class Recorded(TrainerCallback):
    """Records the weights after every step, before they are averaged (callbacks are called in the order they were
    added)."""

    def __init__(self):
        self.steps = []

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.steps.append({name: weight.detach().clone() for name, weight in model.named_parameters()})


def stage_2(folder, tokenizer, callbacks=(), config=DROPPING, **changes):
    task = make_task()
    values = {**QUIET, "stage2_max_steps": 8, "stage2_learning_rate": 1e-2, "stage2_total_batch_size": 8}
    values |= {"stage2_eval_steps": 4, "stage2_ema_decay": DECAY, "max_length": 32, **changes}
    args = TlmArguments(output_dir=str(folder), **values).for_stage(2, folder, 0, "macro_f1")
    set_seed(7)
    return TlmTrainer(
        network(args, tokenizer, "bert", config),
        args,
        train_dataset=tokenize(task.train, tokenizer, 32),
        eval_dataset=tokenize(task.validation, tokenizer, 32),
        processing_class=tokenizer,
        compute_metrics=compute_metrics_for("macro_f1"),
        callbacks=list(callbacks),
    )


def weights(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_averages_are_saved_and_evaluated(tmp_path, tokenizer):
    recorded = Recorded()
    trainer = stage_2(tmp_path, tokenizer, [recorded])
    average = {name: value.double() for name, value in weights(trainer.model).items()}
    trainer.train()
    expected = []
    for step, raw_weights in enumerate(recorded.steps, start=1):
        decay = min(DECAY, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * raw_weights[name].double() for name in average}
        expected.append(average)
    assert len(expected) == 8
    for step in (4, 8):
        checkpoint = tmp_path / f"checkpoint-{step}"
        saved, raw = load_file(checkpoint / "model.safetensors"), load_file(checkpoint / RAW_WEIGHTS)
        for name, weight in recorded.steps[step - 1].items():
            torch.testing.assert_close(saved[name], expected[step - 1][name].float(), rtol=1e-5, atol=1e-6)
            assert torch.equal(raw[name], weight)
        assert any(not torch.equal(saved[name], raw[name]) for name in raw)
    # The run ends with the averages of the best checkpoint, and they have its validation score.
    best = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
    assert all(torch.equal(weight, best[name]) for name, weight in weights(trainer.model).items())
    assert trainer.evaluate()["eval_macro_f1"] == trainer.state.best_metric


def test_run_without_an_evaluation_ends_with_the_averages(tmp_path, tokenizer):
    trainer = stage_2(tmp_path, tokenizer, eval_delay=100)
    trainer.train()
    assert trainer.state.best_model_checkpoint is None
    last = load_file(tmp_path / "checkpoint-8/model.safetensors")
    assert all(torch.equal(weight, last[name]) for name, weight in weights(trainer.model).items())


def test_averaging_does_not_change_training(tmp_path, tokenizer):
    with_average, without = Recorded(), Recorded()
    stage_2(tmp_path / "a", tokenizer, [with_average]).train()
    stage_2(tmp_path / "b", tokenizer, [without], stage2_ema_decay=0.0).train()
    for one, other in zip(with_average.steps, without.steps, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("changes", [{}, {"stage2_rdrop": 1.0, "stage2_label_smoothing": 0.1}], ids=["ema", "rdrop"])
def test_run_resumes_bit_for_bit(tmp_path, tokenizer, changes):
    whole = stage_2(tmp_path / "whole", tokenizer, **changes)
    whole.train()

    class Cut(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage_2(tmp_path / "cut", tokenizer, [Cut()], **changes).train()
    again = stage_2(tmp_path / "cut", tokenizer, **changes)
    again.train(resume_from_checkpoint=True)
    for name in ("model.safetensors", RAW_WEIGHTS):
        one, other = (load_file(tmp_path / run / "checkpoint-8" / name) for run in ("whole", "cut"))
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert again.state.best_metric == whole.state.best_metric


def test_rdrop_logs_both_terms_and_counts_both_passes(tmp_path, tokenizer):
    once = stage_2(tmp_path / "a", tokenizer, stage2_ema_decay=0.0)
    twice = stage_2(tmp_path / "b", tokenizer, stage2_ema_decay=0.0, stage2_rdrop=2.0)
    for run in (once, twice):
        run.train()
    entry = next(entry for entry in twice.state.log_history if "task/rdrop_loss" in entry)
    assert entry["task/rdrop_loss"] > 0
    assert entry["loss"] == pytest.approx(entry["task/task_loss"] + 2.0 * entry["task/rdrop_loss"], rel=1e-3)
    assert twice.cost().flops == 2 * once.cost().flops
    assert twice.cost().measured_flops == pytest.approx(2 * once.cost().measured_flops)


@pytest.mark.parametrize("packing", ["none", "group", "pack"])
def test_rdrop_compares_the_same_texts_in_any_layout(tmp_path, tokenizer, packing):
    """With dropout so rare that nothing is dropped, the loss equals the task loss."""
    config = {"hidden_dropout_prob": 1e-9, "attention_probs_dropout_prob": 0.0}
    common = {"config": config, "stage2_ema_decay": 0.0, "packing": packing}
    runs = [stage_2(tmp_path / f"{alpha}", tokenizer, stage2_rdrop=alpha, **common) for alpha in (0.0, 1.0)]
    losses = []
    for run in runs:
        run.train()
        losses.append([entry["loss"] for entry in run.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)


def without_dropout(folder, tokenizer):
    stage_2(folder, tokenizer, config={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}).train()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, tokenizer):
    for processes in (1, 2):
        assert run_processes(without_dropout, tmp_path / str(processes), tokenizer, processes=processes) == [0] * processes
    one, two = (load_file(tmp_path / str(n) / "checkpoint-8" / "model.safetensors") for n in (1, 2))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "values,message",
    [
        ({"stage2_ema_decay": 1.0}, r"stage2_ema_decay: expected"),
        ({"stage2_label_smoothing": -0.1}, r"stage2_label_smoothing: expected"),
        ({"stage2_rdrop": -1.0}, "stage2_rdrop: expected"),
        ({"stage2_rho2": math.inf}, "stage2_rho2: expected"),
        ({"stage2_class_balance": 1.5}, r"stage2_class_balance: expected .*; received 1.5"),
        ({"stage2_rdrop": 1.0, "stage2_rho2": 0.1}, "stage2_rho2 0.1 masks the text. Remove one of the two"),
    ],
)
def test_invalid_values_are_refused(tmp_path, values, message):
    with pytest.raises(ArgumentsError, match=message):
        TlmArguments(output_dir=str(tmp_path), **QUIET, **values)


def test_rdrop_without_dropout_is_refused(tmp_path, tokenizer):
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    with pytest.raises(ArgumentsError, match="no effect on a model without dropout"):
        stage_2(tmp_path, tokenizer, config=none, stage2_rdrop=1.0)


def test_averages_with_fsdp_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ArgumentsError, match="does not work with FSDP"):
        TlmArguments(output_dir=str(tmp_path), **QUIET, stage2_ema_decay=0.9)


def test_label_smoothing_is_set_per_stage(tmp_path):
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, label_smoothing_factor=0.2, stage2_label_smoothing=0.0)
    found = {stage: args.for_stage(stage, tmp_path, 0, "macro_f1").label_smoothing_factor for stage in (1, 2)}
    assert found == {1: 0.2, 2: 0.0}
