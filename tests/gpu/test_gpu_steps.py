"""Training steps on the device equal the CPU: interleaved streams, objectives, optimizers, averages, accumulation."""

from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file
from transformers import set_seed

from hf_tlm.metrics import compute_metrics_for
from hf_tlm.training import TlmArguments, TlmTrainer
from hf_tlm.training.optimizers import RAW_WEIGHTS
from support.gpu import DEVICE, LAYOUT, ON_CPU, ON_DEVICE, apart, assert_same_gradients, trainers
from support.training_runs import NO_DROPOUT, OBJECTIVES, QUIET, Gradients, history, network, taught, trainer, weights

NAMES = (
    "loss",
    "task/task_loss",
    "task/mlm_loss",
    "corpus/mlm_loss",
    "corpus/rtd_loss",
    "corpus/lm_loss",
    "corpus/scl_loss",
)
# AdamW divides by the size of a gradient: with a larger epsilon, gradients that are only rounding errors change
# nothing.
STEADY = {"rho1": 1, "max_steps": 6, "adam_epsilon": 1e-4, "learning_rate": 5e-3, "max_grad_norm": 0.0}


def assert_same_training(tmp_path, data, tokenizer, tolerance=0.01, **settings):
    """Check the first step's gradients, the losses of all steps, and the final weights."""
    found = []
    for run in trainers(tmp_path, data, tokenizer, **{**STEADY, **settings}):
        run.add_callback(gradients := Gradients())
        before = weights(run)
        run.train()
        found.append((gradients.first, history(run, *NAMES), weights(run)))
    assert next(iter(found[1][2].values())).device.type == DEVICE.type
    assert_same_gradients(found[1][0], found[0][0])
    assert found[0][1]
    for ours, expected in zip(found[1][1], found[0][1], strict=True):
        assert ours == pytest.approx(expected, rel=max(1e-3, tolerance / 20))
    assert apart(found[1][2], found[0][2], before) < tolerance


@pytest.mark.parametrize("layout", ["group", "pack", "none"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_interleaved_training_equals_the_cpu(tmp_path, data, tokenizer, objective, layout):
    assert_same_training(tmp_path, data, tokenizer, **OBJECTIVES[objective], packing=layout)


@pytest.mark.parametrize("rho2", [1.0, 20.0])
def test_training_with_summed_losses_equals_the_cpu(tmp_path, data, tokenizer, rho2):
    assert_same_training(tmp_path, data, tokenizer, rho1=0, rho2=rho2, loss_normalization="sum")


@pytest.mark.parametrize("optim,tolerance", [("muon", 0.25), ("lamb", 0.01), ("adamw_torch", 0.01)])
def test_optimizers_equal_the_cpu(tmp_path, data, tokenizer, optim, tolerance):
    """Muon iterates in bfloat16, which devices round differently, most of all where a gradient is nearly flat."""
    if optim == "lamb" and find_spec("pytorch_optimizer") is None:
        pytest.skip("NO LAMB: pip install 'hf-tlm[optim]'.")
    assert_same_training(tmp_path, data, tokenizer, tolerance, optim=optim, max_steps=3, layerwise_lr_decay=0.9)


def stage_2(folder, data, tokenizer, where, **changes):
    args = TlmArguments(
        output_dir=str(folder),
        **{**QUIET, "stage2_max_steps": 8, "stage2_learning_rate": 5e-3, "stage2_total_batch_size": 8, **LAYOUT, **where},
        **{"stage2_eval_steps": 4, "stage2_class_balance": 1.0, "max_length": 32, "adam_epsilon": 1e-4, **changes},
    )
    args = args.for_stage(2, folder, 0, "macro_f1")
    set_seed(7)
    return TlmTrainer(
        network(args, tokenizer, "bert", NO_DROPOUT),
        args,
        train_dataset=data["train"].select(range(40)),
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        compute_metrics=compute_metrics_for("macro_f1"),
    )


def test_averaged_weights_and_balanced_classes_equal_the_cpu(tmp_path, data, tokenizer):
    """As in stage 2; the run ends with the best averages."""
    ends = []
    for name, where in (("cpu", ON_CPU), ("device", ON_DEVICE)):
        plain, averaged = (
            stage_2(tmp_path / name / str(decay), data, tokenizer, where, stage2_ema_decay=decay) for decay in (0.0, 0.7)
        )
        before = weights(plain)
        for run in (plain, averaged):
            run.train()
        raw = load_file(tmp_path / name / "0.7" / "checkpoint-8" / RAW_WEIGHTS)
        straight = load_file(tmp_path / name / "0.0" / "checkpoint-8" / "model.safetensors")
        assert apart(raw, straight, {n: v for n, v in before.items() if n in raw}) < 0.01
        saved = load_file(tmp_path / name / "0.7" / "checkpoint-8" / "model.safetensors")
        assert apart(saved, straight, {n: v for n, v in before.items() if n in raw}) > 0.02
        ends.append((saved, {n: v for n, v in before.items() if n in raw}, averaged.state.best_metric))
    (expected, before, metric), (ours, _, own_metric) = ends
    assert apart(ours, expected, before) < 0.01 and own_metric == pytest.approx(metric, abs=0.05)


def test_training_with_a_teacher_equals_the_cpu(tmp_path, data, tokenizer):
    options = {"teacher": "linear", "teacher_weight": 2.0, "teacher_temperature": 2.0}
    assert_same_training(tmp_path, taught(data, tokenizer), tokenizer, **options)


@pytest.mark.parametrize("objective", ["mlm", "electra", "cocolm"])
def test_accumulation_gives_the_same_step(tmp_path, data, tokenizer, objective):
    """COCO-LM without contrastive learning, whose negatives are those of a micro-batch."""
    runs = []
    for batch_size, accumulation, packing in ((8, 1, "pack"), (1, 8, "none"), (2, 4, "none")):
        run = trainer(
            *(tmp_path, data, tokenizer),
            **OBJECTIVES[objective] | ({"scl": False} if objective == "cocolm" else {}),
            **{"rho1": 1, "max_steps": 3, "max_grad_norm": 0.0, "packing": packing, **ON_DEVICE},
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            callbacks=[gradients := Gradients()],
        )
        run.train()
        runs.append((history(run, *NAMES), gradients.first))
    for log, first in runs[1:]:
        for ours, expected in zip(log, runs[0][0], strict=True):
            assert ours == pytest.approx(expected, rel=1e-3)
        assert_same_gradients(first, runs[0][1])


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_losses_fall_and_every_parameter_changes(tmp_path, data, tokenizer, objective, bf16):
    """With dropout; weights stay float32."""
    options = {**OBJECTIVES[objective], "rho1": 1, "max_steps": 40, "learning_rate": 5e-3, "bf16": bf16, "config": {}}
    set_seed(0)
    run = trainer(tmp_path, data, tokenizer, **options, **ON_DEVICE)
    before = weights(run)
    run.train()
    after = weights(run)
    assert {value.dtype for value in after.values() if value.is_floating_point()} == {torch.float32}
    still = [n for n in before if before[n].is_floating_point() and torch.equal(before[n], after[n])]
    assert not still
    for stream in ("corpus", "task"):
        losses = [entry[f"{stream}/mlm_loss"] for entry in run.state.log_history if f"{stream}/mlm_loss" in entry]
        assert sum(losses[-5:]) < sum(losses[:5])
