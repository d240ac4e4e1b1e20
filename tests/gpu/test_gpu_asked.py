"""Teachers, score models and few-shot classifiers on the device give the same results as on the CPU."""

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.data import tokenize
from hf_tlm.influence import InfluenceScorer, select
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import PromptClassifier, run_tlm, score_models
from hf_tlm.runs.teachers.ask import ask_teacher
from hf_tlm.training import ModelArguments, ScoreModelArguments, TlmArguments
from support import prompts
from support.gpu import DEVICE, ON_CPU, ON_DEVICE
from support.tiny_checkpoints import go, pretrained
from support.toys import FAST, TINY_CONFIGS, make_task, sentences
from support.training_runs import QUIET

CONFIG = {"model_type": "bert", **{k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}}
MODEL = {"model_config": CONFIG, "vocab_size": 120}
PASSAGES = Dataset.from_dict({"text": [row["text"] for row in sentences(40, 9)]})


@pytest.fixture
def subset(task, corpus):
    return retrieve(task, corpus, top_k=5)


def test_run_as_a_teacher_answers_as_on_the_cpu(tmp_path, task, subset, tokenizer, cache):
    """Also a run on the device learns from it."""
    base = pretrained(tmp_path / "base", tokenizer)
    go(tmp_path / "teacher", base, make_task(), num_train_epochs=4, **ON_DEVICE)
    options = {"teacher": str(tmp_path / "teacher"), "teacher_passages": 12}
    found = []
    for name, where in (("cpu", ON_CPU), ("device", ON_DEVICE)):
        cache(name)
        args = TlmArguments(output_dir="unused", **{**QUIET, **where}, **options)
        found.append(ask_teacher(task, PASSAGES, args))
    assert found[1].train == pytest.approx(found[0].train, abs=1e-4)
    assert found[1].passages == pytest.approx(found[0].passages, abs=1e-4)
    assert (found[1].rows == found[0].rows).all()
    args = TlmArguments(output_dir=str(tmp_path / "run"), **{**FAST, **ON_DEVICE}, **options)
    run = run_tlm(task, subset, args, ModelArguments(**MODEL))
    assert 0 <= run.seeds[0]["test"]["macro_f1"] <= 1 and run.details["teacher"]["passages"] > 0


def passages(subset, tokenizer):
    return tokenize(subset.dataset, tokenizer, 32).add_column("id", [str(row) for row in range(len(subset.dataset))])


def test_score_model_scores_as_on_the_cpu(tmp_path, task, subset, cache):
    """It is trained on the device, cached, and used on either; the selection has the requested size."""
    options = {**QUIET, "output_dir": "unused", "max_length": 32, "num_train_epochs": 1.0, "learning_rate": 1e-2}
    args = ScoreModelArguments(**{**options, **ON_DEVICE})
    models, tokenizer, described = score_models(task, subset, ["scratch"], args, ModelArguments(**MODEL))
    assert models[0].device.type == DEVICE.type and described["digest"]
    rows = passages(subset, tokenizer)
    labelled = tokenize(task.validation, tokenizer, 32)
    scores = []
    for device in ("cpu", DEVICE):
        scorer = InfluenceScorer([model.to(device) for model in models], tokenizer)
        scorer.fit(labelled, 4)
        scores.append(scorer.score(rows))
    assert np.abs(scores[1] - scores[0]).max() <= 1e-5 * np.abs(scores[0]).max()
    scorer = InfluenceScorer(models, tokenizer)
    chosen = select(task, subset, scorer=scorer, fraction=0.5)
    assert 0 < len(chosen.dataset) < len(subset.dataset)


def test_bfloat16_score_model_gives_finite_scores(tmp_path, task, subset, cache):
    options = {**QUIET, "output_dir": "unused", "max_length": 32, "num_train_epochs": 1.0, "bf16": True}
    args = ScoreModelArguments(**{**options, **ON_DEVICE})
    models, tokenizer, _ = score_models(task, subset, ["scratch"], args, ModelArguments(**MODEL))
    scorer = InfluenceScorer(models, tokenizer)
    scorer.fit(tokenize(task.validation, tokenizer, 32), 4)
    assert np.isfinite(scorer.score(passages(subset, tokenizer))).all()


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    return prompts.save(tmp_path_factory.mktemp("masked-lm"), prompts.wordpiece(), max_position_embeddings=80)


@pytest.mark.parametrize("method", ["prompt", "finetune", "zero_shot"])
def test_few_shot_runs_on_the_device(tmp_path, task, masked_lm, method):
    options = {"max_length": 64, "demonstrations": True, "demonstration_sets": 2} if method == "prompt" else {}
    run = prompts.go(tmp_path / "out", task, masked_lm, method=method, **options, **ON_DEVICE)
    assert all(0 <= split["test"]["macro_f1"] <= 1 for split in run.splits)
    if method == "zero_shot":
        expected = prompts.go(tmp_path / "cpu", task, masked_lm, method=method, **ON_CPU)
        assert run.splits[0]["test"] == expected.splits[0]["test"]
    if method == "prompt":
        folder = tmp_path / "out" / f"split-{run.splits[0]['seed']}" / "model"
        found = []
        for device in ("cpu", DEVICE):
            classifier = PromptClassifier.from_pretrained(str(folder))
            classifier.model.to(device)
            found.append(classifier.logits(task.test))
        assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_similarity_model_runs_on_the_device(tmp_path, task, masked_lm, tokenizer):
    """Texts are embedded on the same device as the model."""
    similar = pretrained(tmp_path / "similar", tokenizer, max_position_embeddings=64)
    options = {"max_length": 64, "demonstrations": True, "demonstration_sets": 2, "similarity_model": str(similar)}
    run = prompts.go(tmp_path / "out", task, masked_lm, **options, **ON_DEVICE)
    assert len(run.splits) == 2 and all(0 <= split["test"]["macro_f1"] <= 1 for split in run.splits)
