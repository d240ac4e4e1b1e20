"""Evaluation batches have texts of similar length and a limited number of tokens."""

import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding

from hf_tlm.errors import ModelError
from hf_tlm.models import onnx_session
from hf_tlm.runs.finetuning.kinds import EvaluationSet, feature_lengths, kind_module
from support.kind_toys import TOKENIZERS, arguments

LENGTHS = (3, 17, 1, 40, 9, 9, 2, 30, 1, 5)


@pytest.fixture
def rows():
    kind, tokenizer, args = kind_module("classification"), TOKENIZERS["bert"](), arguments(max_length=64)
    texts = [" ".join(["gene"] * length) for length in LENGTHS]
    evaluation_set = EvaluationSet(kind, Dataset.from_dict({"text": texts}), tokenizer, args)
    return evaluation_set, partial(kind.collate, tokenizer)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("most_tokens", [1, 30, 100, 10_000, None])
def test_outputs_are_in_row_order_and_batches_are_full(rows, batch_size, most_tokens):
    evaluation_set, collate = rows
    shapes = []

    def logits(batch):
        shapes.append(tuple(batch["input_ids"].shape))
        mask = batch["attention_mask"].numpy()
        return (np.stack([mask.sum(1), mask.sum(1) + 1], axis=1).astype(np.float32),)

    outputs = evaluation_set.outputs_of(logits, collate, batch_size, most_tokens)
    assert outputs[:, 0].tolist() == feature_lengths(evaluation_set.features).tolist()
    assert sum(texts for texts, _ in shapes) == len(LENGTHS)
    for texts, width in shapes:
        assert texts <= batch_size and (texts == 1 or most_tokens is None or texts * width <= most_tokens)
    # No batch could have included the first row of the next.
    for (texts, width), _ in zip(shapes, shapes[1:], strict=False):
        assert texts == batch_size or (texts + 1) * width > most_tokens


def test_batches_are_computed_at_the_same_time(rows):
    """Two batches exist at a time, not those of all rows."""
    evaluation_set, collate = rows
    both, lock, batches = threading.Barrier(2), threading.Lock(), [0]

    def counted(features):
        with lock:
            batches.append(batches[-1] + 1)
        return collate(features)

    def logits(batch):
        both.wait(timeout=60)  # Two batches are computed together, or none.
        with lock:
            batches.append(batches[-1] - 1)
        return (batch["attention_mask"].numpy().sum(1, keepdims=True).astype(np.float32),)

    outputs = evaluation_set.outputs_of(logits, counted, 1, num_threads=2)
    assert outputs[:, 0].tolist() == feature_lengths(evaluation_set.features).tolist()
    assert max(batches) == 2 and batches[-1] == 0 and len(batches) == 1 + 2 * len(LENGTHS)


def test_no_batch_is_begun_after_an_error(rows):
    evaluation_set, collate = rows
    begun, failed = [], threading.Event()

    def logits(batch):
        begun.append(0)
        if len(begun) == 1:
            failed.set()
            raise ModelError("the graph is damaged")
        failed.wait(60)
        time.sleep(0.2)

    with pytest.raises(ModelError, match="the graph is damaged"):
        evaluation_set.outputs_of(logits, collate, 1, num_threads=2)
    assert len(begun) < len(LENGTHS)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("names", [["input_ids", "token_type_ids", "attention_mask"], ["input_ids", "token_type_ids"]])
@pytest.mark.parametrize("labels", [[1, 0, 2], [0.5, 2.0, -1.0], None])
def test_batches_are_those_of_transformers(side, names, labels):
    tokenizer, kind = TOKENIZERS["bert"](), kind_module("classification")
    tokenizer.padding_side, tokenizer.model_input_names = side, names
    texts = {"text": ["gene", "a gene binds", ""], "text_pair": ["", "cells", "the cells"]}
    features = list(kind.encode(Dataset.from_dict(texts | ({"label": labels} if labels else {})), tokenizer, arguments()))
    rows = [{name: value for name, value in feature.items() if name != "example"} for feature in features]
    expected, batch = DataCollatorWithPadding(tokenizer)(rows), kind.collate(tokenizer, features)
    assert batch.keys() == expected.keys()
    for name, values in batch.items():
        assert values.dtype == expected[name].dtype and torch.equal(values, expected[name])


def test_a_session_computes_a_batch_on_one_core(monkeypatch, tmp_path):
    import onnxruntime

    class Session:
        def __init__(self, path, options, **_):
            assert options.intra_op_num_threads == 1

        def get_inputs(self):
            return []

    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/model.onnx").touch()
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 3, 4, 7}, raising=False)
    models = [onnx_session.OnnxModel(tmp_path, num_threads=threads) for threads in (1, 2, None)]
    assert [(model.most_tokens, model.num_threads) for model in models] == [(256, 1), (256, 2), (256, 4)]
