"""Complete runs on the device through the Python API: what they learn, write and record, and how they resume."""

import json
import math

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hf_tlm.data import BlockArguments, load_tokenizer
from hf_tlm.hub import publish_model
from hf_tlm.models import TlmModel
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_pretraining, run_tlm
from hf_tlm.runs.records import environment
from hf_tlm.training import ModelArguments, PretrainArguments, TlmArguments, TlmTrainer
from support.gpu import DEVICE, ON_DEVICE
from support.toys import FAST, TINY_CONFIGS

GPU = DEVICE.type == "cuda"
NO_SIZES = ("vocab_size", "num_labels")


def config(model_type, **changes):
    values = {name: value for name, value in TINY_CONFIGS[model_type].items() if name not in NO_SIZES}
    return {"model_type": model_type, **values, **changes}


def go(folder, task, subset=None, model_type="bert", model=None, **changes):
    args = TlmArguments(output_dir=str(folder), **{**FAST, **ON_DEVICE, "logging_steps": 1, **changes})
    args.rho1 = args.rho1 if subset is not None else 0
    model_args = {"model_config": config(model_type), "vocab_size": 120, **(model or {})}
    return run_tlm(task, subset, args, ModelArguments(**model_args))


@pytest.fixture
def subset(task, corpus):
    return retrieve(task, corpus, top_k=5)


def losses(folder, stage, name="loss"):
    state = json.loads((folder / f"seed-0/stage{stage}/trainer_state.json").read_text())
    return [entry[name] for entry in state["log_history"] if name in entry]


def logits(folder, task):
    """Return the logits of the test texts from the stock class on the CPU."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model.eval()(**tokenizer(task.test["text"][:], padding=True, return_tensors="pt")).logits


def saved_probabilities(folder):
    lines = (folder / "seed-0/predictions/test.jsonl").read_text().splitlines()
    return torch.tensor([list(json.loads(line)["probabilities"].values()) for line in lines])


def assert_exported(folder, task, tolerance=1e-4):
    """Check that the stock model on the CPU predicts what the run predicted, in its folder and in that of the seed."""
    for place in (folder, folder / "seed-0/model"):
        torch.testing.assert_close(logits(place, task).softmax(-1), saved_probabilities(folder), rtol=0, atol=tolerance)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    "model_type,objective", [("bert", "mlm"), ("electra", "electra"), ("albert", "ale"), ("cocolm", "cocolm")]
)
def test_both_stages_learn_and_export(tmp_path, task, subset, model_type, objective, bf16):
    model = {"auxiliary_size": 0.5} if objective in ("electra", "ale") else {}
    options = {"max_steps": 30, "stage2_max_steps": 20, "stage2_eval_steps": 10, "objective": objective, "bf16": bf16}
    run = go(tmp_path / "out", task, subset, model_type, model, **options)
    for stage in (1, 2):
        found = losses(tmp_path / "out", stage, "corpus/mlm_loss" if stage == 1 else "loss")
        assert all(map(math.isfinite, found))
        # Models with two language-modelling losses hardly learn a task in so few steps.
        assert sum(found[-4:]) < sum(found[:4]) or (stage == 2 and objective in ("electra", "cocolm"))
    assert run.seeds[0]["stages"]["2"]["cost"]["measured_flops"] > 0
    record = json.loads((tmp_path / "out/results.json").read_text())
    assert record["environment"] == environment() and ("accelerator" in record["environment"]) is GPU
    card = (tmp_path / "out/README.md").read_text()
    assert not GPU or torch.cuda.get_device_name(0) in card
    assert_exported(tmp_path / "out", task, 2e-2 if bf16 else 1e-4)
    again = go(tmp_path / "out", task, subset, model_type, model, **options)
    assert again.seeds == run.seeds


@pytest.mark.parametrize("stage", [1, 2])
def test_interrupted_run_resumes_bit_for_bit(tmp_path, task, subset, monkeypatch, stage, deterministic):
    """With dropout, averaged weights and R-Drop, interrupted in either stage."""
    options = {"save_strategy": "steps", "save_steps": 2, "stage2_ema_decay": 0.7, "stage2_rdrop": 1.0}
    step = TlmTrainer.training_step

    def interrupt(self, *given, **named):
        if self.state.global_step == 3 and f"stage{stage}" in str(self.args.output_dir):
            raise KeyboardInterrupt
        return step(self, *given, **named)

    whole = go(tmp_path / "whole", task, subset, **options)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TlmTrainer, "training_step", interrupt)
        go(tmp_path / "cut", task, subset, **options)
    again = go(tmp_path / "cut", task, subset, **options)
    assert again.seeds[0]["test"] == whole.seeds[0]["test"]
    ends = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert ends[0] == ends[1]


def test_stage_2_initialization_works_on_the_device(tmp_path, task, subset):
    """A new classifier, a linear start, spectral embeddings and another dropout are set in a model on the device."""
    modern = {"model_config": config("modernbert", classifier_pooling="mean", hidden_size=32)}
    modern |= {"classifier_init": "linear", "embedding_init": "spectral", "lm_head_init": "frequencies"}
    go(tmp_path / "linear", task, subset, model=modern)
    assert_exported(tmp_path / "linear", task)
    go(tmp_path / "new", task, subset, stage2_reset_classifier=True, stage2_dropout=0.3)
    assert_exported(tmp_path / "new", task)


@pytest.mark.parametrize("model_type,objective", [("bert", "mlm"), ("electra", "electra"), ("cocolm", "cocolm")])
def test_pretrained_model_is_trained_further(tmp_path, task, corpus, model_type, objective):
    model = {"auxiliary_size": 0.5} if objective == "electra" else {}
    names = ("rho1", "stage2_max_steps", "stage2_learning_rate", "stage2_eval_steps", "stage2_total_batch_size")
    options = {name: value for name, value in FAST.items() if name not in names}
    args = PretrainArguments(
        output_dir=str(tmp_path / "base"),
        **{**options, **ON_DEVICE, "objective": objective, "max_steps": 30, "logging_steps": 1, "max_length": 16},
    )
    made = ModelArguments(model_config=config(model_type), vocab_size=120, **model)
    run = run_pretraining(corpus, args, made, BlockArguments(validation_share=0.2))
    state = json.loads((tmp_path / "base/training/trainer_state.json").read_text())
    found = [entry["corpus/mlm_loss"] for entry in state["log_history"] if "corpus/mlm_loss" in entry]
    assert sum(found[-5:]) < sum(found[:5]) and run.record["validation"]["mlm_loss"] < found[0]
    assert ("accelerator" in run.record["environment"]) is GPU
    model_args = {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(tmp_path / "base")}
    go(tmp_path / "out", task, model=model_args, stage="2")
    assert_exported(tmp_path / "out", task)


@pytest.mark.parametrize("stages", ["both", "2"])
def test_adapters_are_trained(tmp_path, task, stages):
    base = go(tmp_path / "base", task).output_dir
    read = {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(base), "use_peft": True, "lora_r": 4}
    run = go(tmp_path / "out", task, model=read, stage=stages)
    assert 0 < run.seeds[0]["trained_parameters"] < run.seeds[0]["parameters"]
    assert (tmp_path / "out/adapter_config.json").is_file()


def test_published_model_predicts(tmp_path, task, hub):
    run = go(tmp_path / "out", task)
    publish_model(run.output_dir, "alice/toy")
    card = hub.files("alice/toy")["README.md"].decode()
    assert 'model="alice/toy"' in card and (not GPU or torch.cuda.get_device_name(0) in card)
    classify = pipeline("text-classification", model="alice/toy", device=DEVICE)
    predictions = [one["label"] for one in classify(task.test["text"][:])]
    lines = (tmp_path / "out/seed-0/predictions/test.jsonl").read_text().splitlines()
    assert predictions == [json.loads(line)["prediction"] for line in lines]


def test_finished_model_can_be_used_on_the_device(tmp_path, task):
    """The caller loads `TlmModel` and its tokenizer from the folder, and moves them."""
    run = go(tmp_path / "out", task)
    model = TlmModel.from_checkpoint(str(run.output_dir), id2label=task.id2label).to(DEVICE).eval()
    batch = load_tokenizer(str(run.output_dir))(task.test["text"][:], padding=True, return_tensors="pt").to(DEVICE)
    with torch.no_grad():
        found = model(**batch).logits.softmax(-1).cpu()
    torch.testing.assert_close(found, saved_probabilities(tmp_path / "out"), rtol=0, atol=1e-4)
