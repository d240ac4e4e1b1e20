"""Interrupted runs on the device resume with the same batches and masks, and bit for bit with deterministic kernels."""

import pytest
import torch

from hf_tlm.training.checkpoints import last_complete_checkpoint
from support.gpu import DEVICE, LAYOUT, ON_CPU, ON_DEVICE, apart
from support.training_runs import OBJECTIVES, StopAfter, history, trainer, weights

NAMES = ("step", "loss", "grad_norm", "learning_rate", "corpus/mlm_loss", "task/mlm_loss", "task/task_loss", "real_tokens")
# With dropout, beyond the end of an epoch (5 steps), in micro-batches; stopped within an epoch.
COMMON = {"rho1": 1, "max_steps": 8, "per_device_train_batch_size": 12, "config": {}, "gradient_accumulation_steps": 2}
SAVING = {"save_strategy": "steps", "save_steps": 3}
CASES = {
    **OBJECTIVES,
    "tokens": {"total_batch_tokens": 480},
    "muon": {"optim": "muon"},
    "adamw": {"optim": "adamw_torch"},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "workers": {"dataloader_num_workers": 2},
    "cocolm": {**OBJECTIVES["cocolm"], "scl_projection": "mlp"},
}


def record_batches(run):
    """Return a list that records the run's training batches as the model receives them."""
    seen, compute = [], run.compute_loss

    def watching(model, inputs, *args, **kwargs):
        if model.training:
            assert all(values.device.type == run.args.device.type for values in inputs.values())
            seen.append({name: values.cpu() for name, values in inputs.items()})
        return compute(model, inputs, *args, **kwargs)

    run.compute_loss = watching
    return seen


def run_and_resume(tmp_path, data, tokenizer, **settings):
    """Return (log, weights, batches) of an uninterrupted run and of one stopped after its third step, and the initial
    weights."""
    settings = {**COMMON, **settings, **ON_DEVICE}
    whole = trainer(tmp_path / "whole", data, tokenizer, **settings)
    before, seen = weights(whole), record_batches(whole)
    whole.train()
    part = trainer(tmp_path / "cut", data, tokenizer, **settings, **SAVING, callbacks=[StopAfter(3)])
    batches = record_batches(part)
    part.train()
    assert last_complete_checkpoint(tmp_path / "cut").endswith("checkpoint-3") and len(batches) == 6
    run = trainer(tmp_path / "cut", data, tokenizer, **settings, **SAVING)
    later = record_batches(run)
    run.train(resume_from_checkpoint=True)
    assert len(later) == 10 and next(run.model.parameters()).device.type == DEVICE.type
    return (history(whole, *NAMES), weights(whole), seen), (history(run, *NAMES), weights(run), batches + later), before


def assert_same_batches(ours, expected):
    assert len(ours) == len(expected) == 16
    for one, other in zip(ours, expected, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], values) for name, values in other.items())


@pytest.mark.parametrize("case", CASES)
def test_run_resumes_bit_for_bit(tmp_path, data, tokenizer, case, deterministic):
    if case == "fp16" and DEVICE.type == "cpu":
        pytest.skip("fp16 is for GPUs")
    (log, end, seen), (own_log, own_end, own_seen), _ = run_and_resume(tmp_path, data, tokenizer, **CASES[case])
    assert_same_batches(own_seen, seen)
    assert log and repr(own_log) == repr(log)  # In fp16 the norm of overflowing gradients is NaN.
    for name, value in end.items():
        assert torch.equal(own_end[name], value), name


def test_run_resumes_up_to_rounding_without_deterministic_kernels(tmp_path, data, tokenizer):
    """Batches and masks are equal; eight steps hardly amplify the rounding."""
    (log, end, seen), (own_log, own_end, own_seen), before = run_and_resume(tmp_path, data, tokenizer, adam_epsilon=1e-4)
    assert_same_batches(own_seen, seen)
    for ours, expected in zip(own_log, log, strict=True):
        assert ours == pytest.approx(expected, rel=1e-3)
    assert apart(own_end, end, before) < 0.01


def test_batches_equal_the_cpu(tmp_path, data, tokenizer):
    """Pinned or not, with or without workers; copied asynchronously where requested."""
    found, pinned = [], []
    for where in (
        ON_CPU,
        ON_DEVICE,
        {**ON_DEVICE, "dataloader_num_workers": 2},
        {**ON_DEVICE, "dataloader_pin_memory": False},
    ):
        ahead = DEVICE.type != "cpu" and where != ON_CPU and where.get("dataloader_pin_memory", True)
        options = {"packing": "pack", "accelerator_config": {"non_blocking": ahead}}
        run = trainer(tmp_path, data, tokenizer, **{**COMMON, **where, **options})
        if DEVICE.type == "cpu" or where == ON_CPU:
            run.args.dataloader_pin_memory = False  # As every run sets it there.
        found.append(record_batches(run))
        pinned.append(run.get_train_dataloader().base_dataloader.pin_memory)
        assert run.accelerator.non_blocking == pinned[-1]
        run.train()
        assert_same_batches(found[-1], found[0])
    assert pinned == [False, *[DEVICE.type == "cuda"] * 2, False]


def test_checkpoint_of_the_device_resumes_on_the_cpu(tmp_path, data, tokenizer):
    """Without dropout, as random numbers differ between devices."""
    settings = {
        **COMMON,
        **SAVING,
        **LAYOUT,
        "adam_epsilon": 1e-4,
        "config": {**{"hidden_dropout_prob": 0.0}, "attention_probs_dropout_prob": 0.0},
    }
    whole = trainer(tmp_path / "whole", data, tokenizer, **settings, **ON_CPU)
    before = weights(whole)
    whole.train()
    trainer(tmp_path / "cut", data, tokenizer, **settings, **ON_DEVICE, callbacks=[StopAfter(3)]).train()
    run = trainer(tmp_path / "cut", data, tokenizer, **settings, **ON_CPU)
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 8 and next(run.model.parameters()).device.type == "cpu"
    assert apart(weights(run), weights(whole), before) < 0.01
