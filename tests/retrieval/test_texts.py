"""Parallel tokenization equals `Analyzer.__call__` for any Unicode text; and the queries of a task."""

import re
import socket
import subprocess
import sys
import unicodedata

import nltk
import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, concatenate_datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_tlm.retrieval import RetrievalError, build_queries
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.texts import Analyzer, example_texts, load_bm25s

ANALYZERS = [Analyzer(), Analyzer(None), Analyzer("en", "english"), Analyzer(None, "german")]
ANALYZERS += [Analyzer(None, None, "unspaced"), Analyzer("en", "english", "unspaced"), Analyzer("en", None, "marks")]
# Characters with special lower case, word class or UTF-8 length.
ALPHABET = (
    "aAbZ 09_-'.,\n\t\0"
    "İIıiſßẞΣσςΆÅÅÅµΜȺⱥȾꟂꭰᏸǅǄ"  # longer, shorter, other plane of lengths, title case, Cherokee
    "àé́̇ñ٣४௧①²ⅷⅧªº"  # combining marks, digits, numbers, letter-like
    "漢字かなカ한\u200b\u200d\ufeff\u00a0\u2028\x85"  # CJK without spaces, invisible ones, odd white space
    "😀𝔸𝒜𐐀𐐨𞤀𞤢𠀀𰀀\U000e0041\U0010ffff"  # astral letters, cased scripts beyond the first plane, tags, the last
)
EXAMPLES = [
    "The QUICK brown-fox's 2 e-mails, it's naïve; Straße_1 x",
    "İstanbul İİ aİb ISPARTA ΟΔΥΣΣΕΥΣ ΑΣ Σ Σ. ΑΣ. ΑΣΑ ΣΣ \u03a3\u0301",
    "Ǆ ǅabc ẞ ẞẞ ﬀ ﬀi KELVIN K Å",
    "e\u0301te\u0301 n\u0303andu\u0301 \u0301\u0301 a\u0301b",
    "١٢٣ ४५६ x² a① __ _ _a a_ 0 00 ²²",
    "كِتَابٌ ـِ ٌ مُ שָׁלוֹם־ ً",
    "漢字かな交じり文 한국어 русский ЁЛКА Ελληνικά עברית العربية हिन्दी ไทย",
    "𐐀𐐁𐐂 𞤀𞤁 𝔸𝔹 𠀀𠀁 😀😀 a😀b\U0001f1e9\U0001f1ea",
    "nul\0nul \0\0 a\0 \0b aa\0bb",
    "the THE tHe\u0307 a I ? not no",
    "",
    " ",
    "x",
    "running runs ran Häuser Häusern generalisations",
]


def words(tokenized):
    return [[tokenized.vocabulary[i] for i in text] for text in tokenized]


def check_tokenization(texts, analyzer):
    tokenized = tokenize_texts(texts, analyzer)
    assert words(tokenized) == [analyzer(text) for text in texts]
    assert len(tokenized) == len(texts)
    assert tokenized.ids.dtype == np.int32 and tokenized.offsets.dtype == np.int64
    assert tokenized.offsets[0] == 0 and tokenized.offsets[-1] == len(tokenized.ids)
    assert (np.diff(tokenized.offsets) >= 0).all()
    assert len(set(tokenized.vocabulary)) == len(tokenized.vocabulary)


@pytest.mark.parametrize("analyzer", ANALYZERS, ids=repr)
def test_tokenization_of_examples_equals_the_analyzer(analyzer):
    check_tokenization(EXAMPLES, analyzer)
    check_tokenization(["".join(EXAMPLES)] + EXAMPLES[::-1], analyzer)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(
    st.lists(st.one_of(st.text(), st.text(ALPHABET), st.text("aAbΣİ ", max_size=200)), max_size=6),
    st.sampled_from(ANALYZERS),
)
def test_tokenization_of_any_text_equals_the_analyzer(texts, analyzer):
    check_tokenization(texts, analyzer)


@pytest.mark.parametrize("plane", range(0, 0x11))
def test_tokenization_of_every_character_equals_the_analyzer(plane):
    # Each character is between letters, where it may join, split or lower-case them, and at the end of a word.
    codes = [c for c in range(plane << 16, (plane + 1) << 16) if not 0xD800 <= c < 0xE000]
    if all(
        unicodedata.category(chr(c)) in ("Cn", "Co") for c in codes
    ):  # For characters that no script has, a sample is enough.
        codes = codes[:256] + codes[256::61]
    texts = [" ".join(f"a{chr(c)}B {chr(c)}x x{chr(c)}" for c in codes[i : i + 1024]) for i in range(0, len(codes), 1024)]
    for analyzer in (Analyzer(None), Analyzer(None, None, "unspaced"), Analyzer(None, None, "marks")):
        for text, tokens in zip(texts, words(tokenize_texts(texts, analyzer)), strict=True):
            assert tokens == analyzer(text)


def test_analyzer_equals_its_definition():
    stopwords = {"the", "is", "not"}
    for text in EXAMPLES:
        plain = re.findall(r"\w\w+", text.lower())
        assert Analyzer(None)(text) == plain
        assert [w for w in Analyzer()(text) if w in stopwords] == []
        assert set(plain) - set(Analyzer()(text)) <= Analyzer().stopword_set
    assert len(Analyzer().stopword_set) == 33
    assert Analyzer("en", "english")("The generalisations are running") == ["generalis", "run"]
    assert Analyzer(None, "english")("The generalisations") == ["the", "generalis"]


def test_words_of_scripts_without_spaces_or_with_marks():
    found = Analyzer(script="unspaced")("今天天气很好，the iPhone手机! 真")
    assert found == [
        "今天",
        "天天",
        "天气",
        "气很",
        "很好",
        "iphone",
        "手机",
    ]
    assert Analyzer(script="marks")("हिन्दी में the किताब") == ["हिन्दी", "में", "किताब"]
    assert Analyzer(script="marks")("كِتَابٌ مُحَمَّدٌ שָׁלוֹם") == Analyzer()("كتاب محمد שלום") == ["كتاب", "محمد", "שלום"]
    assert Analyzer(script="marks")("The NAÏVE cafe\u0301") == ["naïve", "cafe\u0301"]
    with pytest.raises(RetrievalError, match='script must be "unspaced", "marks" or None; received .thai.'):
        Analyzer(script="thai")


def test_stop_words_are_words_not_stems():
    # "thes" and "ares" are not stop words, even if their stems are.
    assert Analyzer("en", "english")("thes ares its") == Analyzer(None, "english")("thes ares its")
    check_tokenization(["thes ares its the", "nots being"], Analyzer("en", "english"))


def test_tokenization_of_very_long_words_and_texts():
    texts = [
        "a" * 100_000,
        "Ⱥ" * 100_000,  # Each needs one byte more in lower case.
        "İ" * 20_000,
        "Σ" * 20_000 + "Σ",
        "𐐀" * 50_000,
        ("a" * 100_000 + " ") * 3 + "a" * 99_999,
        " ".join(f"w{i}" for i in range(60_000)),
        "ab " * 100_000,
        "\u0301" * 100_000,
    ]
    check_tokenization(texts, Analyzer(None))
    check_tokenization(texts[::-1], Analyzer())


def test_tokenization_of_many_similar_words():
    rng = np.random.default_rng(0)
    stems = ["".join(chr(97 + c) for c in rng.integers(0, 26, size)) for size in range(1, 30)]
    texts = [" ".join(f"{stem}{chr(c)}{stem}" for c in (*range(97, 123), *range(0x400, 0x430))) for stem in stems]
    texts += [" ".join(f"{i:x}{i % 97}" for i in range(k, 40_000, 7)) for k in range(7)]
    check_tokenization(texts, Analyzer(None))


def test_tokenization_of_words_around_eight_bytes():
    # Short words are their own keys in the table; é takes two bytes, 字 three, 𠀀 four.
    pieces = ["a", "é", "字", "𠀀"]
    texts = [a * i + b * j for a in pieces for b in pieces for i in range(9) for j in range(9)]
    check_tokenization([" ".join(texts), *texts], Analyzer(None))


def test_tokenization_of_empty_input():
    check_tokenization([], Analyzer())
    check_tokenization(["", "", ""], Analyzer())
    check_tokenization(["the", "a an", "is"], Analyzer())


def test_words_do_not_cross_texts():
    texts = ["ab", "cd", "e", "f", "gh", "\u0301", "i", "Σ", "Σ", "ΑΣ", "Α", "é", "字", "字"]
    check_tokenization(texts, Analyzer(None))


def test_composed_and_decomposed_letters_stay_different():
    first, second = "caf\u00e9s", unicodedata.normalize("NFD", "caf\u00e9s")
    assert words(tokenize_texts([first, second], Analyzer(None))) == [["cafés"], ["cafe"]]


@pytest.mark.parametrize("settings", [{"stopwords": "de"}, {"stopwords": ["the"]}, {"stemmer": "klingon"}])
def test_unknown_settings_are_refused(settings):
    with pytest.raises(RetrievalError, match="klingon|de|the"):
        Analyzer(**settings)


def test_analyzers_are_compared_and_hashed_by_value():
    assert Analyzer() == Analyzer("en", None) != Analyzer(None)
    assert len({Analyzer(), Analyzer("en"), Analyzer(None)}) == 2


TEXTS = [f"alpha{i % 7} beta Σ{i} İx{i % 3} gamma" * (i % 4) for i in range(60)]


def arrow_layouts():
    """Return the same rows in different Arrow layouts: name -> Dataset."""
    rows = {"id": [f"p{i:02}" for i in range(60)], "text": TEXTS}
    plain = Dataset.from_dict(rows)
    padded = Dataset.from_dict({"id": ["x", *rows["id"], "y"], "text": ["skipped text", *TEXTS, "skipped too"]})
    chunked = pa.table({name: pa.chunked_array([v[:7], v[7:7], v[7:8], v[8:]]) for name, v in rows.items()})
    sliced = pa.table({name: pa.array(["zz", "", *v, "zz"]).slice(2, 60) for name, v in rows.items()})
    large = pa.table({name: pa.array(v, pa.large_string()) for name, v in rows.items()})
    reverse = Dataset.from_dict({name: v[::-1] for name, v in rows.items()})
    return {
        "plain": plain,
        "slice": padded.select(range(1, 61)),
        "concatenated": concatenate_datasets([plain.select(range(20)), plain.select(range(20, 60))]),
        "chunked": Dataset(chunked),
        "arrow slice": Dataset(sliced),
        "large strings": Dataset(large),
        "indices": reverse.select(range(59, -1, -1)),
        "more columns": plain.add_column("source", ["toy"] * 60),
        "formatted": plain.with_format("arrow"),
    }


@pytest.mark.parametrize("layout", list(arrow_layouts()))
def test_index_does_not_depend_on_the_arrow_layout(layout, tmp_path):
    from hf_tlm.retrieval.bm25.index import Index

    dataset = arrow_layouts()[layout]
    assert len(dataset) == 60
    index = Index.build(tmp_path / "index", dataset, corpus_name="toy", fingerprint="f", analyzer=Analyzer(None))
    documents = [Analyzer(None)(text) for text in TEXTS]
    assert (len(index), index.num_tokens) == (60, sum(map(len, documents)))
    vocabulary, frequencies = index.terms()
    assert dict(zip(vocabulary, frequencies.tolist(), strict=True)) == {
        term: sum(term in document for document in documents) for document in documents for term in document
    }


def test_bm25s_does_not_import_jax(tmp_path):
    """If JAX is installed, importing bm25s starts it, and JAX takes most of a GPU's memory."""
    (tmp_path / "jax").mkdir()
    for name in ("__init__", "lax"):
        (tmp_path / "jax" / f"{name}.py").write_text("print('JAX WAS IMPORTED')\ntop_k = print\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from hf_tlm.retrieval.texts import Analyzer, load_bm25s\n"
        "print(Analyzer()('the cats of JAX'), load_bm25s().BM25, 'jax' in sys.modules)\n"
        "import jax\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == f"['cats', 'jax'] {load_bm25s().BM25} False\nJAX WAS IMPORTED\n"


def test_two_threads_can_import_bm25s(tmp_path):
    (tmp_path / "bm25s").mkdir()
    for name, text in (("__init__", "import time\ntime.sleep(0.2)"), ("stopwords", ""), ("tokenization", "")):
        (tmp_path / "bm25s" / f"{name}.py").write_text(text)
    (tmp_path / "jax.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import jax\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from hf_tlm.retrieval.texts import load_bm25s\n"
        "with ThreadPoolExecutor(2) as pool:\n"
        "    list(pool.map(lambda _: load_bm25s(), range(2)))\n"
        "assert sys.modules['jax'] is jax\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_mode_keeps_every_text_in_order():
    assert build_queries(["B a.", "", "c"]) == ["B a.", "", "c"]


def test_pairs_are_joined_and_labels_are_not_read(make_task):
    pairs = make_task({"a": "first", "b": "second"}, pairs=["one", "two"])
    assert example_texts(pairs.train) == ["first one", "second two"]
    assert example_texts(pairs.train.remove_columns("label")) == ["first one", "second two"]


def test_rake_ranks_phrases_by_degree_over_frequency():
    text = "Compatibility of systems of linear constraints. The systems are minimal!"
    # Degree / frequency: linear 2, constraints 2, the others 1; equal scores in reverse alphabetical order.
    expected = "linear constraints systems systems minimal compatibility"
    assert build_queries([text], "rake") == [expected]
    assert build_queries([text], "rake", num_phrases=1) == ["linear constraints"]


def test_rake_keeps_twenty_phrases():
    text = ". ".join(f"word{number}" for number in range(30))
    assert len(build_queries([text], "rake")[0].split()) == 20


def test_rake_cuts_at_any_punctuation_and_at_line_ends():
    assert set(build_queries(["red apples\u2014green pears (ripe).\nblue sky"], "rake")[0].split()) == {
        "red", "apples", "green", "pears", "ripe", "blue", "sky"
    }  # fmt: skip
    assert build_queries(["red apples\u2014green pears"], "rake", num_phrases=1) == ["red apples"]


def test_rake_keeps_marks_within_words_of_their_script():
    text = "हिन्दी भाषा, किताब."
    assert set(build_queries([text], "rake", script="marks")[0].split()) == {"हिन्दी", "भाषा", "किताब"}
    assert build_queries([text], "rake", script="unspaced") == build_queries([text], "rake")  # Unchanged for other scripts.


def test_rake_of_only_stop_words_is_an_empty_query():
    assert build_queries(["it is not the", "", "?!"], "rake") == ["", "", ""]


def test_rake_needs_no_download(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("no data may be asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(nltk.data, "find", refuse)
    monkeypatch.setattr(nltk, "download", refuse)
    assert build_queries(["Deep models need much text."], "rake")


@pytest.mark.parametrize("arguments", [{"mode": "title"}, {"mode": "rake", "num_phrases": 0}])
def test_invalid_mode_or_number_of_phrases_is_refused(arguments):
    with pytest.raises(RetrievalError, match="rake|num_phrases"):
        build_queries(["a"], **arguments)
