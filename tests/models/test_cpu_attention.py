"""Attention in training on CPUs: outputs and gradients of transformers, in blocks or not, with and without dropout."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    ModernBertConfig,
)

from hf_tlm.models import TlmModel
from hf_tlm.models import cpu_kernels as module
from hf_tlm.models.base import packed_attention_mask
from hf_tlm.models.cpu_kernels import ATTENTION, RotaryAttention, attention, use_cpu_kernels
from support.toys import TINY_CONFIGS

SELF = nn.Module()  # A self-attention with the attributes that the function reads.
SELF.is_causal = False
SELF.config = ModernBertConfig(local_attention=4)
WINDOW = 2


def mask_of(kind: str, texts: int, heads: int, length: int) -> torch.Tensor | None:
    if kind == "none":
        return None
    if kind == "added":
        return torch.randn(texts, 1, length, length, dtype=torch.float64)
    if kind == "bias":
        return torch.randn(1, heads, length, length, dtype=torch.float64, requires_grad=True)
    return (torch.rand(texts, 1, length, length) > 0.4) | torch.eye(length, dtype=torch.bool)


def noise_like(like: torch.Tensor, p: float) -> torch.Tensor:
    """Return fixed numbers in place of random ones, so that they can be repeated."""
    return (torch.arange(like.numel(), dtype=like.dtype).view(like.shape) % 3) / 2 + p


def transcription(query, key, value, mask, noise, scaling):
    """Return softmax(scaling x Q K^T + mask) * noise V in plain steps, 0 where nothing is visible; float [R, S, heads,
    D]."""
    scores = torch.einsum("rhid,rhjd->rhij", query, key) * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e100) if mask.dtype == torch.bool else scores + mask
    weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
    weights = weights / weights.sum(-1, keepdim=True)
    if mask is not None and mask.dtype == torch.bool:
        weights = weights * mask
    return torch.einsum("rhij,rhjd->rihd", weights if noise is None else weights * noise, value)


@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("kind", ["bool", "added", "bias", "none"])
def test_attention_equals_a_plain_transcription(kind, dropout, monkeypatch):
    """The output and every gradient, including that of a mask, as COCO-LM's relative positions are."""
    monkeypatch.setattr(module, "dropout_noise", noise_like)
    torch.manual_seed(0)
    inputs = [torch.randn(3, 2, 6, size, dtype=torch.float64, requires_grad=True) for size in (4, 4, 5)]
    mask = mask_of(kind, 3, 2, 6)
    noise = noise_like(torch.empty(6, 6, 6, dtype=torch.float64), dropout).view(3, 2, 6, 6) if dropout else None
    differentiated = [*inputs, mask] if kind == "bias" else inputs
    weight = torch.randn(3, 6, 2, 5, dtype=torch.float64)
    output, _ = attention(SELF, *inputs, mask, dropout=dropout, scaling=0.7)
    expected = transcription(*inputs, mask, noise, 0.7)
    for ours, theirs in zip(
        [output, *torch.autograd.grad((output * weight).sum(), differentiated)],
        [expected, *torch.autograd.grad((expected * weight).sum(), differentiated)],
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def sliding_window_mask(texts: int, length: int) -> torch.Tensor:
    """Return the mask of a sliding window from `sdpa_mask`, with padding at the end of the second text and most of the
    third."""
    positions = torch.arange(length)
    near = (positions[:, None] - positions).abs() <= WINDOW
    real = torch.ones(texts, 1, 1, length, dtype=torch.bool)
    real[1, ..., -3:] = False
    real[2, ..., 4:] = False
    return near & real


@pytest.mark.parametrize("length", [23, 24, 25, 28, 31])
@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_sliding_window_is_computed_in_blocks(length, dropout, monkeypatch):
    """For lengths below and above the one from which blocks pay off, and with a last block of any size."""
    monkeypatch.setattr(module, "dropout_noise", lambda like, p: torch.full_like(like, 1.25))
    products = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: products.append((a.shape, b.shape)) or bmm(a, b))
    torch.manual_seed(length)
    inputs = [torch.randn(3, 2, length, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = sliding_window_mask(3, length)
    weight = torch.randn(3, length, 2, 4, dtype=torch.float64)
    output, _ = attention(SELF, *inputs, mask, dropout=dropout, scaling=0.7, sliding_window=WINDOW + 1)
    gradients = torch.autograd.grad((output * weight).sum(), inputs)
    expected = transcription(*inputs, mask, 1.25 if dropout else None, 0.7)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    by_blocks = max(shape[-1] for pair in products for shape in pair) < length
    assert by_blocks == (length >= module.MIN_BLOCK_RATIO * 4 * WINDOW)


@pytest.mark.parametrize("mask", ["none", "added"])
def test_blocks_need_a_boolean_mask(mask):
    torch.manual_seed(0)
    inputs = [torch.randn(1, 1, 40, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    given = mask_of(mask, 1, 1, 40)
    output, _ = attention(SELF, *inputs, given, scaling=1.0, sliding_window=WINDOW + 1)
    torch.testing.assert_close(output, transcription(*inputs, given, None, 1.0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 9), (3, 1, 1, 9), (3, 2, 6, 9)])
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_broadcast_masks_and_other_numbers_of_keys_equal_torch(kind, shape):
    """Masks of any shape that broadcasts to the scores', as in torch."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, 2, size, 4, dtype=torch.float64, requires_grad=True) for size in (6, 9, 9))
    mask = torch.rand(shape) > 0.4 if kind == "bool" else torch.randn(shape, dtype=torch.float64)
    ours, _ = attention(SELF, query, key, value, mask, scaling=0.7)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.7).transpose(1, 2)
    assert uses_own_attention(ours)
    for one, other in zip(
        [ours, *torch.autograd.grad(ours.square().sum(), [query, key, value])],
        [expected, *torch.autograd.grad(expected.square().sum(), [query, key, value])],
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def uses_own_attention(output: torch.Tensor) -> bool:
    return type(output.grad_fn).__name__ == "_AttentionBackward"


def test_implementation_of_attention_is_chosen(monkeypatch):
    """Long rows without dropout and causal layers use torch's; under autocast outputs have its dtype, gradients the
    inputs'."""
    inputs = [torch.randn(1, 1, 6, 4, requires_grad=True) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = attention(SELF, *inputs, None)
    output.sum().backward()
    assert uses_own_attention(output) and output.dtype == torch.bfloat16 and inputs[0].grad.dtype == torch.float32
    monkeypatch.setattr(module, "LONGEST_PLAIN", 5)
    assert not uses_own_attention(attention(SELF, *inputs, None)[0])
    assert uses_own_attention(attention(SELF, *inputs, None, dropout=0.1)[0])
    causal = nn.Module()
    causal.is_causal = True
    output, _ = attention(causal, *inputs, None, dropout=0.1)
    assert not uses_own_attention(output)


def test_attention_weights_are_dropped_and_empty_rows_are_zero():
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8)
    value = torch.eye(4).reshape(1, 1, 4, 4)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 3, :] = False
    means = sum(attention(SELF, query, key, value, mask, dropout=0.5)[0] for _ in range(2000)) / 2000
    # Every weight is a quarter and is dropped half of the time: 0 or a half.
    one = attention(SELF, query, key, value, mask, dropout=0.5)[0]
    assert set(one.unique().tolist()) == {0.0, 0.5}
    expected = torch.full((1, 4, 1, 4), 0.25)
    expected[:, 3] = 0
    torch.testing.assert_close(means, expected, rtol=0, atol=0.04)


def modernbert(length: int) -> ModernBertConfig:
    return AutoConfig.for_model("modernbert", **{**TINY_CONFIGS["modernbert"], "max_position_embeddings": length})


def with_large_weights(model: nn.Module) -> nn.Module:
    """Scale the weights up so that attention is not nearly uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("length", [20, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_modernbert_has_the_gradients_of_the_stock_class(dtype, length, layout, modernbert_in_float64, monkeypatch):
    """In padded rows and in packed ones, whose positions restart; exact in float64, and close in bf16 with autocast."""
    torch.manual_seed(0)
    config = modernbert(length)
    monkeypatch.setattr(module, "ROTATED_ELEMENTS", 3 * config.hidden_size * length)  # First three texts, then one.
    model = with_large_weights(TlmModel.from_config(copy.deepcopy(config)))
    stock = AutoModelForSequenceClassification.from_config(config)
    stock.load_state_dict({name: value for name, value in model.state_dict().items() if "mlm_head" not in name})
    rotated = {type(each).__name__ for each in model.modules() if isinstance(each, RotaryAttention)}
    assert rotated == {"RotaryAttention"} and stock.config._attn_implementation == "sdpa"
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    ids = torch.randint(5, 90, (4, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if layout == "padded":
        inputs["attention_mask"][1, length // 2 :] = 0
    else:
        first = length // 3 + torch.arange(4)[:, None]  # Tokens of each row's first text.
        texts = (torch.arange(length) >= first).long() + 1
        inputs["position_ids"] = torch.where(texts == 1, torch.arange(length), torch.arange(length) - first)
        inputs["attention_mask"] = packed_attention_mask(texts, config, wide)
    found = []
    for each in (model, stock):
        each.to(wide).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            hidden = each.model(**inputs).last_hidden_state
        real = inputs["attention_mask"][..., None] if layout == "padded" else 1
        loss = (hidden * real * torch.linspace(-1, 1, hidden.shape[-1])).square().sum()
        loss.backward()
        found.append({"loss": loss} | {name: p.grad for name, p in each.named_parameters() if p.grad is not None})
    ours, theirs = found
    assert set(ours) == set(theirs) and len(ours) > 10
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    for name, expected in theirs.items():
        difference = (ours[name].double() - expected.double()).norm() / expected.double().norm()
        assert difference < tolerance, (name, difference)


def test_modernbert_uses_the_dropout_of_its_config(monkeypatch):
    """For attention weights and attention outputs; the latter is a module, which a hook observes."""
    config = modernbert(40)
    config.attention_dropout = 0.5
    attending = TlmModel.from_config(config).model.layers[0].attn
    monkeypatch.setattr(module, "dropout_noise", lambda like, p: torch.full_like(like, 0.0 if p == 0.5 else torch.nan))
    given = []
    attending.out_drop.register_forward_hook(lambda itself, inputs, output: given.append(inputs[0]))
    hidden, turned = torch.randn(1, 9, config.hidden_size), torch.ones(1, 9, attending.head_dim)
    attending.train()(hidden, (turned, turned), None)
    attending.eval()(hidden, (turned, turned), None)
    assert not given[0].any() and given[1].all()


@pytest.mark.parametrize("length", [40, 60])
@pytest.mark.parametrize("local_attention", [1, 8])
def test_gradients_with_losses_on_padding_equal_the_stock_class(local_attention, length):
    """Stock question answering has a loss over all positions, including padding, with rows that see nothing."""
    config = modernbert(60)
    config.local_attention, config.num_labels = local_attention, 2
    stock = AutoModelForQuestionAnswering.from_config(copy.deepcopy(config))
    ours = copy.deepcopy(with_large_weights(stock))
    use_cpu_kernels(ours)
    ids = torch.randint(5, 90, (3, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][1, 9:] = 0
    inputs |= {name: torch.tensor([3, 5, 7]) for name in ("start_positions", "end_positions")}
    for each in (ours, stock):
        each.train()(**inputs).loss.backward()
    for (name, one), other in zip(ours.named_parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_every_model_of_a_shared_config_uses_the_attention():
    """The first model's attention is written to the shared config."""
    config = modernbert(40)
    for _ in range(2):
        model = TlmModel.from_config(config)
        assert sum(isinstance(each, RotaryAttention) for each in model.modules()) == config.num_hidden_layers
        assert model.config._attn_implementation == ATTENTION


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [40, 60])
def test_evaluation_equals_the_stock_class(length, dtype, monkeypatch):
    """Bit for bit in rows too short for blocks, so that logits equal those of an export; up to rounding in longer ones."""
    torch.manual_seed(0)
    config = modernbert(60)
    model = with_large_weights(TlmModel.from_config(copy.deepcopy(config))).eval()
    stock = AutoModelForSequenceClassification.from_config(config).eval()
    stock.load_state_dict({name: value for name, value in model.state_dict().items() if "mlm_head" not in name})
    rotate, rotated = module._Rotate.apply, []
    monkeypatch.setattr(module._Rotate, "apply", lambda *given: rotated.append(1) or rotate(*given))
    attend, attended = module._Attention.apply, []
    monkeypatch.setattr(module._Attention, "apply", lambda *given: attended.append(1) or attend(*given))
    ids = torch.randint(5, 90, (3, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][1, 9:] = 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours, theirs = model(**inputs).logits, stock(**inputs).logits
    assert len(rotated) == config.num_hidden_layers
    assert len(attended) == (0 if length == 40 else config.layer_types.count("sliding_attention"))
    assert (
        torch.equal(ours, theirs)
        if length == 40
        else torch.allclose(ours, theirs, atol=(1e-6 if dtype == torch.float32 else 1e-2) * theirs.abs().max())
    )
