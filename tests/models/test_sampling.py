"""Samples follow the softmax, one uniform number each."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from hf_tlm.data.masking import uniforms
from hf_tlm.models.generator_discriminator_parts import sample_tokens

LOGITS = torch.tensor([2.0, -1.0, 0.5, -40.0, 1.0, 0.0])


@pytest.mark.parametrize("temperature", [0.8, 1.0])
@pytest.mark.parametrize("source", ["torch", "hash", "deterministic"])
def test_frequencies_are_those_of_the_softmax(temperature, source, request):
    count = 200_000
    if source == "deterministic":
        torch.use_deterministic_algorithms(True)
        request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    if source != "hash":
        numbers = torch.rand(count, generator=torch.Generator().manual_seed(0))
    else:  # What the collator gives.
        numbers = torch.from_numpy(uniforms(0, np.arange(count) // 50, np.arange(count) % 50, stream=3)).float()
    drawn = sample_tokens(LOGITS.expand(count, -1), numbers, temperature)
    expected = (LOGITS.double() / temperature).softmax(-1) * count
    common = expected > 1
    observed = torch.bincount(drawn, minlength=len(LOGITS))
    assert observed[~common].sum() == 0
    expected = expected[common] * count / expected[common].sum()
    assert chisquare(observed[common].numpy(), expected.numpy()).pvalue > 0.01
    # The statistic is no accident of a weak test: another temperature is far off.
    other = (LOGITS.double()[common] / (temperature + 0.1)).softmax(-1) * count
    assert chisquare(observed[common].numpy(), other.numpy()).pvalue < 1e-6


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1e-30, 1e-46])
def test_no_temperature_is_the_likeliest(temperature):
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(1))
    numbers = torch.rand(50, generator=torch.Generator().manual_seed(2))
    assert sample_tokens(logits, numbers, temperature).equal(logits.argmax(-1))


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_ends_of_the_interval(deterministic, request):
    """Tokens of probability 0 at both ends are never drawn, not even by 0 and by what rounds to 1."""
    torch.use_deterministic_algorithms(deterministic)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    logits = torch.tensor([[-1e9, 0.0, 1.0, -1e9]]).expand(3, -1)
    assert sample_tokens(logits, torch.tensor([0.0, 1.0, 1 - 2**-24])).tolist() == [1, 2, 2]


def test_logits_that_are_not_finite_give_some_token():
    """So that the loss, which is not finite either, is what ends the run."""
    logits = torch.tensor([[math.nan] * 3, [0.0, math.nan, 1.0], [math.inf, 0.0, 1.0]])
    drawn = sample_tokens(logits, torch.tensor([0.0, 0.5, 1 - 2**-24]))
    assert ((drawn >= 0) & (drawn < 3)).all()


def test_no_rows():
    assert sample_tokens(torch.zeros(0, 5), torch.zeros(0)).shape == (0,)
