"""COCO-LM in the Trainer: the equations, accumulation, two processes, and both recipes."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from hf_tlm.data import BlockArguments
from hf_tlm.models import CocoLmForMaskedLM, GeneratorDiscriminator, export_stock, load_exported
from hf_tlm.objectives import CorrectiveLm, SequenceContrastive, WeightedSum
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_pretraining, run_tlm
from hf_tlm.training import (
    ArgumentsError,
    ModelArguments,
    PretrainArguments,
    TlmArguments,
    model_factory,
    prepare,
    tlm_objectives,
)
from hf_tlm.training.run_folder import settings as settings_of
from support.toys import TINY_CONFIGS
from support.training_runs import NO_DROPOUT, OBJECTIVES, QUIET, Gradients, history, trainer, two_are_one, weights

COCO_LM = OBJECTIVES["cocolm"]
LOSSES = ("mlm_loss", "copy_loss", "lm_loss")
SHARES = ("copy_accuracy_replaced", "copy_accuracy_original", "lm_accuracy_replaced", "lm_accuracy_original")
SHARES += ("replaced_fraction", "generator_accuracy")
COSINES = ("cosine_positive", "cosine_negative")


def test_first_step_equals_the_equation(tmp_path, data, tokenizer):
    """Task batches: (rho2 (L_mlm + 50 L_copy + L_lm + L_scl) + L_task) / (rho2 + 1), with each mean over the complete
    step."""
    settings = {**COCO_LM, "rho1": 0, "rho2": 3.0, "max_steps": 1, "max_grad_norm": 0.0, "per_device_train_batch_size": 16}
    settings["packing"] = "none"
    gradients = Gradients()
    run = trainer(tmp_path, data, tokenizer, **settings, callbacks=[gradients])
    run.train()
    whole = trainer(tmp_path, data, tokenizer, **settings)
    batch, model = next(iter(whole.get_train_dataloader())), whole.model
    out = model(**batch)
    masked = (batch["mlm_labels"] != -100).sum()
    copy = -torch.where(out.replaced, 1 - out.copy_logits.sigmoid(), out.copy_logits.sigmoid()).log().mean()
    views = F.normalize(torch.cat([out.corrupted_vectors, out.cropped_vectors]), dim=-1)
    others = (views @ views.T).masked_fill(torch.eye(32, dtype=torch.bool), -torch.inf)
    scl = F.cross_entropy(others, torch.arange(32).roll(16))
    terms = {"mlm_loss": out.mlm_loss / masked, "copy_loss": copy, "lm_loss": out.lm_loss / masked, "scl_loss": scl}
    terms["task_loss"] = F.cross_entropy(out.logits, batch["labels"])
    mlm, copy, lm, scl, task = terms.values()
    ((3.0 * (mlm + 50 * copy + lm + scl) + task) / 4.0).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients.first[name], parameter.grad, rtol=1e-3, atol=1e-6, msg=name)
    entry = run.state.log_history[0]
    for name, value in terms.items():
        assert entry[f"task/{name}"] == pytest.approx(value.item(), rel=1e-4), name
    assert entry["task/replaced_fraction"] == pytest.approx(out.replaced.double().mean().item(), abs=1e-6)
    positive = (views[:16] * views[16:]).sum(dim=1).mean().item()
    negative = (others[others.isfinite()].sum().item() - 32 * positive) / (32 * 30)
    assert [entry[f"task/{name}"] for name in COSINES] == pytest.approx([positive, negative], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("clm", ["full", "all_token", "rtd"])
def test_accumulation_gives_the_same_step_without_contrast(tmp_path, data, tokenizer, clm):
    """The negatives of contrastive learning are those of a micro-batch; all other terms are independent of it."""
    runs = {}
    for batch_size, accumulation, packing in ((8, 1, "pack"), (1, 8, "none")):
        gradients = Gradients()
        run = trainer(
            *(tmp_path, data, tokenizer),
            **COCO_LM,
            clm=clm,
            scl=False,
            rho1=1,
            packing=packing,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_grad_norm=0.0,
            max_steps=2,
            callbacks=[gradients],
        )
        run.train()
        names = [f"{stream}/{name}" for stream in ("corpus", "task") for name in (*LOSSES, "rtd_loss", *SHARES)]
        runs[packing] = history(run, "loss", "task/task_loss", *names), gradients.first
    for ours, expected in zip(runs["none"][0], runs["pack"][0], strict=True):
        assert ours == pytest.approx(expected, rel=2e-4)
    for name, gradient in runs["none"][1].items():
        torch.testing.assert_close(gradient, runs["pack"][1][name], rtol=1e-4, atol=2e-6, msg=name)


def test_contrastive_negatives_are_those_of_the_micro_batch(tmp_path, data, tokenizer):
    entries = []
    for batch_size, accumulation in ((8, 1), (4, 2)):
        sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        run = trainer(tmp_path, data, tokenizer, **COCO_LM, rho1=math.inf, packing="none", max_steps=1, **sizes)
        run.train()
        entries.append(run.state.log_history[0])
    shares = [name for name in SHARES if f"corpus/{name}" in entries[0]]  # Accuracies over no tokens are not logged.
    for name in (*LOSSES, *shares, "cosine_positive"):
        assert entries[0][f"corpus/{name}"] == pytest.approx(entries[1][f"corpus/{name}"], rel=1e-4), name
    # The number of competing sequences: twice 8 and twice 4.
    assert entries[0]["corpus/scl_loss"] > entries[1]["corpus/scl_loss"] + 0.3


def test_losses_fall_and_every_parameter_changes(tmp_path, data, tokenizer):
    settings = {**COCO_LM, "scl_projection": "mlp", "rho1": 1, "max_steps": 30, "learning_rate": 3e-3, "logging_steps": 6}
    run = trainer(tmp_path, data, tokenizer, **settings)
    before = weights(run)
    run.train()
    after = weights(run)
    assert not [n for n in before if before[n].is_floating_point() and torch.equal(before[n], after[n])]
    first, last = (run.state.log_history[index] for index in (0, 4))
    assert all(last[f"corpus/{name}"] < first[f"corpus/{name}"] for name in ("mlm_loss", "copy_loss"))
    assert {f"{stream}/{name}" for stream in ("corpus", "task") for name in (*LOSSES, *SHARES, *COSINES)} <= last.keys()


def test_contrastive_learning_brings_views_closer(tmp_path, data, tokenizer):
    """With little else to learn, and a temperature at which a toy model learns it quickly."""
    contrast = WeightedSum((1.0, SequenceContrastive(0.1)), (1e-3, CorrectiveLm()))
    settings = {**COCO_LM, "rho1": math.inf, "max_steps": 24, "learning_rate": 5e-3, "logging_steps": 4}
    larger = {**NO_DROPOUT, "initializer_range": 0.3}  # With much smaller weights, [CLS] hardly depends on the text.
    run = trainer(tmp_path, data, tokenizer, config=larger, **settings, objectives={"corpus": contrast})
    run.train()
    gaps = [
        entry["corpus/cosine_positive"] - entry["corpus/cosine_negative"]
        for entry in run.state.log_history
        if "loss" in entry
    ]
    assert gaps[-1] > gaps[0] + 0.1


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, tokenizer, corpus_rows):
    """Including contrastive learning, whose negatives come from all processes."""
    names = [f"{stream}/{name}" for stream in ("corpus", "task") for name in ("scl_loss", "lm_loss", *COSINES)]
    two_are_one(tmp_path, tokenizer, corpus_rows, COCO_LM, *names)


def test_passages_are_evaluated_with_the_corpus_objective(tmp_path, data, tokenizer):
    held_out = data["corpus"].select(range(20)).add_column("draw", list(range(20)))
    run = trainer(
        tmp_path, data | {"train": None, "validation": held_out}, tokenizer, **COCO_LM, rho1=math.inf, metrics=False
    )
    first, second = run.evaluate(), run.evaluate()
    names = [f"eval_{name}" for name in (*LOSSES, *SHARES, *COSINES, "scl_loss") if f"eval_{name}" in first]
    assert len(names) >= 10 and all(first[name] == second[name] for name in names)


def config(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "cocolm", **TINY_CONFIGS["cocolm"], **changes}))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("clm", ["full", "rtd"])
def test_both_stages_run_and_export_models(tmp_path, task, corpus, tokenizer, clm):
    steps = {"max_steps": 4, "stage2_max_steps": 4, "stage2_eval_steps": 2}
    args = TlmArguments(
        output_dir=str(tmp_path / "run"), **QUIET, **steps, objective="cocolm", clm=clm, rho1=1, max_length=32
    )
    subset = retrieve(task, corpus, top_k=5)
    model_args = ModelArguments(model_config=config(tmp_path), vocab_size=120)
    result = run_tlm(task, subset, args, model_args)
    assert result.seeds[0]["stages"]["2"]["cost"]["steps"] == 4
    assert run_tlm(task, subset, args, model_args).seeds == result.seeds
    log = json.loads((tmp_path / "run/seed-0/stage1/trainer_state.json").read_text())["log_history"]
    assert {"corpus/scl_loss", f"corpus/{'rtd' if clm == 'rtd' else 'lm'}_loss"} <= log[0].keys()
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    for folder in ("generator", *(["mlm"] if clm == "full" else [])):
        model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / folder)
        assert isinstance(model, CocoLmForMaskedLM) and model.config.num_hidden_layers == (1 if folder == "generator" else 2)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "masked-LM loss of the auxiliary model + 50 x" in card and 'subfolder="generator"' in card


def test_pretrained_generator_is_a_frozen_auxiliary_model(tmp_path, corpus):
    blocks = BlockArguments(validation_share=0.2)
    common = {**QUIET, "objective": "cocolm", "max_steps": 2, "max_length": 16, "total_batch_size": 8}
    args = PretrainArguments(output_dir=str(tmp_path / "one"), **common)
    first = run_pretraining(corpus, args, ModelArguments(model_config=config(tmp_path), vocab_size=120), blocks)
    assert {"scl_loss", "copy_loss", "cosine_positive", "lm_accuracy_original"} <= first.record["validation"].keys()
    assert (first.record["model"]["temperature"], first.record["model"]["auxiliary_size"]) == (1.0, 1.0)
    assert isinstance(AutoModelForMaskedLM.from_pretrained(tmp_path / "one"), CocoLmForMaskedLM)
    generator = AutoModelForMaskedLM.from_pretrained(tmp_path / "one" / "generator")
    frozen = ModelArguments(
        model_config=config(tmp_path), auxiliary_name_or_path=str(tmp_path / "one" / "generator"), freeze_auxiliary=True
    )
    args = PretrainArguments(output_dir=str(tmp_path / "two"), **common)
    second = run_pretraining(corpus, args, frozen, blocks)
    assert second.record["validation"]["mlm_loss"] == pytest.approx(first.record["validation"]["mlm_loss"], rel=1e-4)
    state = AutoModelForMaskedLM.from_pretrained(tmp_path / "two" / "generator").state_dict()
    assert all(torch.equal(value, state[name]) for name, value in generator.state_dict().items())


def test_options_reach_the_objective_and_the_model(tmp_path, tokenizer):
    def build(**changes):
        names = {f.name for f in ModelArguments.__dataclass_fields__.values()}
        model_args = {name: value for name, value in changes.items() if name in names}
        rest = {name: value for name, value in changes.items() if name not in names}
        args = TlmArguments(output_dir=str(tmp_path), **QUIET, objective="cocolm", max_length=32, **rest)
        model_args = ModelArguments(model_config=config(tmp_path, num_hidden_layers=6), **model_args)
        model = model_factory(args, model_args, tokenizer, id2label={0: "a", 1: "b"}, max_length=32)()
        return model, {type(part).__name__: (weight, part) for weight, part in tlm_objectives(args)["corpus"].parts}

    model, parts = build()
    assert isinstance(model, GeneratorDiscriminator) and model.apart and model.temperature == 1.0
    assert model.auxiliary.config.num_hidden_layers == 2 and model.auxiliary.config.lm_transform
    assert list(parts) == ["Mlm", "CorrectiveLm", "SequenceContrastive"] and {w for w, _ in parts.values()} == {1.0}
    clm = parts["CorrectiveLm"][1]
    assert (clm.lambda_copy, clm.copy, clm.stop_gradient, clm.all_tokens) == (50.0, True, True, False)
    assert list(build(scl=False)[1]) == ["Mlm", "CorrectiveLm"]
    assert parts["SequenceContrastive"][1].temperature == 1.0 and model.scl_projection == "none"
    model, changed = build(scl_temperature=0.5, scl_projection="mlp")
    assert changed["SequenceContrastive"][1].temperature == 0.5 and model.scl_projection == "mlp"
    assert not build(stop_gradient=False)[1]["CorrectiveLm"][1].stop_gradient
    assert not build(clm="no_copy")[1]["CorrectiveLm"][1].copy
    every = build(clm="all_token")[1]["CorrectiveLm"][1]
    assert (every.lambda_copy, every.copy, every.stop_gradient, every.all_tokens) == (0.0, True, False, True)
    model, parts = build(clm="rtd", rtd_weight=7.0)
    assert model.clm_heads is None and parts["ReplacedTokenDetection"][0] == 7.0 and "CorrectiveLm" not in parts
    assert build(replacements="random")[0].replacements == "random"
    narrow = build(auxiliary_size=0.5, auxiliary_layers=6, temperature=0.5)[0]
    assert narrow.auxiliary.config.model_type == "electra" and narrow.temperature == 0.5


def test_collator_crops_to_the_crop_fraction(tmp_path, data, tokenizer):
    lengths = {}
    for fraction in (0.5, 1.0):
        run = trainer(tmp_path, data, tokenizer, **COCO_LM, rho1=math.inf, crop_fraction=fraction, max_steps=1)
        batch = next(iter(run.get_train_dataloader()))
        lengths[fraction] = batch["crop_attention_mask"].sum() / batch["attention_mask"].sum()
        assert run.model.second_view == fraction
    assert lengths[1.0] == 1 and 0.5 < lengths[0.5] < 0.7
    run = trainer(tmp_path, data, tokenizer, **COCO_LM, rho1=math.inf, scl=False, max_steps=1)
    assert run.model.second_view == 0
    assert not any(name.startswith("crop_") for name in next(iter(run.get_train_dataloader())))


def test_scl_cosines_are_logged_without_changing_training(tmp_path, data, tokenizer):
    """Figure 7a, without SCL: training is equal bit for bit, including dropout, and the cosines of both views are
    logged."""
    runs = {}
    for cosines in (False, True):
        settings = {**COCO_LM, "scl": False, "scl_cosines": cosines, "rho1": 1, "max_steps": 4}
        runs[cosines] = run = trainer(tmp_path / str(cosines), data, tokenizer, config={}, **settings)
        assert any(module.p > 0 for module in run.model.modules() if isinstance(module, torch.nn.Dropout))
        run.train()
    plain, logged = ([entry for entry in runs[cosines].state.log_history if "loss" in entry] for cosines in (False, True))
    for name, value in weights(runs[False]).items():
        assert torch.equal(value, weights(runs[True])[name]), name
    assert [entry["loss"] for entry in plain] == [entry["loss"] for entry in logged]
    for name in COSINES:
        assert not any(f"corpus/{name}" in entry for entry in plain)
        assert any(-1 <= entry[f"corpus/{name}"] <= 1 for entry in logged if f"corpus/{name}" in entry)
    extra = runs[True].model.further_parameters - runs[False].model.further_parameters
    assert extra == pytest.approx(0.9 / 3 * runs[True].model.main.base_model.num_parameters())


def test_ablation_has_a_linear_detection_head(tmp_path, data, tokenizer):
    """Section 3.1: a sigmoid linear layer. The loss and every gradient equal the equation."""
    args = PretrainArguments(output_dir=str(tmp_path), **QUIET, objective="cocolm", clm="rtd", scl=False)
    assert args.detecting_head == "rtd_linear"
    config = ModelArguments(model_config={"model_type": "cocolm", **TINY_CONFIGS["cocolm"]}, vocab_size=len(tokenizer))
    model = model_factory(args, config, tokenizer, id2label={0: "a", 1: "b"}, max_length=32)().eval().double()
    run = trainer(tmp_path / "run", data, tokenizer, **COCO_LM, scl=False, clm="rtd", rho1=math.inf, max_steps=1)
    batch = next(iter(run.get_train_dataloader()))
    language = tlm_objectives(args)["corpus"]
    terms = language(output := model(**batch), batch)
    terms["loss"].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    seen = []
    handle = model.main.base_model.register_forward_hook(lambda body, inputs, found: seen.append(found.last_hidden_state))
    output = model(**batch)
    handle.remove()
    head = model.rtd_head.dense_prediction
    z = seen[-1][batch["attention_mask"].bool()] @ head.weight[0] + head.bias
    torch.testing.assert_close(z, output.rtd_logits)
    rtd = -torch.where(output.replaced, z.sigmoid(), 1 - z.sigmoid()).log().mean()
    (output.mlm_loss / (batch["mlm_labels"] != -100).sum() + 50 * rtd).backward()
    assert set(gradients) == {name for name, p in model.named_parameters() if p.grad is not None}
    assert {name for name in gradients if name.startswith("rtd_head")} == {
        f"rtd_head.dense_prediction.{n}" for n in ("weight", "bias")
    }
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-7, atol=1e-10, msg=name)
    # After export and loading it is the same; a head of the other form is initialised anew.
    export_stock(model.float(), tokenizer, tmp_path / "export", classifier=False)
    again = load_exported(tmp_path / "export", id2label={0: "a", 1: "b"})
    assert torch.equal(again.rtd_head.dense_prediction.weight, model.rtd_head.dense_prediction.weight)
    options = {"id2label": {0: "a", 1: "b"}, "heads": "rtd", "temperature": 1.0}
    assert GeneratorDiscriminator.from_checkpoint(str(tmp_path / "export"), **options).rtd_head.dense is not None


def test_older_runs_match_the_electra_head(tmp_path):
    """Their head was ELECTRA's, which their settings do not mention: with rtd_head electra the settings are equal."""
    options = {**QUIET, "output_dir": str(tmp_path), "objective": "cocolm", "clm": "rtd"}
    assert settings_of(PretrainArguments(**options, rtd_head="electra"))["rtd_head"] is None
    assert settings_of(PretrainArguments(**options))["rtd_head"] == "linear"
    assert settings_of(PretrainArguments(**options)) == settings_of(PretrainArguments(**options, rtd_head="linear"))


def test_invalid_options_are_refused(tmp_path, task, tokenizer, data):
    with pytest.raises(ArgumentsError, match="needs a model that corrects tokens, and this one detects them"):
        trainer(tmp_path, data, tokenizer, **COCO_LM | {"rho1": math.inf}, clm="rtd", objectives={"corpus": CorrectiveLm()})
    args = TlmArguments(output_dir=str(tmp_path / "x"), **QUIET, rho1=0, objective="cocolm", max_length=32)
    bert = ModelArguments(model_config={"model_type": "bert", **TINY_CONFIGS["bert"]}, vocab_size=200)
    refusal = "objective cocolm is for COCO-LM's body or a ModernBERT .*cocolm_base.* received the type 'bert'"
    with pytest.raises(ArgumentsError, match=refusal):
        prepare(task, None, args, bert)
    for message, changes in (
        (r"crop_fraction: expected .*; received 0", {"crop_fraction": 0}),
        ("stop_gradient false is for clm full.* received clm rtd", {"stop_gradient": False, "clm": "rtd"}),
        ("scl_temperature: expected .*; received 0", {"scl_temperature": 0}),
        ("scl_temperature 0.5 has no effect with scl false", {"scl": False, "scl_temperature": 0.5}),
        ("scl_projection mlp has no effect with scl false", {"scl": False, "scl_projection": "mlp"}),
        ("crop_fraction 0.5 has no effect with scl false", {"scl": False, "crop_fraction": 0.5}),
        ("scl_cosines True has no effect with scl", {"scl_cosines": True}),
        ("rtd_head linear has no effect with this clm", {"rtd_head": "linear"}),
    ):
        with pytest.raises(ArgumentsError, match=message):
            TlmArguments(output_dir="x", **QUIET, objective="cocolm", **changes)
    mlm = TlmArguments(output_dir=str(tmp_path / "x"), **QUIET, rho1=0, max_length=32)
    for option in ({"temperature": 0.5}, {"replacements": "random"}, {"auxiliary_size": 0.5}):
        with pytest.raises(ArgumentsError, match=f"{next(iter(option))} .* has no effect with objective mlm"):
            prepare(task, None, mlm, ModelArguments(**option))
    with pytest.raises(ArgumentsError, match="freeze_auxiliary needs a trained auxiliary model"):
        ModelArguments(freeze_auxiliary=True)
    with pytest.raises(ArgumentsError, match="would get the random embeddings"):
        ModelArguments(auxiliary_name_or_path="x")
