import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import load_metric
from hf_tlm.metrics.labels import spans

NAMES = ["pearson", "spearman"]


def compute(name, predictions, references):
    return load_metric(name).compute(predictions=predictions, references=references)[name]


def test_correlations_by_hand():
    # Deviations -1, 0, 1 and -4/3, -1/3, 5/3: their product 3, squared lengths 2 and 14/3.
    assert compute("pearson", [1, 2, 3], [0, 1, 3]) == pytest.approx(3 / math.sqrt(2 * 14 / 3))
    assert compute("spearman", [1, 2, 3], [0, 1, 3]) == pytest.approx(1)
    assert compute("spearman", [1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert compute("pearson", [1, 2], [4, 3]) == pytest.approx(-1)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_with_ties_equal_scipy(seed):
    generator = np.random.default_rng(seed)
    references = generator.integers(0, 6, 80) / 2
    predictions = (references + generator.normal(0, 1, 80)).round(1)
    assert compute("pearson", predictions, references) == pytest.approx(pearsonr(predictions, references).statistic)
    assert compute("spearman", predictions, references) == pytest.approx(spearmanr(predictions, references).statistic)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_correlations_of_extreme_numbers(name, scale):
    assert compute(name, [scale, 2 * scale, 3 * scale], [1, 2, 3]) == pytest.approx(1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["predictions", "references"])
def test_constant_side_scores_zero_with_a_warning(name, side, caplog):
    values = {"predictions": [1.0, 2.0], "references": [2.0, 3.0], side: [2.5, 2.5]}
    assert compute(name, **values) == 0
    assert f"{name} is not defined and counts as 0: the {side} are all 2.5" in caplog.text
    assert compute(name, [1.0], [2.0]) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_numbers_are_refused(name, bad):
    with pytest.raises(HfTlmError, match="1 of 2 predictions are not finite"):
        compute(name, [1.0, bad], [1.0, 2.0])


def accuracy(predictions, references):
    return load_metric("tag_accuracy").compute(predictions=predictions, references=references)["tag_accuracy"]


def span_f1(predictions, references):
    return load_metric("span_f1").compute(predictions=predictions, references=references)["span_f1"]


TRUTH = [["DT", "NN", "VBZ"], ["NNP"]]


def test_accuracy_is_over_words_not_sentences():
    assert accuracy(TRUTH, TRUTH) == 1
    assert accuracy([["DT", "NN", "VBZ"], ["NN"]], TRUTH) == 0.75


@pytest.mark.parametrize("nothing", [None, ""])
def test_missing_predictions_and_unknown_tags_count_as_wrong(nothing):
    assert accuracy([["DT", nothing, nothing], ["NNP"]], TRUTH) == 0.5
    assert accuracy([[nothing, nothing, nothing], [nothing]], TRUTH) == 0
    assert accuracy([[nothing, "NN"]], [[nothing, "NN"]]) == 0.5
    assert span_f1([["B-A", nothing]], [["B-A", nothing]]) == pytest.approx(2 / 3)


def test_different_lengths_and_no_words_are_refused():
    with pytest.raises(HfTlmError, match="sentence 1 has 1 reference tags and 2 predicted"):
        accuracy([["DT", "NN", "VBZ"], ["NNP", "NNP"]], TRUTH)
    with pytest.raises(HfTlmError, match="no words"):
        accuracy([[]], [[]])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "B-PER", "I-PER", "O"], [(1, 3, "PER")]),
        (["B-PER", "B-PER"], [(0, 1, "PER"), (1, 2, "PER")]),
        (["B-PER", "I-LOC", "I-LOC"], [(0, 1, "PER"), (1, 3, "LOC")]),
        (["I-PER", "O", "I-PER"], [(0, 1, "PER"), (2, 3, "PER")]),
        (["O", "O"], []),
        (["B-a-b"], [(0, 1, "a-b")]),
    ],
)
def test_spans_of_tags(tags, expected):
    assert list(spans(tags)) == expected


def test_span_f1_by_hand():
    truth = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    # One of two predicted spans is correct, of three: the other has the right words and the wrong type.
    assert span_f1([["B-PER", "I-PER", "O", "O"], ["B-PER", "O"]], truth) == pytest.approx(2 * 1 / (2 + 3))
    # A truncated span is wrong.
    assert span_f1([["B-PER", None, "O", "B-LOC"], ["B-LOC", "O"]], truth) == pytest.approx(2 * 2 / (3 + 3))
    assert span_f1(truth, truth) == 1


def test_spans_are_compared_within_sentences():
    assert span_f1([["B-A"], ["O"]], [["O"], ["B-A"]]) == 0


def test_no_spans_score_zero_with_a_warning(caplog):
    assert span_f1([["O"]], [["O"]]) == 0
    assert "neither predictions nor references have a span" in caplog.text


def test_tags_that_are_not_iob2_are_refused():
    with pytest.raises(HfTlmError, match="received 'NN'"):
        span_f1([["NN"]], [["O"]])
