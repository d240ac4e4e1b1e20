"""Parts of texts that a model does not see: truncated tokens, and words that are not in the training texts."""

import pytest
from datasets import Dataset

from hf_tlm.data import text_checks, unseen_words, unseen_words_line
from hf_tlm.data.text_checks import measure_cut
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.utils.texts import split_passages


@pytest.mark.parametrize("max_length", [4, 7, 12, 40])
def test_measured_share_equals_the_truncated_tokens(tokenizer, max_length):
    texts = ["a token", "many tokens " * 6, "", "word " * 9]
    whole = [tokenizer(text)["input_ids"] for text in texts]
    truncated = [tokenizer(text, truncation=True, max_length=max_length)["input_ids"] for text in texts]
    lost, special = sum(map(len, whole)) - sum(map(len, truncated)), 2 * len(texts)
    share, _ = measure_cut(texts, tokenizer, max_length)
    assert share == pytest.approx(lost / (sum(map(len, whole)) - special))
    assert tokenizer.backend_tokenizer.truncation is None


def test_recommended_number_of_words_fits(tokenizer):
    texts = ["word " * 40] * 3
    share, words = measure_cut(texts, tokenizer, 20)
    assert share > 0.4 and words > 0
    assert measure_cut(["word " * words], tokenizer, 20)[0] == 0
    assert measure_cut(["word " * (words + 1)], tokenizer, 20)[0] > 0


def test_words_of_texts_without_spaces_are_sentences_and_at_least_one(tokenizer):
    """--passage_words 0 would leave documents uncut, although the advice is to cut them."""
    assert measure_cut(["ab" * 10 + "。"] * 3, tokenizer, 6)[1] == 1
    sentences = "ab。" * 40
    _, words = measure_cut([sentences], tokenizer, 42)
    assert words > 5 and measure_cut(split_passages(sentences, words), tokenizer, 42)[0] == 0


def test_empty_texts_are_not_truncated(tokenizer):
    assert measure_cut([], tokenizer, 8) == measure_cut([""], tokenizer, 8) == (0, 0)


def test_long_texts_are_measured_in_part(tokenizer, monkeypatch):
    monkeypatch.setattr(text_checks, "MEASURED_CHARACTERS", 60)
    assert measure_cut(["word " * 5000], tokenizer, 7) == measure_cut(["word " * 12], tokenizer, 7)


def test_share_of_words_in_no_training_text():
    """Occurrences are counted, not distinct words; passages add to the known words."""
    spec = TaskSpec(name="pets", path="", text_columns=("text", "text_pair"))
    train = {"text": ["the cat sat", "a cat"], "text_pair": ["on it", "it"], "label": [0, 1]}
    held_out = {"text": ["The dog, the dog sat", "CAT"], "text_pair": ["it", "bird"], "label": [0, 1]}
    task = task_from_datasets(spec, {"train": Dataset.from_dict(train), "validation": Dataset.from_dict(held_out)})
    assert unseen_words(task) == {"validation": (pytest.approx(3 / 8), None)}
    passages = Dataset.from_dict({"id": ["dog"], "text": ["A bird-song"]})
    assert unseen_words(task, passages)["validation"] == (pytest.approx(3 / 8), pytest.approx(2 / 8))
    line = unseen_words_line(task, passages)
    assert line == "new words    validation 37.5% of the words in no training text; validation 25.0% in no passage either"


def test_words_of_texts_without_spaces_are_characters():
    rows = {"train": ["猫は可愛い", "犬"], "validation": ["猫と犬", "犬"]}
    splits = {split: Dataset.from_dict({"text": texts, "label": [0, 1]}) for split, texts in rows.items()}
    assert unseen_words(task_from_datasets(TaskSpec(name="pets", path=""), splits))["validation"][0] == 1 / 4
