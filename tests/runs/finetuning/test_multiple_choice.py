"""Multiple choice: the input of every option, predictions and scores."""

from functools import partial

import numpy as np
import pytest
from datasets import Dataset
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning import multiple_choice as mc
from support.kind_toys import TOKENIZERS, arguments, predict, task_of, tiny_model

CONTEXT = "the drug lowers the protein , and the enzyme raises the gene in the tumor . "
ROWS = [
    {
        "id": "0",
        "context": CONTEXT,
        "question": "What raises the gene ?",
        "options": ["the drug", "the enzyme", "Zoë", "acid"],
        "label": 1,
    },
    {
        "id": "1",
        "context": CONTEXT * 8,
        "question": "The drug ___ the protein .",
        "options": ["blocks", "lowers", "raises", "is called"],
        "label": 1,
    },
    {"id": "2", "context": "", "question": "_", "options": ["cell", "group", "cell " * 60, "acid"], "label": 3},
]
FAMILIES = ["bert", "modernbert", "xlnet"]


@pytest.fixture(scope="module")
def tokenizers():
    return {family: TOKENIZERS[family]() for family in FAMILIES}


def test_blank_is_replaced_by_the_option():
    assert mc.fill_in("The drug _ it, and _ helps.", r"\1 it") == r"The drug \1 it it, and \1 it helps."
    assert mc.fill_in("It ____ .", "is") == "It is ."
    assert mc.fill_in("What is it?", "A cell.") == "What is it? A cell."


@pytest.mark.parametrize("family", FAMILIES)
def test_context_is_truncated_and_the_option_is_kept(family, tokenizers):
    tokenizer = tokenizers[family]
    features = mc.encode(Dataset.from_list(ROWS), tokenizer, arguments(max_length=40))
    assert features["example"][:] == [0, 1, 2] and features["labels"][:] == [1, 1, 3]
    lengths = [[len(ids) for ids in options] for options in features["input_ids"]]
    assert np.shape(lengths) == (3, 4) and max(map(max, lengths)) == 40
    for row, feature in zip(ROWS, features, strict=True):
        for option, ids in zip(row["options"], feature["input_ids"], strict=True):
            text = mc.fill_in(row["question"], option)
            inner = tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(option) < 60:
                whole = tokenizer(row["context"], text, truncation="only_first", max_length=40)["input_ids"]
                assert ids == whole and any(ids[start : start + len(inner)] == inner for start in range(40))
            else:
                assert sum(token in inner for token in ids) >= 36  # Only the start of the option is left.


def test_option_apart_has_three_segments(tokenizers):
    """As in ALE: [CLS] article [SEP] question [SEP] option [SEP], with the blank unchanged; only the article is
    truncated."""
    tokenizer = tokenizers["bert"]
    features = mc.encode(Dataset.from_list(ROWS[:2]), tokenizer, arguments(max_length=40, option_apart=True))
    for row, feature in zip(ROWS, features, strict=False):
        for option, ids, types in zip(row["options"], feature["input_ids"], feature["token_type_ids"], strict=True):
            article, question, choice = (
                tokenizer(text, add_special_tokens=False)["input_ids"] for text in (row["context"], row["question"], option)
            )
            cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
            article = article[: 40 - 4 - len(question) - len(choice)]
            assert ids == [cls, *article, sep, *question, sep, *choice, sep]
            assert types == [0] * (len(article) + 2) + [1] * (len(question) + len(choice) + 2)


def test_option_apart_needs_a_separator_token():
    tokenizer = TOKENIZERS["bert"]()
    tokenizer.sep_token = None
    with pytest.raises(HfTlmError, match="option_apart puts the tokenizer's sep_token between .* this tokenizer has none"):
        mc.encode(Dataset.from_list(ROWS), tokenizer, arguments(max_length=40, option_apart=True))


def test_too_long_option_and_context_are_both_truncated(tokenizers):
    row = {"context": CONTEXT * 8, "question": "_", "options": ["cell " * 60, "acid"]}
    long, _ = mc.encode(Dataset.from_list([row]), tokenizers["bert"], arguments(max_length=43))[0]["token_type_ids"]
    assert abs(sum(long) - 21) <= 1 and len(long) == 43


def test_tokenizers_in_pure_python_work(tokenizers, tmp_path):
    vocab = tokenizers["bert"].get_vocab()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n", encoding="utf-8")
    rows = Dataset.from_list(ROWS[:2])
    slow, fast = (
        mc.encode(rows, tokenizer, arguments())["input_ids"][:]
        for tokenizer in (BertTokenizerLegacy(str(tmp_path / "vocab.txt")), tokenizers["bert"])
    )
    assert slow == fast


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_do_not_depend_on_the_batch(family, tokenizers):
    tokenizer, args, rows = tokenizers[family], arguments(max_length=40), Dataset.from_list(ROWS)
    features = mc.encode(rows, tokenizer, args)
    collate, model = partial(mc.collate, tokenizer), tiny_model(family, mc.AUTO_CLASS)
    batch = collate(list(features))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 4, 40) and batch["labels"].tolist() == [1, 1, 3]
    # XLNet classifies by the last token, so its padding is on the left.
    assert (batch["attention_mask"][..., 0].min() == 0) == (family == "xlnet")
    alone, together = (predict(model, features, collate, size) for size in (1, 3))
    np.testing.assert_allclose(alone, together, atol=1e-5)
    predictions = mc.decode(together, features, rows.remove_columns("label"), model, args)
    for prediction, logits in zip(predictions, together, strict=True):
        assert list(prediction["probabilities"]) == ["A", "B", "C", "D"]
        assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert prediction["prediction"] == "ABCD"[logits.argmax()]
        assert prediction["probabilities"]["B"] == pytest.approx(np.exp(logits[1]) / np.exp(logits).sum(), abs=1e-5)


def test_scores_of_right_and_wrong_predictions():
    task, rows = task_of("multiple_choice", ROWS, "ABCD"), Dataset.from_list(ROWS)
    perfect = 10 * np.eye(4)[rows["label"][:]]
    assert mc.score(task, mc.decode(perfect, None, rows, None, arguments()), rows) == {"accuracy": 1}
    assert mc.score(task, mc.decode(np.eye(4)[[1, 0, 0]], None, rows, None, arguments()), rows)["accuracy"] == pytest.approx(
        1 / 3
    )


def test_too_short_max_length_is_refused():
    with pytest.raises(HfTlmError, match="max_length must leave room"):
        mc.encode(Dataset.from_list(ROWS), TOKENIZERS["bert"](), arguments(max_length=4))
