"""Score models: trained on the task, loaded from the cache, or given as checkpoints."""

import json
import logging

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, set_seed

from hf_tlm.data import tokenize, train_wordpiece
from hf_tlm.influence import InfluenceError
from hf_tlm.models import ModelError, TlmModel
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm, score_models, train_score_model
from hf_tlm.runs import score_model as module
from hf_tlm.training import ArgumentsError, ModelArguments, ScoreModelArguments, TlmArguments, TlmTrainer
from support.toys import TINY_CONFIGS

CONFIG = {"model_type": "bert", **{k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}}
QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
MODEL = {"model_config": CONFIG, "vocab_size": 120}


def arguments(**changes):
    return ScoreModelArguments(**{**QUIET, "output_dir": "unused", "max_length": 32, "num_train_epochs": 1.0, **changes})


@pytest.fixture
def subset(task, corpus):
    return retrieve(task, corpus, top_k=5)


def test_defaults_are_those_of_the_released_script():
    args = ScoreModelArguments(**QUIET)
    found = [
        args.rho1,
        args.rho2,
        args.learning_rate,
        args.num_train_epochs,
        args.mlm_probability,
        args.stage,
        args.max_steps,
        args.warmup_steps,
        args.weight_decay,
        args.train_batch_size,
    ]
    assert found == [0, 3, 5e-5, 15.0, 0.1, "1", -1, 0.1, 0.0, 16]


@pytest.mark.slow
def test_score_model_is_trained_once_and_cached(task, subset, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    args, model_args = arguments(learning_rate=1e-2), ModelArguments(**MODEL)
    models, tokenizer, described = score_models(task, subset, ["scratch"], args, model_args)
    folder = train_score_model(task, subset, args, model_args)
    assert folder.parent.parent == tmp_path and described["digest"] in folder.name and described["rho2"] == 3
    assert str(tmp_path) not in str(described) and args.output_dir == "unused"
    alone = run_tlm(task, subset, arguments(learning_rate=1e-2, output_dir=str(tmp_path / "alone")), model_args)
    seeded = score_models(task, subset, ["scratch"], arguments(learning_rate=1e-2, seeds=[3]), model_args)[2]
    assert (described["seed"], seeded["seed"]) == (args.seed, 3) and seeded["digest"] != described["digest"]
    assert described["validation"] == alone.seeds[0]["validation"] and "accuracy" in described["validation"]
    again = TlmModel.from_checkpoint(str(folder), id2label=task.id2label).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in models[0].state_dict().items())
    set_seed(0)
    fresh = TlmModel.from_config(models[0].config).state_dict()
    moved = [name for name, value in again.items() if not torch.equal(value, fresh[name])]
    assert {"classifier.weight", "mlm_head.cls.predictions.bias"} <= set(moved)
    assert len(tokenizer) == models[0].config.vocab_size
    # Nothing is trained twice; other settings give another model.
    monkeypatch.setattr(TlmTrainer, "train", None)
    assert train_score_model(task, subset, args, model_args) == folder
    with pytest.raises(TypeError):
        train_score_model(task, subset, arguments(learning_rate=1e-3), model_args)


def test_score_model_has_no_subset_warning_and_no_baselines(task, subset, monkeypatch, tmp_path, caplog):
    """It trains without the test split, unlike the subset's task; and a linear baseline took longer than the training."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with caplog.at_level(logging.WARNING):
        folder = train_score_model(task, subset, arguments(max_steps=1), ModelArguments(**MODEL))
    assert "test" in task.splits and "retrieved for" not in caplog.text
    assert "baselines" not in json.loads((folder / "results.json").read_text()) and not list(tmp_path.rglob("baselines-*"))


@pytest.mark.parametrize("start", ["a config", "a checkpoint"])
def test_what_the_model_lacks_is_refused_before_training(task, subset, monkeypatch, tmp_path, tokenizer, start):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(TlmTrainer, "train", None)
    base = AutoConfig.for_model(**CONFIG | {"num_hidden_layers": 3}, vocab_size=len(tokenizer))
    AutoModelForMaskedLM.from_config(base).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    # Beside a checkpoint there is always the default config, which is not read.
    model, layers = (MODEL, 2) if start == "a config" else ({"model_name_or_path": str(tmp_path / "base")}, 3)
    for layer in (layers + 1, -layers - 2):
        with pytest.raises(InfluenceError, match=f"layer must be between -{layers + 1} and {layers} .*received {layer}"):
            score_models(task, subset, ["scratch"], arguments(), ModelArguments(**model), layer=layer)
    for options in ({"parameters": "foo*"}, {"parameters": "*LayerNorm*", "projection_dim": 8}):
        with pytest.raises(InfluenceError, match="No parameter of layer|projection_dim projects"):
            score_models(task, subset, ["scratch"], arguments(), ModelArguments(**model), **options)
    with pytest.raises(TypeError):  # Training would start.
        score_models(task, subset, ["scratch"], arguments(), ModelArguments(**model), layer=layers)


def test_cache_depends_on_the_content_of_a_local_config(task, subset, monkeypatch, tmp_path):
    """The model is trained again when the config at the same path has changed."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    file, args = tmp_path / "model.json", arguments()
    widths = []
    for hidden_size in (32, 16):
        file.write_text(json.dumps(CONFIG | {"hidden_size": hidden_size}))
        models, *_ = score_models(task, subset, ["scratch"], args, ModelArguments(model_config=str(file), vocab_size=120))
        widths.append(models[0].config.hidden_size)
    assert widths == [32, 16]


def test_cache_depends_on_the_content_of_a_teacher_file(task, subset, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("hf_tlm.runs.score_model.run_tlm", lambda *_: None)
    file, folders = tmp_path / "said.jsonl", []
    for share in (0.5, 0.6):
        probabilities = {"down": share, "none": 1 - share, "up": 0.0}
        file.write_text(
            "".join(json.dumps({"text": text, **probabilities}) + "\n" for text in dict.fromkeys(task.train["text"]))
        )
        folders.append(train_score_model(task, subset, arguments(teacher=str(file)), ModelArguments(**MODEL)))
    assert folders[0] != folders[1]


def test_checkpoint_needs_both_heads_and_the_labels(tmp_path, task, subset, tokenizer):
    config = AutoConfig.for_model(**CONFIG, vocab_size=len(tokenizer), num_labels=3)
    whole = AutoModelForSequenceClassification.from_config(config)
    lm = AutoModelForMaskedLM.from_config(config)

    def check(classifier, lm, missing):
        folder = tmp_path / f"score-{len(list(tmp_path.iterdir()))}"
        (classifier or lm).save_pretrained(folder)
        if classifier and lm:
            lm.save_pretrained(folder / "mlm")
        tokenizer.save_pretrained(folder)
        if missing is None:
            return score_models(task, subset, [str(folder)], arguments(), ModelArguments())
        with pytest.raises(ArgumentsError, match=f"lacks {missing}.*--score_model scratch --model_name_or_path"):
            score_models(task, subset, [str(folder)], arguments(), ModelArguments())

    classes = f"a classifier for {', '.join(task.id2label.values())}"
    check(None, lm, classes)
    check(whole, None, "a masked-LM head")
    check(whole, lm, None)  # Labels without names are accepted in their order.
    whole.config.id2label = dict(enumerate(reversed(task.id2label.values())))
    check(whole, lm, classes)
    whole.config.id2label = dict(task.id2label)
    check(whole, lm, None)
    fewer = AutoConfig.for_model(**CONFIG, vocab_size=len(tokenizer), num_labels=2)
    check(AutoModelForSequenceClassification.from_config(fewer), lm, classes)


def test_trainer_checkpoints_are_score_models(tmp_path, task, subset, tokenizer):
    """They contain the network with both heads, which no stock class has."""
    model = TlmModel.from_config(AutoConfig.for_model(**CONFIG, vocab_size=len(tokenizer), num_labels=3))
    settings = {**QUIET, "rho1": 0, "max_steps": 2, "save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-2}
    trainer = TlmTrainer(
        model,
        TlmArguments(output_dir=str(tmp_path), **settings),
        train_dataset=tokenize(task.train, tokenizer, 32),
        processing_class=tokenizer,
    )
    trainer.train()
    names = [str(tmp_path / f"checkpoint-{step}") for step in (1, 2)]
    models, loaded_tokenizer, described = score_models(task, subset, names, arguments(), ModelArguments())
    assert described == [f"{tmp_path.name}/checkpoint-1", f"{tmp_path.name}/checkpoint-2"] and len(loaded_tokenizer) == len(
        tokenizer
    )
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(value, second[name]) for name, value in trainer.model.state_dict().items())
    assert not torch.equal(first["mlm_head.cls.predictions.bias"], second["mlm_head.cls.predictions.bias"])
    table = models[0].get_input_embeddings().weight
    assert models[0].mlm_head.weight is table
    with pytest.raises(ModelError, match="checkpoint-1"):
        TlmModel.from_checkpoint(names[0], id2label={0: "a", 1: "b"})
    shorter = train_wordpiece(task.train["text"], 60)
    shorter.save_pretrained(names[1])
    with pytest.raises(ArgumentsError, match="checkpoint-1 and .*checkpoint-2 have different tokens"):
        score_models(task, subset, names, arguments(), ModelArguments())
    explicit = ModelArguments(tokenizer_name=names[0])
    assert len(score_models(task, subset, names, arguments(), explicit)[1]) == len(tokenizer)


def test_invalid_score_models_are_refused(task, subset):
    with pytest.raises(ArgumentsError, match="score_model: expected scratch or checkpoints; received both: scratch, other"):
        score_models(task, subset, ["scratch", "other"], arguments(), ModelArguments())
    for changes, model in (({"objective": "electra"}, {}), ({"seeds": [1, 2]}, {}), ({}, {"use_peft": True})):
        with pytest.raises(ArgumentsError, match="one complete model trained with masked language modelling"):
            train_score_model(task, subset, arguments(**changes), ModelArguments(**model))
    with pytest.raises(ModelError, match="nowhere.*There is no local path .* HF_HUB_OFFLINE is set, so"):
        score_models(task, subset, ["nowhere"], arguments(), ModelArguments())
    with pytest.raises(ArgumentsError, match="texts of up to 32 tokens .* Pass --score_max_length 32 or less"):
        score_models(task, subset, ["scratch"], arguments(), ModelArguments(), max_length=33)


def test_score_model_that_cannot_classify_is_warned_about(task, subset, monkeypatch, tmp_path, caplog):
    """One model is trained; its recorded accuracy is then replaced."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    labels = task.validation["label"][:]
    largest = max(map(labels.count, labels)) / len(labels)
    folder = train_score_model(task, subset, arguments(), ModelArguments(**MODEL))
    results = json.loads((folder / "results.json").read_text())

    def warned(accuracy):
        results["seeds"][0]["validation"]["accuracy"] = accuracy
        (folder / "results.json").write_text(json.dumps(results))
        caplog.clear()
        score_models(task, subset, ["scratch"], arguments(), ModelArguments(**MODEL))
        return "hardly more than the" in caplog.text and "--num_train_epochs" in caplog.text

    monkeypatch.setattr("hf_tlm.runs.score_model.train_score_model", lambda *_: folder)
    assert warned(largest) and warned(largest + 0.09 * (1 - largest)) and warned(0.0)
    assert not warned(largest + 0.11 * (1 - largest)) and not warned(1.0)


def test_masking_options_change_the_digest_and_are_recorded(task, subset, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(module, "run_tlm", lambda *args: None)
    monkeypatch.setattr(module, "read_object", lambda file: {"seeds": [{"validation": {"accuracy": 1.0}}]})

    def described(**masks):
        args, model_args = arguments(**masks), ModelArguments(**MODEL)
        return module._describe_score_model(train_score_model(task, subset, args, model_args), args, model_args)

    plain, ends, words = described(), described(mlm_probability_end=0.05), described(whole_word_mask=True)
    assert len({one["digest"] for one in (plain, ends, words)}) == 3
    assert (ends["mlm_probability_end"], words["whole_word_mask"]) == (0.05, True)
    assert not {"mlm_probability_end", "whole_word_mask"} & {*plain}
