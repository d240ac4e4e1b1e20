"""What a run records of the device: utilisation, energy and name; and recomputed activations."""

import pytest
import torch

from hf_tlm.runs.records import environment
from hf_tlm.training.cost import PEAK_FLOPS
from support.gpu import DEVICE, LAYOUT, ON_CPU, ON_DEVICE
from support.training_runs import history, trainer

GPU = DEVICE.type == "cuda"


def test_utilization_is_logged_for_known_gpus(tmp_path, data, tokenizer):
    """FLOPs are counted with the device's own kernels; an unused GPU has no utilisation."""
    counts = []
    for where in (ON_CPU, ON_DEVICE):
        run = trainer(tmp_path, data, tokenizer, rho1=1, **LAYOUT, **where)
        run.train()
        counts.append(run.cost().measured_flops)
        shares = [entry["mfu"] for entry in run.state.log_history if "mfu" in entry]
        if where == ON_CPU or not any(name in environment().get("accelerator", "") for name in PEAK_FLOPS):
            assert not shares
        else:
            assert shares and all(0 < share < 1 for share in shares)
    # Kernels of GPUs recompute attention in the backward pass.
    assert 0 < 0.98 * counts[0] < counts[1] < 1.2 * counts[0]


@pytest.mark.skipif(not GPU, reason="of a GPU")
def test_environment_names_the_gpu():
    assert environment()["accelerator"] == f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def test_energy_is_measured(tmp_path, data, tokenizer):
    pytest.importorskip("codecarbon", reason="NO ENERGY TESTED: pip install 'hf-tlm[energy]'")
    run = trainer(tmp_path, data, tokenizer, rho1=1, track_energy=True, energy_country="FRA", **ON_DEVICE)
    run.train()
    cost = run.cost()
    assert cost.energy_kwh > 0 and cost.co2_kg > 0 and 0 <= cost.estimated_kwh <= cost.energy_kwh


def test_gradient_checkpointing_gives_the_same_losses(tmp_path, data, tokenizer):
    """With dropout, whose random numbers are repeated."""
    losses = []
    for recompute in (False, True):
        options = {"config": {}, "rho1": 1, "gradient_checkpointing": recompute}
        run = trainer(tmp_path, data, tokenizer, **options, **ON_DEVICE)
        run.train()
        losses.append([loss for [loss] in history(run, "loss")])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
