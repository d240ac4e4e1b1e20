"""Losses that stage 2 can add to the task loss: masked language modelling, and balanced classes."""

import json

import pytest
import torch
import torch.nn.functional as F

from hf_tlm.data.interleave import TASK
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.objectives import RDrop, TaskLoss, WeightedMean
from hf_tlm.objectives.task import class_weights
from hf_tlm.training import TlmArguments, TlmTrainer
from hf_tlm.training.objectives import tlm_objectives
from support.training_runs import QUIET, network


def stage_2(tmp_path, data, tokenizer, **changes):
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, stage2_max_steps=2, stage2_total_batch_size=8, **changes)
    args = args.for_stage(2, tmp_path, 0, "macro_f1")
    model = network(args, tokenizer, "bert", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    return TlmTrainer(
        model,
        args,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        compute_metrics=compute_metrics_for("macro_f1"),
    )


def test_class_weights_are_powers_of_frequencies_with_mean_one():
    labels = [0] * 8 + [1] * 2 + [3] * 1
    assert class_weights(labels, 4, 0.0) == pytest.approx([1.0, 1.0, 0.0, 1.0])
    alike = class_weights(labels, 4, 1.0)
    assert alike == pytest.approx([11 / 24, 11 / 6, 0.0, 11 / 3])
    for balance in (0.3, 0.5, 1.0):
        weights = class_weights(labels, 4, balance)
        assert sum(weights[label] for label in labels) / len(labels) == pytest.approx(1.0)
        assert weights[1] / weights[0] == pytest.approx(4**balance)


def test_weighted_loss_equals_the_equation():
    torch.manual_seed(0)
    logits, labels, weights = torch.randn(6, 3, requires_grad=True), torch.tensor([0, 2, 1, 1, 0, 2]), [0.5, 2.0, 1.5]
    found = TaskLoss(class_weights=weights)(type("Output", (), {"logits": logits}), {"labels": labels})["loss"]
    found.backward()
    mine = logits.detach().double().requires_grad_()
    expected = sum(-weights[y] * mine[b].log_softmax(-1)[y] for b, y in enumerate(labels.tolist())) / 6
    expected.backward()
    torch.testing.assert_close(found.double(), expected)
    torch.testing.assert_close(logits.grad.double(), mine.grad)
    twice = type("Output", (), {"logits": torch.cat([logits, logits]).detach()})
    same = RDrop(1.0, class_weights=weights)(twice, {"labels": labels})
    assert same["task_loss"].item() == pytest.approx(expected.item(), rel=1e-5) and same["rdrop_loss"].item() == 0.0


def test_class_weights_apply_to_texts_with_smoothed_labels():
    torch.manual_seed(0)
    logits, labels, weights = torch.randn(6, 3).double(), torch.tensor([0, 2, 1, 1, 0, 2]), [0.5, 2.0, 0.0]
    found = TaskLoss(0.3, weights)(type("Output", (), {"logits": logits}), {"labels": labels})["loss"]
    targets = 0.7 * F.one_hot(labels, 3) + 0.1
    terms = -(targets * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(found, (terms * torch.tensor(weights)[labels]).sum() / 6)


def test_class_balance_uses_the_training_texts(tmp_path, data, tokenizer):
    run = stage_2(tmp_path, data, tokenizer, stage2_class_balance=1.0)
    counts = torch.bincount(torch.tensor(data["train"]["label"][:]), minlength=3)
    assert run.objectives[TASK].class_weights.tolist() == pytest.approx((counts.sum() / (3 * counts)).tolist())
    assert stage_2(tmp_path, data, tokenizer).objectives[TASK].class_weights is None
    run.train()


def test_texts_are_masked_only_in_training(tmp_path, data, tokenizer):
    """The loss is that of stage 1's task batches with another weight; evaluation has unmasked texts."""
    run = stage_2(tmp_path, data, tokenizer, stage2_rho2=0.5)
    batch = next(iter(run.get_train_dataloader()))
    assert (batch["mlm_labels"] != -100).any() and (batch["input_ids"] == tokenizer.mask_token_id).any()
    outputs = run.model.eval()(**batch)
    terms = run.objectives[TASK](outputs, batch)
    task = F.cross_entropy(outputs.logits, batch["labels"])
    mlm = outputs.mlm_loss / (batch["mlm_labels"] != -100).sum()
    torch.testing.assert_close(terms["loss"], (0.5 * mlm + task) / 1.5)
    held = next(iter(run.get_eval_dataloader()))
    assert "mlm_labels" not in held and not (held["input_ids"] == tokenizer.mask_token_id).any()
    plain = stage_2(tmp_path, data, tokenizer)
    assert "mlm_labels" not in next(iter(plain.get_train_dataloader()))
    run.train()
    assert {"task/mlm_loss", "task/task_loss"} <= set(run.state.log_history[0])


def test_objectives_of_the_stages(tmp_path):
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, stage2_rho2=0.1)
    second = tlm_objectives(args.for_stage(2, tmp_path, 0, "macro_f1"))
    assert isinstance(second[TASK], WeightedMean) and [weight for weight, _ in second[TASK].parts] == [0.1, 1.0]
    first = tlm_objectives(args.for_stage(1, tmp_path, 0, "macro_f1"))
    assert [weight for weight, _ in first[TASK].parts] == [20.0, 1.0]


def test_class_balance_is_a_setting_of_the_run(tmp_path):
    from hf_tlm.training.run_folder import settings

    found = settings(TlmArguments(output_dir=str(tmp_path), **QUIET, stage2_class_balance=0.5))
    assert json.loads(json.dumps(found))["stage2_class_balance"] == 0.5 and found["stage2_rho2"] == 0.0
