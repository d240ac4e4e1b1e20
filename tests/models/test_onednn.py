"""oneDNN's products: those of torch but for rounding, and only where nothing is differentiated."""

import pytest
import torch
import torch.nn.functional as F

from hf_tlm.models import onednn
from hf_tlm.models.onednn import OneDnnLinear


@pytest.fixture
def used(monkeypatch):
    """The products that were oneDNN's."""
    found, suits = [], onednn._suits

    def counted(*tensors):
        found.append(suits(*tensors))
        return found[-1]

    monkeypatch.setattr(onednn, "_suits", counted)
    return found


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in ((2, 9, 24), (40, 24), (40,))]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_the_product_is_that_of_torch(bias, transposed, used):
    inputs, weight, offset = tensors()
    weight = weight.t().contiguous().t() if transposed else weight
    expected = F.linear(inputs, weight, offset if bias else None)
    with OneDnnLinear():
        found = F.linear(inputs, weight, offset) if bias else F.linear(inputs, weight)
        layer = torch.nn.Linear(24, 40, bias=bias).requires_grad_(False)
        assert layer(inputs).shape == (2, 9, 40)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert used == [onednn._is_there()] * 2
    F.linear(inputs, weight)
    assert len(used) == 2


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_differentiated_is_left_to_torch(place, used):
    given = tensors()
    given[place].requires_grad_()
    with OneDnnLinear():
        F.linear(*given).sum().backward()
        with torch.no_grad():
            F.linear(*given)
    assert given[place].grad is not None and used == [False, onednn._is_there()]


def test_other_types_and_builds_are_left_to_torch(used, monkeypatch):
    with OneDnnLinear():
        for dtype in (torch.float64, torch.bfloat16):
            assert F.linear(*tensors(dtype)).dtype == dtype
        with torch.autocast("cpu", torch.bfloat16):
            assert F.linear(*tensors()).dtype == torch.bfloat16
        assert F.linear(torch.empty(0, 24), tensors()[1]).shape == (0, 40)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        F.linear(*tensors())
    assert used == [False] * 5
