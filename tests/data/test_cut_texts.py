"""What is cut off of texts, counted token by token."""

import pytest

from hf_tlm.data import text_checks
from hf_tlm.data.text_checks import measure_cut


@pytest.mark.parametrize("max_length", [4, 7, 12, 40])
def test_what_is_cut_is_what_truncation_leaves_out(tokenizer, max_length):
    texts = ["a token", "many tokens " * 6, "", "word " * 9]
    whole = [tokenizer(text)["input_ids"] for text in texts]
    left = [tokenizer(text, truncation=True, max_length=max_length)["input_ids"] for text in texts]
    lost, special = sum(map(len, whole)) - sum(map(len, left)), 2 * len(texts)
    cut = measure_cut(texts, tokenizer, max_length)
    assert cut.share == pytest.approx(lost / (sum(map(len, whole)) - special))
    assert tokenizer.backend_tokenizer.truncation is None


def test_a_passage_of_so_many_words_fits(tokenizer):
    texts = ["word " * 40] * 3
    cut = measure_cut(texts, tokenizer, 20)
    assert cut.share > 0.4 and cut.words > 0
    assert measure_cut(["word " * cut.words], tokenizer, 20).share == 0
    assert measure_cut(["word " * (cut.words + 1)], tokenizer, 20).share > 0


def test_of_nothing_nothing_is_cut(tokenizer):
    assert measure_cut([], tokenizer, 8).share == 0 and measure_cut([""], tokenizer, 8).words == 0


def test_long_texts_are_looked_at_in_part(tokenizer, monkeypatch):
    monkeypatch.setattr(text_checks, "LOOKED_AT", 60)
    assert measure_cut(["word " * 5000], tokenizer, 7) == measure_cut(["word " * 12], tokenizer, 7)
