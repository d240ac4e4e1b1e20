"""Progress output of a training: a named bar and short lines."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from hf_tlm.training.callbacks import ProgressLines, bar_name, log_line
from support.training_runs import trainer


@pytest.mark.parametrize(
    "folder, name",
    [
        ("runs/a/seed-3/stage2", "Seed 3, stage 2"),
        ("runs/a/seed-12/stage1/", "Seed 12, stage 1"),
        ("runs/a/seed-0", "Seed 0"),
        ("cache/score_model-0123456789abcdef/seed-0/stage1", "Score model, stage 1"),
        ("runs/a/trials/trial-4", "Trial 4"),
        ("runs/a", "Training"),
        ("runs/seed-3/other", "Training"),
        ("runs/a/points/learning_rate=2e-05,max_steps=3/seed-1", "learning_rate=2e-05,max_steps=3, seed 1"),
        ("runs/a/split-13/lr1e-05-batch2/checkpoints", "Split 13, lr1e-05-batch2"),
        ("runs/a/split-13/lr1e-05-batch2/model/seed-13", "Split 13, lr1e-05-batch2"),
    ],
)
def test_name_of_the_bar(folder, name):
    assert bar_name(folder) == name


def test_lines_have_losses_scores_and_rates():
    logs = {"loss": 3.21987, "grad_norm": 0.5, "learning_rate": 1e-4, "corpus/mlm_loss": 3.0, "tokens": 13516800}
    logs |= {"real_tokens": 9, "flops": 1e14, "measured_flops": 1e13, "seconds": 3.0, "flops_ratio": 1e-8, "epoch": 3.8}
    assert log_line(logs) == "loss 3.22  grad_norm 0.5  learning_rate 0.0001  corpus/mlm_loss 3"
    assert (
        log_line({"eval_macro_f1": 0.71234, "eval_runtime": 2.0, "eval_samples_per_second": 9.0}) == "eval_macro_f1 0.7123"
    )
    assert log_line({"train_runtime": 1.0, "epoch": 1.0}) == ""


def test_training_shows_bars_and_lines(tmp_path, data, tokenizer, capsys):
    run = trainer(tmp_path / "seed-7/stage1", data, tokenizer, disable_tqdm=False, rho1=1)
    run.train()
    run.predict(run.eval_dataset)
    shown = capsys.readouterr()
    lines = [line for line in shown.out.replace("\r", "\n").splitlines() if line.startswith("step ")]
    size = f"{run.model.num_parameters():,} parameters on cpu in float32"
    assert f"Seed 7, stage 1: bert of {size}, {run.state.max_steps} steps" in shown.out
    assert len(lines) >= 4 and lines[0].startswith("step 1  loss ") and "learning_rate" in lines[0]
    assert "{" not in shown.out and "tokens" not in shown.out
    assert "Seed 7, stage 1: 100%" in shown.err and "Predicting: 100%" in shown.err


def test_without_bars_the_same_lines_are_printed(tmp_path, data, tokenizer, capsys):
    run = trainer(tmp_path / "seed-7/stage1", data, tokenizer, disable_tqdm=True, rho1=1)
    run.train()
    shown = capsys.readouterr().out
    size = f"{run.model.num_parameters():,} parameters on cpu in float32"
    assert f"Seed 7, stage 1: bert of {size}, {run.state.max_steps} steps" in shown.splitlines()
    assert "step 1  loss " in shown and "{" not in shown and "tokens" not in shown


def test_bars_are_named_when_first_drawn(capsys):
    args = SimpleNamespace(bf16=False, fp16=False, world_size=1, device=torch.device("cpu"))
    bars, state = ProgressLines("Seed 0, stage 1"), TrainerState(max_steps=2, is_world_process_zero=True)
    bars.on_train_begin(args, state, None, model=torch.nn.Linear(2, 1))
    bars.on_prediction_step(args, state, None, eval_dataloader=[1, 2])
    bars.on_evaluate(args, state, None)
    bars.on_train_end(args, state, None)
    bars.on_prediction_step(args, state, None, eval_dataloader=[1, 2])
    bars.on_predict(args, state, None, metrics={})
    output = capsys.readouterr()
    assert output.out == "Seed 0, stage 1: Linear on cpu in float32, 2 steps\n"
    drawn = [line.partition(":")[0] for line in output.err.replace("\n", "\r").split("\r") if line.strip(" \x1b[A")]
    assert set(drawn) == {"Seed 0, stage 1", "Evaluating", "Predicting"}
