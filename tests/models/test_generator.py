"""The generator: its config derived from the main model's; its samples follow the softmax, one uniform number each."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_tlm.data.masking import uniforms
from hf_tlm.models import ModelError, generator_config
from hf_tlm.models.generator_discriminator_parts import sample_tokens
from support.toys import TINY_CONFIGS


def electra(hidden, heads, **values):
    return AutoConfig.for_model(
        "electra", hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden, **values
    )


@pytest.mark.parametrize(
    "hidden,heads,size,expected",
    [
        # ELECTRA-Small, -Base and -Large with the generator sizes of its paper (appendix A).
        (256, 4, 1 / 4, (64, 1, 256)),
        (768, 12, 1 / 3, (256, 4, 1024)),
        (1024, 16, 1 / 4, (256, 4, 1024)),
        # Complete heads of the main model's head size, at least one.
        (256, 4, 0.1, (64, 1, 256)),
        (256, 4, 0.4, (128, 2, 512)),
        (256, 4, 1, (256, 4, 1024)),
    ],
)
def test_widths_of_the_generator(hidden, heads, size, expected):
    main = electra(hidden, heads)
    config = generator_config(main, size)
    assert (config.hidden_size, config.num_attention_heads, config.intermediate_size) == expected
    assert (main.hidden_size, main.num_attention_heads) == (hidden, heads)


def test_other_config_values_are_unchanged():
    main = electra(64, 4, embedding_size=16, vocab_size=99, max_position_embeddings=33, hidden_dropout_prob=0.3)
    changed = {n: v for n, v in generator_config(main).to_dict().items() if main.to_dict()[n] != v}
    assert changed == {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 64}


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_every_family_can_be_shallower(model_type):
    main = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    model = AutoModelForMaskedLM.from_config(generator_config(main, size=1, layers=1))
    assert model.config.num_hidden_layers == 1 and main.num_hidden_layers == 2
    ids = torch.tensor([[2, 5, 3]])
    assert model(input_ids=ids).logits.shape == (1, 3, 120)


def test_layer_groups_of_albert_fit_its_layers():
    main = AutoConfig.for_model("albert", **TINY_CONFIGS["albert"] | {"num_hidden_groups": 2})
    config = generator_config(main, 0.5, layers=1)
    assert (config.num_hidden_groups, config.hidden_size, config.embedding_size) == (1, 8, 8)


@pytest.mark.parametrize("size", [0, -1, 1.5, float("nan")])
def test_size_out_of_range_is_refused(size):
    with pytest.raises(ModelError, match=r"in \(0, 1\]; received"):
        generator_config(electra(64, 4), size)


@pytest.mark.parametrize("layers", [0, 13])
def test_layers_out_of_range_are_refused(layers):
    with pytest.raises(ModelError, match="between 1 and the main model's 12"):
        generator_config(electra(64, 4), layers=layers)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert"])
def test_narrower_generator_without_embedding_projection_is_refused(model_type):
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    with pytest.raises(ModelError, match="or a shallower auxiliary model: --auxiliary_size 1 --auxiliary_layers 1"):
        generator_config(config, 0.5)
    assert generator_config(config, 1.0, 1).num_hidden_layers == 1  # The advice works.


LOGITS = torch.tensor([2.0, -1.0, 0.5, -40.0, 1.0, 0.0])


@pytest.mark.parametrize("temperature", [0.8, 1.0])
@pytest.mark.parametrize("source", ["torch", "hash", "deterministic"])
def test_sample_frequencies_follow_the_softmax(temperature, source, request):
    count = 200_000
    if source == "deterministic":
        torch.use_deterministic_algorithms(True)
        request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    if source != "hash":
        numbers = torch.rand(count, generator=torch.Generator().manual_seed(0))
    else:  # As in the collator.
        numbers = torch.from_numpy(uniforms(0, np.arange(count) // 50, np.arange(count) % 50, stream=3)).float()
    drawn = sample_tokens(LOGITS.expand(count, -1), numbers, temperature)
    expected = (LOGITS.double() / temperature).softmax(-1) * count
    common = expected > 1
    observed = torch.bincount(drawn, minlength=len(LOGITS))
    assert observed[~common].sum() == 0
    expected = expected[common] * count / expected[common].sum()
    assert chisquare(observed[common].numpy(), expected.numpy()).pvalue > 0.01
    # The test has enough power: another temperature is clearly rejected.
    other = (LOGITS.double()[common] / (temperature + 0.1)).softmax(-1) * count
    assert chisquare(observed[common].numpy(), other.numpy()).pvalue < 1e-6


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1e-30, 1e-46])
def test_temperature_zero_gives_the_most_likely_token(temperature):
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(1))
    numbers = torch.rand(50, generator=torch.Generator().manual_seed(2))
    assert sample_tokens(logits, numbers, temperature).equal(logits.argmax(-1))


@pytest.mark.parametrize("deterministic", [False, True])
def test_tokens_of_probability_zero_are_never_sampled(deterministic, request):
    """Not at either end of the vocabulary, even with the numbers 0 and 1 (by rounding)."""
    torch.use_deterministic_algorithms(deterministic)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    logits = torch.tensor([[-1e9, 0.0, 1.0, -1e9]]).expand(3, -1)
    assert sample_tokens(logits, torch.tensor([0.0, 1.0, 1 - 2**-24])).tolist() == [1, 2, 2]


def test_nonfinite_logits_still_give_valid_tokens():
    """So that the loss, which is not finite either, ends the run."""
    logits = torch.tensor([[math.nan] * 3, [0.0, math.nan, 1.0], [math.inf, 0.0, 1.0]])
    drawn = sample_tokens(logits, torch.tensor([0.0, 0.5, 1 - 2**-24]))
    assert ((drawn >= 0) & (drawn < 3)).all()


def test_no_rows_give_no_samples():
    assert sample_tokens(torch.zeros(0, 5), torch.zeros(0)).shape == (0,)
