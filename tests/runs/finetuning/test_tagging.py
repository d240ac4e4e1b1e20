"""Tagging: labels on first tokens, words without tokens, scores over all words, and the pipeline."""

import logging
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import pipeline, set_seed
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from hf_tlm.data import TokenizerError
from hf_tlm.errors import HfTlmError
from hf_tlm.runs import FinetuneArguments
from hf_tlm.runs.finetuning import tagging
from hf_tlm.runs.finetuning.models import FinetuneTrainer
from support.kind_toys import TOKENIZERS, arguments, predict, task_of, tiny_model

TAGS = ("DT", "NN", "VBZ")
SENTENCES = [
    (["the", "alpha-2", "receptor", "blocks", "Zürich"], [0, 1, 1, 2, 1]),
    (["It", "raises", "the", "gene", "in", "the", "tumor", ",", "the", "report", "says"], [1, 2, 0, 1, 1, 0, 1, 1, 0, 1, 2]),
    (["cell"], [-1]),
]
ROWS = [{"id": str(row), "tokens": words, "tags": tags} for row, (words, tags) in enumerate(SENTENCES)]
HARD = [
    {
        "id": "h",
        "tokens": ["\x07", "gene", "\u0301", "New York", "", "\u200b", "\U0001f600", "the"],
        "tags": [0, 1, 0, 1, 0, 0, 1, 0],
    },
    {"id": "i", "tokens": ["\x07", "\x00"], "tags": [0, 0]},
]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAMILIES = ["bert", "modernbert", "xlnet"]


@pytest.fixture(scope="module")
def tokenizers():
    return {family: TOKENIZERS[family]() for family in FAMILIES}


def perfect_logits(features, num_tags, width):
    logits = np.zeros((len(features), width, num_tags), dtype=np.float32)
    for row, labels in enumerate(features["labels"]):
        for place, label in enumerate(labels):
            if label >= 0:
                logits[row, place, label] = 9
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_first_token_of_a_word_is_labelled(family, tokenizers):
    tokenizer = tokenizers[family]
    features = tagging.encode(Dataset.from_list(ROWS), tokenizer, arguments(max_length=100))
    for row, feature in zip(ROWS, features, strict=True):
        text = " ".join(row["tokens"])
        whole = tokenizer(text, return_offsets_mapping=True)
        assert feature["input_ids"] == whole["input_ids"]
        assert sorted(set(feature["places"])) == feature["places"] and len(feature["places"]) == len(row["tokens"])
        start = 0
        for word, tag, place in zip(row["tokens"], row["tags"], feature["places"], strict=True):
            begin, end = whole["offset_mapping"][place]
            assert text[begin:end].strip() and begin + text[begin:end].index(text[begin:end].strip()) == start
            assert feature["labels"][place] == (tag if tag >= 0 else -100)
            start += len(word) + 1
        assert sum(label != -100 for label in feature["labels"]) == sum(tag >= 0 for tag in row["tags"])


def test_wordpiece_input_equals_that_of_split_words(tokenizers):
    features = tagging.encode(Dataset.from_list(ROWS), tokenizers["bert"], arguments(max_length=100))
    for row, feature in zip(ROWS, features, strict=True):
        encoded = tokenizers["bert"](row["tokens"], is_split_into_words=True)
        words = encoded.word_ids()
        assert feature["input_ids"] == encoded["input_ids"]
        assert feature["places"] == [words.index(word) for word in range(len(row["tokens"]))]


def test_words_without_tokens_have_no_prediction(tokenizers, caplog):
    with caplog.at_level(logging.WARNING):
        features = tagging.encode(Dataset.from_list(HARD), tokenizers["bert"], arguments(max_length=100))
    first, second = features["places"]
    assert [place >= 0 for place in first] == [False, True, False, True, False, False, True, True]
    assert second == [-1, -1]
    assert "Of 10 words, 0 are beyond max_length 100, and 6 are empty after tokenization" in caplog.text
    task, rows = task_of("tagging", HARD, TAGS), Dataset.from_list(HARD)
    model = tiny_model("bert", tagging.AUTO_CLASS, id2label=dict(enumerate(TAGS)))
    predictions = tagging.decode(perfect_logits(features, 3, 30), features, rows, model, arguments())
    assert predictions[1] == {"prediction": [None, None], "probabilities": [None, None]}
    assert tagging.score(task, predictions, rows)["tag_accuracy"] == pytest.approx(4 / 10)
    assert tagging.tables(task, predictions, rows)["missing_words"] == [{"words": 10, "truncated": 0, "dropped": 6}]


def test_words_beyond_max_length_count_as_wrong(tokenizers, caplog):
    with caplog.at_level(logging.WARNING):
        features = tagging.encode(Dataset.from_list(ROWS), tokenizers["bert"], arguments(max_length=9))
    assert max(map(len, features["input_ids"])) == 9
    places = features["places"][1]
    shown = sum(place >= 0 for place in places)
    assert 0 < shown < 11 and places[shown:] == [-2] * (11 - shown)
    assert "are beyond max_length 9" in caplog.text
    rows, task = Dataset.from_list(ROWS), task_of("tagging", ROWS, TAGS)
    model = tiny_model("bert", tagging.AUTO_CLASS, id2label=dict(enumerate(TAGS)))
    predictions = tagging.decode(perfect_logits(features, 3, 9), features, rows, model, arguments())
    truncated = sum(prediction.get("truncated_words", 0) for prediction in predictions)
    assert predictions[1]["truncated_words"] == 11 - shown
    # Every word within the limit is correct, except the one whose tag is not in training.
    assert tagging.score(task, predictions, rows)["tag_accuracy"] == pytest.approx((16 - truncated) / 17)


def test_scores_and_table_of_tags(tokenizers):
    rows = Dataset.from_list(ROWS[:2])
    features = tagging.encode(rows, tokenizers["modernbert"], arguments(max_length=100))
    model = tiny_model("bert", tagging.AUTO_CLASS, id2label=dict(enumerate(TAGS)))
    predictions = tagging.decode(perfect_logits(features, 3, 100), features, rows, model, arguments())
    task = task_of("tagging", ROWS, TAGS)
    assert tagging.score(task, predictions, rows) == {"tag_accuracy": 1}
    assert predictions[0]["probabilities"][0] == pytest.approx(np.exp(9) / (np.exp(9) + 2), abs=1e-5)
    predictions[0]["prediction"][0] = "NN"
    predictions[0]["prediction"][3] = None
    table = tagging.tables(task, predictions, rows)
    assert [line["tag"] for line in table["tags"]] == ["NN", "DT", "VBZ"]
    assert table["tags"][0] == {"tag": "NN", "support": 9, "precision": 9 / 10, "recall": 1, "f1": 18 / 19}
    assert table["tags"][1] == {"tag": "DT", "support": 4, "precision": 1, "recall": 3 / 4, "f1": 6 / 7}
    assert table["tags"][2] == {"tag": "VBZ", "support": 3, "precision": 1, "recall": 2 / 3, "f1": 4 / 5}


def test_unknown_tag_is_in_the_table_and_never_correct():
    rows, task = Dataset.from_list(ROWS[2:]), task_of("tagging", ROWS, TAGS)
    for predicted in ("NN", None):
        predictions = [{"prediction": [predicted], "probabilities": [1.0]}]
        assert tagging.score(task, predictions, rows)["tag_accuracy"] == 0
        last = tagging.tables(task, predictions, rows)["tags"][-1]
        assert last == {"tag": None, "support": 1, "precision": 0, "recall": 0, "f1": 0}


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_agree_between_batch_sizes_and_with_the_pipeline(family, tokenizers, tmp_path):
    tokenizer, rows, args = tokenizers[family], Dataset.from_list(ROWS).remove_columns("tags"), arguments(max_length=100)
    features = tagging.encode(rows, tokenizer, args)
    assert "labels" not in features.column_names
    model = tiny_model(family, tagging.AUTO_CLASS, id2label=dict(enumerate(TAGS)))
    collate = partial(tagging.collate, tokenizer)
    decoded = [tagging.decode(predict(model, features, collate, size), features, rows, model, args) for size in (1, 3)]
    assert [row["prediction"] for row in decoded[0]] == [row["prediction"] for row in decoded[1]]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tag = pipeline("token-classification", model=str(tmp_path), device="cpu", ignore_labels=[])
    for row, prediction, feature in zip(rows, decoded[1], features, strict=True):
        # The pipeline's results have no special tokens; its index counts [CLS], where there is one.
        found = {entity["index"]: entity for entity in tag(" ".join(row["tokens"]))}
        for place, name, probability in zip(
            feature["places"], prediction["prediction"], prediction["probabilities"], strict=True
        ):
            assert found[place]["entity"] == name and found[place]["score"] == pytest.approx(probability, abs=1e-4)


def test_crf_predicts_the_best_sequence(tokenizers):
    rows, args = Dataset.from_list(ROWS), arguments(max_length=100, crf=True)
    features = tagging.encode(rows, tokenizers["bert"], args)
    model = tagging.wrap(tiny_model("bert", tagging.AUTO_CLASS, id2label=dict(enumerate(TAGS))), args)
    with torch.no_grad():
        for parameter in model.crf.parameters():
            parameter.zero_()
        # A determiner after a noun is impossible.
        model.crf.transitions[1, 0] = -100
    predictions = tagging.decode(perfect_logits(features, 3, 30), features, rows, model, args)
    assert predictions[0]["prediction"] == [TAGS[tag] for tag in ROWS[0]["tags"]]
    assert "NN DT" not in " ".join(predictions[1]["prediction"])
    assert 0 < min(predictions[1]["probabilities"]) < max(predictions[1]["probabilities"]) <= 1


def one_step(folder, task, tokenizer, size, **changes):
    """Train a tiny model for one step on six sentences, in micro-batches; return it and the logged loss."""
    args = FinetuneArguments(
        **{"output_dir": str(folder), "use_cpu": True, "report_to": "none", "disable_tqdm": True, "max_length": 48},
        **{"select_by": "last", "eval_strategy": "no", "save_strategy": "no", "max_steps": 1, "logging_steps": 1},
        **{"total_batch_size": 6, "per_device_train_batch_size": size, "max_grad_norm": 0.0, "optim": "sgd"},
        **{"learning_rate": 0.1, "warmup_steps": 0, "lr_scheduler_type": "constant", "weight_decay": 0.0, **changes},
    )
    set_seed(0)
    model = tagging.wrap(tiny_model("bert", tagging.AUTO_CLASS, num_labels=3, **NO_DROPOUT), args)
    trainer = FinetuneTrainer(
        model,
        args.for_seed(folder, 0, task.metric, ["labels"]),
        train_dataset=tagging.encode(task.train, tokenizer, args),
        data_collator=partial(tagging.collate, tokenizer),
        processing_class=tokenizer,
        loss_terms=partial(tagging.loss_terms, args=args),
    )
    trainer.train()
    return model, trainer.state.log_history[0]["loss"]


@pytest.mark.parametrize("size", [6, 2])
def test_label_smoothing_is_that_of_torch(tokenizers, tmp_path, size):
    task, tokenizer = task_of("tagging", ROWS, TAGS), tokenizers["bert"]
    start, _ = one_step(tmp_path, task, tokenizer, size, learning_rate=0.0)
    _, loss = one_step(tmp_path, task, tokenizer, size, label_smoothing_factor=0.2)
    batch = tagging.collate(tokenizer, list(tagging.encode(task.train, tokenizer, arguments())))
    logits = start.eval()(**batch).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.2)
    assert loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("crf", [False, True])
def test_update_does_not_depend_on_the_micro_batch_size(tokenizers, tmp_path, crf):
    """Sentences have 1 to 11 words, and one has no tag: averaging the means of micro-batches would differ."""
    if crf:
        pytest.importorskip("torchcrf")
    rows = [{**row, "id": f"{row['id']}-{copy}"} for copy in range(2) for row in ROWS]
    task, tokenizer, moved = task_of("tagging", rows, TAGS), tokenizers["bert"], []
    for size in (6, 2, 1) if crf else (6, 3, 2):
        start, after = (one_step(tmp_path, task, tokenizer, size, crf=crf, learning_rate=rate)[0] for rate in (0.0, 0.1))
        moved.append([new.detach() - old.detach() for new, old in zip(after.parameters(), start.parameters(), strict=True)])
    assert any(change.abs().max() > 1e-4 for change in moved[0])
    for other in moved[1:]:
        for change, expected in zip(other, moved[0], strict=True):
            torch.testing.assert_close(change, expected, rtol=1e-3, atol=1e-7)


def test_too_short_max_length_and_slow_tokenizers_are_refused(tokenizers, tmp_path):
    with pytest.raises(HfTlmError, match="max_length must leave room"):
        tagging.encode(Dataset.from_list(ROWS), tokenizers["bert"], arguments(max_length=2))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    with pytest.raises(TokenizerError, match="fast tokenizer"):
        tagging.encode(Dataset.from_list(ROWS), BertTokenizerLegacy(str(tmp_path / "vocab.txt")), arguments())
