import random
import unicodedata

import pytest

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.texts import count_words, script_of, share_beyond, split_passages, with_bigrams


def test_text_is_cut_greedily_at_sentence_ends():
    text = "One two. Three four! Five? Six seven eight. Nine."
    assert split_passages(text, 4) == ["One two. Three four!", "Five? Six seven eight.", "Nine."]


def test_long_sentence_is_cut_between_words_and_its_rest_filled_up():
    text = "a b c d e f g. H i."
    assert split_passages(text, 3) == ["a b c", "d e f", "g. H i."]


def test_text_without_punctuation_is_cut_between_words():
    words = [str(i) for i in range(250)]
    assert [len(passage.split()) for passage in split_passages(" ".join(words), 100)] == [100, 100, 50]


def test_closing_quotes_and_brackets_stay_with_their_sentence():
    assert split_passages('He said "go." (She went.) Then.', 3) == ['He said "go."', "(She went.) Then."]


def test_paragraphs_end_sentences():
    assert split_passages("A title\n\nthe first words", 3) == ["A title", "the first words"]


def test_full_width_stops_need_no_space():
    assert split_passages("一。二！三", 1) == ["一。", "二！", "三"]


def test_characters_are_counted_in_scripts_without_spaces():
    text = "今天天气很好我们去公园。公园里的花都开了，很好看！真的iPhone拍的照片。"
    assert split_passages(text, 13) == ["今天天气很好我们去公园。", "公园里的花都开了，很好看！", "真的iPhone拍的照片。"]
    assert split_passages(text, 5)[:3] == ["今天天气很", "好我们去公", "园。"]
    assert count_words(text) == 12 + 13 + 8
    mixed = "Words of a passage that names 中华人民共和国 once. " * 2
    assert count_words(mixed) == len(mixed.split())


def test_passage_is_a_slice_of_the_text():
    text = "  one\ttwo.\n\nthree   four.  five "
    assert split_passages(text, 100) == [text.strip()]
    assert all(passage in text for passage in split_passages(text, 2))


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_blank_text_has_no_passages(text):
    assert split_passages(text, 5) == []


@pytest.mark.parametrize("seed", range(20))
def test_passages_are_short_enough_and_lose_only_white_space(seed):
    rng = random.Random(seed)
    text = "".join(rng.choice(["word", "a", "x.", "y!)", '"z?"', "。", " ", "  ", "\n", "\n\n"]) for _ in range(400))
    limit = rng.randint(1, 12)
    passages = split_passages(text, limit)
    assert all(0 < len(passage.split()) <= limit for passage in passages)
    assert all(passage == passage.strip() for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


def test_share_of_words_beyond_a_limit():
    assert share_beyond(["a b c d", " e\nf ", ""], 2) == share_beyond(["a b c"], 2) == 1 / 3
    assert share_beyond(["a b"], 2) == share_beyond([], 2) == 0


def test_word_count_agrees_with_the_cutting_of_passages():
    texts = ["一。二。三。四。五。", 'He said "No." Then, went!', " a b\n\nc "]
    assert [count_words(text) for text in texts] == [5, 5, 3]
    assert [len(split_passages(text, count_words(text))) for text in texts] == [1, 1, 1]
    assert len(split_passages(texts[0], 4)) == 2 and share_beyond(texts[:1], 4) == 1 / 5


def test_max_words_must_be_positive():
    with pytest.raises(ValueError, match="^max_words: expected a whole number, 1 or more; received 0"):
        split_passages("a", 0)


@pytest.mark.parametrize(
    ("text", "max_words", "said"),
    [
        (None, 4, "text: expected a text; received none."),
        (["one two"], 4, "text: expected a text; received a list."),
        ("one two", "4", "max_words: expected a whole number, 1 or more; received '4'."),
        ("one two", 2.5, "max_words: expected a whole number, 1 or more; received 2.5."),
    ],
)
def test_arguments_of_other_types_are_refused(text, max_words, said):
    with pytest.raises(HfTlmError) as raised:
        split_passages(text, max_words)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    "text, expected",
    [
        ("今天天气很好，我们去公园。", "unspaced"),
        ("ภาษาไทยที่เขียนดี", "unspaced"),
        ("हिन्दी में लिखी किताब", "marks"),
        ("مُحَمَّدٌ كِتَاب", "marks"),
        (unicodedata.normalize("NFD", "schöne große Straßen über Köln"), "marks"),
        ("schöne große Straßen über Köln", None),
        ("今天 天气 很 好， 我们 去 公园。", None),
        ("محمد كتاب", None),
        ("ab ❤️ 1️⃣ 👩‍💻 #tag https://x.y/z?q=1\tERROR 0x1f", None),
        ("Plain words, with one 日 in them.", None),
        ("", None),
    ],
)
def test_script_is_detected(text, expected):
    assert script_of([text] * 3) == expected


def test_bigrams_are_formed_in_scripts_without_spaces():
    assert with_bigrams("我用iPhone打电话，好。").split() == ["我用", "iPhone", "打电", "电话", "，", "好", "。"]
    assert with_bigrams("ที่").split() == ["ท"]  # Its vowel and its tone are marks.
    assert with_bigrams("plain, 한국어 हिन्दी") == "plain, 한국어 हिन्दी"
