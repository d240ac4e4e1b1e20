"""The cropped second view of a text, and masked special tokens."""

import numpy as np
import pytest
import torch
from transformers import BertTokenizer

from hf_tlm.data import TlmCollator, TokenizerError
from hf_tlm.data.masking import Cropper
from hf_tlm.errors import HfTlmError

LONG = [2, *range(5, 105), 3]


def special_tokens_mask(tokenizer):
    found = np.zeros(len(tokenizer), dtype=bool)
    found[tokenizer.all_special_ids] = True
    return found


def crop(tokenizer, ids, draw=0, fraction=0.9, seed=0, **more):
    return Cropper(tokenizer, fraction, seed)([{"input_ids": ids, "draw": draw, **more}], special_tokens_mask(tokenizer))[0]


@pytest.mark.parametrize("fraction", [0.5, 0.9, 1.0])
def test_crop_is_contiguous_between_cls_and_sep(tokenizer, fraction):
    starts = set()
    for draw in range(200):
        ids = crop(tokenizer, LONG, draw, fraction)["input_ids"].tolist()
        assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id
        assert len(ids) == round(100 * fraction) + 2
        assert ids[1:-1] == list(range(ids[1], ids[1] + len(ids) - 2))
        starts.add(ids[1] - 5)
    # Every start is possible, including the first and the last.
    last_start = round(100 * (1 - fraction))
    assert min(starts) == 0 and max(starts) == last_start and len(starts) >= min(last_start, 40)


def test_length_and_content_of_crops(tokenizer):
    assert [len(crop(tokenizer, [2, *range(5, 5 + n), 3])["input_ids"]) - 2 for n in (1, 2, 4, 5, 10)] == [1, 2, 4, 5, 9]
    assert crop(tokenizer, [2, 9, 3], fraction=0.01)["input_ids"].tolist() == [2, 9, 3]  # Never empty.
    assert crop(tokenizer, [2, 3])["input_ids"] == [2, 3]
    inside = [2, 9, 8, 3, 7, 6, 3]
    assert crop(tokenizer, inside, fraction=1)["input_ids"].tolist() == inside  # A separator within the text is kept.
    assert crop(tokenizer, [9, 8], fraction=1)["input_ids"].tolist() == [2, 9, 8, 3]


def test_token_types_are_cropped_too(tokenizer):
    text = {"token_type_ids": [0, 0, 0, 0, 1, 1, 1]}
    for draw in range(5):
        found = crop(tokenizer, [2, 9, 8, 3, 7, 6, 3], draw, 0.6, **text)
        ids, types = found["input_ids"].tolist(), found["token_type_ids"].tolist()
        assert len(types) == len(ids) == 5 and types[0] == 0 and types[-1] == types[-2]
        assert all(kind == (token in (7, 6)) for token, kind in zip(ids[1:-1], types[1:-1], strict=True) if token != 3)


def test_crop_depends_only_on_seed_and_draw(tokenizer):
    ids = [crop(tokenizer, LONG, draw, 0.5, seed)["input_ids"].tolist() for draw, seed in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert ids[0] == ids[1] and ids[0] != ids[2] and ids[0] != ids[3]
    other = TlmCollator(tokenizer, seed=1, crop_fraction=0.5)
    rows = [{"input_ids": LONG[:n], "draw": n} for n in (30, 60, 9)]
    together, alone = other(rows), other(rows[1:2])
    width = int(alone["crop_attention_mask"].sum())
    assert together["crop_input_ids"][1, :width].equal(alone["crop_input_ids"][0])


def test_crops_are_padded_or_packed(tokenizer):
    rows = [{"input_ids": LONG[:n], "draw": n, "label": 0} for n in (31, 61, 9)]
    batch = TlmCollator(tokenizer, crop_fraction=0.9)(rows)
    plain = TlmCollator(tokenizer)(rows)
    assert set(batch) - set(plain) == {"crop_input_ids", "crop_attention_mask"}
    assert all(batch[name].equal(value) for name, value in plain.items())  # The first view is unchanged.
    assert batch["crop_attention_mask"].sum(dim=1).tolist() == [29, 56, 9]  # 90% of 30, 60 and 8, plus two.
    packed = TlmCollator(tokenizer, crop_fraction=0.9, row_length=64)(rows)
    assert packed["crop_input_ids"].shape[0] == 2
    flat, firsts = packed["crop_input_ids"].flatten(), packed["crop_first_tokens"]
    for row, (first, length) in enumerate(zip(firsts.tolist(), (29, 56, 9), strict=True)):
        assert flat[first : first + length].equal(batch["crop_input_ids"][row, :length])
        assert packed["crop_position_ids"].flatten()[first : first + length].equal(torch.arange(length))
        assert (packed["crop_text_ids"].flatten()[first : first + length] == row + 1).all()


def test_unmasked_batches_have_no_crops(tokenizer):
    text = {"input_ids": LONG[:9], "label": 1}
    assert set(TlmCollator(tokenizer, crop_fraction=0.9)([text])) == {"input_ids", "attention_mask", "labels"}
    collate = TlmCollator(tokenizer, mlm_probability=0.0, crop_fraction=0.9)
    assert set(collate([{**text, "draw": 0}])) == {"input_ids", "attention_mask", "labels"}


@pytest.mark.parametrize("mask_special", [False, True])
def test_mask_special_masks_special_tokens(tokenizer, mask_special):
    """They are masked at the rate of all others, always by the mask token; which others are masked does not change."""
    rows = [{"input_ids": [2, 9, 8, 3], "draw": draw} for draw in range(4000)]
    batch = TlmCollator(tokenizer, replacing=True, mask_special=mask_special)(rows)
    masked = batch["mlm_labels"] != -100
    shares = masked.double().mean(dim=0)
    expected = [0.15 if mask_special else 0, 0.15, 0.15, 0.15 if mask_special else 0]
    torch.testing.assert_close(shares, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0.02)
    assert (batch["input_ids"][masked] == tokenizer.mask_token_id).all()
    assert torch.equal(masked[:, 1:3], TlmCollator(tokenizer, replacing=True)(rows)["mlm_labels"][:, 1:3] != -100)


def test_invalid_fraction_and_missing_cls_token_are_refused(tokenizer):
    for fraction in (0, 1.1, float("nan")):
        with pytest.raises(HfTlmError, match=r"in \(0, 1\]; received"):
            TlmCollator(tokenizer, crop_fraction=fraction)
    without = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4})
    without.cls_token = None
    with pytest.raises(TokenizerError, match="begin with a cls_token"):
        TlmCollator(without, crop_fraction=0.9)
