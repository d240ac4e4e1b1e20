"""Samples of examples are balanced, disjoint and reproducible; demonstrations are sampled from them."""

from collections import Counter

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hf_tlm import load_task
from hf_tlm.runs.few_shot import Prompt, PromptError, draw_episode
from hf_tlm.runs.few_shot.classifier import Demonstrations, EvaluationInputs, TrainingInputs, average_over_sets, embed
from hf_tlm.runs.few_shot.points import scored_split
from hf_tlm.runs.few_shot.prompts import PromptEncoder
from hf_tlm.tasks import TaskError
from support.prompts import TEMPLATE, WORDS, masked_lm, wordpiece
from support.toys import make_task


def test_episodes_are_balanced_disjoint_and_reproducible(task):
    first, again, other = (draw_episode(task, 5, seed) for seed in (13, 13, 21))
    for episode in (first, other):
        for rows in (episode.train, episode.validation):
            assert Counter(rows["label"][:]) == {0: 5, 1: 5, 2: 5}
        assert not set(episode.train["id"]) & set(episode.validation["id"])
    assert first.train.to_list() == again.train.to_list() and first.validation.to_list() == again.validation.to_list()
    assert set(first.train["id"]) != set(other.train["id"])
    # All are from the training split.
    assert set(first.train["id"]) | set(first.validation["id"]) <= set(task.train["id"])


def test_too_few_examples_are_refused(task):
    with pytest.raises(TaskError, match="16 training examples of class 'down'; k = 9 .* smaller --k, at most 8"):
        draw_episode(task, 9, 13)
    with pytest.raises(TaskError, match="at least 1; received 0"):
        draw_episode(task, 0, 13)
    labels = ["up"] * 9 + ["odd"]
    rows = Dataset.from_dict({"text": [f"text {i}" for i in range(10)], "label": labels})
    rare = load_task(DatasetDict(train=rows, validation=rows))
    with pytest.raises(TaskError, match=r"1 training example of class 'odd'; .* 2\. At least two are needed: label more"):
        draw_episode(rare, 1, 13)


def test_validation_is_scored_without_a_test_split(task):
    assert scored_split(task) == "test"
    del task.splits["test"]
    assert scored_split(task) == "validation"


def examples(count=12):
    return [([i],) for i in range(count)], [i % 3 for i in range(count)]


def test_demonstrations_have_one_example_of_each_class():
    texts, labels = examples()
    demonstrations = Demonstrations(texts, labels, 3)
    seen = set()
    for seed in range(50):
        drawn = demonstrations.draw(np.random.default_rng(seed), exclude=4)
        assert [label for _, label in drawn] == [0, 1, 2]
        assert all(labels[text[0][0]] == label for text, label in drawn)
        seen |= {text[0][0] for text, _ in drawn}
    assert seen == set(range(12)) - {4}
    with pytest.raises(PromptError, match="at least two examples per class"):
        Demonstrations(*examples(5), 3)
    with pytest.raises(PromptError, match="at least two examples per class"):
        Demonstrations(texts, labels, 4)  # None of the last class.


def test_demonstrations_are_from_the_most_similar_half_of_a_class():
    texts, labels = examples()
    demonstrations = Demonstrations(texts, labels, 3)
    similarities = np.arange(12.0)
    seen = set()
    for seed in range(50):
        generator = np.random.default_rng(seed)
        seen |= {text[0][0] for text, _ in demonstrations.draw(generator, similarities=similarities)}
    assert seen == {6, 7, 8, 9, 10, 11}
    # Without the queried example its class has three, and half of three is one.
    besides = {
        demonstrations.draw(np.random.default_rng(s), exclude=11, similarities=similarities)[2][0][0][0] for s in range(20)
    }
    assert besides == {8}


@pytest.fixture(scope="module")
def encoder():
    return PromptEncoder(wordpiece(), Prompt(TEMPLATE, WORDS), 128, examples=3)


@pytest.fixture
def encoded(task, encoder):
    rows = draw_episode(task, 4, 13).train
    return encoder.encode(rows), rows["label"][:]


def demonstrations_of(encoder, row):
    """Return the texts after the queried one as tuples of ids, split at the template's end and the separators."""
    ids, sep = row["input_ids"][1:], encoder.tokenizer.sep_token_id
    parts = [[]]
    for token in ids:
        parts[-1].append(token)
        if token == sep:
            parts.append([])
    return [tuple(part[:-5]) for part in parts[1:-1]]  # It, was, word, full stop, [SEP]


def test_training_inputs_resample_demonstrations_other_than_the_text(encoder, encoded):
    texts, labels = encoded
    inputs = TrainingInputs(encoder, texts, labels, 7, Demonstrations(texts, labels, 3), length=60)
    rows = [inputs[index] for index in range(60)]
    beside = {}
    for row in rows:
        mask = row["mask_position"]
        text = tuple(row["input_ids"][1 : mask - 2])
        others = demonstrations_of(encoder, row)
        assert len(others) == 3 and text not in others
        beside.setdefault(text, set()).add(tuple(others))
    assert len(beside) == 12 and all(len(sets) > 1 for sets in beside.values())
    # Every epoch has every example once, in a different order.
    orders = [[tuple(row["input_ids"][1 : row["mask_position"] - 2]) for row in rows[i : i + 12]] for i in (0, 12, 24)]
    assert all(len(set(order)) == 12 for order in orders) and orders[0] != orders[1] != orders[2]
    # The input at an index depends only on the seed.
    assert inputs[41] == rows[41]
    assert TrainingInputs(encoder, texts, labels, 8, Demonstrations(texts, labels, 3), length=60)[41] != rows[41]


def test_evaluation_averages_sets_that_do_not_depend_on_other_rows(encoder, encoded):
    texts, labels = encoded
    demonstrations = Demonstrations(texts, labels, 3)
    inputs = EvaluationInputs(encoder, texts[:5], labels[:5], 7, demonstrations, sets=3)
    alone = EvaluationInputs(encoder, texts[2:3], None, 7, demonstrations, sets=3)
    assert len(inputs) == 15 and inputs[0]["label"] == inputs[2]["label"] == labels[0]
    assert len({tuple(inputs[i]["input_ids"]) for i in range(3)}) > 1
    for i in range(3):
        assert alone[i]["input_ids"] == inputs[6 + i]["input_ids"] and "label" not in alone[i]
    logits = np.arange(12.0).reshape(6, 2)
    assert average_over_sets(logits, 3).tolist() == [[2.0, 3.0], [8.0, 9.0]]


def test_embeddings_are_means_of_unit_length(tmp_path, monkeypatch):
    tokenizer = wordpiece()
    masked_lm(tokenizer=tokenizer).bert.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    task = make_task(6, 3, 3)
    vectors = embed(task.train, str(tmp_path), batch_size=4)
    assert vectors.shape == (6, 16) and np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(6), abs=1e-5)
    alone = embed(Dataset.from_list([task.train[5]]), str(tmp_path))
    assert alone[0] == pytest.approx(vectors[5], abs=1e-5), "padding does not count"
