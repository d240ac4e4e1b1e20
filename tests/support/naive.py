"""Reference influence: one backward pass per passage and per task batch, with all gradients formed explicitly."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoConfig, set_seed

from hf_tlm.data import TlmCollator
from hf_tlm.influence import draws
from hf_tlm.models import TlmModel
from support.toys import TINY_CONFIGS

SEED, MASKED = 3, 0.3
FAMILIES = ["bert", "roberta", "electra", "albert", "modernbert", "distilbert", "cocolm"]
# Prefixes of parameter names in layers 0, 1 and 2, for a body of two layers.
PLACES = {
    "bert": ("embeddings.", "encoder.layer.0.", "encoder.layer.1."),
    "modernbert": ("embeddings.", "layers.0.", "layers.1."),
    "distilbert": ("embeddings.", "transformer.layer.0.", "transformer.layer.1."),
    # One layer, applied twice.
    "albert": ("embeddings.", *["encoder.albert_layer_groups.0.albert_layers.0."] * 2),
}
PAD, CLS, SEP = 0, 2, 3


@cache
def tiny(model_type, dtype=torch.float64, seed=0, **changes):
    """Build a tiny model whose LayerNorms and biases differ from ones and zeros, and whose weights are not all tiny."""
    set_seed(seed)
    model = TlmModel.from_config(AutoConfig.for_model(model_type, **{**TINY_CONFIGS[model_type], **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0
    return model.eval().to(dtype)


@cache
def passages(count=7, seed=1):
    """Return passages of different lengths, with token types.

    The fourth has special tokens only; the sixth has a padding token in its middle.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        ids = [CLS, *rng.integers(5, 80, 0 if number == 3 else rng.integers(4, 20)).tolist(), SEP]
        if number == 5:
            ids[2] = PAD
        types = [int(position > len(ids) // 2) for position in range(len(ids))]
        rows.append({"id": f"passage {number}", "input_ids": ids, "token_type_ids": types})
    return Dataset.from_list(rows)


@cache
def task_texts(count=5, seed=2, labels=(0, 1, 2)):
    """Return labelled texts; the second has a padding token in its middle."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        ids = [CLS, *rng.integers(5, 80, rng.integers(3, 12)).tolist(), SEP]
        if number == 1:
            ids[2] = PAD
        types = [int(position > len(ids) // 2) for position in range(len(ids))]
        rows.append({"input_ids": ids, "token_type_ids": types, "label": labels[number % len(labels)]})
    return Dataset.from_list(rows)


def gradients(model, loss):
    parameters = dict(model.base_model.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)}


def passage_gradients(model, tokenizer, rows):
    """Return the gradients of each passage by parameter name, None where nothing is masked.

    Each passage is a batch of its own, without padding.
    """
    model.requires_grad_(True)
    collator = TlmCollator(tokenizer, mlm_probability=MASKED, seed=SEED)
    found = []
    for row in rows:
        maskable = set(row["input_ids"]) - {PAD, CLS, SEP}
        for attempt in range(100 * bool(maskable)):
            batch = collator([{**row, "draw": draws([row["id"]], SEED + attempt)[0]}])
            if (count := int((batch["mlm_labels"] != -100).sum())) > 0:
                found.append(gradients(model, model(**batch).mlm_loss / count))
                break
        else:
            found.append(None)
    return found


def task_gradients(model, tokenizer, rows, task_batch_size):
    model.requires_grad_(True)
    collator = TlmCollator(tokenizer)
    rows, found = list(rows), []
    for start in range(0, len(rows), task_batch_size):
        batch = collator(rows[start : start + task_batch_size])
        labels = batch.pop("labels")
        found.append(gradients(model, F.cross_entropy(model(**batch).logits, labels)))
    return found


def products(of_passages, of_tasks, chosen):
    """Return inner products, [N, T], of the gradients of the parameters whose names in the body `chosen` accepts."""
    scores = np.full((len(of_passages), len(of_tasks)), np.nan)
    for i, p in enumerate(of_passages):
        for j, t in enumerate(of_tasks):
            if p is not None:
                scores[i, j] = sum(float((p[name] * t[name]).sum()) for name in p if chosen(name))
    return scores


@cache
def references(model_type, dtype, task_batch_size, tokenizer):
    model = tiny(model_type, dtype)
    return (
        passage_gradients(model, tokenizer, passages()),
        task_gradients(model, tokenizer, task_texts(), task_batch_size),
    )


def assert_close(scores, expected, tolerance):
    """Compare scores with a tolerance relative to the largest score."""
    assert scores.shape == expected.shape
    assert (np.isnan(scores) == np.isnan(expected)).all()
    largest = np.nanmax(np.abs(expected))
    assert largest > 0
    assert np.nanmax(np.abs(scores - expected)) <= tolerance * largest
