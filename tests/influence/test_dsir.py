"""Importance weights compared with a formula written out, and samples in proportion to them."""

import math
import re
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

from hf_tlm.influence.selection import NUM_BUCKETS, log_importance_weights, ngram_buckets, resample

TASK = ["The kinase binds.", "the kinase, the drug"]
PASSAGES = ["A drug binds the kinase.", "Goals: a match ended 2-1!", "", "the drug"]


def bucket(ngram):
    return xxhash.xxh3_64_intdigest(ngram.encode()) % NUM_BUCKETS


def test_ngrams_are_lowercase_words_punctuation_and_pairs():
    expected = ["the", "kinase", ",", "2", "-", "1", "...", "the kinase", "kinase ,", ", 2", "2 -", "- 1", "1 ..."]
    assert sorted(ngram_buckets("The KINASE, 2-1...")) == sorted(map(bucket, expected))
    assert ngram_buckets("").tolist() == [] and ngram_buckets("x").tolist() == [bucket("x")]
    assert ngram_buckets("a b", 7).max() < 7


def test_scripts_without_spaces_are_split_into_characters():
    expected = ["今", "天", "，", "3g", "今 天", "天 ，", "， 3g"]
    assert sorted(ngram_buckets("今天，3G")) == sorted(map(bucket, expected))


def test_weights_equal_the_formula():
    def frequencies(texts):
        counts = Counter(bucket for text in texts for bucket in ngram_buckets(text).tolist())
        return lambda bucket: (counts[bucket] + 1) / (sum(counts.values()) + NUM_BUCKETS)

    task, subset = frequencies(TASK), frequencies(PASSAGES)
    expected = [sum(math.log(task(b) / subset(b)) for b in ngram_buckets(text).tolist()) for text in PASSAGES]
    np.testing.assert_allclose(log_importance_weights(TASK, PASSAGES), expected, atol=1e-12)
    assert expected[2] == 0 and expected[0] > expected[1]


def test_weights_equal_the_authors_package(data_dir, tmp_path, monkeypatch):
    """On real texts, with this smoothing and hash patched in; its word pattern is matched by `re`, as nltk used to."""
    package = pytest.importorskip("data_selection.hashed_ngram_dsir")
    task, passages = (
        next(pq.ParquetFile(data_dir / path).iter_batches(300, columns=["text"]))["text"].to_pylist()
        for path in ("tasks/scierc/validation.parquet", "corpus/cs_nlp.parquet")
    )
    passages += PASSAGES
    monkeypatch.setattr(package, "hash_buckets", lambda text, num_buckets: bucket(text))

    class AddOne(package.HashedNgramDSIR):
        def _fit_bow(self, *args, **options):
            return super()._fit_bow(*args, **options) + 1

    options = {"raw_parse_example_fn": None, "target_parse_example_fn": None, "num_proc": 1}
    options |= {"raw_load_dataset_fn": lambda _: passages, "target_load_dataset_fn": lambda _: task}
    theirs = AddOne(["passages"], ["task"], str(tmp_path), **options)
    theirs.tokenizer = re.compile(package.wpt._pattern).findall
    theirs.fit_importance_estimator()
    theirs.log_diff = np.log(theirs.target_probs) - np.log(theirs.raw_probs)
    theirs.compute_importance_weights()
    found = np.load(theirs.log_importance_weights_dir / "0.npy")
    assert len(found) == 304 and found.std() > 10
    np.testing.assert_allclose(log_importance_weights(task, passages), found, rtol=1e-10, atol=1e-8)


def test_samples_are_in_proportion_to_the_weights():
    """With weights 1, 2 and 5, the passages are sampled first with probabilities 1/8, 2/8 and 5/8."""
    weights, draws = np.log([1.0, 2.0, 5.0]), 4000
    first = Counter(int(resample(weights, ["a", "b", "c"], 1, seed)[0]) for seed in range(draws))
    for row, share in enumerate((1 / 8, 2 / 8, 5 / 8)):
        assert abs(first[row] / draws - share) < 4 * math.sqrt(share * (1 - share) / draws)


def test_samples_depend_only_on_seed_and_ids():
    rng = np.random.default_rng(0)
    weights, ids = rng.standard_normal(50), [f"p{i}" for i in range(50)]
    drawn = resample(weights, ids, 10, seed=3)
    assert drawn.tolist() == sorted(set(drawn.tolist())) and len(drawn) == 10
    order = rng.permutation(50)
    again = resample(weights[order], [ids[row] for row in order], 10, seed=3)
    assert {ids[order[row]] for row in again} == {ids[row] for row in drawn}
    assert set(resample(weights, ids, 20, seed=3)) > set(drawn)
    assert resample(weights, ids, 10, seed=4).tolist() != drawn.tolist()
    assert resample(weights, ids, 50).tolist() == list(range(50))


@pytest.mark.parametrize("text", ["\ud800 lone", "日本語のキナーゼ"])
def test_any_text_has_ngrams(text):
    assert len(ngram_buckets(text)) >= 1
