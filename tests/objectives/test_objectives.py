"""Losses and gradients compared with plain transcriptions of the equations; the two normalisations; the counts."""

import math
from types import SimpleNamespace

import pytest
import torch

from hf_tlm.errors import HfTlmError
from hf_tlm.objectives import (
    CorrectiveLm,
    Mlm,
    RDrop,
    ReplacedTokenDetection,
    TaskLoss,
    TeacherLoss,
    ValueLoss,
    WeightedMean,
    WeightedSum,
)
from hf_tlm.objectives.terms import accumulation_dtype, mean

RHO2 = 20.0


def test_mean_over_processes_may_divide_by_less_than_one_token():
    """With one masked token on one of four processes, DDP's mean over them gives it its complete gradient."""
    outputs, batch = case()
    quarter = Mlm()(outputs, batch, {"mlm": torch.tensor(0.25, dtype=torch.float64)})["loss"]
    assert quarter.item() == pytest.approx(4 * outputs.mlm_loss.item())
    nothing = mean(torch.tensor(0.0), torch.tensor(0))
    assert nothing.item() == 0.0


def test_accumulation_dtype_depends_on_the_device():
    assert accumulation_dtype(torch.device("cpu")) == accumulation_dtype(torch.device("cuda")) == torch.float64
    assert accumulation_dtype(torch.device("mps")) == torch.float32


def case():
    generator = torch.Generator().manual_seed(1)
    mlm_labels = torch.full((3, 5), -100)
    mlm_labels[0, 1], mlm_labels[2, 0], mlm_labels[2, 4] = 3, 0, 6
    mlm_logits = torch.randn(3, 7, generator=generator, dtype=torch.float64).float().requires_grad_()
    # As the model returns it: the sum of the losses at the masked positions, in row-major order.
    mlm_loss = torch.nn.functional.cross_entropy(mlm_logits, torch.tensor([3, 0, 6]), reduction="sum")
    outputs = SimpleNamespace(
        mlm_logits=mlm_logits, mlm_loss=mlm_loss, logits=torch.randn(3, 4, generator=generator).requires_grad_()
    )
    return outputs, {"mlm_labels": mlm_labels, "labels": torch.tensor([2, 0, 3])}


def plain(outputs):
    """Compute -log p of each target, one by one."""

    def nll(row, target):
        return -(row[target] - torch.log(torch.exp(row).sum()))

    mlm = sum(nll(row, target) for row, target in zip(outputs.mlm_logits, (3, 0, 6), strict=True)) / 3
    task = sum(nll(row, target) for row, target in zip(outputs.logits, (2, 0, 3), strict=True)) / 3
    return mlm, task


@pytest.mark.parametrize(
    "combine,equation",
    [
        (WeightedSum, lambda mlm, task: RHO2 * mlm + task),
        (WeightedMean, lambda mlm, task: (RHO2 * mlm + task) / (RHO2 + 1)),
    ],
)
def test_weighted_losses_equal_the_equation(combine, equation):
    outputs, batch = case()
    terms = combine((RHO2, Mlm()), (1.0, TaskLoss()))(outputs, batch)
    terms["loss"].backward()
    ours = outputs.mlm_logits.grad.clone(), outputs.logits.grad.clone()
    outputs.mlm_logits.grad = outputs.logits.grad = None
    mlm, task = plain(outputs)
    expected = equation(mlm, task)
    expected.backward()
    torch.testing.assert_close(terms["loss"], expected)
    torch.testing.assert_close(terms["mlm_loss"], mlm.detach())
    torch.testing.assert_close(terms["task_loss"], task.detach())
    torch.testing.assert_close(ours, (outputs.mlm_logits.grad, outputs.logits.grad))


def test_zero_weight_is_not_computed():
    outputs, batch = case()
    both = WeightedMean((0.0, Mlm()), (1.0, TaskLoss()))
    assert set(both(outputs, batch)) == {"loss", "task_loss"} and set(both.count(batch)) == {"task"}


@pytest.mark.parametrize("weights", [(-1.0, 1.0), (0.0, 0.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_invalid_weights_are_refused(weights):
    with pytest.raises(HfTlmError, match="finite weights"):
        WeightedSum((weights[0], Mlm()), (weights[1], TaskLoss()))


class OwnLoss(TaskLoss):
    name = "own"


def test_losses_with_equal_names_are_refused():
    """They would be counted together and logged as one."""
    for parts in ([(1.0, TaskLoss()), (2.0, TaskLoss(0.1))], [(1.0, TaskLoss()), (1.0, WeightedSum((1.0, RDrop(1.0))))]):
        with pytest.raises(HfTlmError, match="^WeightedMean needs losses with different names, .* received 2 named 'task'"):
            WeightedMean(*parts)
    outputs, batch = case()
    assert set(WeightedSum((1.0, TaskLoss()), (1.0, OwnLoss())).count(batch)) == {"task", "own"}
    WeightedSum((1.0, TaskLoss()), (0.0, TaskLoss(0.1)))


@pytest.mark.parametrize(
    "objective,lacking",
    [
        (Mlm(), "mlm_labels"),
        (TaskLoss(), "labels"),
        (ValueLoss(), "labels"),
        (RDrop(1.0), "labels"),
        (TeacherLoss(), "teacher_probs"),
        (ReplacedTokenDetection(), "attention_mask"),
        (CorrectiveLm(1.0), "attention_mask"),
    ],
)
def test_missing_inputs_of_a_batch_are_named(objective, lacking):
    for ask in (lambda: objective({}, {"input_ids": torch.zeros(1, 2)}), lambda: objective.count({"input_ids": None})):
        with pytest.raises(
            HfTlmError, match=f"^{type(objective).__name__} needs {lacking} in a batch, .*a batch with input_ids."
        ):
            ask()


def test_no_masked_tokens_give_zero_loss_with_a_graph():
    outputs, batch = case()
    outputs.mlm_loss = torch.zeros(0, requires_grad=True).sum()
    loss = Mlm()(outputs, {"mlm_labels": torch.full((3, 5), -100)})["loss"]
    assert loss.item() == 0.0
    loss.backward()


def test_counts_are_the_divisors():
    outputs, batch = case()
    objective = WeightedSum((RHO2, Mlm()), (1.0, TaskLoss()))
    assert {k: int(v) for k, v in objective.count(batch).items()} == {"mlm": 3, "task": 3}
    counts = {"mlm": torch.tensor(6.0), "task": torch.tensor(12.0)}
    mlm, task = plain(outputs)
    torch.testing.assert_close(objective(outputs, batch, counts)["loss"], RHO2 * mlm / 2 + task / 4)


def test_label_smoothing_equals_torch():
    outputs, batch = case()
    expected = torch.nn.CrossEntropyLoss(label_smoothing=0.3)(outputs.logits, batch["labels"])
    torch.testing.assert_close(TaskLoss(label_smoothing=0.3)(outputs, batch)["loss"], expected)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: WeightedSum(Mlm(), TaskLoss()),
            "^WeightedSum needs pairs of a weight and a loss, such as ",
        ),
        (lambda: WeightedMean([(1, Mlm()), (1, TaskLoss())]), "^WeightedMean needs pairs of a weight and a loss"),
        (lambda: WeightedSum(("1", Mlm())), r"received \('1', <"),
        (lambda: WeightedSum((1.0, "mlm")), r"received \(1.0, 'mlm'\)"),
        (lambda: TaskLoss(1.0), "^label_smoothing: expected a number of at least 0 and below 1; received 1.0"),
        (lambda: TaskLoss("0.1"), "^label_smoothing: expected a number .* received '0.1'"),
        (lambda: TaskLoss(class_weights=[1, -1]), "^class_weights: expected a number from 0 to 1e.06; received -1"),
        (lambda: RDrop(-1), "^alpha: expected a number from 0"),
        (lambda: TeacherLoss(0), "^temperature: expected a number above 0"),
    ],
)
def test_invalid_arguments_are_refused(make, said):
    with pytest.raises(HfTlmError, match=said):
        make()


def test_wrong_number_of_class_weights_is_refused():
    """With too many weights the first ones would be used."""
    outputs, batch = SimpleNamespace(logits=torch.zeros(2, 3)), {"labels": torch.tensor([0, 2])}
    for weights in ([1.0, 1.0], [1.0] * 4):
        with pytest.raises(HfTlmError, match=f"^class_weights: expected 3, one per class .* received {len(weights)}"):
            TaskLoss(class_weights=weights)(outputs, batch)
