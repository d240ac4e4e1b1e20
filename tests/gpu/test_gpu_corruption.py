"""ELECTRA, ALE and COCO-LM: the same replaced tokens, losses and gradients as on the CPU; random numbers of the device."""

import pytest
import torch
from transformers import AutoConfig, set_seed

from hf_tlm.data import TlmCollator
from hf_tlm.models import GeneratorDiscriminator, generator_config
from hf_tlm.models.generator_discriminator_parts import sample_tokens
from hf_tlm.objectives import CorrectiveLm, Mlm, ReplacedTokenDetection, SequenceContrastive, TaskLoss, WeightedSum
from support.gpu import DEVICE, assert_same_steps, here, on_device, without_dropout
from support.tiny_models import main_input
from support.token_texts import texts
from support.toys import TINY_CONFIGS

DETECTING = WeightedSum((1.0, Mlm()), (50.0, ReplacedTokenDetection()), (1.0, TaskLoss()))
CORRECTIVE = CorrectiveLm()
CASES = {
    "electra": ("electra", DETECTING, {}),
    "ale": ("albert", DETECTING, {}),
    "modernbert": ("modernbert", DETECTING, {}),
    "random": ("electra", DETECTING, {"replacements": "random"}),
    "frozen": ("electra", DETECTING, {"frozen": True}),
    "cocolm": (
        "cocolm",
        WeightedSum((1.0, Mlm()), (1.0, CORRECTIVE), (1.0, SequenceContrastive()), (1.0, TaskLoss())),
        {"heads": "clm", "apart": True, "scl_projection": "mlp"},
    ),
}


def composite(case):
    model_type, _, options = CASES[case]
    set_seed(0)
    config = AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])
    narrow = (0.5, None) if model_type in ("electra", "albert") else (1, 1)
    model = GeneratorDiscriminator.from_config(config, generator_config(config, *narrow), **options)
    model.lm_loss = CORRECTIVE.lm_loss
    return model


def collate(tokenizer, case, row_length=None):
    crop = 0.9 if case == "cocolm" else None
    options = {"replacing": True, "crop_fraction": crop, "row_length": row_length, "seed": 1}
    return TlmCollator(tokenizer, mlm_probability=0.3, **options)(texts(True, pairs=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("row_length", [None, 40], ids=["group", "pack"])
def test_loss_and_every_gradient_equal_the_cpu(case, row_length, tokenizer):
    model, batch, objective = without_dropout(composite(case)), collate(tokenizer, case, row_length), CASES[case][1]
    text = {name: values for name, values in batch.items() if not name.startswith("crop_")}
    ids, output = main_input(model, text)
    own_ids, own = main_input(on_device(model), here(text))
    assert torch.equal(own_ids.cpu(), ids) and 0 < output.replaced.sum() == own.replaced.sum()
    assert own.guesses == output.guesses
    assert_same_steps(model, lambda own, given: objective(own(**given), given)["loss"], batch)


def global_rng_states():
    """Return the states of all global random number generators."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if DEVICE.type == "cuda" else [])]


def all_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("case", ["electra", "cocolm"])
def test_replaced_tokens_follow_the_seed(case, tokenizer):
    """With a generator of the model, torch's global random numbers are not used."""
    model, batch = on_device(without_dropout(composite(case))), here(collate(tokenizer, case))
    batch = {name: values for name, values in batch.items() if name != "uniforms" and not name.startswith("crop_")}
    model.generator = torch.Generator(DEVICE)
    drawn = []
    for seed in (3, 3, 4):
        model.generator.manual_seed(seed)
        before = global_rng_states()
        drawn.append(main_input(model, batch)[0])
        assert all_equal(before, global_rng_states())
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    model.generator, drawn = None, []
    for seed in (3, 3, 4):
        set_seed(seed)
        drawn.append(main_input(model, batch)[0])
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_second_view_without_gradients_uses_no_random_numbers(tokenizer):
    """With dropout: the first view, and everything after it, uses the same random numbers as without a second view."""
    model, batch = on_device(composite("cocolm")).train(), here(collate(tokenizer, "cocolm"))
    plain = {name: values for name, values in batch.items() if not name.startswith("crop_")}
    found = []
    for learns, inputs in ((False, batch), (True, plain), (True, batch)):
        model.second_view_learns = learns
        set_seed(5)
        found.append((model(**inputs), global_rng_states()))
    (unread, after), (alone, expected), (learned, others) = found
    assert torch.equal(unread.logits, alone.logits) and not torch.equal(unread.logits, learned.logits)
    assert all_equal(after, expected) and not all_equal(after, others)
    assert not torch.equal(unread.cropped_vectors[0], unread.cropped_vectors[1])


def test_deterministic_sampling_equals_the_cpu(deterministic):
    """With deterministic algorithms, integers are summed instead of floats; the tokens equal those by float sums on the
    CPU."""
    generator = torch.Generator().manual_seed(0)
    logits, uniforms = torch.randn(200, 300, generator=generator), torch.rand(200, generator=generator)
    found = sample_tokens(logits.to(DEVICE), uniforms.to(DEVICE), 0.8)
    weights = (logits.double() / 0.8).softmax(-1).cumsum(-1)
    expected = torch.searchsorted(weights, uniforms.double()[:, None], right=True).squeeze(-1)
    assert (found.cpu() == expected).all() and len(found.unique()) > 100
