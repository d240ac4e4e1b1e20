"""Tests that compare a GPU with the CPU: `HF_TLM_TEST_GPU=1 pytest tests/gpu -n 12`; without the variable all are
skipped.

`HF_TLM_TEST_GPU=cpu` makes the CPU the device, so that the tests can be written on a machine without a GPU. The tests
use float32 without TF32; the fixture `deterministic` is for those that need bit-identical results.
"""

import os

import pytest
import torch

from support.gpu import DEVICE, WANTED

# cuBLAS reads it at its first use: without it torch has no deterministic matrix products.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
NO_GPU = "NO GPU TESTED: tests/gpu compare one with the CPU; where there is one, HF_TLM_TEST_GPU=1 pytest tests/gpu -n 12."


@pytest.fixture(scope="session", autouse=True)
def device():
    if not WANTED:
        pytest.skip(NO_GPU)
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        pytest.fail(f"HF_TLM_TEST_GPU is {WANTED}, and torch sees no GPU here. Leave it out, or set it to cpu.")
    return DEVICE


@pytest.fixture(autouse=True)
def exact_products():
    flags = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in flags]
    for each in flags:
        each.allow_tf32 = False
    yield
    for each, value in zip(flags, before, strict=True):
        each.allow_tf32 = value


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="module")
def data(tokenizer, corpus_rows):
    from support.training_runs import tokenized

    return tokenized(tokenizer, corpus_rows)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Set an empty cache of `datasets`; return a function that sets another one by name."""

    def empty(name):
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / name)

    empty("cache")
    return empty
