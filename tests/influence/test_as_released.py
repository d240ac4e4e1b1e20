"""What the released script of ISS does otherwise, against plain transcriptions of its losses."""

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
    place = "embeddings." if layer == 0 else "encoder.layer.1."
    return lambda name: name.startswith(place)


@pytest.mark.parametrize("layer", [0, -1])
def test_masked_task_texts(layer, tokenizer, monkeypatch):
    """The released code's task gradients: the task loss of masked texts, whose masks no batch and no block changes."""
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


def test_a_group_by_its_masked_tokens(tokenizer):
    """The released code's loss of a batch of passages, the mean over all of its masked tokens, by one backward pass."""
    model, rows = tiny("bert"), [row for row in passages() if len(row["input_ids"]) > 2]
    scorer = scorer_of(model, tokenizer)
    batch = MaskedTexts(tokenizer, MASKED, SEED)(rows)
    model.requires_grad_(True)
    count = int((batch["mlm_labels"] != -100).sum())
    whole = gradients(model, model(**batch).mlm_loss / count)
    tasks = references("bert", torch.float64, 2, tokenizer)[1]
    expected = products([whole], tasks, lambda name: name == "encoder.layer.1.attention.output.dense.weight")[0]
    counts = scorer.masked_tokens(Dataset.from_list(rows))
    assert counts.sum() == count and len(set(counts)) > 1
    scores = scorer.score(Dataset.from_list(rows))
    np.testing.assert_allclose(counts @ scores / count, expected, rtol=1e-9)
    assert scorer.masked_tokens(passages())[3] == 0
