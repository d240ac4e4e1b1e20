"""A budget ends a run at the step that reaches it, and the learning rate schedule ends there too."""

import pytest
import torch
from transformers import TrainerCallback

from hf_tlm.models import applied_parameters
from hf_tlm.runs.records import command_line, provenance_entries
from hf_tlm.training import ArgumentsError, TlmArguments
from hf_tlm.training import cost as budgets
from hf_tlm.training.cost import first_step, model_flops_utilization
from support.training_runs import history, trainer


@pytest.mark.parametrize("step", [1, 2, 3, 64, 65, 1000])
def test_first_step_that_fulfils_a_condition(step):
    assert first_step(lambda n: n >= step) == step


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"total_batch_tokens": 128}, {"per_device_train_batch_size": 4}])
@pytest.mark.parametrize("name,cost", [("max_flops", "flops"), ("max_tokens", "real_tokens")])
def test_step_that_reaches_the_budget_is_the_last(tmp_path, data, tokenizer, name, cost, options):
    run = trainer(tmp_path / "all", data, tokenizer, max_steps=12, rho1=2, **options)
    run.train()
    costs = [entry[cost] for entry in run.state.log_history if "loss" in entry]
    assert len(costs) == 12
    for budget, steps in ((costs[6], 7), (costs[6] + 1, 8), (costs[7] - 1, 8)):
        ended = trainer(tmp_path / f"{budget}", data, tokenizer, max_steps=0, rho1=2, **{name: budget}, **options)
        ended.get_train_dataloader()
        assert ended.args.max_steps == steps
    ended.train()
    assert ended.state.global_step == 8 and getattr(ended.cost(), cost) == costs[7]
    # Linear decay ends with the last step, whose rate is an eighth of the peak.
    assert history(ended, "learning_rate")[-1] == pytest.approx([1e-2 / 8])
    sooner = trainer(tmp_path / "sooner", data, tokenizer, max_steps=5, rho1=2, **{name: budget}, **options)
    sooner.get_train_dataloader()
    assert sooner.args.max_steps == 5


@pytest.mark.slow
@pytest.mark.parametrize("name,cost", [("max_flops", "flops"), ("max_tokens", "real_tokens")])
def test_warmup_is_a_share_of_the_budgeted_steps(tmp_path, data, tokenizer, name, cost, caplog):
    """As a share of the budgeted steps; a number of steps that reaches the end is refused, or warned about without a
    budget."""
    run = trainer(tmp_path / "eight", data, tokenizer, max_steps=8, rho1=2)
    run.train()
    budget = {name: getattr(run.cost(), cost), "max_steps": 0, "rho1": 2}
    warm = trainer(tmp_path / "warm", data, tokenizer, warmup_steps=0.25, **budget)
    warm.train()
    rates = [rate for (rate,) in history(warm, "learning_rate")]
    assert rates == pytest.approx([1e-2 * min(step / 2, (8 - step) / 6) for step in range(8)])
    with pytest.raises(ArgumentsError, match="warmup_steps 8 is not less than the 8 steps"):
        trainer(tmp_path / "cold", data, tokenizer, warmup_steps=8, **budget).train()
    trainer(tmp_path / "seven", data, tokenizer, warmup_steps=7, **budget).get_train_dataloader()
    assert not caplog.records
    trainer(tmp_path / "unbounded", data, tokenizer, max_steps=8, warmup_steps=9, rho1=2).get_train_dataloader()
    assert "its learning rate would never reach its peak" in caplog.text
    assert "(in stage 2 of TLM: --stage2_warmup_steps 0.06)" in caplog.text


class _Seconds(TrainerCallback):
    """A clock that advances one second per step, so that the test does not depend on the machine."""

    now = 0.0

    def monotonic(self):
        return self.now

    def on_step_end(self, args, state, control, **kwargs):
        self.now += 1.0


def test_max_hours_sets_the_schedule_and_the_end(tmp_path, data, tokenizer, monkeypatch):
    clock = _Seconds()
    monkeypatch.setattr(budgets.time, "monotonic", clock.monotonic)
    options = {"max_steps": 0, "max_hours": 20 / 3600, "warmup_steps": 0.2, "rho1": 1}
    run = trainer(tmp_path, data, tokenizer, callbacks=[clock], **options)
    run.train()
    # The rate follows the clock at the start of the step, and the run ends with the step after the time is over.
    assert run.state.global_step == 21
    rates = [rate for (rate,) in history(run, "learning_rate")]
    expected = [1e-2 * min(second / 4, (20 - second) / 16) for second in (0, *range(20))]
    assert rates == pytest.approx(expected, abs=1e-7)
    assert run.cost().seconds == 21


@pytest.mark.parametrize("limits", [{"max_steps": 4, "max_hours": 1.0}, {"max_steps": 1000, "max_hours": 4 / 3600}])
def test_mlm_probability_reaches_its_end_with_the_first_limit(tmp_path, data, tokenizer, monkeypatch, limits):
    clock = _Seconds()
    monkeypatch.setattr(budgets.time, "monotonic", clock.monotonic)
    options = {"mlm_probability": 0.6, "mlm_probability_end": 0.2, "rho1": 1}
    run = trainer(tmp_path, data, tokenizer, callbacks=[clock], **limits, **options)
    run.train()
    assert [share for (share,) in history(run, "mlm_probability")][:4] == pytest.approx(
        [0.5, 0.4, 0.3, 0.2] if limits["max_steps"] == 4 else [0.6, 0.5, 0.4, 0.3], abs=1e-3
    )


def test_hours_include_those_before_a_resume(tmp_path, data, tokenizer, monkeypatch):
    clock = _Seconds()
    monkeypatch.setattr(budgets.time, "monotonic", clock.monotonic)
    options = {"max_hours": 20 / 3600, "rho1": 1, "save_strategy": "steps", "save_steps": 8}
    first = trainer(tmp_path, data, tokenizer, callbacks=[clock], max_steps=8, **options)
    first.train()
    rest = trainer(tmp_path, data, tokenizer, callbacks=[clock], max_steps=0, **options)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert 20 <= rest.state.global_step <= 22 and rest.cost().seconds >= 20


def test_measured_flops_equal_the_equations(tmp_path, data, tokenizer):
    """For one corpus batch, product by product."""
    run = trainer(tmp_path, data, tokenizer, rho1=float("inf"), max_steps=1)
    batch = next(iter(run.get_train_dataloader()))
    run.train()
    rows, width = batch["input_ids"].shape
    masked, config = int((batch["mlm_labels"] != -100).sum()), run.model.config
    hidden, layers = config.hidden_size, config.num_hidden_layers
    # Queries, keys and values; then what follows attention, which the last layer computes only for masked tokens.
    before, after = 3 * hidden**2, hidden**2 + 2 * hidden * config.intermediate_size
    matrices = 6 * rows * width * (layers * before + (layers - 1) * after) + 6 * masked * after
    # Plain products on a CPU: forward, scores and values; backward, the gradients of values, weights, queries and keys.
    attention = layers * (2 + 4) * 2 * rows * width**2 * hidden
    heads = 6 * masked * (hidden**2 + hidden * config.vocab_size)
    # The gradient of the decoder's bias is also a product; BERT's pooler is applied once, forward.
    expected = matrices + attention + heads + 2 * masked * config.vocab_size + 2 * hidden**2
    assert run.cost().measured_flops == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"max_flops": 0}, "max_flops: expected"),
        ({"max_hours": -1.0}, "max_hours: expected"),
        ({"max_hours": 1.0, "warmup_steps": 100}, "share of the time"),
        ({"max_hours": 1.0, "eval_strategy": "steps", "eval_steps": 0.1}, "Pass a number of steps"),
        ({"total_batch_tokens": 64, "total_batch_size": 8}, "not both"),
    ],
)
def test_invalid_budgets_are_refused(tmp_path, options, message):
    with pytest.raises(ArgumentsError, match=message):
        TlmArguments(output_dir=str(tmp_path), report_to="none", **options)


def test_schedule_that_cannot_follow_the_clock_is_refused(tmp_path, data, tokenizer):
    run = trainer(
        tmp_path, data, tokenizer, max_hours=1.0, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch", rho1=1
    )
    with pytest.raises(ArgumentsError, match="cannot follow the clock"):
        run.train()


def test_flops_count_shared_layers_each_time_they_are_applied(tmp_path, data, tokenizer):
    """In the cost, in the step at which a budget ends, and in the Trainer's own count."""
    options = {"model_type": "albert", "rho1": 0, "config": {"num_hidden_layers": 12}}
    run = trainer(tmp_path / "steps", data, tokenizer, max_steps=3, **options)
    applied = applied_parameters(run.model)
    assert applied > 1.5 * run.model.num_parameters()
    run.train()
    cost = run.cost()
    assert cost.flops == 6 * cost.tokens * applied
    num_tokens = run.state.total_flos / 6 / applied
    assert num_tokens == round(num_tokens) > 0
    run = trainer(tmp_path / "flops", data, tokenizer, max_flops=cost.flops, **options)
    run.train()
    assert run.state.global_step == 3


def test_gpu_peak_is_looked_up_by_the_complete_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    shares = {}
    for name in ("NVIDIA L4", "NVIDIA L40", "NVIDIA L40S"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
        shares[name] = model_flops_utilization(1e14, 1.0, 1)
    assert shares["NVIDIA L4"] > shares["NVIDIA L40"] > shares["NVIDIA L40S"] > 0


def test_unused_gpu_is_not_recorded(tmp_path, data, tokenizer, monkeypatch):
    """Neither in the log nor in the record of a run with use_cpu."""
    monkeypatch.setattr("hf_tlm.training.trainer.model_flops_utilization", lambda *args: 0.5)
    run = trainer(tmp_path, data, tokenizer, max_steps=2, rho1=0)
    run.train()
    assert run.state.log_history and not any("mfu" in entry for entry in run.state.log_history)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "NVIDIA L4")
    named = [provenance_entries({"arguments": {"use_cpu": alone}, "model": {}})["environment"] for alone in (False, True)]
    assert named[0]["accelerator"] == "1 x NVIDIA L4" and "accelerator" not in named[1]


def test_command_line_of_a_notebook_omits_the_kernel_file(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["/venv/ipykernel_launcher.py", "-f", str(tmp_path / "kernel-1.json")])
    assert command_line() == "ipykernel_launcher.py"
    monkeypatch.setattr("sys.argv", ["/opt/mine.py", "--rate", "2"])
    assert command_line() == "mine.py --rate 2"
