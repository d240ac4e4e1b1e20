"""oneDNN's products and their gradients equal torch's up to rounding, and are used only where suitable."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from hf_tlm.models import cpu_kernels
from hf_tlm.models.cpu_kernels import OneDnnLinear, faster_kernels, is_faster
from hf_tlm.training.cost import count_flops

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")


@pytest.fixture
def used(monkeypatch):
    """Return a list of whether each product used oneDNN, as if that were faster on every processor."""
    found, suits = [], cpu_kernels._can_use_onednn
    monkeypatch.setattr(cpu_kernels, "is_faster", lambda: True)
    monkeypatch.setattr(cpu_kernels, "_can_use_onednn", lambda *tensors: (found.append(suits(*tensors)), found[-1])[1])
    return found


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in ((2, 9, 24), (40, 24), (40,))]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_product_equals_torch(bias, transposed, used):
    inputs, weight, offset = tensors()
    weight = weight.t().contiguous().t() if transposed else weight
    expected = F.linear(inputs, weight, offset if bias else None)
    with OneDnnLinear():
        found = F.linear(inputs, weight, offset) if bias else F.linear(inputs, weight)
        layer = torch.nn.Linear(24, 40, bias=bias).requires_grad_(False)
        assert layer(inputs).shape == (2, 9, 40)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert used == [True] * 2
    F.linear(inputs, weight)
    assert len(used) == 2


@pytest.mark.parametrize("places", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("rows", [(2, 9), (18,)])
def test_gradients_equal_torch(places, rows, used):
    found = []
    for context in (torch.enable_grad, OneDnnLinear):
        inputs, weight, offset = tensors()
        given = [inputs.view(*rows, 24), weight, offset]
        for place in places:
            given[place].requires_grad_()
        with context():
            product = F.linear(*given)
        # Outside the context, as in a Trainer's backward pass; the gradient is not contiguous.
        (product.sin() * torch.arange(40.0)).mean(dim=0).sum().backward()
        found.append([product, *(given[place].grad for place in places)])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert used == [True]


def test_layers_without_bias_and_expanded_gradients_equal_torch(used):
    layers = [torch.nn.Linear(24, 40, bias=False) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    inputs = tensors()[0]
    layers[0](inputs).sum().backward()
    with OneDnnLinear():
        layers[1](inputs).sum().backward()
    torch.testing.assert_close(layers[1].weight.grad, layers[0].weight.grad, rtol=1e-5, atol=1e-5)
    assert used == [True]


def test_flops_are_counted_equally(used):
    counts = []
    for context in (torch.enable_grad, OneDnnLinear):
        inputs, weight, offset = (tensor.requires_grad_() for tensor in tensors())
        with count_flops() as count, context():
            F.linear(inputs, weight, offset).sum().backward()
        counts.append(count.get_total_flops())
    assert counts == [3 * 2 * 18 * 24 * 40] * 2 and used == [True]


def test_other_dtypes_and_builds_use_torch(used, monkeypatch):
    with OneDnnLinear():
        for dtype in (torch.float64, torch.bfloat16):
            assert F.linear(*tensors(dtype)).dtype == dtype
        with torch.autocast("cpu", torch.bfloat16):
            assert F.linear(*tensors()).dtype == torch.bfloat16
        assert F.linear(torch.empty(0, 24), tensors()[1]).shape == (0, 40)
        assert F.linear(tensors()[0][0, 0], tensors()[1]).shape == (40,)
        with torch.backends.mkldnn.flags(enabled=False):
            F.linear(*tensors())
        monkeypatch.setattr(cpu_kernels, "is_faster", lambda: False)
        F.linear(*tensors())
    assert used == [False] * 7


@pytest.mark.parametrize("device,faster,expected", [("cpu", True, True), ("cpu", False, False), ("cuda", True, False)])
def test_torch_functions_are_intercepted_only_where_faster(device, faster, expected, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "is_faster", lambda: faster)
    before = torch._C._len_torch_function_stack()
    with faster_kernels(torch.device(device)):
        assert torch._C._len_torch_function_stack() - before == expected
    with faster_kernels(torch.device(device), products=False):
        assert torch._C._len_torch_function_stack() == before


def test_cudnn_attention_is_disabled_on_gpus():
    flags = torch.backends.cuda
    was = flags.cudnn_sdp_enabled()
    with faster_kernels(torch.device("cuda")):
        assert not flags.cudnn_sdp_enabled() and flags.flash_sdp_enabled() and flags.mem_efficient_sdp_enabled()
    assert flags.cudnn_sdp_enabled() == was


@pytest.mark.parametrize("chosen", [SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION])
def test_explicitly_chosen_attention_backend_is_kept(chosen):
    flags = torch.backends.cuda
    with sdpa_kernel(chosen), faster_kernels(torch.device("cuda")):
        assert not flags.flash_sdp_enabled() and not flags.mem_efficient_sdp_enabled()
        assert flags.math_sdp_enabled() == (chosen == SDPBackend.MATH)
        assert flags.cudnn_sdp_enabled() == (chosen == SDPBackend.CUDNN_ATTENTION)


@pytest.mark.parametrize(
    "vendor,capability,faster",
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_onednn_is_faster_where_mkl_does_not_use_avx512(vendor, capability, faster, monkeypatch, tmp_path):
    if vendor is not None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nvendor_id : {vendor}\n")
    monkeypatch.setattr(cpu_kernels, "Path", lambda path: tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert is_faster.__wrapped__() is faster
    for library in (torch.backends.mkldnn, torch.backends.mkl):
        with monkeypatch.context() as without:
            without.setattr(library, "is_available", lambda: False)
            assert is_faster.__wrapped__() is False
