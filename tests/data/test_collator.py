import copy

import numpy as np
import pytest
import torch
from transformers import AddedToken, BertTokenizer

from hf_tlm.data import TlmCollator, TokenizerError, collator
from hf_tlm.errors import HfTlmError
from support.token_texts import rows


def test_task_batch_has_masks_padding_and_labels(tokenizer):
    batch = TlmCollator(tokenizer, mlm_probability=0.5)(
        rows(tokenizer, "the gene binds the cell", "the acid", label=1, draw=5)
    )
    assert set(batch) == {"input_ids", "attention_mask", "mlm_labels", "labels"}
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    assert batch["labels"].tolist() == [1, 1]
    real = batch["attention_mask"].bool()
    assert (batch["input_ids"][~real] == tokenizer.pad_token_id).all()
    assert (batch["mlm_labels"][~real] == -100).all()
    original = torch.where(batch["mlm_labels"] == -100, batch["input_ids"], batch["mlm_labels"])
    assert tokenizer.decode(original[0], skip_special_tokens=True) == "the gene binds the cell"
    ends = original == tokenizer.cls_token_id
    assert ends[:, 0].all() and (batch["mlm_labels"][ends] == -100).all()


def test_labels_column_may_have_either_name(tokenizer):
    ours, theirs = (rows(tokenizer, "the gene", "the acid", draw=5, **{name: 1}) for name in ("label", "labels"))
    one, two = TlmCollator(tokenizer)(ours), TlmCollator(tokenizer)(theirs)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("texts, found", [([], "none"), ([{"text": "a", "label": 0}], "text, label")])
def test_untokenized_texts_are_refused(tokenizer, texts, found):
    with pytest.raises(ValueError, match=f"expects tokenised texts, with input_ids; received {found}. hf_tlm.data.tokenize"):
        TlmCollator(tokenizer)(texts)


@pytest.mark.parametrize(
    "texts, message",
    [
        ([{"input_ids": [2, 3], "label": 1.5}], "indices of classes, one per text; received 1.5"),
        ([{"input_ids": [2, 3], "labels": "up"}], "received up"),
        ([{"input_ids": [2, 3], "label": [0, 1]}], r"received \[0, 1\]"),
        (
            [{"input_ids": [2, 3], "label": 1}, {"input_ids": [2]}],
            "one with input_ids, label and one with input_ids. Put task",
        ),
        ([{"input_ids": [2, 9000]}], "contain token id 9000, and the tokenizer has"),
    ],
)
def test_invalid_batches_are_refused(tokenizer, texts, message):
    with pytest.raises(ValueError, match=message):
        TlmCollator(tokenizer)(texts)
    with pytest.raises(HfTlmError, match="mlm_probability: expected a number of at least 0 and below 1; received 2.0"):
        TlmCollator(tokenizer, mlm_probability=2.0)


def test_labels_may_be_tensors(tokenizer):
    batch = TlmCollator(tokenizer)([{"input_ids": torch.tensor([2, 5]), "labels": torch.tensor(n)} for n in (1, 0)])
    assert batch["labels"].tolist() == [1, 0] and batch["labels"].dtype == torch.int64


def test_corpus_batch_has_no_labels(tokenizer):
    assert set(TlmCollator(tokenizer)(rows(tokenizer, "the gene", draw=0))) == {
        "input_ids",
        "attention_mask",
        "mlm_labels",
    }


@pytest.mark.parametrize("probability,extra", [(0.5, {}), (0.0, {"draw": 1})])
def test_evaluation_and_stage_two_are_unmasked(tokenizer, probability, extra):
    batch = TlmCollator(tokenizer, mlm_probability=probability)(rows(tokenizer, "the gene", label=0, **extra))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"][0].tolist() == tokenizer("the gene")["input_ids"]


def test_pairs_keep_their_token_types(tokenizer):
    encoded = tokenizer("the gene", "the cell and the acid")
    row = {"input_ids": encoded["input_ids"], "token_type_ids": encoded["token_type_ids"], "label": 0}
    batch = TlmCollator(tokenizer)([row, {"input_ids": [2, 3], "token_type_ids": [0, 0], "label": 1}])
    assert batch["token_type_ids"][0].tolist() == encoded["token_type_ids"]
    assert batch["token_type_ids"][1].sum() == 0


def test_tokenizer_without_mask_token_is_refused():
    without = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4})
    without.mask_token = None
    with pytest.raises(TokenizerError, match="mask_token"):
        TlmCollator(without)


@pytest.mark.parametrize("given", ["bert-base-uncased", None, 3])
def test_other_objects_than_tokenizers_are_refused(given):
    with pytest.raises(TokenizerError, match=rf"received '{given}' \({type(given).__name__}\). Pass what AutoTokenizer"):
        TlmCollator(given)


def test_added_special_tokens_are_never_masked(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens([AddedToken("[E1]", special=True), "plain"])
    marked, plain = tokenizer.convert_tokens_to_ids(["[E1]", "plain"])
    text = {"input_ids": [2, marked, plain, marked, 3], "draw": 0}
    batch = TlmCollator(tokenizer, mlm_probability=0.999)([text])
    assert (batch["mlm_labels"][0] != -100).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("options", [{}, {"replacing": True}, {"whole_word_mask": True, "row_length": 12}])
def test_thinned_batch_equals_a_smaller_mlm_probability(tokenizer, options):
    texts = [row for draw in range(40) for row in rows(tokenizer, "the gene binds the unseen cell", draw=draw)]
    dense = TlmCollator(tokenizer, mlm_probability=0.6, thinning=True, **options)(texts)
    sparse = TlmCollator(tokenizer, mlm_probability=0.2, **options)(texts)
    assert set(dense) - set(sparse) == {"chances"} and not torch.equal(dense["mlm_labels"], sparse["mlm_labels"])
    result = collator.thinned(dense, 0.2)
    assert result.keys() == sparse.keys() and all(torch.equal(result[name], sparse[name]) for name in sparse)
    assert torch.equal(collator.thinned(dense, 0.6)["input_ids"], dense["input_ids"])


def test_uniforms_stay_below_one_in_float32(tokenizer, monkeypatch):
    monkeypatch.setattr(collator, "uniforms", lambda seed, draws, positions, stream: np.full(len(draws), 1 - 2.0**-53))
    texts = rows(tokenizer, "the gene binds the cell", draw=0)
    assert TlmCollator(tokenizer, replacing=True)(texts)["uniforms"].max() < 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mlm_probability": "0.15"}, "mlm_probability: expected a number of at least 0 and below 1; received '0.15'."),
        ({"row_length": "8"}, "row_length: expected a whole number from 1 to 1,048,576; received '8'."),
        ({"eval_row_length": 0}, "eval_row_length: expected a whole number from 1 to 1,048,576; received 0."),
    ],
)
def test_invalid_numbers_are_refused(changes, said, tokenizer):
    with pytest.raises(HfTlmError) as raised:
        TlmCollator(tokenizer, **changes)
    assert str(raised.value) == said
