import unicodedata

import pytest

from hf_tlm.utils.texts import script_of, with_bigrams


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
def test_scripts(text, expected):
    assert script_of([text] * 3) == expected


def test_bigrams():
    assert with_bigrams("我用iPhone打电话，好。").split() == ["我用", "iPhone", "打电", "电话", "，", "好", "。"]
    assert with_bigrams("ที่").split() == ["ท"]  # Its vowel and its tone are marks.
    assert with_bigrams("plain, 한국어 हिन्दी") == "plain, 한국어 हिन्दी"
