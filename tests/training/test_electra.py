"""Replaced token detection in the Trainer: accumulation gives equal steps, and everything learns."""

import json
import math

import pytest
import torch
from transformers import ElectraForPreTraining, ElectraForSequenceClassification

from hf_tlm.data import TlmCollator
from hf_tlm.models import applied_parameters
from hf_tlm.objectives import Mlm, ReplacedTokenDetection, TaskLoss, WeightedSum
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments, TlmTrainer, prepare
from support.toys import TINY_CONFIGS
from support.training_runs import (
    OBJECTIVES,
    QUIET,
    Gradients,
    evaluated,
    history,
    run_processes,
    trainer,
    two_are_one,
    weights,
)

ELECTRA = OBJECTIVES["electra"]
TERMS = ("mlm_loss", "rtd_loss", "rtd_accuracy_replaced", "rtd_accuracy_original", "replaced_fraction", "generator_accuracy")


@pytest.mark.parametrize(
    "setups", [((8, 1, "pack"), (1, 8, "none")), ((8, 1, "group"), (2, 4, "group"))], ids=["packed", "grouped"]
)
def test_accumulation_gives_the_same_step(tmp_path, data, tokenizer, setups):
    """Loss, every term and every gradient; replacements depend on the texts, not on the batches."""
    runs = []
    for batch_size, accumulation, packing in setups:
        gradients = Gradients()
        run = trainer(
            tmp_path,
            data,
            tokenizer,
            **ELECTRA,
            rho1=1,
            packing=packing,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_grad_norm=0.0,
            max_steps=3,
            callbacks=[gradients],
        )
        run.train()
        names = [f"{stream}/{name}" for stream in ("corpus", "task") for name in TERMS]
        runs.append((history(run, "loss", "task/task_loss", *names), gradients.first))
    (expected_history, expected_gradients), (our_history, our_gradients) = runs
    for ours, expected in zip(our_history, expected_history, strict=True):
        assert ours == pytest.approx(expected, rel=2e-4)
    assert set(our_gradients) == set(expected_gradients)
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=2e-6, msg=name)


def test_first_step_equals_the_equation(tmp_path, data, tokenizer):
    """Task batches: (rho2 (L_mlm + 50 L_rtd) + L_task) / (rho2 + 1), with each mean over the complete step."""
    settings = {**ELECTRA, "rho1": 0, "rho2": 3.0, "rtd_weight": 50.0, "max_steps": 1, "max_grad_norm": 0.0}
    gradients = Gradients()
    run = trainer(tmp_path, data, tokenizer, **settings, callbacks=[gradients], gradient_accumulation_steps=4)
    run.train()
    whole = trainer(tmp_path, data, tokenizer, **settings, per_device_train_batch_size=128, packing="none")
    batch, model = next(iter(whole.get_train_dataloader())), whole.model
    out = model(**batch)
    mlm = out.mlm_loss / (batch["mlm_labels"] != -100).sum()
    rtd = -torch.where(out.replaced, out.rtd_logits.sigmoid(), 1 - out.rtd_logits.sigmoid()).log().mean()
    task = -out.logits.log_softmax(-1).gather(1, batch["labels"][:, None]).mean()
    ((3.0 * (mlm + 50 * rtd) + task) / 4.0).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients.first[name], parameter.grad, rtol=1e-3, atol=1e-6, msg=name)
    entry = run.state.log_history[0]
    for name, value in (("mlm_loss", mlm), ("rtd_loss", rtd), ("task_loss", task)):
        assert entry[f"task/{name}"] == pytest.approx(value.item(), rel=1e-4)
    assert entry["task/replaced_fraction"] == pytest.approx(out.replaced.double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("model_type", ["electra", "albert"])
def test_every_parameter_changes_and_both_losses_fall(tmp_path, data, tokenizer, model_type):
    run = trainer(
        *(tmp_path, data, tokenizer),
        **{**ELECTRA, "model_type": model_type},
        rho1=1,
        max_steps=40,
        learning_rate=5e-3,
        objectives={
            "corpus": WeightedSum((1.0, Mlm()), (50.0, ReplacedTokenDetection())),
            "task": WeightedSum((1.0, Mlm()), (50.0, ReplacedTokenDetection()), (1.0, TaskLoss())),
        },
    )
    before = weights(run)
    run.train()
    after = weights(run)
    assert not [n for n in before if before[n].is_floating_point() and torch.equal(before[n], after[n])]
    log = run.state.log_history
    for name in ("mlm_loss", "rtd_loss"):
        first, last = (sum(e[f"corpus/{name}"] for e in part if f"corpus/{name}" in e) for part in (log[:8], log[32:40]))
        assert last < first, name


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, tokenizer, corpus_rows):
    two_are_one(tmp_path, tokenizer, corpus_rows, ELECTRA, "corpus/rtd_loss", "task/mlm_loss")


@pytest.mark.slow
def test_two_processes_evaluate_every_passage_once(tmp_path, tokenizer, corpus_rows):
    """Passages that are repeated so that both processes have equally many batches do not count."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for processes in (1, 2):
        arguments = (str(tmp_path / str(processes)), str(tmp_path / "tokenizer"), corpus_rows, ELECTRA)
        assert run_processes(evaluated, *arguments, processes=processes) == [0] * processes
    one, two = (json.loads((tmp_path / name / "scores.json").read_text()) for name in "12")
    assert one.keys() == two.keys() and "none 7 rtd_loss" in one and "group 13 generator_accuracy" in one
    for name, value in one.items():
        assert two[name] == pytest.approx(value, rel=1e-5), name


def test_passages_are_evaluated_with_the_corpus_objective(tmp_path, data, tokenizer):
    """Without a task: every evaluation has the same masks, and each term is a mean over all passages."""
    held_out = data["corpus"].select(range(20)).add_column("draw", list(range(20)))
    run = trainer(
        tmp_path, data | {"train": None, "validation": held_out}, tokenizer, **ELECTRA, rho1=math.inf, metrics=False
    )
    first, second = run.evaluate(), run.evaluate()
    assert first["eval_rtd_loss"] == second["eval_rtd_loss"] and first["eval_mlm_loss"] == second["eval_mlm_loss"]
    collate = TlmCollator(tokenizer, seed=run.args.seed, replacing=True)
    batch = collate(list(held_out))
    out = run.model.eval()(**batch)
    expected = ReplacedTokenDetection()(out, batch)
    assert first["eval_rtd_loss"] == pytest.approx(expected["rtd_loss"].item(), rel=1e-4)
    assert first["eval_mlm_loss"] == pytest.approx(Mlm()(out, batch)["mlm_loss"].item(), rel=1e-4)
    plain = data["corpus"].select(range(20))
    tokenized = run.evaluate(plain)
    assert "draw" not in plain.column_names and 0 < tokenized["eval_loss"] != first["eval_loss"]  # Other masks.
    run.eval_dataset = {"a": plain, "b": held_out}
    both = run.evaluate()
    assert both["eval_a_loss"] == tokenized["eval_loss"] and both["eval_b_loss"] == first["eval_loss"]
    share, count = expected["generator_accuracy"].tolist()
    assert first["eval_generator_accuracy"] == pytest.approx(share / count, abs=1e-6)
    run.train()
    assert "corpus/rtd_loss" in run.state.log_history[0]


def test_generator_is_not_in_the_cost_of_stage_2(tmp_path, data, tokenizer):
    run = trainer(tmp_path, data, tokenizer, **ELECTRA, rho1=1)
    with_generator = applied_parameters(run.model)
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, objective="electra").for_stage(2, tmp_path, 0, "macro_f1")
    splits = {"train_dataset": data["train"], "eval_dataset": data["validation"]}
    TlmTrainer(run.model, args, **splits, processing_class=tokenizer)
    main = sum(parameter.numel() for parameter in run.model.main.parameters())
    assert main < applied_parameters(run.model) < 1.1 * main < with_generator  # With the head that detects.


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["electra", "ale"])
def test_both_stages_run_and_export_stock_models(tmp_path, task, corpus, tokenizer, objective):
    config = TINY_CONFIGS["albert" if objective == "ale" else "electra"]
    args = TlmArguments(
        output_dir=str(tmp_path / "run"),
        **QUIET,
        objective=objective,
        max_steps=4,
        rho1=1,
        max_length=32,
        stage2_max_steps=4,
        stage2_eval_steps=2,
        stage2_reset_classifier=True,
    )
    subset = retrieve(task, corpus, top_k=5)
    model_type = "albert" if objective == "ale" else "electra"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **config}))
    model_args = ModelArguments(model_config=str(tmp_path / "config.json"), vocab_size=120, auxiliary_size=0.5)
    result = run_tlm(task, subset, args, model_args)
    assert result.seeds[0]["stages"]["2"]["cost"]["steps"] == 4
    again = run_tlm(task, subset, args, model_args)
    assert again.seeds == result.seeds
    if objective == "electra":
        ElectraForSequenceClassification.from_pretrained(tmp_path / "run")
        ElectraForPreTraining.from_pretrained(tmp_path / "run" / "discriminator")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "replaced token detection" in card and 'subfolder="mlm"' not in card


def test_invalid_options_are_refused(tmp_path, task, tokenizer):
    def refused(match, model=None, **changes):
        args = TlmArguments(output_dir=str(tmp_path / "x"), **QUIET, **{"rho1": 0, "objective": "electra", **changes})
        with pytest.raises(ArgumentsError, match=match):
            prepare(task, None, args, model or ModelArguments())

    refused("works neither with use_peft nor with FSDP", ModelArguments(use_peft=True, model_name_or_path="x"))
    bert = ModelArguments(model_config={"model_type": "bert", **TINY_CONFIGS["bert"]})
    refused("ale is ELECTRA on an ALBERT body .* received the type 'bert'", bert, objective="ale", max_length=32)
    with pytest.raises(ArgumentsError, match="temperature: expected .*; received -1"):
        ModelArguments(temperature=-1)
    with pytest.raises(ArgumentsError, match="temperature: expected .*; received inf"):
        ModelArguments(temperature=math.inf)
    from_checkpoint = ModelArguments(model_name_or_path="x", auxiliary_layers=2)
    refused("auxiliary_layers 2 applies to an auxiliary model from scratch; this run's is loaded from 'x'", from_checkpoint)
    with pytest.raises(ArgumentsError, match="rtd_weight: expected .*; received -1"):
        TlmArguments(output_dir="x", **QUIET, objective="electra", rtd_weight=-1)
