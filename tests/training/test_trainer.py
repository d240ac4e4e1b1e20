"""The Trainer: accumulation gives equal steps, and every parameter changes."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hf_tlm.data.interleave import CORPUS, TASK
from hf_tlm.training import ArgumentsError, TlmArguments, base_trainer
from hf_tlm.training.stages import final_scores
from support.toys import TINY_CONFIGS
from support.training_runs import QUIET, Gradients, history, trainer, weights


@pytest.mark.slow
@pytest.mark.parametrize("normalization", ["mean", "sum"])
@pytest.mark.parametrize(
    ("rho1", "masking"),
    [(0, {}), (1, {}), (math.inf, {}), (1, {"mlm_probability": 0.5, "mlm_probability_end": 0.1, "whole_word_mask": True})],
)
def test_accumulation_gives_the_same_step(tmp_path, data, tokenizer, rho1, normalization, masking):
    """Micro-batches differ in their numbers of masked tokens; the step's loss and gradients must not depend on it."""
    runs = {}
    for batch_size, accumulation in ((8, 1), (1, 8), (2, 4)):
        gradients = Gradients()
        run = trainer(
            tmp_path,
            data,
            tokenizer,
            rho1=rho1,
            loss_normalization=normalization,
            packing="pack" if normalization == "sum" else "group",
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_grad_norm=0.0,
            callbacks=[gradients],
            **masking,
        )
        run.train()
        terms = history(run, "loss", "corpus/mlm_loss", "task/mlm_loss", "task/task_loss")
        runs[batch_size] = (terms, gradients.first, weights(run))
    for other in (1, 2):
        for ours, expected in zip(runs[other][0], runs[8][0], strict=True):
            assert ours == pytest.approx(expected, rel=2e-4)
        assert set(runs[other][1]) == set(runs[8][1])
        for name, gradient in runs[other][1].items():
            torch.testing.assert_close(gradient, runs[8][1][name], rtol=1e-4, atol=2e-6, msg=name)


def test_first_step_equals_the_equation(tmp_path, data, tokenizer):
    """The gradients of a task step equal those of (rho2 L_mlm + L_task) / (rho2 + 1) on the same batch, by autograd."""
    gradients = Gradients()
    run = trainer(
        tmp_path, data, tokenizer, rho1=0, rho2=5.0, max_steps=1, max_grad_norm=0.0, callbacks=[gradients], packing="pack"
    )
    fresh = trainer(tmp_path, data, tokenizer, rho1=0, rho2=5.0, max_steps=1, packing="none")
    batch = next(iter(fresh.get_train_dataloader()))
    run.train()
    model = fresh.model.train()
    out = model.base_model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], return_dict=True)
    scores = model.mlm_head["cls"](out.last_hidden_state).log_softmax(-1)
    chosen = (batch["mlm_labels"] != -100).nonzero().tolist()
    mlm = -sum(scores[b, s, batch["mlm_labels"][b, s]] for b, s in chosen) / len(chosen)
    logits = model.classifier(model.dropout(out.pooler_output)).log_softmax(-1)
    task = -sum(logits[b, y] for b, y in enumerate(batch["labels"].tolist())) / len(batch["labels"])
    ((5.0 * mlm + task) / 6.0).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients.first[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert run.state.log_history[0]["task/mlm_loss"] == pytest.approx(mlm.item(), rel=1e-4)
    assert run.state.log_history[0]["task/task_loss"] == pytest.approx(task.item(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_every_parameter_changes_and_the_loss_falls(tmp_path, data, tokenizer, model_type):
    run = trainer(tmp_path, data, tokenizer, model_type, config={}, rho1=1, max_steps=40, learning_rate=5e-3, rho2=1.0)
    before = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    run.train()
    stuck = [name for name, parameter in run.model.named_parameters() if torch.equal(before[name], parameter)]
    # RoBERTa never uses position rows beyond the longest text, but the table as a tensor changes.
    assert not stuck
    losses = [entry["corpus/mlm_loss"] for entry in run.state.log_history if "corpus/mlm_loss" in entry]
    assert losses[-1] < losses[0] - 0.3


def test_mlm_probability_decreases_to_its_end(tmp_path, data, tokenizer):
    """Step by step in training; evaluation uses the end value, with the loss of a run that has it from the start."""
    options = {"mlm_probability": 0.6, "rho1": math.inf, "per_device_train_batch_size": 24}
    alone = {**data, "train": None}
    run = trainer(tmp_path, alone, tokenizer, **options, mlm_probability_end=0.2, metrics=False)
    shares = []

    def record_share(module, args, inputs):
        if module.training:
            real = inputs["attention_mask"].bool()
            shares.append(((inputs["mlm_labels"] != -100).sum() / real.sum()).item())
            assert "chances" not in inputs

    run.model.register_forward_pre_hook(record_share, with_kwargs=True)
    run.train()
    assert [round(share, 1) for share in shares] == sorted((round(share, 1) for share in shares), reverse=True)
    assert shares[0] > 1.5 * shares[-1]
    logged = [entry["mlm_probability"] for entry in run.state.log_history if "loss" in entry]
    assert logged == pytest.approx([0.5, 0.4, 0.3, 0.2])
    held_out = data["corpus"].add_column("draw", [-1 - number for number in range(len(data["corpus"]))])
    plain = trainer(tmp_path, alone, tokenizer, **{**options, "mlm_probability": 0.2}, metrics=False)
    plain.model.load_state_dict(run.model.state_dict())
    assert run.evaluate(held_out)["eval_mlm_loss"] == plain.evaluate(held_out)["eval_mlm_loss"]


def test_freed_memory_is_given_back_after_each_evaluation(tmp_path, data, tokenizer, monkeypatch):
    given_back = []
    monkeypatch.setattr(base_trainer, "give_back_freed_memory", lambda: given_back.append(True))
    run = trainer(tmp_path, data, tokenizer, max_steps=4, eval_strategy="steps", eval_steps=2, max_length=32)
    run.train()
    assert len(given_back) == 2


@pytest.mark.parametrize(
    ("seconds", "if_scarce", "percent", "times"), [(60, 60, 90, 0), (0, 60, 70, 3), (60, 0, 70, 0), (60, 0, 90, 3)]
)
def test_freed_memory_is_given_back_from_time_to_time(
    tmp_path, data, tokenizer, monkeypatch, seconds, if_scarce, percent, times
):
    given_back = []
    monkeypatch.setattr(base_trainer, "give_back_freed_memory", lambda: given_back.append(True))
    monkeypatch.setattr(base_trainer, "SECONDS_OF_KEPT_MEMORY", seconds)
    monkeypatch.setattr(base_trainer, "SECONDS_IF_SCARCE", if_scarce)
    monkeypatch.setattr(base_trainer.psutil, "virtual_memory", lambda: SimpleNamespace(percent=percent))
    trainer(tmp_path, data, tokenizer, max_steps=3, max_length=32).train()
    assert len(given_back) == times


def test_memory_is_not_pinned_without_an_accelerator(tmp_path, data, tokenizer, recwarn):
    """torch warned about it for every data loader."""
    run = trainer(tmp_path, data, tokenizer, max_steps=1, use_cpu=False)
    run.train()
    run.evaluate()
    assert run.args.dataloader_pin_memory == (run.args.device.type != "cpu")
    assert not [one for one in recwarn if "pin_memory" in str(one.message)]


def test_cost_counts_tokens_and_flops(tmp_path, data, tokenizer):
    run = trainer(
        tmp_path,
        data,
        tokenizer,
        rho1=3,
        max_steps=8,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_length=32,
        corpus_max_length=16,
    )
    real = []
    original = run.compute_loss

    def counting(model, inputs, **kwargs):
        real.append(int(inputs["attention_mask"].sum()))
        return original(model, inputs, **kwargs)

    run.compute_loss = counting
    run.train()
    cost = run.cost()
    # Two of eight steps are task steps; tokens are nominal, as in the paper.
    assert cost.tokens == 8 * (2 * 32 + 6 * 16)
    assert cost.real_tokens == sum(real)
    assert cost.flops == 6 * cost.tokens * run.model.num_parameters()
    assert cost.to_dict()["flops_ratio"] == pytest.approx(cost.flops / 4.36e21)
    assert cost.seconds > 0
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    assert [entry["tokens"] for entry in logged][-1] == cost.tokens
    run.save_state()
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert state["log_history"][-1]["flops"] == cost.flops


def test_labels_column_may_have_either_name(tmp_path, data, tokenizer):
    """A task without labels is refused: the masked LM would learn, but not the task."""
    renamed = {
        split: rows.rename_column("label", "labels") if "label" in rows.column_names else rows
        for split, rows in data.items()
    }
    runs = [trainer(tmp_path / name, of, tokenizer, config={}, rho1=0) for name, of in (("a", data), ("b", renamed))]
    scores = [run.evaluate() for run in runs]
    assert scores[0]["eval_macro_f1"] == scores[1]["eval_macro_f1"] and scores[0]["eval_loss"] == scores[1]["eval_loss"]
    without = {**data, "train": data["train"].remove_columns("label")}
    with pytest.raises(ArgumentsError, match="expected label .or labels., an index of a class"):
        trainer(tmp_path / "c", without, tokenizer, config={}, rho1=0)


def test_evaluation_is_unmasked_and_deterministic(tmp_path, data, tokenizer):
    run = trainer(tmp_path, data, tokenizer, config={}, rho1=1)
    one, two = run.evaluate(), run.evaluate()
    assert one["eval_loss"] == two["eval_loss"] and 0 <= one["eval_macro_f1"] <= 1
    logits = run.predict(data["validation"]).predictions
    assert logits.shape == (24, 3)
    row = data["validation"][3]["input_ids"]
    with torch.no_grad():
        alone = run.model.eval()(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.long)).logits[0]
    torch.testing.assert_close(torch.from_numpy(logits[3]), alone, rtol=1e-4, atol=1e-5)


def test_stage_too_short_for_a_task_batch_is_warned_about(tmp_path, data, tokenizer, caplog):
    trainer(tmp_path, data, tokenizer, rho1=4, max_steps=4).get_train_dataloader()
    assert "before the first task batch" in caplog.text
    caplog.clear()
    trainer(tmp_path, data, tokenizer, rho1=3, max_steps=4).get_train_dataloader()
    assert "first task batch" not in caplog.text


def test_warmup_and_task_batches_of_a_stage_by_epochs_are_checked(tmp_path, data, tokenizer, caplog):
    """An epoch is the 60 passages in steps of 32 texts, and the task batches between them."""
    options = {"max_steps": -1, "num_train_epochs": 1.0}
    trainer(tmp_path, data, tokenizer, **options, rho1=2, warmup_steps=2).get_train_dataloader()
    assert not caplog.records
    trainer(tmp_path, data, tokenizer, **options, rho1=3, warmup_steps=3).get_train_dataloader()
    assert "ends after step 3, before the first task batch" in caplog.text
    assert "warmup_steps 3 is not less than the 3 steps of this run" in caplog.text


def test_score_of_a_step_without_a_checkpoint_is_not_the_best(tmp_path, data, tokenizer):
    """Checkpoints are saved at the steps 2, 4 and 5; the best score is that of step 3."""
    options = {"load_best_model_at_end": True, "metric_for_best_model": "macro_f1", "greater_is_better": True}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 2}
    run, scores = trainer(tmp_path, data, tokenizer, rho1=1, max_steps=5, **options), iter([0.1, 0.4, 0.9, 0.5, 0.2])
    run.compute_metrics = lambda prediction: {"macro_f1": next(scores)}
    run.train()
    assert Path(run.state.best_model_checkpoint).name == "checkpoint-4"
    assert final_scores(run)["eval_macro_f1"] == 0.5


def test_objectives_depend_on_the_stage(tmp_path):
    args = TlmArguments(output_dir=str(tmp_path), rho2=20, **QUIET)
    from hf_tlm.training import tlm_objectives

    stage1 = tlm_objectives(args.for_stage(1, tmp_path, 0, "macro_f1"))
    assert set(stage1) == {CORPUS, TASK} and stage1[TASK].divisor == 21
    stage2 = tlm_objectives(args.for_stage(2, tmp_path, 0, "macro_f1"))
    assert set(stage2) == {TASK} and set(stage2[TASK].count({"labels": torch.zeros(2)})) == {"task"}


def test_logits_are_computed_in_blocks_below_max_logits(tmp_path, data, tokenizer, monkeypatch):
    """The losses equal those of all logits at once."""
    from hf_tlm.models import linear_cross_entropy as module

    runs, sizes, linear = {}, [], module.F.linear
    for limit in (10**9, 3 * len(tokenizer)):
        run = trainer(tmp_path / str(limit), data, tokenizer, rho1=1, max_logits=limit)
        if limit < 10**9:
            monkeypatch.setattr(module.F, "linear", lambda *a: sizes.append((out := linear(*a)).numel()) or out)
        run.train()
        runs[limit] = history(run, "loss")
    in_blocks, at_once = runs[3 * len(tokenizer)], runs[10**9]
    assert all(ours == pytest.approx(expected, rel=1e-4) for ours, expected in zip(in_blocks, at_once, strict=True))
    assert sum(size == 3 * len(tokenizer) for size in sizes) > 10
