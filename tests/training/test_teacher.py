"""A teacher's answers in training: their loss is added to the task loss; without a teacher none of its code runs."""

import json

import pytest
import torch
import torch.nn.functional as F
from transformers import set_seed

from hf_tlm.models.cpu_kernels import faster_kernels
from hf_tlm.objectives import TeacherLoss
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.runs.teachers import ask
from hf_tlm.training import ModelArguments, TlmArguments, TlmTrainer
from hf_tlm.training.teacher import Teacher
from support.tiny_checkpoints import go, pretrained
from support.toys import FAST, TINY_CONFIGS
from support.training_runs import NO_DROPOUT, QUIET, network, taught, trainer


@pytest.fixture
def answered(data, tokenizer):
    return taught(data, tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"rho1": 1}, {"rho1": 0, "loss_normalization": "sum", "mlm_probability": 0.3}])
def test_accumulation_gives_the_same_weights(tmp_path, answered, tokenizer, options):
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


def test_loss_is_the_weighted_sum_of_its_parts(tmp_path, answered, tokenizer):
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
    logs, labelled = outputs.logits.log_softmax(-1), batch["labels"] >= 0
    assert 0 < labelled.sum() < len(labelled)
    task_loss = -logs[labelled].gather(1, batch["labels"][labelled, None]).mean()
    known = batch["teacher_probs"].sum(-1) > 0
    assert 0 < known.sum() < len(known)
    softened = (batch["teacher_probs"][known].log() / 3).softmax(-1)
    teacher_loss = -9 * (softened * (outputs.logits[known] / 3).log_softmax(-1)).sum(-1).mean()
    masked = (batch["mlm_labels"] != -100).sum()
    torch.testing.assert_close(loss, 2 * outputs.mlm_loss / masked + task_loss + 0.5 * teacher_loss, rtol=1e-4, atol=1e-5)


@pytest.fixture
def teacher_code_fails(monkeypatch):
    """Make every part of a teacher fail."""

    def refuse(*args, **options):
        pytest.fail("a teacher was entered")

    for name in ("__init__", "texts", "answered", "write"):
        monkeypatch.setattr(Teacher, name, refuse)
    for name in ("__init__", "count", "__call__"):
        monkeypatch.setattr(TeacherLoss, name, refuse)
    for name in (
        "LinearTeacher",
        "ModelTeacher",
        "TableTeacher",
        "_get_answers",
        "_passage_ends",
        "_create_teacher",
        "_log_report",
        "read_mapping",
    ):
        monkeypatch.setattr(ask, name, refuse)


def untaught(folder, data, tokenizer, stage, **options):
    if stage == 1:
        return trainer(folder, data, tokenizer, max_steps=6, **options)
    values = {"stage2_max_steps": 6, "stage2_total_batch_size": 8, "stage2_learning_rate": 1e-2}
    args = TlmArguments(output_dir=str(folder), **QUIET, **values).for_stage(2, folder, 0, "macro_f1")
    args.load_best_model_at_end, args.eval_strategy, args.save_strategy = False, "no", "no"
    set_seed(7)
    model = network(args, tokenizer, "bert", NO_DROPOUT)
    return TlmTrainer(model, args, train_dataset=data["train"], eval_dataset=None, processing_class=tokenizer)


@pytest.mark.parametrize("normalization", ["mean", "sum", None])
def test_training_without_a_teacher_equals_a_plain_loop(tmp_path, data, tokenizer, teacher_code_fails, normalization):
    """Bit for bit, with the paper's losses, clipping, AdamW and a schedule on the same batches, in stage 1 and stage 2."""
    stage, options = 2, {}
    if normalization is not None:
        stage, options = 1, {"rho1": 1, "rho2": 3, "loss_normalization": normalization}
    run = untaught(tmp_path / "a", data, tokenizer, stage, **options)
    batches, compute = [], run.compute_loss

    def record_batch(model, inputs, **named):
        batches.append({name: value.clone() for name, value in inputs.items()})
        return compute(model, inputs, **named)

    run.compute_loss = record_batch
    model = untaught(tmp_path / "b", data, tokenizer, stage, **options).model.train()
    run.train()
    assert len(batches) == 6 and not any("teacher" in name for batch in batches for name in batch)
    decays = [p for name, p in model.named_parameters() if name in run.get_decay_parameter_names(model)]
    others = [p for name, p in model.named_parameters() if name not in run.get_decay_parameter_names(model)]
    groups = [{"params": decays, "weight_decay": run.args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=run.args.learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=True)
    schedule = run.lr_scheduler.lr_lambdas[0]
    for step, batch in enumerate(batches):
        with faster_kernels(torch.device("cpu")):  # The Trainer uses these kernels where they are faster on a processor.
            outputs = model(**batch)
            masked = (batch["mlm_labels"] != -100).sum() if "mlm_labels" in batch else None
            language = None if masked is None else outputs.mlm_loss / masked
            if "labels" not in batch:
                loss = language
            else:
                loss = F.cross_entropy(outputs.logits, batch["labels"])
                if language is not None:
                    loss = (3 * language + loss) / (4 if normalization == "mean" else 1)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.args.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = run.args.learning_rate * schedule(step)
        optimizer.step()
        optimizer.zero_grad()
    assert {"labels" in batch for batch in batches} == ({True} if stage == 2 else {True, False})
    for (name, ours), (_, plain) in zip(run.model.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(ours, plain), name


def test_commands_without_a_teacher_use_none(tmp_path, task, corpus, tokenizer, teacher_code_fails):
    """Records, cards and folders contain nothing of a teacher."""
    subset = retrieve(task, corpus, top_k=4)
    values = {name: value for name, value in TINY_CONFIGS["bert"].items() if name not in ("vocab_size", "num_labels")}
    model_args = ModelArguments(model_config={"model_type": "bert", **values}, vocab_size=120)
    run_tlm(task, subset, TlmArguments(output_dir=str(tmp_path / "tlm"), **FAST), model_args)
    go(tmp_path / "tuned", pretrained(tmp_path / "base", tokenizer), task=task, max_steps=1)
    for folder in (tmp_path / "tlm", tmp_path / "tuned"):
        record = json.loads((folder / "results.json").read_text())
        assert record["arguments"].pop("teacher", "none") in ("none", ["none"])
        assert "teacher" not in {name.partition("_")[0] for name in record} and not list(folder.rglob("*teacher*"))
        assert "teacher" not in (folder / "README.md").read_text()
