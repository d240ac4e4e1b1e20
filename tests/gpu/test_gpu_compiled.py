"""torch.compile on the device."""

import shutil

import pytest
import torch

from support.gpu import DEVICE, ON_DEVICE
from support.training_runs import OBJECTIVES, history, trainer


@pytest.mark.parametrize("objective,bf16", [("mlm", True), ("electra", False)])
def test_compiled_training_equals_eager(tmp_path, data, tokenizer, objective, bf16):
    """With the device's own code generator."""
    backend = {}
    if DEVICE.type == "cpu":
        backend = {"torch_compile_backend": "eager"}
    elif shutil.which("gcc") is None and shutil.which("cc") is None:
        pytest.skip("NO C COMPILER: what torch.compile makes for GPUs needs one. Install gcc to test it.")
    losses = []
    for compiled in ({}, {"torch_compile": True, **backend}):
        torch._dynamo.reset()
        options = {"packing": "pack", "rho1": 1, "max_steps": 6, "per_device_train_batch_size": 16, "bf16": bf16}
        run = trainer(tmp_path, data, tokenizer, **OBJECTIVES[objective], **options, **compiled, **ON_DEVICE)
        run.train()
        losses.append([loss for [loss] in history(run, "loss")])
    assert losses[1] == pytest.approx(losses[0], rel=0.02 if bf16 else 1e-3)
