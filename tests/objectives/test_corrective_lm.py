"""Corrective language modelling: equation 2 written out, its switches, and logits for which the plain form overflows."""

from types import SimpleNamespace

import pytest
import torch

from hf_tlm.errors import HfTlmError
from hf_tlm.models.linear_cross_entropy import linear_cross_entropy
from hf_tlm.objectives import CorrectiveLm, copy_loss, corrective_lm_loss

R, S, H, V = 3, 6, 5, 11
SWITCHES = [
    {},
    {"copy": False},
    {"stop_gradient": False},
    {"lambda_copy": 0.0, "stop_gradient": False, "all_tokens": True},
    {"lambda_copy": 7.0, "all_tokens": True},
]


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    shapes = {"hidden": (R, S, H), "embedding": (V, H), "bias": (V,), "w_copy": (H,)}
    return {
        name: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for name, shape in shapes.items()
    }


def texts():
    """Return texts with padding in the second row, and four masked tokens of which one was replaced by itself."""
    original = torch.arange(R * S).view(R, S) % V
    attention_mask = torch.ones(R, S, dtype=torch.long)
    attention_mask[1, 4:] = 0
    current = original.clone()
    mlm_labels = torch.full((R, S), -100)
    for row, position, drawn in ((0, 1, 9), (0, 4, 4), (1, 3, 0), (2, 5, 1)):
        mlm_labels[row, position], current[row, position] = original[row, position], drawn
    assert (mlm_labels != -100).sum() == 4 and (current != original).sum() == 3
    return original, current, {"attention_mask": attention_mask, "mlm_labels": mlm_labels}


def terms_of(objective, p, max_logits):
    """Call the objective as a model does: the head's part on the real tokens, then the objective on the outputs."""
    original, current, batch = texts()
    real = batch["attention_mask"].bool()
    hidden, labels, input_ids = p["hidden"][real], original[real], current[real]
    copy_logits, masked = hidden @ p["w_copy"], (batch["mlm_labels"] != -100)[real]
    lm_loss, lm_right = objective.lm_loss(
        hidden, p["embedding"], p["bias"], copy_logits, labels, input_ids, masked, max_logits=max_logits
    )
    outputs = SimpleNamespace(
        copy_logits=copy_logits,
        replaced=labels != input_ids,
        lm_loss=lm_loss,
        lm_right=lm_right,
        guesses=torch.tensor(3),
    )
    return objective(outputs, batch)


def plain(p, lambda_copy=50.0, copy=True, stop_gradient=True, all_tokens=False):
    """Compute equation 2 token by token, with exponentials."""
    original, current, batch = texts()
    of_copy, of_lm = [], []
    for row in range(R):
        for position in range(S):
            if not batch["attention_mask"][row, position]:
                continue
            h, x = p["hidden"][row, position], original[row, position]
            same = bool(current[row, position] == x)
            e = torch.exp(p["w_copy"] @ h)
            p_copy = {1: e / (e + 1), 0: 1 / (e + 1)}
            of_copy.append(-torch.log(p_copy[int(same)]))
            if not all_tokens and batch["mlm_labels"][row, position] == -100:
                continue
            if stop_gradient:
                p_copy = {y: value.detach() for y, value in p_copy.items()}
            logits = torch.exp(p["embedding"] @ h + p["bias"])
            p_lm = logits[x] / logits.sum()
            of_lm.append(-torch.log(same * p_copy[1] + p_copy[0] * p_lm if copy else p_lm))
    copy_term, lm_term = torch.stack(of_copy).mean(), torch.stack(of_lm).mean()
    assert len(of_copy) == 16 and len(of_lm) == (16 if all_tokens else 4)
    return lambda_copy * copy_term + lm_term, copy_term, lm_term


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("max_logits", [1, 3 * V, 10**9])
def test_every_term_and_gradient_equals_the_equation(switches, max_logits):
    mine, reference = parameters(), parameters()
    terms, expected = terms_of(CorrectiveLm(**switches), mine, max_logits), plain(reference, **switches)
    for name, value in zip(("loss", "copy_loss", "lm_loss"), expected, strict=True):
        torch.testing.assert_close(terms[name], value, rtol=1e-12, atol=0)
    terms["loss"].backward()
    expected[0].backward()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor.grad, reference[name].grad, rtol=1e-10, atol=1e-12)


def test_no_gradient_of_the_lm_loss_reaches_the_copy_weights():
    def gradient(**switches):
        p = parameters()
        hidden = p["hidden"].detach()[0]
        loss = corrective_lm_loss(
            hidden, p["embedding"], p["bias"], hidden @ p["w_copy"], torch.arange(S), torch.arange(S) // 2, **switches
        )
        return torch.autograd.grad(loss, p["w_copy"], allow_unused=True)[0]

    assert gradient() is None and gradient(copy=False, stop_gradient=False) is None
    assert gradient(stop_gradient=False).abs().min() > 0


def test_each_switch_changes_only_its_term():
    base = terms_of(CorrectiveLm(), parameters(), V)
    for switches, changed in (
        ({"copy": False}, {"loss", "lm_loss", "lm_accuracy_original"}),
        ({"all_tokens": True}, {"loss", "lm_loss"}),
        ({"lambda_copy": 1.0}, {"loss"}),
        ({"stop_gradient": False}, set()),  # Changes only gradients: see above.
    ):
        found = terms_of(CorrectiveLm(**switches), parameters(), V)
        assert {name for name in base if not torch.allclose(base[name], found[name])} == changed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop_gradient", [True, False])
def test_extreme_logits_give_finite_losses_and_gradients(dtype, stop_gradient):
    """For scores of +-30000, where exp overflows or is 0, every loss equals its linear limit."""
    hidden = torch.tensor([[1.0], [1.0], [1.0], [1.0], [-1.0]], dtype=dtype, requires_grad=True)
    weight = torch.tensor([[30000.0], [-30000.0], [0.0]], dtype=dtype, requires_grad=True)
    z = torch.tensor([30000.0, 30000.0, -30000.0, -30000.0, 30000.0], dtype=dtype, requires_grad=True)
    labels, input_ids = torch.tensor([1, 1, 1, 0, 0]), torch.tensor([1, 2, 1, 2, 0])
    # Copied; improbably corrected to an improbable token; improbably copied, the cheaper of two ways; corrected;
    # copied.
    high = z[0].detach().double()
    expected = 0 + (high + 2 * high) + high + 0 + 0
    loss = corrective_lm_loss(hidden, weight, None, z, labels, input_ids, stop_gradient=stop_gradient, max_logits=6)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    total = loss + copy_loss(z, labels == input_ids)
    torch.testing.assert_close(total.double(), expected + high + high, rtol=1e-6, atol=0)
    total.backward()
    assert all(tensor.grad.isfinite().all() for tensor in (hidden, weight, z))
    # d L_copy / dz = p - y; without the stop-gradient the two improbable cases also contribute to z.
    by_copy = torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0])
    if not stop_gradient:
        by_copy[1:3] *= 2
    torch.testing.assert_close(z.grad.float(), by_copy)
    e = torch.exp(z.detach())
    overflowing = -torch.log(
        (labels == input_ids) * e / (e + 1) + torch.softmax(hidden @ weight.T, 1)[range(5), labels] / (e + 1)
    )
    assert not overflowing.isfinite().all()


def test_logits_are_computed_in_bounded_blocks():
    p, seen = parameters(), []
    hidden = p["hidden"].flatten(0, 1)
    options = {"max_logits": 4 * V, "visit": lambda rows, logits: seen.append((rows.start, tuple(logits.shape)))}
    ids = torch.arange(R * S) % V
    corrective_lm_loss(hidden, p["embedding"], p["bias"], hidden @ p["w_copy"], ids, ids, **options)
    assert seen == [(0, (4, V)), (4, (4, V)), (8, (4, V)), (12, (4, V)), (16, (2, V))]


def test_outer_none_is_minus_the_log_probability():
    p = parameters()
    hidden, ids = p["hidden"].flatten(0, 1), torch.arange(R * S) % V
    options = {"outer": lambda rows, log_p: (-log_p, -torch.ones_like(log_p))}
    other = linear_cross_entropy(hidden, p["embedding"], p["bias"], ids, **options)
    assert torch.equal(other, linear_cross_entropy(hidden, p["embedding"], p["bias"], ids))


def test_counts_and_accuracies():
    *_, batch = texts()
    assert CorrectiveLm().count(batch) == {"copy": 16, "lm": 4}
    assert CorrectiveLm(all_tokens=True).count(batch) == {"copy": 16, "lm": 16}
    logits = torch.full((16,), 2.0)
    replaced = torch.arange(16) < 3
    logits[0] = -1.0
    # Of the four masked tokens three were replaced; the LM is correct at one of those, and at the fourth.
    right = torch.zeros(16, dtype=torch.bool)
    right[[1, 15]] = True
    batch["mlm_labels"] = torch.full_like(batch["mlm_labels"], -100)
    batch["mlm_labels"].view(-1)[[0, 1, 2, 17]] = 5
    outputs = SimpleNamespace(
        copy_logits=logits, replaced=replaced, lm_loss=torch.tensor(8.0), lm_right=right, guesses=torch.tensor(2)
    )
    terms = CorrectiveLm()(outputs, batch)
    assert terms["copy_accuracy_replaced"].tolist() == [1, 3] and terms["copy_accuracy_original"].tolist() == [13, 13]
    assert terms["lm_accuracy_replaced"].tolist() == [1, 3] and terms["lm_accuracy_original"].tolist() == [1, 1]
    assert terms["generator_accuracy"].tolist() == [2, 4]
    assert terms["replaced_fraction"].tolist() == [3, 16] and terms["lm_loss"] == 2
    halved = CorrectiveLm()(outputs, batch, {"copy": torch.tensor(32), "lm": torch.tensor(8)})
    torch.testing.assert_close(halved["loss"], terms["loss"] / 2)


@pytest.mark.parametrize("all_tokens", [False, True])
@pytest.mark.parametrize("copy", [True, False])
def test_lm_accuracy_uses_the_probabilities_of_equation_2(copy, all_tokens):
    """Token by token; in small blocks as in a single one."""
    generator = torch.Generator().manual_seed(2)
    hidden, embedding = torch.randn(40, H, generator=generator), 2 * torch.randn(V, H, generator=generator)
    copy_logits = 2 * torch.randn(40, generator=generator)
    labels, input_ids = (torch.randint(0, V, (40,), generator=generator) for _ in range(2))
    input_ids = torch.where(torch.arange(40) < 20, labels, input_ids)
    masked = torch.arange(40) % 3 > 0
    expected = []
    for token in range(40):
        p = torch.softmax(embedding @ hidden[token], dim=0)
        if copy:
            p = (1 - copy_logits[token].sigmoid()) * p
            p[input_ids[token]] += copy_logits[token].sigmoid()
        expected.append(bool((masked[token] or all_tokens) and p.argmax() == labels[token]))
    objective = CorrectiveLm(copy=copy, stop_gradient=False, all_tokens=all_tokens)
    for max_logits in (1000, 3 * V):
        _, right = objective.lm_loss(hidden, embedding, None, copy_logits, labels, input_ids, masked, max_logits)
        assert right.tolist() == expected
    assert 3 < sum(expected) < 37


def test_no_masked_tokens_give_zero_lm_loss():
    batch = {"attention_mask": torch.ones(1, 2, dtype=torch.long), "mlm_labels": torch.full((1, 2), -100)}
    objective, hidden = CorrectiveLm(), torch.zeros(2, H)
    nothing = torch.zeros(2, dtype=torch.bool)
    lm, right = objective.lm_loss(
        hidden, torch.zeros(V, H), None, torch.zeros(2), torch.ones(2).long(), torch.ones(2).long(), nothing
    )
    assert not right.any()
    guesses = torch.tensor(0)
    outputs = SimpleNamespace(copy_logits=torch.zeros(2), replaced=nothing, lm_loss=lm, lm_right=right, guesses=guesses)
    terms = objective(outputs, batch)
    assert terms["lm_loss"] == 0 and terms["loss"].isfinite()


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"lambda_copy": -1.0}, "received -1.0"),
        ({"lambda_copy": float("nan")}, "received nan"),
        ({"lambda_copy": 0.0}, "copy head untrained"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(HfTlmError, match=message):
        CorrectiveLm(**arguments)
