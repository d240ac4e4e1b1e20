import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_tlm.data import TlmCollator
from hf_tlm.data.collator import leading_texts, pack
from support.token_texts import rows


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_texts_do_not_overlap_and_rows_are_full(lengths):
    row_of, start_of = pack(lengths, 30)
    taken = np.zeros((row_of.max() + 1, 30), int)
    for row, start, length in zip(row_of, start_of, lengths, strict=True):
        assert start + length <= 30
        taken[row, start : start + length] += 1
    assert taken.max() == 1
    # Rows start at 0 and have no gaps, and no two of them would fit into one.
    used = taken.sum(axis=1)
    assert all(row[:n].all() for row, n in zip(taken, used, strict=True))
    assert len(used) < 2 or np.sort(used)[:2].sum() > 30


def test_pack_of_known_lengths():
    row_of, start_of = pack([3, 9, 5, 7, 1, 5], 10)
    assert row_of.tolist() == [1, 0, 2, 1, 0, 2] and start_of.tolist() == [7, 0, 0, 0, 9, 5]


def test_short_texts_fill_their_rows():
    lengths = np.random.default_rng(0).integers(10, 110, 32)
    row_of, _ = pack(lengths, 256)
    assert lengths.sum() / ((row_of.max() + 1) * 256) > 0.95


@pytest.mark.parametrize("mlm_probability", [0.5, 0.0])
def test_packed_and_padded_batches_have_the_same_texts(tokenizer, mlm_probability):
    texts = rows(tokenizer, "the gene", "the cell binds the acid and the drug", "the drug", label=2, draw=7)
    for draw, text in enumerate(texts):
        text["draw"] = draw
    padded, packed = (
        TlmCollator(tokenizer, mlm_probability=mlm_probability, row_length=length)(texts) for length in (None, 12)
    )
    assert set(packed) - set(padded) == {"position_ids", "text_ids", "first_tokens"}
    assert len(packed["input_ids"]) == 2 and next(iter(packed)) == "labels"
    for i in range(3):
        tokens = packed["text_ids"] == i + 1
        assert tokens.sum() == padded["attention_mask"][i].sum() and packed["attention_mask"][tokens].all()
        assert packed["position_ids"][tokens].tolist() == list(range(tokens.sum()))
        assert packed["first_tokens"][i] == tokens.flatten().int().argmax()
        for name in ("input_ids", "mlm_labels") if mlm_probability else ("input_ids",):
            assert packed[name][tokens].tolist() == padded[name][i][: tokens.sum()].tolist()
    padding = packed["text_ids"] == 0
    assert not packed["attention_mask"][padding].any() and (packed["input_ids"][padding] == tokenizer.pad_token_id).all()


def test_longer_text_widens_the_row(tokenizer):
    batch = TlmCollator(tokenizer, row_length=4)(rows(tokenizer, "the cell binds the acid and the drug", "a", draw=0))
    assert batch["input_ids"].shape[0] == 2 and batch["input_ids"].shape[1] > 4


@pytest.mark.parametrize("row_length", [None, 12])
def test_leading_texts_equal_a_batch_of_these_texts(tokenizer, row_length):
    """Including their crops."""
    texts = rows(tokenizer, "the gene", "the cell binds the acid and the drug", "the drug and the acid")
    for draw, text in enumerate(texts):
        text["draw"] = draw
    collate = TlmCollator(
        tokenizer, mlm_probability=0.5, row_length=row_length, replacing=True, mask_special=True, crop_fraction=0.9
    )
    leading, alone = leading_texts(collate(texts), 2), collate(texts[:2])
    assert leading.keys() == alone.keys()
    for prefix in ("", "crop_"):
        names = [name for name in alone if name.startswith(prefix) and (prefix or not name.startswith("crop_"))]
        for batch in (leading, alone):
            if row_length is not None:
                assert len(batch[f"{prefix}first_tokens"]) == 2
        for text in range(2):
            positions = [
                (batch[f"{prefix}text_ids"] == text + 1).nonzero(as_tuple=True)
                if row_length is not None
                else (torch.tensor(text), batch[f"{prefix}attention_mask"][text].nonzero()[:, 0])
                for batch in (leading, alone)
            ]
            for name in names:
                if not name.endswith("first_tokens"):
                    assert leading[name][positions[0]].equal(alone[name][positions[1]]), name
        assert leading[f"{prefix}attention_mask"].sum() == alone[f"{prefix}attention_mask"].sum()
    assert (leading["mlm_labels"] != -100).sum() == (alone["mlm_labels"] != -100).sum()
