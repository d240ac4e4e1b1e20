"""Near-duplicates against a comparison of every pair."""

import sys

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_tlm.retrieval import RetrievalError
from hf_tlm.retrieval.filters import RECALL, _choose_band_shape, near_duplicates, words

pytest.importorskip("datasketch")


def similarity(first, second, n):
    def grams(text):
        found = words(text)
        return {tuple(found[i : i + n]) for i in range(max(1, len(found) - n + 1))}

    first, second = grams(first), grams(second)
    return len(first & second) / len(first | second)


def plain_duplicates(texts, threshold, n):
    """Return the near-duplicates that LSH would find if it missed none."""
    repeats = np.full(len(texts), -1)
    for i in range(len(texts)):
        earlier = (j for j in range(i) if repeats[j] < 0 and similarity(texts[i], texts[j], n) >= threshold)
        repeats[i] = next(earlier, -1)
    return repeats


def find(texts, **options):
    return near_duplicates(texts, progress=False, **options).tolist()


TEXTS = st.lists(
    st.sampled_from(["a b c d e f", "A, b c d e f!", "a b", "b a", "", "?", "a b c d e g", "日本語"]), max_size=12
)


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.integers(1, 6))
def test_equal_texts_are_all_found(texts, n):
    """Equal sets of n-grams have equal MinHashes, so LSH misses none."""
    assert find(texts, threshold=1.0, ngram=n) == plain_duplicates(texts, 1.0, n).tolist()


def test_duplicates_equal_a_comparison_of_every_pair():
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(20):
        base = [f"w{i}" for i in rng.integers(0, 500, 120)]
        for changes in (0, 1, 2, 40, 120):
            text = list(base)
            for position in rng.choice(len(base), changes, replace=False):
                text[position] = f"w{rng.integers(0, 500)}"
            texts.append(" ".join(text))
    texts = [texts[i] for i in rng.permutation(len(texts))]
    expected = plain_duplicates(texts, 0.8, 5)
    assert 20 < (expected >= 0).sum() < 60
    assert find(texts) == expected.tolist()


def test_texts_are_only_compared_with_earlier_kept_ones():
    chain = [" ".join(f"w{i}" for i in range(start, start + 100)) for start in (0, 10, 20, 30)]
    # Neighbours share 86 of 106 n-grams (0.81), texts two apart 76 of 116 (0.66).
    assert [round(similarity(chain[0], text, 5), 2) for text in chain[1:3]] == [0.81, 0.66]
    assert find(chain, threshold=0.7, num_perm=512) == [-1, 0, -1, 2]
    assert find([chain[1], *chain], threshold=0.7, num_perm=512) == [-1, 0, 0, 0, -1]


def test_duplicates_are_confirmed_by_exact_similarity():
    base = [f"w{i}" for i in range(200)]
    texts = [" ".join([*base[:cut], *(f"x{cut}y{i}" for i in range(200 - cut))]) for cut in range(150, 200, 2)]
    # LSH has a low threshold; the exact similarity decides.
    repeats = find(texts, threshold=0.5)
    pairs = [(i, j) for i, j in enumerate(repeats) if j >= 0]
    assert pairs and all(similarity(texts[i], texts[j], 5) >= 0.5 for i, j in pairs)


def test_texts_without_words_repeat_each_other():
    assert find(["", "a", "?!", "A."]) == [-1, -1, 0, 1]
    assert find([]) == [] and find(["only one"]) == [-1]


def test_result_is_deterministic_for_lists_and_columns():
    texts = [f"word{i % 7} of a text that is short and word{i % 3}" for i in range(40)]
    first = find(texts)
    assert first == find(texts) == find(Dataset.from_dict({"text": texts})["text"])
    assert near_duplicates(texts, progress=False).dtype == np.int64


def test_shape_of_bands_reaches_the_recall():
    assert _choose_band_shape(0.8, 128) == (16, 8)
    assert _choose_band_shape(1.0, 128) == (1, 128)
    assert _choose_band_shape(0.1, 2) == (2, 1)  # Too few permutations for the recall: the best possible shape.
    for threshold in (0.3, 0.5, 0.9):
        bands, size = _choose_band_shape(threshold, 256)
        assert 1 - (1 - threshold**size) ** bands >= RECALL > 1 - (1 - threshold ** (size + 1)) ** (256 // (size + 1))


def test_progress_bar_can_be_switched_off(capfd):
    near_duplicates(["a b", "a b"])
    assert "Hashing passages" in capfd.readouterr().err
    near_duplicates(["a b", "a b"], progress=False)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("bad", [{"threshold": 0}, {"threshold": 1.1}, {"num_perm": 0}, {"ngram": 0}])
def test_invalid_settings_are_refused(bad):
    with pytest.raises(RetrievalError, match="threshold above 0 and at most 1.*received"):
        near_duplicates(["a"], **bad)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(RetrievalError, match=r"needs datasketch: pip install 'hf-tlm\[dedup\]'"):
        near_duplicates(["a"])


def test_real_passages_with_small_changes_are_duplicates(data_dir):
    texts = Dataset.from_parquet(str(data_dir / "corpus/biomedical.parquet"))["text"][:300]
    changed = [text.replace(" the ", " THE, ").replace(".", " .") + " End" for text in texts]
    repeats = near_duplicates(texts + changed, progress=False)
    assert (repeats[300:] >= 0).mean() > 0.98 and (repeats[:300] >= 0).sum() < 30
