"""Question answering: windows, labels, exact span search, thresholds, and texts that are hard to split."""

import time
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from hf_tlm.data import TokenizerError
from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning import question_answering as qa
from hf_tlm.runs.finetuning.question_answering import NO_ANSWER_ODDS
from hf_tlm.tasks.rows import store_in_cache
from support.kind_toys import TOKENIZERS, arguments, predict, task_of, tiny_model

QUESTION = "which protein blocks the receptor ?"
FILLER = "the report of the group says that the drug lowers it . "
FAMILIES = ["bert", "modernbert", "xlnet"]


@pytest.fixture(scope="module")
def tokenizers():
    return {family: TOKENIZERS[family]() for family in FAMILIES}


def row(context, *answers, question=QUESTION):
    """Return a row whose answers start where they first occur in the context."""
    return {
        "id": "1",
        "context": context,
        "question": question,
        "answers": list(answers),
        "starts": [context.index(answer) for answer in answers],
    }


ROWS = [
    row(FILLER * 3 + "the naïve cell meets alpha-2 in Zürich . " + FILLER * 3, "alpha-2"),
    row("It is called Zoë .", "Zoë", "called Zoë"),
    row(FILLER),
    row(""),
    row(" \n\t  "),
    row("\u3000the 1990s café\u0301 \U0001f600 ok", "café\u0301"),
    row("the gene raises 2 drugs in Zu\u0308rich", "Zu\u0308rich"),
]


def perfect_logits(features, width):
    """Return logits that are 10 at the labelled positions, and 0 elsewhere."""
    outputs = []
    for name in ("start_positions", "end_positions"):
        logits = np.zeros((len(features), width), dtype=np.float32)
        logits[np.arange(len(features)), features[name][:]] = 10
        outputs.append(logits)
    return tuple(outputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_cover_the_context_and_labels_point_at_the_answer(family, tokenizers):
    tokenizer, args = tokenizers[family], arguments(max_length=32)
    rows = Dataset.from_list(ROWS)
    features = qa.encode(rows, tokenizer, args)
    assert features["example"][:] == sorted(features["example"][:])
    assert max(map(len, features["input_ids"])) <= 32
    labelled = set()
    for feature in features:
        example = ROWS[feature["example"]]
        context, ids = example["context"], feature["input_ids"]
        assert ids[feature["cls"]] == tokenizer.cls_token_id
        start, end = feature["start_positions"], feature["end_positions"]
        if start == feature["cls"]:
            assert end == start
            continue
        labelled.add(feature["example"])
        first, last = (feature[name][position - feature["first"]] for name, position in (("begins", start), ("ends", end)))
        # Some tokenizers keep only the "e" of "é".
        assert context[first:last].rstrip("\u0301\u0308") == example["answers"][0].rstrip("\u0301\u0308")
    assert labelled == {0, 1, 5, 6}
    windows = [feature for feature in features if feature["example"] == 0]
    assert len(windows) > 3
    whole = tokenizer(QUESTION, ROWS[0]["context"], verbose=False)
    inner = [token for token, part in zip(whole["input_ids"], whole.sequence_ids(), strict=True) if part == 1]
    count = [len(window["begins"]) for window in windows]
    parts = [
        window["input_ids"][window["first"] : window["first"] + size] for window, size in zip(windows, count, strict=True)
    ]
    assert all(ahead[-8:] == behind[:8] for ahead, behind in zip(parts[:-2], parts[1:-1], strict=True))  # doc_stride
    assert parts[0] + [token for part in parts[1:] for token in part[8:]] == inner


def test_windows_are_cached(tokenizers, tmp_path, monkeypatch, caplog):
    """A cache with more windows than rows was considered damaged, so every run created it again and warned."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    tokenizer, args = tokenizers["bert"], arguments(max_length=32)
    features = qa.encode(store_in_cache(Dataset.from_list(ROWS)), tokenizer, args)
    assert len(features) > len(ROWS) and not caplog.messages
    monkeypatch.setattr(qa, "token_spans", lambda *_: pytest.fail("the windows are in the cache"))
    assert qa.encode(store_in_cache(Dataset.from_list(ROWS)), tokenizer, args)[:] == features[:]


def test_short_input_equals_that_of_the_tokenizer(tokenizers):
    for tokenizer in tokenizers.values():
        feature = qa.encode(Dataset.from_list(ROWS[1:2]), tokenizer, arguments(max_length=128, max_query_length=64))[0]
        expected = tokenizer(QUESTION, ROWS[1]["context"])
        assert feature["input_ids"] == expected["input_ids"]
        assert feature.get("token_type_ids") == expected.get("token_type_ids")


def test_answer_cut_by_every_window_is_labelled_nowhere(tokenizers):
    rows = Dataset.from_list(
        [row("the gene . the cell ? " + FILLER * 6, FILLER.strip())]
    )  # Longer than the windows' overlap.
    features = qa.encode(rows, tokenizers["bert"], arguments(max_length=24, doc_stride=2))
    assert len(features) > 5
    # The answer begins in the first window and ends in the next.
    assert [feature["start_positions"] for feature in features] == [0] * len(features)


@pytest.mark.parametrize("family", FAMILIES)
def test_perfect_logits_score_one(family, tokenizers):
    rows, args = Dataset.from_list(ROWS), arguments(max_length=32, null_threshold=0.0)
    features = qa.encode(rows, tokenizers[family], args)
    predictions = qa.decode(perfect_logits(features, 32), features, rows, None, args)
    assert [prediction["prediction"] for prediction in predictions] == [
        *("alpha-2", "Zoë", "", "", "", "café\u0301", "Zu\u0308rich")
    ]
    scores = qa.score(task_of("question_answering", ROWS), predictions, rows)
    assert scores["squad_f1"] == scores["exact_match"] == 1 and scores["no_answer_f1"] == scores["has_answer_f1"] == 1
    for prediction, example in zip(predictions, ROWS, strict=True):
        for answer in prediction["n_best"]:
            assert example["context"][answer["start"] :].startswith(answer["text"])
        shares = [answer["probability"] for answer in prediction["n_best"]] + [prediction["no_answer_probability"]]
        assert sum(shares) <= 1 + 1e-4 and len(prediction["n_best"]) <= 5


def test_empty_answers_score_the_share_of_unanswerable_questions(tokenizers):
    rows, args = Dataset.from_list(ROWS), arguments(null_threshold=-1e9)
    features = qa.encode(rows, tokenizers["bert"], args)
    predictions = qa.decode(perfect_logits(features, 48), features, rows, None, args)
    assert {prediction["prediction"] for prediction in predictions} == {""}
    scores = qa.score(task_of("question_answering", ROWS), predictions, rows)
    assert scores["squad_f1"] == scores["exact_match"] == pytest.approx(3 / 7)


def test_span_search_equals_brute_force(tokenizers):
    rows = Dataset.from_list([ROWS[0], ROWS[3], ROWS[1]])
    args = arguments(max_length=32, n_best=7, max_answer_length=5, null_threshold=0.5)
    features = qa.encode(rows, tokenizers["modernbert"], args)
    rng = np.random.default_rng(0)
    outputs = tuple(rng.normal(size=(len(features), 32)).astype(np.float32) for _ in range(2))
    predictions = qa.decode(outputs, features, rows, None, args)
    for example, prediction in enumerate(predictions):
        spans, null = {}, np.inf
        for window, feature in enumerate(features):
            if feature["example"] != example:
                continue
            start, end = (logits[window] for logits in outputs)
            null = min(null, start[feature["cls"]] + end[feature["cls"]])
            for i, begin in enumerate(feature["begins"]):
                for j in range(i, min(i + 5, len(feature["ends"]))):
                    first, last = feature["first"] + i, feature["first"] + j
                    span = begin, feature["ends"][j]
                    solid = begin < feature["ends"][i] and feature["begins"][j] < span[1]
                    if solid:
                        spans[span] = max(spans.get(span, -np.inf), start[first] + end[last])
        best = sorted(spans.items(), key=lambda item: -item[1])[:7]
        assert [answer["start"] for answer in prediction["n_best"]] == [begin for (begin, _), _ in best[:5]]
        if not best:
            assert prediction["prediction"] == "" and prediction["null_odds"] == NO_ANSWER_ODDS
            continue
        text = rows[example]["context"][slice(*best[0][0])]
        assert prediction["null_odds"] == pytest.approx(null - best[0][1], abs=1e-5)
        assert prediction["prediction"] == (text if null - best[0][1] <= 0.5 else "")
        total = sum(np.exp(score) for _, score in best) + np.exp(null)
        assert prediction["no_answer_probability"] == pytest.approx(np.exp(null) / total, abs=1e-5)
        assert prediction["n_best"][0]["probability"] == pytest.approx(np.exp(best[0][1]) / total, abs=1e-5)


def test_always_answers_without_unanswerable_training_questions(tokenizers):
    rows, args = Dataset.from_list(ROWS[:2]), arguments()
    features = qa.encode(rows, tokenizers["bert"], args)
    nothing = perfect_logits(features, 48)
    for logits in nothing:
        logits[:] = 0
        logits[:, 0] = 10  # [CLS]
    task = task_of("question_answering", ROWS[:2])
    assert qa.validation_choices(task, nothing, features, rows, args) == {"null_threshold": None}
    predictions = qa.decode(nothing, features, rows, None, args)
    assert all(prediction["prediction"] and "null_odds" not in prediction for prediction in predictions)


def test_null_threshold_is_the_best_on_validation(tokenizers):
    rows, args = Dataset.from_list(ROWS[:3]), arguments(max_length=128)
    features = qa.encode(rows, tokenizers["bert"], args)
    assert len(features) == 3
    start, end = perfect_logits(features, 128)
    # Odds of no answer: -11, -13 and (unanswerable) -9; a threshold of 0 would answer all.
    start[[0, 1, 2], 0] = [9, 7, 0]
    start[2, features[2]["first"]], end[2, features[2]["first"]] = 19, 0
    end[2, 0] = 10
    task = task_of("question_answering", ROWS[:3])
    chosen = qa.validation_choices(task, (start, end), features, rows, args)
    assert chosen["null_threshold"] == pytest.approx(-10)  # Between the last answered and the first unanswerable question.
    args.null_threshold = chosen["null_threshold"]
    predictions = qa.decode((start, end), features, rows, None, args)
    assert qa.score(task, predictions, rows)["squad_f1"] == 1
    args.null_threshold = 2.5
    assert qa.validation_choices(task, (start, end), features, rows, args) == {"null_threshold": 2.5}


def test_very_long_contexts_are_split_and_questions_truncated(tokenizers):
    long = row(FILLER * 400 + "alpha-2 .", "alpha-2", question="which receptor " * 50)
    rows, args = Dataset.from_list([long, ROWS[1]]), arguments(max_length=32)
    features = qa.encode(rows, tokenizers["bert"], args)
    assert len(features) > 200
    question = tokenizers["bert"]("which receptor " * 50, add_special_tokens=False)["input_ids"][:12]
    assert features[0]["input_ids"][1:14] == [*question, tokenizers["bert"].sep_token_id]
    predictions = qa.decode(perfect_logits(features, 32), features, rows, None, args)
    assert [prediction["prediction"] for prediction in predictions] == ["alpha-2", "Zoë"]
    assert predictions[0]["n_best"][0]["start"] == long["starts"][0]


def test_rows_without_labels_have_no_positions(tokenizers):
    rows = Dataset.from_list(ROWS).remove_columns(["answers", "starts"])
    features = qa.encode(rows, tokenizers["bert"], arguments())
    assert "start_positions" not in features.column_names
    batch = qa.collate(tokenizers["bert"], list(features))
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids"}


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_do_not_depend_on_the_batch(family, tokenizers):
    """Padding is on the right, also for XLNet, so that a position in a feature is the same in every batch."""
    tokenizer, args = tokenizers[family], arguments(max_length=32)
    rows = Dataset.from_list(ROWS)
    features = qa.encode(rows, tokenizer, args)
    model, collate = tiny_model(family, qa.AUTO_CLASS), partial(qa.collate, tokenizer)
    alone, together = (predict(model, features, collate, batch_size) for batch_size in (1, 5))
    for one, other in zip(alone, together, strict=True):
        for logits, same, ids in zip(one, other, features["input_ids"], strict=True):
            np.testing.assert_allclose(logits[: len(ids)], same[: len(ids)], atol=1e-5)
    texts = [[p["prediction"] for p in qa.decode(out, features, rows, model, args)] for out in (alone, together)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 2


def test_too_short_max_length_and_slow_tokenizers_are_refused(tokenizers, tmp_path):
    rows = Dataset.from_list(ROWS)
    with pytest.raises(HfTlmError, match="max_length must leave room"):
        qa.encode(rows, tokenizers["bert"], arguments(max_length=4))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    with pytest.raises(TokenizerError, match="does not provide. Use a checkpoint with a fast tokenizer"):
        qa.encode(rows, BertTokenizerLegacy(str(tmp_path / "vocab.txt")), arguments())


def test_ten_thousand_questions_decode_in_a_minute():
    """1,000 questions of two windows each take a tenth of that."""
    windows, width, tokens = 2000, 384, 360
    begins = np.arange(tokens) * 5
    features = Dataset.from_dict(
        {
            "example": np.arange(windows) // 2,
            "cls": np.zeros(windows, np.int64),
            "first": np.full(windows, 15),
            "begins": [begins] * windows,
            "ends": [begins + 4] * windows,
        }
    )
    outputs = tuple(torch.randn(windows, width, generator=torch.Generator().manual_seed(seed)).numpy() for seed in (0, 1))
    rows = Dataset.from_dict({"context": ["word " * tokens] * (windows // 2)})
    start = time.perf_counter()
    predictions = qa.decode(outputs, features, rows, None, arguments(max_answer_length=30, null_threshold=0.0))
    assert len(predictions) == 1000 and time.perf_counter() - start < 6
