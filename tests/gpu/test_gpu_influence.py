"""Influence on the device equals the naive computation on the CPU, one backward pass per passage: every kind of
gradient."""

from copy import deepcopy
from fnmatch import fnmatchcase

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hf_tlm.influence.gradients as kinds
from hf_tlm.influence import InfluenceScorer, load_scorer, save_scorer
from support.gpu import DEVICE, on_device
from support.naive import FAMILIES, MASKED, PLACES, SEED, assert_close, passages, products, references, task_texts, tiny

# Embeddings scatter and gather tokens; among all parameters at once, small ones would not be noticed.
KINDS = {0: ("*word_embeddings.weight,*tok_embeddings.weight", "LayerNorm.*,norm.*"), 1: ("*.weight",), -1: ("*.weight",)}
KINDS = {layer: (*patterns, "*") for layer, patterns in KINDS.items()}


def scorer_of(models, rows=None, task_batch_size=2, tokenizer=None, **options):
    options = {"mlm_probability": MASKED, "seed": SEED, "batch_size": 12, **options}
    scorer = InfluenceScorer(models, tokenizer, **options)
    assert scorer.device.type == DEVICE.type
    scorer.fit(task_texts() if rows is None else rows, task_batch_size)
    return scorer


def in_layer(family, layer, patterns):
    prefix = PLACES.get(family, PLACES["bert"])[layer]

    def chosen(name):
        if layer == 0 and name.startswith(("embeddings_project.", "encoder.embedding_hidden_mapping_in.")):
            return patterns == "*"
        return name.startswith(prefix) and any(fnmatchcase(name[len(prefix) :], each) for each in patterns.split(","))

    return chosen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", KINDS)
@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["float64", "float32"])
def test_scores_equal_the_naive_computation(family, layer, dtype, tolerance, tokenizer):
    for patterns in KINDS[layer]:
        expected = products(*references(family, dtype, 2, tokenizer), in_layer(family, layer, patterns))
        scorer = scorer_of([on_device(tiny(family, dtype))], tokenizer=tokenizer, layer=layer, parameters=patterns)
        # Stock ModernBERT rotates in float32, whatever the dtype of its weights.
        assert_close(scorer.score(passages()), expected, max(tolerance, 1e-6 if family == "modernbert" else 0))


@pytest.mark.parametrize("layer", [0, 1, -1])
@pytest.mark.parametrize("tokens", [0, 10**9], ids=["factors", "whole"])
@pytest.mark.parametrize("count", [1, 2, 100])
def test_storage_of_task_gradients_does_not_change_scores(layer, tokens, count, tokenizer, monkeypatch):
    """As factors and as complete matrices, for task batches of one text, of several and of all."""
    monkeypatch.setattr(kinds, "_TOKENS", tokens)
    expected = products(*references("bert", torch.float32, count, tokenizer), in_layer("bert", layer, "*"))
    options = {"tokenizer": tokenizer, "task_batch_size": count, "layer": layer, "parameters": "*"}
    scorer = scorer_of([on_device(tiny("bert", torch.float32))], **options)
    matrices = [g for _, g in scorer._gradients() if isinstance(g, kinds.MatrixGradient)]
    assert all(matrix.whole == bool(tokens) for matrix in matrices) and scorer.num_task_batches == -(-5 // count)
    assert_close(scorer.score(passages()), expected, 1e-5)


@pytest.mark.parametrize("stay", [0, 2])
def test_blocks_that_do_not_fit_are_reloaded(stay, tokenizer, monkeypatch, tmp_path):
    """They are loaded onto the device for each batch of waiting passage gradients; products are computed in pieces."""
    options = {"tokenizer": tokenizer, "task_batch_size": 1, "layer": 1, "parameters": "*"}
    expected = scorer_of([on_device(tiny("bert"))], **options).score(passages())
    monkeypatch.setattr(kinds, "MAX_NUMBERS", 64)
    monkeypatch.setattr("hf_tlm.influence.scorer.MAX_NUMBERS", 64)
    scorer = scorer_of([on_device(tiny("bert"))], **options)
    sizes = [sum(x.nbytes for parts in block.values() for x in parts.values()) for _, block in scorer._tasks.blocks()]
    scorer.save(tmp_path / "saved")
    read = []
    monkeypatch.setattr(
        "hf_tlm.influence.task_gradients.load_file", lambda path, device: read.append(path) or load_file(path, device)
    )
    monkeypatch.setattr("hf_tlm.influence.task_gradients._free_memory", lambda device: sum(sizes[:stay]))
    for waiting in (0, 1 << 28):
        monkeypatch.setattr("hf_tlm.influence.scorer.WAITING_BYTES", waiting)
        scorer.load(tmp_path / "saved")
        assert_close(scorer.score(passages()), expected, 1e-10)
    assert len(sizes) == 5 and len(read) > 2 * 5


def test_checkpoints_masked_texts_and_projections_equal_the_cpu(tokenizer):
    for options in ({}, {"mask_task_texts": True}, {"projection_dim": 4, "parameters": "*dense.weight"}):
        models = [tiny("bert", torch.float32, seed=seed) for seed in (0, 1)]
        expected = InfluenceScorer([*map(deepcopy, models)], tokenizer, mlm_probability=MASKED, seed=SEED, **options)
        expected.fit(task_texts(), 2)
        scorer = scorer_of([*map(on_device, models)], tokenizer=tokenizer, **options)
        assert scorer.fingerprint == expected.fingerprint
        assert_close(scorer.score(passages()), expected.score(passages()), 1e-5)


def test_bfloat16_scores_are_close_to_float64(tokenizer):
    expected = scorer_of([on_device(tiny("bert"))], tokenizer=tokenizer, parameters="*").score(passages())
    scores = scorer_of([on_device(tiny("bert", torch.bfloat16))], tokenizer=tokenizer, parameters="*").score(passages())
    assert scores.dtype == np.float32
    assert_close(scores, expected, 0.1)


def test_scorer_saved_on_the_device_loads_anywhere(tokenizer, tmp_path):
    scorer = scorer_of([on_device(tiny("bert", torch.float32))], tokenizer=tokenizer, layer=0, parameters="*")
    save_scorer(scorer, tmp_path / "scorer")
    for device in ("cpu", DEVICE):
        assert_close(load_scorer(tmp_path / "scorer", device).score(passages()), scorer.score(passages()), 1e-5)
