"""Decontamination against a plain implementation of its definition."""

import re
import unicodedata

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_tlm.retrieval import RetrievalError, filters
from hf_tlm.retrieval.filters import Decontaminator, Leak, held_out_texts
from hf_tlm.tasks import TaskSpec, task_from_datasets

# Scripts without spaces below U+20000, where every character is a word.
REFERENCE_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff]"
)


def plain_words(text):
    words, current = [], ""
    for character in unicodedata.normalize("NFKC", text).lower() + " ":
        inside = unicodedata.category(character)[0] in "LNM"
        alone = inside and (REFERENCE_UNSPACED.match(character) or ord(character) >= 0x20000 and ord(character) < 0x40000)
        if inside and not alone:
            current += character
            continue
        if current:
            words.append(current)
            current = ""
        if alone:
            words.append(character)
    return words


def plain_leaks(passages, held_out, n, threshold, min_characters):
    """Compare every passage with every held-out text, on tuples of words."""

    def grams(words):
        return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}

    def inside(words, passage):
        return any(passage[i : i + len(words)] == words for i in range(len(passage) - len(words) + 1))

    result = []
    for passage in map(plain_words, passages):
        best = None
        for identifier, text in held_out:
            words = plain_words(text)
            if not words:
                continue
            short = len(words) < n
            if (words == passage) if short and len(" ".join(words)) < min_characters else inside(words, passage):
                leak = Leak(identifier, "contains", 1.0)
            elif not short and (shared := len(grams(words) & grams(passage))):
                share = max(shared / len(grams(words)), shared / len(grams(passage)))
                leak = Leak(identifier, "shares", share) if share > threshold else None
            else:
                leak = None
            if leak and (best is None or leak.share > best.share):
                best = leak
        result.append(best)
    return result


def numbered(texts):
    return [(str(i), text) for i, text in enumerate(texts)]


def sentence(length, start=0):
    return " ".join(f"word{i}" for i in range(start, start + length))


TEXTS = st.lists(st.sampled_from(["a", "b", "C.", "dé", "日本", "x_y", "-"]), max_size=14).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(TEXTS, max_size=8),
    st.lists(TEXTS, max_size=8),
    st.integers(1, 4),
    st.sampled_from([0, 0.2, 0.5, 0.99]),
    st.sampled_from([0, 4, 8]),
)
def test_leaks_equal_those_of_the_plain_version(passages, held_out, n, threshold, min_characters):
    checker = Decontaminator(numbered(held_out), ngram=n, threshold=threshold, min_characters=min_characters)
    assert list(checker.leaks(passages)) == plain_leaks(passages, numbered(held_out), n, threshold, min_characters)


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_words_equal_the_plain_version(text):
    assert filters.words(text) == plain_words(text)


@given(st.lists(st.text(alphabet="ab é日.", max_size=20), max_size=10))
@settings(deadline=None)
def test_hashes_are_equal_exactly_for_equal_words_and_ngrams(texts):
    (_, hashes, offsets), *rest = list(filters.hash_words(texts)) or [([], np.empty(0, np.uint64), np.zeros(1, np.int64))]
    assert not rest and hashes.dtype == np.uint64
    expected = [plain_words(text) for text in texts]
    assert np.diff(offsets).tolist() == [len(words) for words in expected]
    flat = [word for words in expected for word in words]
    assert len(set(hashes.tolist())) == len(set(flat)) == len(set(zip(flat, hashes.tolist(), strict=True)))
    for n in (1, 3):
        gram_hashes, text_numbers = filters.hash_ngrams(hashes, offsets, n, short_texts=True)
        plain = [
            (i, tuple(words[j : j + n]))
            for i, words in enumerate(expected)
            if words
            for j in range(max(1, len(words) - n + 1))
        ]
        assert text_numbers.tolist() == [i for i, _ in plain]
        assert len(set(gram_hashes.tolist())) == len({gram for _, gram in plain})


@pytest.mark.parametrize("batch", [1, 7, 10**6])
def test_leaks_do_not_depend_on_batches(monkeypatch, batch):
    passages = [sentence(20, start) for start in range(0, 200, 10)] + ["", "yes", sentence(40, 30)]
    held_out = numbered([sentence(30, 25), "yes", sentence(15, 150), ""])
    expected = plain_leaks(passages, held_out, 13, 0.2, 50)
    assert sum(leak is not None for leak in expected) >= 4
    monkeypatch.setattr(filters, "BATCH_CHARACTERS", batch)
    assert list(Decontaminator(held_out).leaks(passages)) == expected


def test_passage_may_contain_or_be_part_of_a_held_out_text():
    review = sentence(230)
    checker = Decontaminator([("long", review), ("short", sentence(20, 1000))])
    piece, host = sentence(30, 50), f"{sentence(400, 2000)} {sentence(20, 1000)} {sentence(400, 3000)}"
    fifth = f"{sentence(16, 1000)} other"  # 4 of the 8 n-grams of the short text
    little = f"{sentence(300, 5000)} {sentence(20, 100)}"  # 8 of 218 and 8 of 308
    found = list(checker.leaks([piece, host, fifth, little, review.upper().replace(" ", ", ")]))
    assert found[0] == Leak("long", "shares", 1.0)
    assert found[1] == Leak("short", "contains", 1.0)
    assert found[2] == Leak("short", "shares", 4 / 5)
    assert found[3] is None
    assert found[4] == Leak("long", "contains", 1.0)


def test_threshold_is_exclusive():
    text = sentence(22)  # 10 n-grams
    passage = f"{sentence(14)} {sentence(30, 100)}"  # two of them, among 32 of its own
    assert list(Decontaminator([("t", text)], threshold=0.2).leaks([passage])) == [None]
    assert list(Decontaminator([("t", text)], threshold=0.19).leaks([passage])) == [Leak("t", "shares", 0.2)]


def test_short_held_out_texts_must_match_or_be_contained():
    short, tiny = "an unusually characteristic formulation of nine polysyllabic words here", "Yes."
    checker = Decontaminator([("short", short), ("tiny", tiny), ("again", "YES")])
    passages = ["yes", "Well, yes!", f"So: {short.title()}!", short.replace("nine", "ten"), ""]
    kinds = [leak and leak.held_out for leak in checker.leaks(passages)]
    assert kinds == ["tiny", None, "short", None, None]


def test_scripts_without_spaces_count_characters():
    text = "機械学習では大量の文章から言語の規則性を学ぶことができると考えられている"
    checker = Decontaminator([("ja", text), ("tiny", "東京")])
    found = list(
        checker.leaks([f"昨日読んだ本。{text}。", text[:20], "東京", "東京に行く", "天気がよいので散歩に出かけることにした"])
    )
    assert [leak and (leak.held_out, leak.reason) for leak in found] == [
        ("ja", "contains"), ("ja", "shares"), ("tiny", "contains"), None, None
    ]  # fmt: skip


def test_unicode_forms_of_the_same_letters_are_equal():
    text = sentence(13) + " café first"
    passage = text.replace("é", "e\u0301").replace("fi", "\ufb01").upper()
    assert list(Decontaminator([("t", text)]).leaks([passage])) == [Leak("t", "contains", 1.0)]


def test_hash_collisions_do_not_drop_a_passage(monkeypatch):
    """Words are hashed to a few values: there are far more candidates, and the same result."""

    def collide(texts):
        for batch, hashes, offsets in hash_words(texts):
            yield batch, hashes % np.uint64(3), offsets

    hash_words = filters.hash_words
    passages = [sentence(15, start) for start in range(0, 60, 5)] + ["other words only, none of them held out " * 3]
    held_out = numbered([sentence(14, 20), "an entirely different text " * 5])
    expected = plain_leaks(passages, held_out, 3, 0.5, 50)
    monkeypatch.setattr(filters, "hash_words", collide)
    checker = Decontaminator(held_out, ngram=3, threshold=0.5)
    found = list(checker.leaks(passages))
    assert [leak for leak in found if leak and leak not in expected] == []
    assert found[-1] is None


def test_leak_names_the_text_that_shares_most():
    common = sentence(13)
    held_out = [(f"t{i}", f"{common} {sentence(i, 100 * i)}") for i in range(1, 40)]
    leak, *_ = Decontaminator(held_out, threshold=0.05).leaks([f"{common} {sentence(30, 5000)}"])
    assert leak == Leak("t1", "shares", 0.5)


def test_without_held_out_texts_nothing_leaks():
    for held_out in ([], [("a", ""), ("b", "?!")]):
        checker = Decontaminator(held_out)
        assert list(checker.leaks(["", "yes", sentence(20)])) == [None] * 3 and len(checker) == len(held_out)
    assert list(Decontaminator([("a", "yes")]).leaks([])) == []


@pytest.mark.parametrize("bad", [{"ngram": 0}, {"threshold": 1}, {"threshold": -0.1}, {"min_characters": -1}])
def test_invalid_settings_are_refused(bad):
    with pytest.raises(RetrievalError, match="ngram of at least 1.*received"):
        Decontaminator([], **bad)


def task_of_pairs(**splits):
    rows = {
        name: Dataset.from_dict({"id": ["a", "b"], "text": texts, "text_pair": ["p", "q"], "label": ["x", "y"]})
        for name, texts in splits.items()
    }
    return task_from_datasets(TaskSpec(name="toy", path="toy", text_columns=("text", "text_pair")), rows)


def test_held_out_texts_of_validation_and_test(make_task, queries):
    assert held_out_texts(make_task()) == [(f"validation/v-{name}", text) for name, text in queries.items()]
    pairs = task_of_pairs(train=["s", "t"], validation=["u", "v"], test=["w", "x"])
    assert held_out_texts(pairs) == [
        ("validation/a", "u"), ("validation/a", "p"), ("validation/a", "u p"),
        ("validation/b", "v"), ("validation/b", "q"), ("validation/b", "v q"),
        ("test/a", "w"), ("test/a", "p"), ("test/a", "w p"),
        ("test/b", "x"), ("test/b", "q"), ("test/b", "x q"),
    ]  # fmt: skip


def test_real_held_out_reviews_are_found(data_dir):
    """Pieces of held-out reviews hidden in passages are found; the corpus itself, which was cleaned, has none."""
    held_out = Dataset.from_parquet(str(data_dir / "tasks/imdb/validation.parquet"))["text"][:300]
    passages = Dataset.from_parquet(str(data_dir / "corpus/news_reviews.parquet"))["text"][:300]
    hidden = [f"{passage} {text}" for passage, text in zip(passages, held_out, strict=True)]
    pieces = [" ".join(text.split()[:80]) for text in held_out]
    checker = Decontaminator(numbered(held_out))
    assert list(checker.leaks(passages)) == [None] * 300
    assert [leak.reason for leak in checker.leaks(hidden)] == ["contains"] * 300
    assert all(checker.leaks(pieces))
