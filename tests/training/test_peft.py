"""Runs with `use_peft`: stages, resuming, the exported folder, and what is refused."""

import json
import shutil

import pytest
import torch
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback, set_seed

from hf_tlm.config import parse
from hf_tlm.data import tokenize
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.models import LoraArguments, TlmModel, add_lora, export_stock
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments, TlmTrainer
from hf_tlm.training.checkpoints import last_complete_checkpoint
from support.tiny_checkpoints import pretrained
from support.toys import FAST, TINY_CONFIGS, make_task

CONFIG = {"model_type": "bert", **{k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}}
TASK_ONLY = {**FAST, "rho1": 0}


def go(folder, task, model=None, subset=None, **changes):
    args = TlmArguments(output_dir=str(folder), **{**TASK_ONLY, **changes})
    model = {"model_config": CONFIG, "vocab_size": 120, "use_peft": True, "lora_r": 4, **(model or {})}
    return run_tlm(task, subset, args, ModelArguments(**model))


@pytest.fixture(scope="module")
def base(tokenizer, tmp_path_factory):
    """A checkpoint with a classifier for other classes and without a pooler, like a masked LM."""
    set_seed(3)
    model = TlmModel.from_config(AutoConfig.for_model(**{**CONFIG, "vocab_size": len(tokenizer), "num_labels": 2}))
    folder = export_stock(model, tokenizer, tmp_path_factory.mktemp("base") / "model")
    return folder / "mlm"


def probabilities(folder, task):
    """Return the probabilities of the test texts from stock classes, with base and adapter loaded as on the card."""
    set_seed(5)
    base = AutoModelForSequenceClassification.from_pretrained(
        PeftConfig.from_pretrained(folder).base_model_name_or_path,
        config=AutoConfig.from_pretrained(folder),
        ignore_mismatched_sizes=True,
    )
    model = PeftModel.from_pretrained(base, folder).merge_and_unload().eval()
    assert type(model).__module__.startswith("transformers.")
    inputs = AutoTokenizer.from_pretrained(folder)(task.test["text"][:], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits.softmax(-1)


def check_export(folder, task, base):
    values = json.loads((folder / "adapter_config.json").read_text())
    assert values["base_model_name_or_path"] == str(base)
    lines = [json.loads(line) for line in (folder / "seed-0/predictions/test.jsonl").read_text().splitlines()]
    expected = torch.tensor([list(line["probabilities"].values()) for line in lines])
    torch.testing.assert_close(probabilities(folder, task), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_both_stages_train_one_adapter_of_a_checkpoint(tmp_path, task, base, monkeypatch):
    out = tmp_path / "out"
    run = go(out, task, {"model_name_or_path": str(base)})
    check_export(out, task, base)
    record = run.seeds[0]
    assert set(record["stages"]) == {"1", "2"} and "test" in run.summary
    assert 0 < record["trained_parameters"] < record["parameters"]
    assert f"{record['trained_parameters']:,} of {record['parameters']:,} trained" in run.to_text()
    # Both stages train the same adapter.
    stages = [load_file(out / f"seed-0/stage{stage}/model/adapter_model.safetensors") for stage in (1, 2)]
    assert set(stages[0]) == set(stages[1]) and not any("mlm_head" in name for name in stages[0])
    assert not any(torch.equal(stages[0][name], stages[1][name]) for name in stages[0])
    card = (out / "README.md").read_text()
    assert "library_name: peft" in card and "LoRA adapter" in card
    assert "trained further from `model/mlm`" in card and str(base) not in card

    # Killed after the first stage: the second starts from the adapter on disk.
    shutil.rmtree(out / "seed-0/stage2")
    for name in ("seed-0/results.json", "results.json"):
        (out / name).unlink()
    again = go(out, task, {"model_name_or_path": str(base)})
    assert again.seeds[0]["test"] == record["test"] and again.seeds[0]["validation"] == record["validation"]


@pytest.mark.slow
def test_stage_two_adapts_the_stage_one_model(tmp_path, task):
    out = tmp_path / "out"
    run = go(out, task, stage2_reset_classifier=True)
    base = out / "seed-0" / "stage1" / "model"
    check_export(out, task, base)
    assert "trained from scratch" in (out / "README.md").read_text()
    plain = go(tmp_path / "plain", task, {"use_peft": False, "lora_r": 16})
    assert run.seeds[0]["stages"]["1"]["validation"] == plain.seeds[0]["stages"]["1"]["validation"]
    assert load_file(base / "model.safetensors").keys() == load_file(tmp_path / "plain" / "model.safetensors").keys()


@pytest.mark.parametrize("stage", ["1", "2"])
def test_adapter_from_scratch_in_a_single_stage_is_refused(tmp_path, task, stage):
    with pytest.raises(ArgumentsError, match=f"which would stay random in a stage {stage} from scratch"):
        go(tmp_path / "out", task, stage=stage)


@pytest.mark.parametrize("changes", [{}, {"stage": "2", "stage2_rho2": 1.0}])
def test_masked_lm_loss_needs_a_trained_head(tmp_path, task, tokenizer, changes):
    """The adapter would learn for a random head, which stays as it is."""
    body = pretrained(tmp_path / "body", tokenizer)
    with pytest.raises(ArgumentsError, match="body has no masked-LM head, and use_peft would not train a randomly"):
        go(tmp_path / "out", task, {"model_name_or_path": str(body)}, **changes)
    assert not (tmp_path / "out").exists()


def test_stage_one_alone_adapts_a_checkpoint(tmp_path, task, base, corpus):
    """On task and corpus texts."""
    subset = retrieve(task, corpus, retriever="random", num_passages=30)
    run = go(tmp_path / "out", task, {"model_name_or_path": str(base)}, subset=subset, stage="1", rho1=1)
    assert set(run.seeds[0]["stages"]) == {"1"}
    check_export(tmp_path / "out", task, base)


def test_fsdp_is_refused(tmp_path, task, base, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ArgumentsError, match="use_peft does not work with FSDP.*Use DDP"):
        go(tmp_path / "out", task, {"model_name_or_path": str(base)})


def test_lora_options_are_parsed():
    arguments = ["--use_peft", "true", "--lora_target_modules", "query", "value", "--lora_r", "2", "--lora_alpha", "4"]
    (parsed,) = parse(ModelArguments, recipe="train_tlm", description="", args=arguments)
    assert parsed.use_peft and parsed.lora_target_modules == ["query", "value"]
    assert (parsed.lora_r, parsed.lora_alpha) == (2, 4) and not ModelArguments().use_peft


class _StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def trainer(folder, base, tokenizer, corpus_rows, **changes):
    task = make_task()
    data = {name: tokenize(getattr(task, name), tokenizer, 32) for name in ("train", "validation")}
    from datasets import Dataset

    corpus = tokenize(Dataset.from_list(corpus_rows).select_columns(["text"]), tokenizer, 32)
    set_seed(7)
    model = TlmModel.from_checkpoint(str(base), id2label=task.id2label)
    return TlmTrainer(
        add_lora(model, LoraArguments(use_peft=True, lora_dropout=0.1), base),
        TlmArguments(output_dir=str(folder), **{**FAST, "max_steps": 8, **changes}),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        corpus_dataset=corpus,
        processing_class=tokenizer,
        compute_metrics=compute_metrics_for("macro_f1"),
    )


@pytest.mark.slow
def test_stage_one_trains_only_the_adapter_and_resumes_exactly(tmp_path, base, tokenizer, corpus_rows):
    whole = trainer(tmp_path / "whole", base, tokenizer, corpus_rows)
    before = {name: value.clone() for name, value in whole.model.state_dict().items()}
    trained = {name for name, parameter in whole.model.named_parameters() if parameter.requires_grad}
    whole.train()
    after = whole.model.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(before[name], value)}
    assert changed == trained and any("lora_B" in name for name in changed)

    saving = {"save_strategy": "steps", "save_steps": 3}
    part = trainer(tmp_path / "part", base, tokenizer, corpus_rows, **saving)
    part.add_callback(_StopAt(3))
    part.train()
    checkpoint = last_complete_checkpoint(tmp_path / "part")
    rest = trainer(tmp_path / "part", base, tokenizer, corpus_rows, **saving)
    rest.train(resume_from_checkpoint=checkpoint)
    for name, value in rest.model.state_dict().items():
        assert torch.equal(value, after[name]), name


def test_best_checkpoint_is_loaded(tmp_path, base, tokenizer, corpus_rows):
    run = trainer(
        tmp_path,
        base,
        tokenizer,
        corpus_rows,
        **{"rho1": 0, "save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "eval_steps": 1},
        **{"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True, "max_steps": 3},
    )
    run.train()
    assert run.state.best_global_step < 3
    saved = load_file(f"{run.state.best_model_checkpoint}/adapter_model.safetensors")
    weights = run.model.state_dict()
    for name, value in saved.items():
        full = [key for key in weights if key.replace(".default", "").replace(".modules_to_save", "") == name]
        assert len(full) == 1 and torch.equal(weights[full[0]], value), name
