"""Rows in batches of similar length, and of no more tokens than one pass should have."""

from functools import partial

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.models import onnx_session
from hf_tlm.runs.finetuning.kinds import EvaluationSet, feature_lengths, kind_module
from support.kind_toys import TOKENIZERS, arguments

LENGTHS = (3, 17, 1, 40, 9, 9, 2, 30, 1, 5)


@pytest.fixture
def rows():
    kind, tokenizer, args = kind_module("classification"), TOKENIZERS["bert"](), arguments(max_length=64)
    texts = [" ".join(["gene"] * length) for length in LENGTHS]
    found = EvaluationSet(kind, Dataset.from_dict({"text": texts}), tokenizer, args)
    return found, partial(kind.collate, tokenizer)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("most_tokens", [1, 30, 100, 10_000, None])
def test_every_row_once_and_in_its_place(rows, batch_size, most_tokens):
    found, collate = rows
    shapes = []

    def logits(batch):
        shapes.append(tuple(batch["input_ids"].shape))
        mask = batch["attention_mask"].numpy()
        return (np.stack([mask.sum(1), mask.sum(1) + 1], axis=1).astype(np.float32),)

    outputs = found.outputs_of(logits, collate, batch_size, most_tokens)
    assert outputs[:, 0].tolist() == feature_lengths(found.features).tolist()
    assert sum(texts for texts, _ in shapes) == len(LENGTHS)
    for texts, width in shapes:
        assert texts <= batch_size and (texts == 1 or most_tokens is None or texts * width <= most_tokens)
    # No batch could have had the next one's first row too.
    for (texts, width), _ in zip(shapes, shapes[1:], strict=False):
        assert texts == batch_size or (texts + 1) * width > most_tokens


def test_what_a_session_should_have_goes_with_its_threads(monkeypatch, tmp_path):
    import onnxruntime

    class Session:
        def __init__(self, *_, **__):
            pass

        def get_inputs(self):
            return []

    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/model.onnx").touch()
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 3, 4, 7}, raising=False)
    found = [onnx_session.OnnxModel(tmp_path, num_threads=threads).most_tokens for threads in (1, 2, None)]
    assert found == [onnx_session.TOKENS_A_CORE * threads for threads in (1, 2, 4)]
