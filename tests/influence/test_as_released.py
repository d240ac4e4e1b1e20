"""Options of the released ISS script that differ from the defaults, compared with plain transcriptions of its losses."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_tlm.data import TlmCollator
from hf_tlm.influence import InfluenceScorer, draws
from hf_tlm.influence.rows import MaskedTexts
from support.naive import (
    MASKED,
    SEED,
    assert_close,
    gradients,
    passages,
    products,
    references,
    task_texts,
    tiny,
)


def scorer_of(model, tokenizer, **options):
    scorer = InfluenceScorer([model], tokenizer, mlm_probability=MASKED, seed=SEED, **options)
    scorer.fit(task_texts(), 2)
    return scorer


def in_layer(layer):
    prefix = "embeddings." if layer == 0 else "encoder.layer.1."
    return lambda name: name.startswith(prefix)


@pytest.mark.parametrize("layer", [0, -1])
def test_masked_task_texts_equal_the_released_code(layer, tokenizer, monkeypatch):
    """Its task gradients are those of the task loss on masked texts; the masks depend neither on the batch nor on the
    block."""
    model, rows, of_tasks, changed = tiny("bert"), list(task_texts()), [], 0
    collator = TlmCollator(tokenizer, mlm_probability=MASKED, seed=SEED)
    model.requires_grad_(True)
    for start in range(0, len(rows), 2):
        names = [" ".join(map(str, row["input_ids"])) for row in rows[start : start + 2]]
        texts = [{**row, "draw": draw} for row, draw in zip(rows[start : start + 2], draws(names, SEED), strict=True)]
        batch = collator(texts)
        changed += int((batch.pop("mlm_labels") != -100).sum())
        labels = batch.pop("labels")
        of_tasks.append(gradients(model, torch.nn.functional.cross_entropy(model(**batch).logits, labels)))
    assert changed
    expected = products(references("bert", torch.float64, 2, tokenizer)[0], of_tasks, in_layer(layer))
    options = {"layer": layer, "parameters": "*", "mask_task_texts": True}
    monkeypatch.setattr("hf_tlm.influence.scorer.BLOCK_TEXTS", 2)  # A block of each task batch.
    scorer = scorer_of(model, tokenizer, **options)
    assert_close(scorer.score(passages()), expected, 1e-10)
    plain = scorer_of(model, tokenizer, layer=layer, parameters="*")
    assert scorer.settings == plain.settings | {"mask_task_texts": True} and scorer.fingerprint != plain.fingerprint


def test_group_weighted_by_masked_tokens_equals_the_released_code(tokenizer):
    """Its loss of a batch of passages is the mean over all of its masked tokens, from one backward pass."""
    model, rows = tiny("bert"), [row for row in passages() if len(row["input_ids"]) > 2]
    scorer = scorer_of(model, tokenizer)
    batch = MaskedTexts(tokenizer, MASKED, SEED)(rows)
    model.requires_grad_(True)
    count = int((batch["mlm_labels"] != -100).sum())
    batch_gradients = gradients(model, model(**batch).mlm_loss / count)
    tasks = references("bert", torch.float64, 2, tokenizer)[1]
    expected = products([batch_gradients], tasks, lambda name: name == "encoder.layer.1.attention.output.dense.weight")[0]
    counts = scorer.masked_tokens(Dataset.from_list(rows))
    assert counts.sum() == count and len(set(counts)) > 1
    scores = scorer.score(Dataset.from_list(rows))
    np.testing.assert_allclose(counts @ scores / count, expected, rtol=1e-9)
    assert scorer.masked_tokens(passages())[3] == 0
