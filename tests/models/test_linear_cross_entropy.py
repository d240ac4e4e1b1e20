"""Cross-entropy in blocks of logits equals all logits at once: loss and every gradient."""

import pytest
import torch
import torch.nn.functional as F

from hf_tlm.models.linear_cross_entropy import linear_cross_entropy

M, H, V = 13, 6, 11


def case(dtype=torch.float64, bias=True, rows=M):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((rows, H), (V, H), (V,))]
    hidden, weight, offset = (tensor.to(dtype).requires_grad_() for tensor in tensors)
    return hidden, weight, offset if bias else None, torch.randint(0, V, (rows,), generator=generator)


def plain(hidden, weight, bias, labels):
    return F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum")


def gradients(loss, tensors):
    (3.0 * loss).backward()
    return [tensor.grad for tensor in tensors if tensor is not None]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("max_logits", [1, 3 * V, 10**9])
def test_loss_and_gradients_equal_the_plain_computation(bias, max_logits):
    ours, expected = case(bias=bias), case(bias=bias)
    loss, reference = linear_cross_entropy(*ours, max_logits=max_logits), plain(*expected)
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=0)
    for a, b in zip(gradients(loss, ours[:3]), gradients(reference, expected[:3]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_blocks_are_at_most_max_logits_large(monkeypatch):
    sizes, linear = [], F.linear
    monkeypatch.setattr(F, "linear", lambda *args: sizes.append(linear(*args)) or sizes[-1])
    linear_cross_entropy(*case(), max_logits=4 * V).backward()
    logits = [tuple(block.shape) for block in sizes if block.shape[1] == V]  # The others are gradients.
    assert logits == [(4, V), (4, V), (4, V), (1, V)]


def test_frozen_weights_get_no_gradient():
    hidden, weight, bias, labels = case()
    linear_cross_entropy(hidden, weight.detach(), bias.detach(), labels).backward()
    other = case()[0]
    plain(other, weight.detach(), bias.detach(), labels).backward()
    torch.testing.assert_close(hidden.grad, other.grad)
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, bias, labels).requires_grad


def test_zero_rows_give_zero_loss():
    hidden, weight, bias, labels = case(rows=0)
    loss = linear_cross_entropy(hidden, weight, bias, labels)
    loss.backward()
    assert loss.item() == 0.0 and weight.grad.eq(0).all() and hidden.grad.shape == (0, H)


def test_second_backward_pass_is_refused():
    loss = linear_cross_entropy(*case())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        loss.backward()


@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_is_as_accurate_as_the_plain_computation(autocast):
    """The error against float64 is at most twice that of the plain computation in the same precision."""
    dtype = torch.float32 if autocast else torch.bfloat16
    exact = gradients(plain(*(e := case())), e[:3])
    errors = []
    for function in (linear_cross_entropy, plain):
        tensors = case(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = function(*tensors)
        assert loss.dtype == torch.float32 or function is plain
        found = gradients(loss, tensors[:3])
        assert all(gradient.dtype == dtype for gradient in found)
        errors.append(sum((a.double() - b).abs().mean().item() for a, b in zip(found, exact, strict=True)))
    assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("max_logits", "rows"), [(1, 512), (20, 4), (3 * V, 5), (10**9, 512)])
def test_frozen_layer_is_computed_in_blocks_of_classes(bias, weighted, max_logits, rows, monkeypatch):
    """The logits are far apart and the largest comes last, so the softmax of the first blocks is corrected."""
    monkeypatch.setattr("hf_tlm.models.linear_cross_entropy.CACHED_ROWS", rows)
    ours, expected = case(bias=bias), case(bias=bias)
    for _, weight, offset, _ in (ours, expected):
        weight.requires_grad_(False).mul_(torch.linspace(0, 300, V, dtype=torch.float64)[:, None])
        if offset is not None:
            offset.requires_grad_(False)
    weights = torch.linspace(0.1, 2, M, dtype=torch.float64) if weighted else torch.ones(M, dtype=torch.float64)
    outer = (lambda block, log_p: (-weights[block] * log_p, -weights[block])) if weighted else None
    loss = linear_cross_entropy(*ours, max_logits=max_logits, outer=outer)
    hidden, weight, offset, labels = expected
    reference = (F.cross_entropy(F.linear(hidden, weight, offset), labels, reduction="none") * weights).sum()
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=0)
    (a,), (b,) = gradients(loss, ours[:1]), gradients(reference, expected[:1])
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-9)
    with torch.no_grad():
        again = linear_cross_entropy(*ours, max_logits=max_logits, outer=outer)
    torch.testing.assert_close(again, reference.detach(), rtol=1e-12, atol=0)
