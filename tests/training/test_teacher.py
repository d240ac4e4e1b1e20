"""A teacher's answers in training: beside the task loss, counted by their own number, however a step is divided."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_tlm.data import tokenize
from hf_tlm.training.teacher import Teacher
from support.toys import make_task, sentences
from support.training_runs import trainer


@pytest.fixture
def answered(data, tokenizer):
    """Texts of the trainers' data, of which some have no answer, and passages."""
    generator, task = np.random.default_rng(0), make_task()
    train, said = (generator.dirichlet([1, 1, 1], count).astype(np.float32) for count in (48, 30))
    train[::5] = 0
    passages = Dataset.from_dict({"text": [row["text"] for row in sentences(30, 9)]})
    made = Teacher(train, np.arange(30), np.full(30, 1000), said, {})
    texts = tokenize(task.train, tokenizer, 32)
    return {**data, "train": made.answered(texts, tokenize(made.texts(passages), tokenizer, 32), 0.5)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"rho1": 1}, {"rho1": 0, "loss_normalization": "sum", "mlm_probability": 0.3}])
def test_1x8_equals_8x1(tmp_path, answered, tokenizer, options):
    weights = []
    for batch_size, accumulation in ((8, 1), (1, 8), (2, 4)):
        sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        run = trainer(
            tmp_path / str(batch_size),
            answered,
            tokenizer,
            teacher="linear",
            teacher_weight=2.0,
            teacher_temperature=2.0,
            **sizes,
            **options,
        )
        run.train()
        assert any("task/teacher_loss" in entry for entry in run.state.log_history)
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(weights[0], weights[2], rtol=1e-4, atol=2e-5)


def test_the_loss_is_the_sum_of_its_parts(tmp_path, answered, tokenizer):
    run = trainer(
        tmp_path,
        answered,
        tokenizer,
        teacher="linear",
        teacher_weight=0.5,
        teacher_temperature=3.0,
        rho1=0,
        rho2=2,
        loss_normalization="sum",
    )
    batch = next(iter(run.get_train_dataloader()))
    loss = run.compute_loss(run.model.train(), dict(batch))
    outputs = run.model(**{name: values for name, values in batch.items() if name != "teacher_probs"})
    logs, own = outputs.logits.log_softmax(-1), batch["labels"] >= 0
    assert 0 < own.sum() < len(own)
    task_loss = -logs[own].gather(1, batch["labels"][own, None]).mean()
    known = batch["teacher_probs"].sum(-1) > 0
    assert 0 < known.sum() < len(known)
    softened = (batch["teacher_probs"][known].log() / 3).softmax(-1)
    teacher_loss = -9 * (softened * (outputs.logits[known] / 3).log_softmax(-1)).sum(-1).mean()
    masked = (batch["mlm_labels"] != -100).sum()
    torch.testing.assert_close(loss, 2 * outputs.mlm_loss / masked + task_loss + 0.5 * teacher_loss, rtol=1e-4, atol=1e-5)
