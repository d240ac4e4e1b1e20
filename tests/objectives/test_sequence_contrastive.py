"""Sequence contrastive learning compared with equation 3 written out (on two processes: `tests/training`)."""

from types import SimpleNamespace

import pytest
import torch

from hf_tlm.errors import HfTlmError
from hf_tlm.objectives import SequenceContrastive, contrastive_loss

N, H = 5, 4


def vectors(dtype=torch.float64, number=N):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(number, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(2)]


def plain(corrupted, cropped, temperature):
    """Compute the loss's terms of equation 3 sequence by sequence, with exponentials."""

    def score(a, b):
        return torch.exp((a @ b) / (a.norm() * b.norm()) / temperature)

    terms = []
    for k in range(len(corrupted)):
        for view, other in ((corrupted, cropped), (cropped, corrupted)):
            positive = score(view[k], other[k])
            negative = sum(score(view[k], each) for j in range(len(view)) if j != k for each in (view[j], other[j]))
            terms.append(-torch.log(positive / (positive + negative)))
    return terms


def objective_of(corrupted, cropped, temperature=1.0, counts=None):
    outputs = SimpleNamespace(corrupted_vectors=corrupted, cropped_vectors=cropped)
    batch = {"input_ids": torch.zeros(len(corrupted), 7, dtype=torch.long)}
    return SequenceContrastive(temperature)(outputs, batch, counts)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_loss_and_gradients_equal_the_equation(temperature):
    mine, reference = vectors(), vectors()
    terms, expected = objective_of(*mine, temperature), plain(*reference, temperature)
    assert len(expected) == 2 * N
    torch.testing.assert_close(terms["loss"], torch.stack(expected).mean(), rtol=1e-12, atol=0)
    assert torch.equal(terms["scl_loss"], terms["loss"]) and not terms["scl_loss"].requires_grad
    terms["loss"].backward()
    torch.stack(expected).mean().backward()
    for ours, theirs in zip(mine, reference, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)


def test_loss_is_symmetric_in_the_two_views():
    corrupted, cropped = vectors()
    assert torch.allclose(contrastive_loss(corrupted, cropped)[0], contrastive_loss(cropped, corrupted)[0])


def test_cosines_of_positive_and_negative_pairs():
    corrupted, cropped = vectors()
    terms = objective_of(corrupted, cropped)
    sequences = torch.cat([corrupted, cropped]).detach()
    cosines = torch.nn.functional.cosine_similarity(sequences[:, None], sequences[None], dim=-1)
    text = torch.arange(N).repeat(2)
    positive, negative = text[:, None] == text, text[:, None] != text
    positive.fill_diagonal_(False)
    for name, pairs in (("cosine_positive", positive), ("cosine_negative", negative)):
        expected = torch.stack([cosines[pairs].sum(), pairs.sum().double()])
        torch.testing.assert_close(terms[name], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_temperatures_do_not_overflow(dtype):
    corrupted, cropped = vectors(dtype)
    loss, *_ = contrastive_loss(corrupted, cropped, 1e-3)
    loss.backward()
    assert all(x.grad.isfinite().all() for x in (corrupted, cropped))
    exact = torch.stack(plain(*(x.detach().double() for x in (corrupted, cropped)), 1e-2)).sum()
    assert not torch.stack(plain(*(x.detach().float() for x in (corrupted, cropped)), 1e-3)).isfinite().all()
    # At 0.01 the plain form does not overflow in float64.
    torch.testing.assert_close(contrastive_loss(corrupted, cropped, 1e-2)[0].double(), exact, rtol=1e-4, atol=0)


def test_single_text_has_zero_loss():
    corrupted, cropped = vectors(number=1)
    terms = objective_of(corrupted, cropped)
    terms["loss"].backward()
    assert terms["loss"] == 0 and corrupted.grad.abs().max() < 1e-12 and terms["cosine_negative"][1] == 0


def test_loss_is_divided_by_the_count():
    batch = {"input_ids": torch.zeros(3, 7, dtype=torch.long)}
    assert SequenceContrastive().count(batch) == {"scl": 6}
    assert SequenceContrastive().count({**batch, "first_tokens": torch.arange(4)}) == {"scl": 8}
    corrupted, cropped = vectors()
    halved = objective_of(corrupted, cropped, counts={"scl": torch.tensor(4 * N)})["loss"]
    torch.testing.assert_close(halved, objective_of(corrupted, cropped)["loss"] / 2)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_temperature_is_refused(temperature):
    with pytest.raises(HfTlmError, match=f"positive; received {temperature}"):
        SequenceContrastive(temperature)
